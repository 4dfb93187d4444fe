"""A tail gives every whole line once, whatever a writer, a crash or somebody's hands do to the journal meanwhile."""

import os
import shutil
import zlib
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path

import pytest
from tests.store.growths import HEADER
from tests.store.test_journal import some_records

from ramify.store.commit import Writing
from ramify.store.framing import decode, frame, kind_of
from ramify.store.journal import Journal, read
from ramify.store.records import Header, Sealed, TreeRecord
from ramify.store.tail import MAX_FAULTS, BegunAgain, JournalTail, TailedLine

QUICK = Writing(durability="os")
SMALL_FILES = Writing(durability="os", max_file_bytes=1500)
FIRST = "000000.jsonl"


def written(folder: Path, records: list[TreeRecord], *, writing: Writing = QUICK) -> list[Path]:
    """The files of a closed journal."""
    with closing(Journal.create(folder, HEADER, writing=writing)) as journal:
        for record in records:
            journal.append(record)
    return sorted(folder.glob("*.jsonl"))


def lines(tail: JournalTail) -> list[TailedLine]:
    """The new lines of a journal that was not begun again."""
    found = list(tail.look())
    assert not any(isinstance(line, BegunAgain) for line in found)
    return [line for line in found if isinstance(line, TailedLine)]


def records_of(found: list[TailedLine]) -> list[object]:
    records = [decode(line.body) for line in found]
    return [record for record in records if not isinstance(record, Header | Sealed)]


def test_each_look_gives_the_lines_that_are_new(tmp_path: Path):
    every = some_records(3)
    tail = JournalTail(tmp_path)
    with closing(Journal.create(tmp_path, HEADER, writing=QUICK)) as journal:
        assert [line.kind for line in lines(tail)] == ["header"]
        assert lines(tail) == []
        for record in every:
            journal.append(record)
            journal.sync()
            (line,) = lines(tail)
            assert (line.kind, line.tree) == (record.__struct_config__.tag, record.tree)
            assert decode(line.body) == record
        assert not tail.is_sealed
    assert [line.kind for line in lines(tail)] == ["sealed"]
    assert tail.is_sealed
    assert (tail.faults, tail.torn) == ([], "")


def test_a_line_is_where_it_says(tmp_path: Path):
    files = written(tmp_path, some_records(4), writing=SMALL_FILES)
    assert len(files) > 2
    found = lines(JournalTail(tmp_path))
    assert records_of(found) == read(tmp_path).records
    for line in found:
        raw = files[line.file].read_bytes()[line.offset : line.offset + line.length]
        assert raw.endswith(b"\n")
        assert raw[9:-1].endswith(line.body[1:])


def test_files_that_come_later_are_followed(tmp_path: Path):
    every = some_records(4)
    tail = JournalTail(tmp_path)
    found: list[TailedLine] = []
    with closing(Journal.create(tmp_path, HEADER, writing=SMALL_FILES)) as journal:
        for record in every:
            journal.append(record)
            journal.sync()
            found += lines(tail)
    assert records_of(found) == every
    assert max(line.file for line in found) > 1
    assert tail.faults == []


def test_an_incomplete_line_waits_for_the_next_look(tmp_path: Path):
    (file,) = written(tmp_path / "whole", some_records())
    data = file.read_bytes()
    expected = lines(JournalTail(tmp_path / "whole"))
    (tmp_path / "half").mkdir()
    for cut in range(0, len(data), 97):
        (tmp_path / "half" / FIRST).write_bytes(data[:cut])
        tail = JournalTail(tmp_path / "half")
        before = lines(tail)
        assert not tail.has_begun or not [fault for fault in tail.faults if "damaged" in fault]
        assert bool(tail.torn) == (tail.has_begun and not data[:cut].endswith(b"\n"))
        with (tmp_path / "half" / FIRST).open("ab") as rest:
            rest.write(data[cut:])
        assert [*before, *lines(tail)] == expected
        assert (tail.faults, tail.torn) == ([], "")


def test_a_look_that_is_broken_off_loses_no_line(tmp_path: Path):
    written(tmp_path, some_records(4), writing=SMALL_FILES)
    expected = lines(JournalTail(tmp_path))
    tail = JournalTail(tmp_path)
    found: list[TailedLine | BegunAgain] = []
    while len(found) < len(expected):
        found += islice(tail.look(), 2)
    assert found == expected


