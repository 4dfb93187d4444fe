"""A repaired journal keeps every tree as far as it replays, and the report names what is lost."""

from pathlib import Path

import pytest
from tests.store.growths import CODEC, HEADER, RULES, Live, answer, state, turn

from ramify.core.command import Grow
from ramify.core.errors import StoreError
from ramify.core.tree import ROOT
from ramify.store.commit import Writing
from ramify.store.framing import frame
from ramify.store.journal import Journal, file_paths, read
from ramify.store.records import TreeRecord
from ramify.store.repair import BadLine, repair
from ramify.store.replay import replay

FIRST = "000000.jsonl"
BACKUP = "journal.damaged"


def some_records() -> list[TreeRecord]:
    """Three finished trees whose records alternate: opened 1 2 3, then each of the others three times."""
    records: list[TreeRecord] = []
    trees = [Live(index, records) for index in range(3)]
    for live in trees:
        live.ask(Grow(ROOT))
    for step in (turn(), answer()):
        for live in trees:
            live.grow(0, step)
    for live in trees:
        live.end(0)
    for live in trees:
        live.shut()
    return records


def write(folder: Path, *, max_file_bytes: int = 2**20) -> list[bytes]:
    """A closed journal of `some_records`; its lines."""
    journal = Journal.create(folder, HEADER, writing=Writing(durability="os", max_file_bytes=max_file_bytes))
    for record in some_records():
        journal.append(record)
    journal.close()
    return b"".join(path.read_bytes() for path in file_paths(folder)).splitlines(keepends=True)


def spoil(line: bytes) -> bytes:
    return line[:20] + bytes([line[20] ^ 1]) + line[21:]


def of_tree(records: list[TreeRecord], tree: int) -> list[TreeRecord]:
    return [record for record in records if record.tree == tree]


def test_a_whole_journal_is_left_alone(tmp_path: Path) -> None:
    lines = write(tmp_path / "journal")
    report = repair(tmp_path / "journal")
    assert report.backup is None
    assert str(report) == "the journal is whole; nothing was changed"
    assert (tmp_path / "journal" / FIRST).read_bytes() == b"".join(lines)
    assert [path.name for path in tmp_path.iterdir()] == ["journal"]


@pytest.mark.parametrize("line", range(1, 19))
def test_one_damaged_record_costs_its_tree_what_follows_and_no_other_tree_anything(tmp_path: Path, line: int) -> None:
    lines = write(tmp_path / "journal")
    damaged = b"".join([*lines[:line], spoil(lines[line]), *lines[line + 1 :]])
    (tmp_path / "journal" / FIRST).write_bytes(damaged)
    report = repair(tmp_path / "journal")
    records = some_records()
    hurt = records[line - 1].tree
    kept = read(tmp_path / "journal").records
    for tree in range(3):
        whole = of_tree(records, tree)
        num_kept = (line - 1) // 3 if tree == hurt else len(whole)
        assert of_tree(kept, tree) == whole[:num_kept]
    replayed, whole_trees = replay(kept, CODEC, RULES), replay(records, CODEC, RULES)
    for tree in {0, 1, 2} - {hurt}:
        assert state(replayed[tree].growth) == state(whole_trees[tree].growth)
    assert report.bad_lines == [BadLine(FIRST, sum(map(len, lines[:line])), len(lines[line]))]
    assert report.missing == [line]
    num_after = 5 - (line - 1) // 3
    assert report.dropped_trees == ({hurt: num_after} if line <= 3 else {})
    assert report.cut_trees == ({hurt: num_after} if line > 3 and num_after else {})
    assert report.num_kept == len(kept)
    assert report.backup == tmp_path / BACKUP
    assert (tmp_path / BACKUP / FIRST).read_bytes() == damaged


def test_lines_out_of_place_are_put_back_and_doubled_ones_left_out(tmp_path: Path) -> None:
    lines = write(tmp_path / "journal")
    shuffled = [lines[0], lines[2], lines[1], *lines[3:7], lines[5], *lines[7:]]
    (tmp_path / "journal" / FIRST).write_bytes(b"".join(shuffled))
    report = repair(tmp_path / "journal")
    assert read(tmp_path / "journal").records == some_records()
    assert (report.num_doubled, report.missing, report.bad_lines) == (1, [], [])


