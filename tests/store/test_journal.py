"""A journal gives back what was appended, or says what it cannot give back; nothing is ever lost in silence."""

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.store.growths import HEADER, Live, answer, turn

from ramify.core.command import Grow
from ramify.core.errors import StoreError
from ramify.core.tree import ROOT
from ramify.store import journal as reading
from ramify.store.commit import Writing
from ramify.store.framing import frame
from ramify.store.journal import Journal, Reader, TornTail, file_paths, raw_lines, read
from ramify.store.recording import shut
from ramify.store.records import TreeRecord

QUICK = Writing(durability="os")
FIRST = "000000.jsonl"


def some_records(num_trees: int = 2) -> list[TreeRecord]:
    """Records of trees that grow side by side."""
    records: list[TreeRecord] = []
    for live in [Live(index, records) for index in range(num_trees)]:
        (command,) = live.ask(Grow(ROOT))
        live.grow(command, turn())
        live.grow(command, answer())
        live.end(command)
        live.shut()
    return records


def small_records() -> list[TreeRecord]:
    return [shut(tree, "done", 0) for tree in range(4)]


def write(folder: Path, records: list[TreeRecord], *, writing: Writing = QUICK) -> Path:
    """A journal that was closed; its first file."""
    journal = Journal.create(folder, HEADER, writing=writing)
    for record in records:
        journal.append(record)
    journal.close()
    return folder / FIRST


def write_unsealed(folder: Path, records: list[TreeRecord]) -> Path:
    """A journal as a killed run leaves it: without its footer."""
    file = write(folder, records)
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:-1]))
    return file


# -- what is written --------------------------------------------------------------------------------------------------


def test_what_was_appended_is_read_back_with_its_header(tmp_path: Path) -> None:
    records = some_records()
    write(tmp_path / "journal", records)
    contents = read(tmp_path / "journal")
    assert contents.header == HEADER
    assert contents.records == records
    assert contents.torn is None


def test_a_line_is_a_checksum_and_json_that_names_the_line_before_it_of_its_tree(tmp_path: Path) -> None:
    file = write(tmp_path / "journal", some_records(1))
    lines = file.read_bytes().splitlines()
    said = [json.loads(line[9:]) for line in lines]
    assert [line["n"] for line in said] == list(range(8))
    assert [line["record"] for line in said] == [
        "header", "opened", "asked", "grown", "grown", "outcome", "closed", "sealed",
    ]  # fmt: skip
    assert [line.get("after") for line in said] == [None, None, 1, 2, 3, 4, 5, None]
    assert said[-1]["num_records"] == 7


def test_files_rotate_and_each_begins_with_the_header_and_ends_with_a_seal(tmp_path: Path) -> None:
    records = some_records(6)
    write(tmp_path / "journal", records, writing=Writing(durability="os", max_file_bytes=2500))
    files = file_paths(tmp_path / "journal")
    assert len(files) > 3
    for file in files:
        lines = [json.loads(line[9:]) for line in file.read_bytes().splitlines()]
        assert (lines[0]["record"], lines[-1]["record"]) == ("header", "sealed")
        assert file.stat().st_size <= 2500 + 200
    assert read(tmp_path / "journal").records == records


def test_a_record_beyond_the_limit_is_refused_and_the_journal_goes_on(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path / "journal", HEADER, writing=Writing(durability="os", max_record_bytes=1000))
    with pytest.raises(StoreError, match="at most 1000 are written"):
        journal.append(shut(0, "x" * 1000, 0))
    journal.append(shut(0, "short", 0))
    journal.close()
    assert read(tmp_path / "journal").records == [shut(0, "short", 0)]


def test_nothing_is_appended_to_a_closed_journal(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path / "journal", HEADER, writing=QUICK)
    journal.close()
    journal.close()
    with pytest.raises(StoreError, match="is closed"):
        journal.append(shut(0, "done", 0))


# -- a crash ----------------------------------------------------------------------------------------------------------


