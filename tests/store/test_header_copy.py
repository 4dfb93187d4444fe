"""The first line of a journal is written twice: no flipped bit in it loses a run."""

import shutil
from pathlib import Path

import pytest
from tests.cli.commands import ramify
from tests.store.growths import HEADER

from ramify.core.errors import StoreError
from ramify.runner.folder import resume
from ramify.runner.saved import Saved
from ramify.store.journal import COPY, Journal, Reader, is_begun, read, write_header_copy
from ramify.store.records import Updated
from ramify.store.repair import repair


def journal(folder: Path, number: int = 3) -> Path:
    """A journal of so many records; its first file."""
    write_header_copy(folder, HEADER)
    written = Journal.create(folder, HEADER)
    for version in range(number):
        written.append(Updated(version=version))
    written.close()
    return folder / "000000.jsonl"


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


@pytest.mark.slow
def test_no_flipped_bit_in_the_first_line_loses_a_journal(tmp_path: Path) -> None:
    file = journal(tmp_path / "journal")
    data, whole = file.read_bytes(), read(tmp_path / "journal")
    for bit in range(8 * (data.index(b"\n") + 1)):
        file.write_bytes(flipped(data, bit))
        found = read(tmp_path / "journal")
        assert (found.header, found.records, found.torn) == (whole.header, whole.records, None), bit
        assert found.is_header_damaged, bit


@pytest.mark.parametrize("number", [0, 3])
def test_a_flipped_bit_is_repaired(tmp_path: Path, number: int) -> None:
    file = journal(tmp_path / "journal", number)
    data = file.read_bytes()
    end = data.index(b"\n")
    for bit in (0, 70, 8 * end // 2, 8 * end + 1):
        file.write_bytes(flipped(data, bit))
        assert repair(tmp_path / "journal").backup is not None
        found = read(tmp_path / "journal")
        assert (found.header, len(found.records), found.is_header_damaged) == (HEADER, number, False)
        assert repair(tmp_path / "journal").backup is None


def test_a_damaged_copy_is_not_read(tmp_path: Path) -> None:
    file = journal(tmp_path / "journal")
    copy = tmp_path / COPY
    assert copy.read_bytes() == file.read_bytes().partition(b"\n")[0] + b"\n"
    copy.write_bytes(flipped(copy.read_bytes(), 99))
    assert not read(tmp_path / "journal").is_header_damaged
    file.write_bytes(flipped(file.read_bytes(), 99))
    with pytest.raises(StoreError, match="damaged at record 0"):
        Reader(tmp_path / "journal")


def test_a_crash_before_the_first_line_is_whole_is_no_run_whatever_the_copy_says(tmp_path: Path) -> None:
    file = journal(tmp_path / "journal")
    data = file.read_bytes()
    for length in (0, 20, data.index(b"\n")):
        file.write_bytes(data[:length])
        assert not is_begun(tmp_path / "journal")
    Journal.create(tmp_path / "journal", HEADER).close()


def test_a_journal_goes_on_behind_a_damaged_first_line(tmp_path: Path) -> None:
    file = journal(tmp_path / "journal")
    file.write_bytes(flipped(file.read_bytes(), 99))
    again, _ = Journal.resume(tmp_path / "journal")
    again.append(Updated(version=9))
    again.close()
    assert [record.version for record in read(tmp_path / "journal").records] == [0, 1, 2, 9]  # pyright: ignore


def test_a_run_with_a_damaged_first_line_is_read_resumed_and_repaired(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    ramify(capsys, "rollout", "--engine", "scripted", "--prompts", 2, "--out", run)
    expected = [row.ids.tolist() for row in Saved.open(run).rows()]
    file = run / "journal" / "000000.jsonl"
    file.write_bytes(flipped(file.read_bytes(), 300))
    shutil.copytree(run, tmp_path / "copy")
    assert [row.ids.tolist() for row in Saved.open(run).rows()] == expected
    said = ramify(capsys, "check", run)
    assert said.code == 5 and "first line is damaged" in said.out and f"ramify repair {run}" in said.out
    said = ramify(capsys, "resume", run)
    assert said.code == 0 and "first line is damaged" in said.err
    assert ramify(capsys, "repair", tmp_path / "copy").code == 0
    assert ramify(capsys, "check", tmp_path / "copy").code == 0
    resume(tmp_path / "copy")
    assert [row.ids.tolist() for row in Saved.open(tmp_path / "copy").rows()] == expected