def test_a_lost_border_costs_one_record_and_not_two(tmp_path: Path) -> None:
    lines = write(tmp_path / "journal")
    (tmp_path / "journal" / FIRST).write_bytes(b"".join([*lines[:4], lines[4][:-1] + b"\x0b", *lines[5:]]))
    report = repair(tmp_path / "journal")
    assert report.missing == [4]
    assert report.cut_trees == {0: 4}
    assert report.bad_lines == [BadLine(FIRST, sum(map(len, lines[:4])), len(lines[4]))]


def test_the_report_names_what_was_lost(tmp_path: Path) -> None:
    lines = write(tmp_path / "journal")
    (tmp_path / "journal" / FIRST).write_bytes(b"".join([*lines[:1], *lines[2:8], spoil(lines[8]), *lines[9:]]))
    text = str(repair(tmp_path / "journal"))
    assert "11 records kept" not in text
    assert "8 records kept" in text
    assert "missing lines: 1, 8" in text
    assert "trees cut short: 1 (3 records lost)" in text
    assert "trees dropped, to be grown anew: 0 (5 records lost)" in text


@pytest.mark.parametrize("damage", ["header", "seal", "file", "second header"])
def test_a_damaged_frame_costs_no_record_it_does_not_hold(tmp_path: Path, damage: str) -> None:
    write(tmp_path / "journal", max_file_bytes=1500)
    files = file_paths(tmp_path / "journal")
    assert len(files) > 3
    first, second = (path.read_bytes().splitlines(keepends=True) for path in files[:2])
    match damage:
        case "header":
            files[0].write_bytes(b"".join([spoil(first[0]), *first[1:]]))
        case "seal":
            files[0].write_bytes(b"".join([*first[:-1], spoil(first[-1])]))
        case "second header":
            files[1].write_bytes(b"".join([spoil(second[0]), *second[1:]]))
        case _:
            files[1].unlink()
    with pytest.raises(StoreError, match="ramify repair"):
        read(tmp_path / "journal")
    report = repair(tmp_path / "journal")
    kept = read(tmp_path / "journal").records
    if damage == "file":
        assert report.missing
        assert 0 < len(kept) < len(some_records())
    else:
        assert kept == some_records()
    replay(kept, CODEC, RULES)


def test_a_torn_tail_is_cut_and_the_run_goes_on(tmp_path: Path) -> None:
    lines = write(tmp_path / "journal")
    (tmp_path / "journal" / FIRST).write_bytes(b"".join(lines[:-1])[:-9])
    report = repair(tmp_path / "journal")
    assert report.num_kept == len(some_records()) - 1
    journal, contents = Journal.resume(tmp_path / "journal")
    journal.append(some_records()[-1])
    journal.close()
    assert contents.torn is None
    assert read(tmp_path / "journal").records == some_records()


def test_every_repair_keeps_its_own_backup(tmp_path: Path) -> None:
    for name in (BACKUP, f"{BACKUP}-2"):
        lines = write(tmp_path / "other")
        (tmp_path / "journal").mkdir(exist_ok=True)
        (tmp_path / "journal" / FIRST).write_bytes(b"".join([*lines[:5], spoil(lines[5]), *lines[6:]]))
        assert repair(tmp_path / "journal").backup == tmp_path / name
        for path in (*(tmp_path / "other").iterdir(), *(tmp_path / "journal").iterdir()):
            path.unlink()


def test_a_repair_killed_between_its_renames_is_finished_by_the_next(tmp_path: Path) -> None:
    write(tmp_path / "journal.repaired")
    assert repair(tmp_path / "journal").backup is None
    assert read(tmp_path / "journal").records == some_records()


def test_a_journal_in_use_of_another_version_or_without_a_header_is_not_touched(tmp_path: Path) -> None:
    lines = write(tmp_path / "journal")
    file = tmp_path / "journal" / FIRST
    file.write_bytes(b"".join(lines[1:]))
    with pytest.raises(StoreError, match="no header is left in it"):
        repair(tmp_path / "journal")
    file.write_bytes(frame(0, None, b'{"record":"header","format":2,"library":"9.9"}'))
    with pytest.raises(StoreError, match=r"format 2 \(written by ramify 9\.9\)"):
        repair(tmp_path / "journal")
    file.write_bytes(b"".join(lines))
    journal, _ = Journal.resume(tmp_path / "journal")
    with pytest.raises(StoreError, match="is being written by another run"):
        repair(tmp_path / "journal")
    journal.close()
    assert file.read_bytes() == b"".join(lines)