def test_a_file_cut_at_any_byte_of_its_last_two_records_gives_the_longest_valid_prefix(tmp_path: Path) -> None:
    records = some_records()
    file = write_unsealed(tmp_path / "journal", records)
    data = file.read_bytes()
    borders = [0]
    for line in data.splitlines(keepends=True):
        borders.append(borders[-1] + len(line))
    for cut in range(borders[-3], borders[-1] + 1):
        file.write_bytes(data[:cut])
        whole = max(i for i, border in enumerate(borders) if border <= cut)
        contents = read(tmp_path / "journal")
        assert contents.records == records[: whole - 1]
        torn = TornTail(FIRST, whole, borders[whole], cut - borders[whole]) if cut > borders[whole] else None
        assert contents.torn == torn


@pytest.mark.slow
def test_a_journal_cut_in_its_last_two_records_goes_on_behind_its_longest_valid_prefix(tmp_path: Path) -> None:
    records = small_records()
    file = write_unsealed(tmp_path / "journal", records)
    data = file.read_bytes()
    start = sum(map(len, data.splitlines(keepends=True)[:-2]))
    for cut in range(start, len(data) + 1):
        file.write_bytes(data[:cut])
        journal, contents = Journal.resume(tmp_path / "journal", writing=QUICK)
        assert (contents.torn is None) == (data[:cut].endswith(b"\n"))
        for record in records[len(contents.records) :]:
            journal.append(record)
        journal.close()
        assert file.read_bytes().startswith(data)
        assert read(tmp_path / "journal").records == records


def test_a_journal_whose_new_file_was_torn_at_its_header_goes_on(tmp_path: Path) -> None:
    records = some_records(4)
    write(tmp_path / "journal", records, writing=Writing(durability="os", max_file_bytes=2500))
    files = file_paths(tmp_path / "journal")
    before = read(tmp_path / "journal").records
    last = files[-1].read_bytes()
    for cut in (0, 1, last.index(b"\n")):
        files[-1].write_bytes(last[:cut])
        kept = read(tmp_path / "journal").records
        journal, contents = Journal.resume(tmp_path / "journal", writing=QUICK)
        assert contents.records == kept == before[: len(kept)]
        assert (contents.torn is None) == (cut == 0)
        for record in before[len(kept) :]:
            journal.append(record)
        journal.close()
        assert read(tmp_path / "journal").records == before


def test_a_journal_that_was_closed_goes_on_in_a_new_file(tmp_path: Path) -> None:
    records = some_records()
    sealed = write(tmp_path / "journal", records[:5]).read_bytes()
    journal, contents = Journal.resume(tmp_path / "journal", writing=QUICK)
    assert contents.records == records[:5]
    for record in records[5:]:
        journal.append(record)
    journal.close()
    assert [path.name for path in file_paths(tmp_path / "journal")] == [FIRST, "000001.jsonl"]
    assert (tmp_path / "journal" / FIRST).read_bytes() == sealed
    assert read(tmp_path / "journal").records == records


def test_resuming_and_closing_with_nothing_to_add_changes_nothing(tmp_path: Path) -> None:
    file = write(tmp_path / "journal", some_records())
    before = file.read_bytes()
    Journal.resume(tmp_path / "journal", writing=QUICK)[0].close()
    assert [path.name for path in file_paths(tmp_path / "journal")] == [FIRST]
    assert file.read_bytes() == before


def test_a_crash_before_the_header_was_whole_leaves_a_folder_to_begin_in(tmp_path: Path) -> None:
    file = write(tmp_path / "journal", [])
    header = file.read_bytes().splitlines()[0]
    for cut in (0, 1, len(header)):
        file.write_bytes(header[:cut])
        with pytest.raises(StoreError, match="nothing was done in that run; start it anew"):
            read(tmp_path / "journal")
        Journal.create(tmp_path / "journal", HEADER, writing=QUICK).close()
        assert read(tmp_path / "journal").records == []


def test_a_journal_whose_bytes_are_all_gone_is_damaged_and_never_begun_over(tmp_path: Path) -> None:
    file = write(tmp_path / "journal", small_records())
    file.write_bytes(b"\0" * file.stat().st_size)
    with pytest.raises(StoreError, match="damaged at record 0, byte 0"):
        read(tmp_path / "journal")
    with pytest.raises(StoreError, match="holds a journal already"):
        Journal.create(tmp_path / "journal", HEADER)


