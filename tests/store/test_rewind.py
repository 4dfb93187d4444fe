"""Cutting a journal behind one of its records, also when that is interrupted."""

from pathlib import Path

import pytest

from ramify.core.errors import StoreError
from ramify.store.commit import Writing
from ramify.store.journal import Journal
from ramify.store.records import Header, Marked, RunRecord, Updated
from ramify.store.rewind import CUT, finish_rewind, rewind
from ramify.store.store import JOURNAL

HEADER = Header(library="0", config_hash="", weights=(), seed=0, delivery="ordered", isolation="none", created=0.0)
SMALL_FILES = Writing(max_file_bytes=600, min_free_bytes=0)


def records(num: int, start: int = 0) -> list[RunRecord]:
    """Updates, with a mark behind every third."""
    found: list[RunRecord] = []
    for version in range(start, start + num):
        found.append(Updated(version=version, source="x" * 50))
        if version % 3 == 2:
            found.append(Marked(rollout_id=version))
    return found


def written(path: Path, what: list[RunRecord], *, writing: Writing = SMALL_FILES) -> None:
    if (path / JOURNAL).is_dir():
        journal, _ = Journal.resume(path / JOURNAL, writing=writing)
    else:
        path.mkdir(exist_ok=True)
        journal = Journal.create(path / JOURNAL, HEADER, writing=writing)
    for record in what:
        journal.append(record)
    journal.close()


def read(path: Path) -> list[RunRecord]:
    journal, contents = Journal.resume(path / JOURNAL, writing=SMALL_FILES)
    journal.close()
    assert contents.torn is None
    return contents.records


def is_mark(rollout_id: int):
    return lambda record: isinstance(record, Marked) and record.rollout_id == rollout_id


@pytest.mark.covers("S3.8")
@pytest.mark.parametrize("rollout_id", [2, 5, 8, 11])
def test_the_journal_ends_with_the_wanted_record_and_goes_on_behind_it(tmp_path: Path, rollout_id: int) -> None:
    path, every = tmp_path / "run", records(13)
    written(path, every)
    kept = rewind(path, is_mark(rollout_id))
    assert kept == path / "journal.before-1"
    end = every.index(Marked(rollout_id=rollout_id)) + 1
    assert read(path) == every[:end]
    written(path, records(4, start=20))
    assert read(path) == every[:end] + records(4, start=20)
    kept.rename(path / "other"), (path / JOURNAL).rename(path / "new")
    (path / "other").rename(path / JOURNAL)
    assert read(path) == every, "what was cut off is still there, whole"


def test_nothing_behind_the_record_is_nothing_to_do(tmp_path: Path) -> None:
    path, every = tmp_path / "run", records(3)
    written(path, every)
    assert rewind(path, is_mark(2)) is None
    assert read(path) == every and not (path / "journal.before-1").exists()


def test_of_equal_marks_the_last_counts(tmp_path: Path) -> None:
    path, every = tmp_path / "run", [*records(3), *records(3), Updated(version=9)]
    written(path, every)
    rewind(path, is_mark(2))
    assert read(path) == every[:-1]


def test_a_record_that_is_not_there_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run"
    written(path, records(3))
    with pytest.raises(StoreError, match="no record to go back to"):
        rewind(path, is_mark(7))
    assert read(path) == records(3)


def test_a_journal_that_somebody_writes_is_not_cut(tmp_path: Path) -> None:
    path = tmp_path / "run"
    written(path, records(6))
    journal, _ = Journal.resume(path / JOURNAL, writing=SMALL_FILES)
    with pytest.raises(StoreError, match="written by another run"):
        rewind(path, is_mark(2))
    journal.close()
    assert read(path) == records(6)


def test_a_kill_before_the_exchange_leaves_the_old_journal(tmp_path: Path) -> None:
    path = tmp_path / "run"
    written(path, records(6))
    (path / CUT).mkdir()
    (path / CUT / "000000.jsonl").write_bytes(b"half")
    finish_rewind(path)
    assert read(path) == records(6) and not (path / CUT).exists()


def test_a_kill_between_the_two_renames_is_finished(tmp_path: Path) -> None:
    path, every = tmp_path / "run", records(6)
    written(path, every)
    rewind(path, is_mark(2))
    (path / JOURNAL).rename(path / CUT)
    finish_rewind(path)
    assert read(path) == every[:4]


def test_a_full_disk_leaves_the_old_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run"
    written(path, records(6))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copyfileobj", full)
    with pytest.raises(StoreError, match="No space left on device"):
        rewind(path, is_mark(2))
    monkeypatch.undo()
    finish_rewind(path)
    assert read(path) == records(6)
    assert rewind(path, is_mark(2)) is not None