def test_a_torn_tail_is_told_and_goes_when_the_run_is_resumed(tmp_path: Path):
    every = some_records()
    (file,) = written(tmp_path, every)
    with file.open("r+b") as open_file:
        open_file.truncate(file.stat().st_size - 150)
    tail = JournalTail(tmp_path)
    before = records_of(lines(tail))
    assert before == every[: len(before)]
    assert f"torn at record {len(before) + 1}" in tail.torn
    assert tail.faults == []
    journal, _ = Journal.resume(tmp_path, writing=QUICK)
    with closing(journal):
        for record in every[len(before) :]:
            journal.append(record)
    assert records_of(lines(tail)) == every[len(before) :]
    assert (tail.faults, tail.torn) == ([], "")


def test_damage_in_the_middle_is_told_and_passed_over(tmp_path: Path):
    every = some_records()
    (file,) = written(tmp_path, every)
    raw = file.read_bytes().splitlines(keepends=True)
    raw[3] = raw[3][:40] + b"?" + raw[3][41:]
    file.write_bytes(b"".join(raw))
    tail = JournalTail(tmp_path)
    assert records_of(lines(tail)) == [*every[:2], *every[3:]]
    begins = sum(map(len, raw[:3]))
    assert tail.faults == [f"{file} is damaged: bytes {begins} to {begins + len(raw[3])} are no whole record"]


def test_a_lost_line_break_costs_one_line(tmp_path: Path):
    every = some_records()
    (file,) = written(tmp_path, every)
    raw = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([*raw[:3], raw[3][:-30], *raw[4:]]))
    tail = JournalTail(tmp_path)
    assert records_of(lines(tail)) == [*every[:2], *every[3:]]
    assert len(tail.faults) == 1


def test_an_end_without_a_whole_line_is_damage_where_another_file_follows(tmp_path: Path):
    first, *_ = written(tmp_path, some_records(4), writing=SMALL_FILES)
    whole = lines(JournalTail(tmp_path))
    first.write_bytes(first.read_bytes()[:-20])
    tail = JournalTail(tmp_path)
    assert len(lines(tail)) == len(whole) - 1
    assert "are no whole record, and another file follows" in tail.faults[0]
    assert lines(tail) == []


@pytest.mark.parametrize(
    ("order", "words"),
    [([0, 1, 1, 2], "record 1 is there again"), ([0, 2], "record 1 is missing, 2 follows"), ([0, 2, 1], "there again")],
)
def test_lines_that_are_doubled_missing_or_out_of_place_are_told(tmp_path: Path, order: list[int], words: str):
    (file,) = written(tmp_path, some_records())
    raw = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(raw[number] for number in order))
    tail = JournalTail(tmp_path)
    found = lines(tail)
    assert len({line.offset for line in found}) == len(found) < len(order) or "missing" in words
    assert any(words in fault for fault in tail.faults)


def test_many_damaged_places_are_counted(tmp_path: Path):
    tmp_path.joinpath(FIRST).write_bytes(
        b"".join(frame(2 * number, None, b'{"record":"updated","version":1}') for number in range(100))
    )
    tail = JournalTail(tmp_path)
    assert len(lines(tail)) == 100
    assert len(tail.faults) == MAX_FAULTS + 1
    assert tail.faults[-1].endswith(f"{99 - MAX_FAULTS} more places are damaged")


# -- journals that are exchanged --------------------------------------------------------------------------------------


def begun_again(tail: JournalTail) -> tuple[str, list[TailedLine]]:
    first, *rest = tail.look()
    assert isinstance(first, BegunAgain)
    return first.why, [line for line in rest if isinstance(line, TailedLine)]


def test_a_journal_in_the_place_of_another_is_read_from_its_beginning(tmp_path: Path):
    written(tmp_path / "journal", some_records(3))
    written(tmp_path / "cut", some_records(1))
    tail = JournalTail(tmp_path / "journal")
    assert lines(tail)
    (tmp_path / "journal").rename(tmp_path / "journal.before-1")
    (tmp_path / "cut").rename(tmp_path / "journal")
    why, found = begun_again(tail)
    assert why == f"{tmp_path / 'journal' / FIRST} was replaced"
    assert records_of(found) == some_records(1)
    assert (lines(tail), tail.faults) == ([], [])