# -- damage -----------------------------------------------------------------------------------------------------------


def outcome_of_reading(folder: Path, records: list[TreeRecord]) -> str:
    """`refused`, `torn` or `whole`; fails if anything that was not written is read."""
    try:
        contents = read(folder)
    except StoreError:
        return "refused"
    assert contents.records == records[: len(contents.records)]
    assert contents.header == HEADER
    return "torn" if contents.torn else "whole" if contents.records == records else "shorter"


@contextmanager
def flipped(file: Path, at: int, byte: int) -> Iterator[None]:
    """One byte of `file` changed in place, for a while."""
    descriptor = os.open(file, os.O_RDWR)
    before = os.pread(descriptor, 1, at)
    os.pwrite(descriptor, bytes([byte]), at)
    yield
    os.pwrite(descriptor, before, at)
    os.close(descriptor)


@pytest.mark.slow
@pytest.mark.parametrize("is_sealed", [True, False])
def test_every_flipped_bit_is_detected(tmp_path: Path, is_sealed: bool) -> None:
    records = small_records()[:2]
    file = (write if is_sealed else write_unsealed)(tmp_path / "journal", records)
    data = file.read_bytes()
    last = data.rindex(b"\n", 0, -1) + 1
    for bit in range(8 * len(data)):
        at = bit // 8
        with flipped(file, at, data[at] ^ 1 << bit % 8):
            assert outcome_of_reading(tmp_path / "journal", records) == ("torn" if at >= last else "refused"), bit


def test_damage_is_named_by_file_record_and_byte_with_the_way_out(tmp_path: Path) -> None:
    file = write(tmp_path / "run" / "journal", some_records())
    lines = file.read_bytes().splitlines(keepends=True)
    lines[4] = lines[4].replace(b"grown", b"grewn")
    file.write_bytes(b"".join(lines))
    offset = sum(map(len, lines[:4]))
    expected = rf"{FIRST} is damaged at record 4, byte {offset}: its checksum is wrong; `ramify repair .*/run`"
    with pytest.raises(StoreError, match=expected):
        read(tmp_path / "run" / "journal")


@pytest.mark.parametrize("is_sealed", [True, False])
def test_a_line_deleted_doubled_or_moved_is_refused(tmp_path: Path, is_sealed: bool) -> None:
    records = some_records()
    file = (write if is_sealed else write_unsealed)(tmp_path / "journal", records)
    lines = file.read_bytes().splitlines(keepends=True)
    for i in range(len(lines)):
        changes = {"doubled": [*lines[: i + 1], *lines[i:]]}
        if i + 1 < len(lines):
            changes["deleted"] = [*lines[:i], *lines[i + 1 :]]
            changes["swapped"] = [*lines[:i], lines[i + 1], lines[i], *lines[i + 2 :]]
        for change, changed in changes.items():
            file.write_bytes(b"".join(changed))
            assert outcome_of_reading(tmp_path / "journal", records) == "refused", (change, i)


def test_the_message_says_whether_a_record_is_missing_or_there_again(tmp_path: Path) -> None:
    file = write(tmp_path / "journal", some_records())
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([*lines[:4], *lines[5:]]))
    with pytest.raises(StoreError, match=r"at record 4, byte .*: record 4 is missing, 5 follows"):
        read(tmp_path / "journal")
    file.write_bytes(b"".join([*lines[:4], lines[2], *lines[4:]]))
    with pytest.raises(StoreError, match="record 2 is there again or out of place"):
        read(tmp_path / "journal")


@pytest.mark.parametrize("nuls", [b"\0", b"\0" * 512, b"\0\n"])
def test_nuls_in_the_middle_are_refused_and_at_the_end_cut_off(tmp_path: Path, nuls: bytes) -> None:
    records = small_records()
    file = write_unsealed(tmp_path / "journal", records)
    data = file.read_bytes()
    for at in range(0, len(data), 7):
        file.write_bytes(data[:at] + nuls + data[at:])
        is_in_last_line = at > data.rindex(b"\n", 0, -1) + 1
        assert outcome_of_reading(tmp_path / "journal", records) == ("torn" if is_in_last_line else "refused")
    file.write_bytes(data + nuls)
    contents = read(tmp_path / "journal")
    assert contents.records == records
    assert contents.torn == TornTail(FIRST, 5, len(data), len(nuls))


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_no_damage_makes_anything_up(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("journal")
    records = small_records()
    file = write_unsealed(folder, records)
    whole = file.read_bytes()
    start = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(start, min(len(whole), start + 300)))
    spoilt = whole[:start] + data.draw(st.binary(max_size=40)) + whole[end:]
    file.write_bytes(spoilt)
    if outcome_of_reading(folder, records) in ("whole", "shorter"):
        assert whole.startswith(spoilt)


