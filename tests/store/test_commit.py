"""Whatever the disk does, what was acknowledged is on it and what was not is still in memory."""

import asyncio
import errno
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.store.growths import HEADER

from ramify.core.errors import ConfigError, StoreError
from ramify.store.commit import MAX_REST_S, REST, AppendFile, GroupCommit, Writing, kill_after
from ramify.store.framing import FramedLine, decode, parse
from ramify.store.journal import Journal, check_space, read
from ramify.store.recording import shut
from ramify.store.records import ClosedRecord

NUM_RECORDS = 6


@dataclass
class Disk:
    """Counts what is done to files and makes the n-th thing fail."""

    fails_at: int
    error: int = errno.EIO
    writes_before: int = 0
    """Bytes the failing write takes before it fails."""
    num_calls: int = 0

    def open(self, path: Path) -> "DiskFile":
        self.touch()
        return DiskFile(self, AppendFile(path))

    def touch(self) -> None:
        self.num_calls += 1
        if self.num_calls == self.fails_at:
            raise OSError(self.error, os.strerror(self.error))


@dataclass
class DiskFile:
    disk: Disk
    file: AppendFile

    def write(self, data: memoryview) -> int:
        if self.disk.num_calls + 1 == self.disk.fails_at and self.disk.writes_before:
            self.file.write(data[: self.disk.writes_before])
        self.disk.touch()
        return self.file.write(data)

    def sync(self) -> None:
        self.disk.touch()
        self.file.sync()

    def close(self) -> None:
        self.file.close()
        self.disk.touch()


def run_on(disk: Disk, folder: Path, durability: str) -> tuple[int, list[int], list[StoreError]]:
    """Append records one by one over two files; (number acknowledged, trees unsaved, errors met)."""
    writing = Writing(durability=durability, open_file=disk.open, max_file_bytes=800)  # pyright: ignore
    errors: list[StoreError] = []
    try:
        journal = Journal.create(folder, HEADER, writing=writing)
    except StoreError as error:
        return 0, [], [error]
    acknowledged = 0
    for tree in range(NUM_RECORDS):
        try:
            journal.append(shut(tree, "done", 0))
            journal.sync()
            acknowledged += 1
        except StoreError as error:
            errors.append(error)
    lines = [parse(raw) for raw in journal.unsaved]
    unsaved = [record.tree for line in lines if line and isinstance(record := decode(line.body), ClosedRecord)]
    try:
        journal.close()
    except StoreError as error:
        errors.append(error)
    return acknowledged, unsaved, errors


def every_failure(durability: str, **how: int) -> Iterator[Disk]:
    """A disk for every call that can fail."""
    healthy = Disk(fails_at=-1)
    yield healthy
    for n in range(1, healthy.num_calls + 1):
        yield Disk(fails_at=n, **how)


@pytest.mark.parametrize("durability", ["group", "os", "fsync"])
@pytest.mark.parametrize("how", [{}, {"error": errno.ENOSPC, "writes_before": 10}, {"writes_before": 10**6}])
def test_a_disk_that_fails_at_any_call_loses_nothing_acknowledged(
    tmp_path: Path, durability: str, how: dict[str, int]
) -> None:
    disks = every_failure(durability, **how)
    for number, disk in enumerate(disks):
        folder = tmp_path / str(number)
        acknowledged, unsaved, errors = run_on(disk, folder, durability)
        if number == 0:
            assert (acknowledged, unsaved, errors) == (NUM_RECORDS, [], [])
            continue
        assert errors, f"failure {number} was not told"
        assert unsaved in ([], [acknowledged])
        if acknowledged:
            assert_goes_on(folder, acknowledged)


def assert_goes_on(folder: Path, acknowledged: int) -> None:
    """What was acknowledged is there, nothing else was made up, and a healthy disk takes the rest."""
    records = [shut(tree, "done", 0) for tree in range(NUM_RECORDS)]
    journal, contents = Journal.resume(folder, writing=Writing(durability="os"))
    assert len(contents.records) >= acknowledged
    assert contents.records == records[: len(contents.records)]
    for record in records[len(contents.records) :]:
        journal.append(record)
    journal.close()
    assert read(folder).records == records


def test_a_write_that_takes_only_part_is_continued(tmp_path: Path) -> None:
    class Slow(AppendFile):
        def write(self, data: memoryview) -> int:
            return super().write(data[:7])

    journal = Journal.create(tmp_path / "journal", HEADER, writing=Writing(open_file=Slow))
    records = [shut(tree, "done", 0) for tree in range(20)]
    for record in records:
        journal.append(record)
    journal.close()
    assert read(tmp_path / "journal").records == records