def test_a_journal_that_is_gone_and_comes_back(tmp_path: Path):
    folder = tmp_path / "journal"
    written(folder, some_records())
    tail = JournalTail(folder)
    number = len(lines(tail))
    folder.rename(tmp_path / "away")
    why, found = begun_again(tail)
    assert (why, found) == (f"{folder / FIRST} is gone", [])
    assert not tail.has_begun
    assert "cannot read the journal" in tail.faults[0]
    (tmp_path / "away").rename(folder)
    assert len(lines(tail)) == number
    assert tail.faults == []


def test_a_file_that_was_cut_or_written_anew_is_read_from_its_beginning(tmp_path: Path):
    (file,) = written(tmp_path, some_records())
    data = file.read_bytes()
    tail = JournalTail(tmp_path)
    assert lines(tail)
    with file.open("r+b") as short:
        short.truncate(len(data) // 2)
    assert begun_again(tail)[0] == f"{file} was cut"
    other = frame(0, None, b'{"record":"updated","version":1}')
    with file.open("r+b") as anew:
        anew.write(other * (len(data) // len(other)))
    why, found = begun_again(tail)
    assert why == f"{file} was written anew"
    assert [line.kind for line in found] == ["updated"]


# -- folders of anybody -----------------------------------------------------------------------------------------------


def test_a_folder_without_a_journal_has_no_lines(tmp_path: Path):
    for folder in (tmp_path, tmp_path / "nowhere"):
        tail = JournalTail(folder)
        assert (lines(tail), tail.has_begun) == ([], False)
        assert len(tail.faults) == 1


@pytest.mark.parametrize("kind", ["FIFO", "link", "folder"])
def test_only_plain_files_are_opened(tmp_path: Path, kind: str):
    make = {
        "FIFO": os.mkfifo,
        "link": lambda path: path.symlink_to("/etc/passwd"),
        "folder": os.mkdir,
    }[kind]
    make(tmp_path / FIRST)
    tail = JournalTail(tmp_path)
    assert lines(tail) == []
    assert f"is a {kind}" in tail.faults[0]


def test_a_file_number_that_is_missing_is_told(tmp_path: Path):
    files = written(tmp_path, some_records(4), writing=SMALL_FILES)
    files[1].unlink()
    tail = JournalTail(tmp_path)
    assert {line.file for line in lines(tail)} == {0}
    assert tail.faults == [f"{tmp_path} has 000002.jsonl but not 000001.jsonl"]


@pytest.fixture
def half_read(tmp_path: Path) -> Iterator[Path]:
    """A journal that somebody is reading."""
    written(tmp_path, some_records())
    look = JournalTail(tmp_path).look()
    next(look)
    yield tmp_path
    shutil.rmtree(tmp_path)


def test_a_look_holds_no_lock(half_read: Path):
    journal, contents = Journal.resume(half_read, writing=QUICK)
    journal.close()
    assert contents.records == some_records()


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b'{"record":"grown","tree":17,"command_id":0}', ("grown", 17)),
        (b'{"record":"dropped","tree":3,"reason":""}', ("dropped", 3)),
        (b'{"record":"handed","rollout_id":1}', ("handed", None)),
        (b'{"record":"grown","tree":' + b"9" * 5000 + b"}", ("grown", None)),
        (b'{"tree":1,"record":"grown"}', ("", None)),
        (b'{"record":""}', ("", None)),
        (b"", ("", None)),
    ],
)
def test_the_kind_of_a_record_is_in_its_first_bytes(body: bytes, kind: tuple[str, int | None]):
    assert kind_of(body) == kind


def test_a_line_whose_number_no_run_reaches_is_no_line(tmp_path: Path):
    data = b'{"n":' + b"9" * 5000 + b',"record":"updated"}'
    (tmp_path / FIRST).write_bytes(b"%08x %s\n" % (zlib.crc32(data), data))
    tail = JournalTail(tmp_path)
    assert lines(tail) == []
    assert "torn at record 0" in tail.torn