def test_a_damaged_file_that_is_not_the_last_has_no_torn_tail(tmp_path: Path) -> None:
    records = some_records(4)
    write(tmp_path / "journal", records, writing=Writing(durability="os", max_file_bytes=2500))
    file = tmp_path / "journal" / FIRST
    data = file.read_bytes()
    for spoilt in (data[:-1], data[: data.rindex(b"\n", 0, -1) + 1], data[:-2] + b"x\n", data + b"\0"):
        file.write_bytes(spoilt)
        with pytest.raises(StoreError, match=FIRST):
            read(tmp_path / "journal")


def test_bytes_behind_the_last_seal_are_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "journal", some_records())
    file.write_bytes(file.read_bytes() + b"\0" * 10)
    with pytest.raises(StoreError, match="is damaged"):
        read(tmp_path / "journal")


def test_a_file_of_the_journal_that_is_missing_is_named(tmp_path: Path) -> None:
    write(tmp_path / "journal", some_records(6), writing=Writing(durability="os", max_file_bytes=2500))
    (tmp_path / "journal" / "000001.jsonl").unlink()
    with pytest.raises(StoreError, match=r"has 000002\.jsonl but not 000001\.jsonl"):
        read(tmp_path / "journal")


def test_a_sound_line_that_is_no_record_of_this_format_is_refused(tmp_path: Path) -> None:
    file = write_unsealed(tmp_path / "journal", small_records()[:1])
    file.write_bytes(file.read_bytes() + frame(2, None, b'{"record":"pruned","tree":0}'))
    with pytest.raises(StoreError, match=r"record 2, byte .*no record of format 1: Invalid value 'pruned'"):
        read(tmp_path / "journal")


def test_a_store_of_another_version_is_refused_with_both_versions(tmp_path: Path) -> None:
    file = write(tmp_path / "journal", small_records())
    lines = file.read_bytes().splitlines(keepends=True)
    body = b'{"record":"header","format":7,"library":"3.1.4","novelty":true}'
    file.write_bytes(frame(0, None, body) + b"".join(lines[1:]))
    with pytest.raises(StoreError, match=r"format 7 \(written by ramify 3\.1\.4\).*reads format 1 only"):
        read(tmp_path / "journal")