def test_a_disk_that_takes_nothing_without_a_reason_stops_the_journal(tmp_path: Path) -> None:
    class Stuck(AppendFile):
        def write(self, data: memoryview) -> int:
            return 0

    with pytest.raises(StoreError, match="took no more bytes"):
        Journal.create(tmp_path / "journal", HEADER, writing=Writing(open_file=Stuck))


def test_a_stopped_journal_says_how_many_records_are_not_saved_and_keeps_them(tmp_path: Path) -> None:
    disk = Disk(fails_at=4, error=errno.ENOSPC)
    journal = Journal.create(tmp_path / "journal", HEADER, writing=Writing(open_file=disk.open))
    journal.append(shut(0, "done", 0))
    with pytest.raises(StoreError, match="No space left on device; 1 records were not saved and are kept in memory"):
        journal.sync()
    with pytest.raises(StoreError, match="stopped"):
        journal.append(shut(1, "done", 0))
    assert [b'"tree":0' in raw for raw in journal.unsaved] == [True]
    with pytest.raises(StoreError, match="1 records were not saved"):
        journal.close()
    Journal.resume(tmp_path / "journal")[0].close()


async def test_whoever_waits_is_told_that_the_journal_stopped(tmp_path: Path) -> None:
    disk = Disk(fails_at=4)
    journal = Journal.create(tmp_path / "journal", HEADER, writing=Writing(open_file=disk.open))
    numbers = [journal.append(shut(tree, "done", 0)) for tree in range(5)]
    told = await asyncio.gather(*map(journal.synced, numbers), return_exceptions=True)
    assert [type(error) for error in told] == [StoreError] * 5
    with pytest.raises(StoreError):
        await journal.synced(numbers[0])
    with pytest.raises(StoreError):
        journal.close()


async def test_many_wait_for_one_batch_and_a_cancelled_one_harms_nobody(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path / "journal", HEADER, writing=Writing(max_delay_s=0.05))
    numbers = [journal.append(shut(tree, "done", 0)) for tree in range(200)]
    tasks = [asyncio.create_task(journal.synced(number)) for number in numbers]
    await asyncio.sleep(0)
    tasks[3].cancel()
    told = await asyncio.gather(*tasks, return_exceptions=True)
    assert [i for i, result in enumerate(told) if result is not None] in ([3], [])
    await journal.synced(numbers[-1])
    assert len(read(tmp_path / "journal").records) == 200
    journal.close()


async def test_room_waits_until_the_disk_keeps_up(tmp_path: Path) -> None:
    writing = Writing(max_pending_bytes=2000, max_delay_s=60.0)
    journal = Journal.create(tmp_path / "journal", HEADER, writing=writing)
    for tree in range(5):
        journal.append(shut(tree, "done", 0))
        await journal.room()
    assert len(journal.unsaved) == 5
    for tree in range(60):
        journal.append(shut(tree, "done", 0))
    await journal.room()
    assert journal.unsaved == []
    journal.close()


def test_all_that_came_during_a_slow_sync_shares_the_next_one(tmp_path: Path) -> None:
    began, goes_on = threading.Event(), threading.Event()
    num_syncs = 0

    class Slow(AppendFile):
        def sync(self) -> None:
            nonlocal num_syncs
            num_syncs += 1
            began.set()
            assert goes_on.wait(10)
            super().sync()

    commit = GroupCommit(tmp_path, 0, Writing(open_file=Slow))
    commit.put([FramedLine(0, 0, b"0\n")])
    assert began.wait(10)
    for number in range(1, 1000):
        commit.put([FramedLine(number, 0, b"%d\n" % number)])
    goes_on.set()
    commit.sync(999)
    commit.close([])
    assert num_syncs == 2
    assert (tmp_path / "000000.jsonl").read_bytes().split() == [b"%d" % number for number in range(1000)]


def put_after_each_other(commit: GroupCommit, ends: list[float]) -> None:
    """Two lines, the second when the first is synced. `ends` are the times at which syncs end."""
    for number in range(2):
        commit.put([FramedLine(number, 0, b"line\n")])
        while len(ends) <= number:
            time.sleep(0.001)


def test_the_thread_rests_after_a_slow_batch_unless_someone_waits(tmp_path: Path) -> None:
    ends: list[float] = []

    class Slow(AppendFile):
        def sync(self) -> None:
            time.sleep(0.1)
            ends.append(time.monotonic())

    commit = GroupCommit(tmp_path, 0, Writing(open_file=Slow))
    put_after_each_other(commit, ends)
    assert ends[1] - ends[0] >= (REST + 1) * 0.1
    commit.put([FramedLine(2, 0, b"line\n")])
    began = time.monotonic()
    commit.sync(2)
    assert ends[2] - began < REST * 0.1
    commit.close([])


def test_the_thread_rests_for_a_second_at_most(tmp_path: Path) -> None:
    ends: list[float] = []

    class SlowOnce(AppendFile):
        def sync(self) -> None:
            time.sleep(0 if ends else 1)
            ends.append(time.monotonic())

    commit = GroupCommit(tmp_path, 0, Writing(open_file=SlowOnce))
    put_after_each_other(commit, ends)
    assert MAX_REST_S <= ends[1] - ends[0] < REST
    commit.close([])


def test_records_nobody_waits_for_are_written_within_the_delay(tmp_path: Path) -> None:
    commit = GroupCommit(tmp_path, 0, Writing())
    commit.put([FramedLine(0, 0, b"line\n")])
    while commit.unsaved:
        pass
    assert (tmp_path / "000000.jsonl").read_bytes() == b"line\n"
    commit.close([])


def test_a_disk_without_room_is_refused_before_anything_begins(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="bytes free; at least"):
        Journal.create(tmp_path / "journal", HEADER, writing=Writing(min_free_bytes=2**62))
    Journal.create(tmp_path / "journal", HEADER).close()
    with pytest.raises(StoreError, match="bytes free; at least"):
        Journal.resume(tmp_path / "journal", writing=Writing(min_free_bytes=2**62))
    check_space(tmp_path, 1)


FILLER = """
import sys
from pathlib import Path
from ramify.core.errors import StoreError
from ramify.store.commit import Writing
from ramify.store.journal import Journal
from ramify.store.recording import shut
from ramify.store.records import ClosedRecord
from tests.store.growths import HEADER
journal = Journal.create(Path(sys.argv[1]), HEADER, writing=Writing(min_free_bytes=0))
acknowledged = 0
try:
    for tree in range(100):
        journal.append(shut(tree, "x" * 20000, 0))
        journal.sync()
        acknowledged += 1
except StoreError as error:
    print(acknowledged, len(journal.unsaved), error)
"""


def fill(folder: Path, *, max_file_bytes: int | None = None) -> str:
    """Write 2 MB of records in another process; what it printed."""
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(root / "src"), str(root)])}

    def limit() -> None:
        if max_file_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (max_file_bytes, max_file_bytes))

    command = [sys.executable, "-c", FILLER, str(folder)]
    done = subprocess.run(command, env=environment, preexec_fn=limit, stdout=subprocess.PIPE, timeout=60, check=True)
    return done.stdout.decode()


def assert_all_is_accounted_for(folder: Path, said: str) -> None:
    acknowledged, num_unsaved = map(int, said.split()[:2])
    assert 10 < acknowledged < 100
    assert num_unsaved == 1
    contents = read(folder)
    assert len(contents.records) == acknowledged
    assert contents.torn is not None


@pytest.mark.slow
def test_a_file_that_may_not_grow_stops_the_journal_and_loses_nothing(tmp_path: Path) -> None:
    said = fill(tmp_path / "journal", max_file_bytes=500_000)
    assert "File too large; 1 records were not saved" in said
    assert_all_is_accounted_for(tmp_path / "journal", said)


def test_a_full_disk_stops_the_journal_and_loses_nothing(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if subprocess.run(mount, stderr=subprocess.DEVNULL, check=False).returncode:
        pytest.skip("this process may not mount a small disk")
    try:
        said = fill(disk / "journal")
        assert "No space left on device; 1 records were not saved" in said
        assert_all_is_accounted_for(disk / "journal", said)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_the_number_to_die_after_is_checked() -> None:
    assert kill_after({}) is None
    assert kill_after({"RAMIFY_KILL_AFTER": "3"}) == 3
    for text in ("0", "-1", "soon", "1.5"):
        with pytest.raises(ConfigError, match="RAMIFY_KILL_AFTER"):
            kill_after({"RAMIFY_KILL_AFTER": text})