def test_a_folder_without_a_journal_is_refused(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(StoreError, match=r"holds no journal|cannot read the journal"):
            read(folder)


# -- two processes ----------------------------------------------------------------------------------------------------


def test_a_second_writer_is_refused_and_readers_are_not(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path / "journal", HEADER, writing=QUICK)
    journal.append(small_records()[0])
    journal.sync()
    for begin in (Journal.resume, lambda folder: Journal.create(folder, HEADER)):
        with pytest.raises(StoreError, match=rf"is being written by another run \(process {os.getpid()}\)"):
            begin(tmp_path / "journal")
    assert read(tmp_path / "journal").records == small_records()[:1]
    journal.close()
    Journal.resume(tmp_path / "journal", writing=QUICK)[0].close()


def test_a_reader_beside_a_writer_sees_a_prefix(tmp_path: Path) -> None:
    records = [shut(tree, "done" * 50, 0) for tree in range(3000)]
    journal = Journal.create(tmp_path / "journal", HEADER, writing=Writing(durability="os", max_file_bytes=100_000))
    seen = []
    for number, record in enumerate(records):
        journal.append(record)
        if number % 300 == 0:
            seen.append(read(tmp_path / "journal").records)
    journal.close()
    assert all(prefix == records[: len(prefix)] for prefix in seen)


WRITER = """
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from ramify.store.commit import Writing
from ramify.store.journal import Journal
from ramify.store.recording import shut
from tests.store.growths import HEADER
folder = Path(sys.argv[1])
writing = Writing(durability=sys.argv[2])
if folder.exists():
    journal, _ = Journal.resume(folder, writing=writing)
else:
    journal = Journal.create(folder, HEADER, writing=writing)
for tree in range(int(sys.argv[3])):
    number = journal.append(shut(tree, "done", 0))
    if len(sys.argv) > 4:
        journal.sync()
        print(number, flush=True)
journal.close()
"""


def start_writer(
    folder: Path, durability: str, *arguments: str, kill_after: int | None = None
) -> subprocess.Popen[str]:
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(root / "src"), str(root)])}
    if kill_after is not None:
        environment["RAMIFY_KILL_AFTER"] = str(kill_after)
    command = [sys.executable, "-c", WRITER, str(folder), durability, *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def assert_dies_with(folder: Path, durability: str, *, num: int, before: int = 0) -> None:
    """A process told to die after `num` records leaves just so many more than there were."""
    writer = start_writer(folder, durability, "200", kill_after=num)
    writer.communicate(timeout=60)
    assert writer.returncode == -signal.SIGKILL
    assert (folder / FIRST).read_bytes().count(b"\n") == before + num
    reader = Reader(folder)
    assert len(list(reader)) == before + num - 1
    assert reader.torn is None


@pytest.mark.parametrize(("durability", "num"), [("group", 1), ("os", 100), ("fsync", 7)])
def test_a_process_told_to_die_after_n_records_leaves_exactly_n(tmp_path: Path, durability: str, num: int) -> None:
    assert_dies_with(tmp_path / "journal", durability, num=num)


@pytest.mark.slow
def test_a_process_that_goes_on_counts_its_own_records(tmp_path: Path) -> None:
    assert_dies_with(tmp_path / "journal", "group", num=40)
    assert_dies_with(tmp_path / "journal", "group", num=3, before=40)


@pytest.mark.slow
def test_a_process_that_writes_fewer_records_lives(tmp_path: Path) -> None:
    writer = start_writer(tmp_path / "journal", "os", "5", kill_after=100)
    writer.communicate(timeout=60)
    assert writer.returncode == 0
    assert len(read(tmp_path / "journal").records) == 5


@pytest.mark.parametrize("durability", ["group", "os"])
def test_what_was_acknowledged_outlives_a_kill(tmp_path: Path, durability: str) -> None:
    writer = start_writer(tmp_path / "journal", durability, "100000", "acknowledge")
    assert writer.stdout is not None
    acknowledged = [int(writer.stdout.readline()) for _ in range(60)]
    writer.kill()
    acknowledged += [int(line) for line in writer.stdout.read().split("\n")[:-1]]
    writer.wait(timeout=60)
    writer.stdout.close()
    assert len(read(tmp_path / "journal").records) >= acknowledged[-1]


@pytest.mark.parametrize("size", [1, 3, 64])
@given(content=st.binary() | st.text("ab\r\n").map(str.encode))
def test_lines_end_where_they_end_whatever_is_read_at_once(
    tmp_path_factory: pytest.TempPathFactory, size: int, content: bytes
) -> None:
    file = tmp_path_factory.mktemp("lines") / "file"
    file.write_bytes(content)
    with pytest.MonkeyPatch.context() as patched, file.open("rb") as stream:
        patched.setattr(reading, "BLOCK_BYTES", size)
        lines = raw_lines(stream)
        found = [next(lines, b"")]
        with file.open("ab") as other:
            other.write(b"later\n")
        assert [*found, *lines] == ([*io.BytesIO(content)] or [b""])


def test_a_line_that_is_longer_than_any_record_comes_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"x" * 100 + b"\ny\n")
    monkeypatch.setattr(reading, "BLOCK_BYTES", 8)
    monkeypatch.setattr(reading, "MAX_LINE_BYTES", 40)
    with (tmp_path / "file").open("rb") as stream:
        assert [*raw_lines(stream)] == [b"x" * 48, b"x" * 48, b"x" * 4 + b"\n", b"y\n"]
