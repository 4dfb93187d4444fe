"""A service whose engines are killed at any record of its journal hands the batches of the undisturbed one over.

The engines are processes that ramify starts, and starts again: servers of `faults/replica_server.py`.
"""

import asyncio
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from tests.faults.dying import died
from tests.faults.replica_server import Wire
from tests.servers.programs import QUICK, kill
from tests.service.services import config, entries, train

from ramify.config.run_config import RunConfig
from ramify.core.errors import EngineError
from ramify.engines.fleet import replicas
from ramify.servers.home import Here, Home
from ramify.servers.ports import Address
from ramify.servers.probe import Probe
from ramify.servers.process import Command
from ramify.servers.self_served import SelfServed
from ramify.servers.server_pool import Event, ServerPool
from ramify.service.manager import RolloutManager
from ramify.store.records import GrownRecord, Handed, RunRecord
from ramify.store.store import FolderStore, stream

BATCHES = 3
SMALL = {
    "service__batch_size": 2,
    "growth__max_response_tokens": 60,
    "engine__retry__base_s": 0.1,
    "engine__retry__cap_s": 0.1,
}
IN_ORDER = config("offline", **SMALL)
AHEAD = config("offline", **SMALL, service__max_staleness=2)
STRIDE = 7
"""Every so many records an engine dies; every one takes a quarter of an hour, and passes."""
CARE = replace(QUICK, max_restarts=1000)


class Servers:
    """Servers of the scripted agent as one engine, which can be killed."""

    def __init__(self, logs: Path, *, count: int = 1) -> None:
        self.engine = SelfServed(Wire, self._made, placement="round_robin")
        self.killed: list[int] = []
        """Processes."""
        self._logs = logs
        self._count = count
        self._pool: ServerPool | None = None

    def kill(self, index: int = 0) -> None:
        """SIGKILL to one of them, unless it is down."""
        pid = None if self._pool is None else self._pool.pids[index]
        if pid is not None and pid not in self.killed:
            self.killed.append(pid)
            kill(pid)

    async def _made(self, observe: Callable[[Event], None]) -> ServerPool:
        self._pool = ServerPool(
            Here(command, home=Home(logs=self._logs)), count=self._count, probe=Probe(), care=CARE, observe=observe
        )
        return self._pool


def command(address: Address) -> Command:
    argv = (sys.executable, "-m", "tests.faults.replica_server", str(address.port))
    return Command(argv, {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})


@contextmanager
def each_record(see: Callable[[int], None]) -> Iterator[None]:
    """Have `see` called with the number of every record as soon as a journal has taken it."""
    append = FolderStore.append

    def seen(store: FolderStore, record: RunRecord) -> int:
        number = append(store, record)
        see(number)
        return number

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FolderStore, "append", seen)
        yield


@dataclass(frozen=True)
class Trained:
    """What a service came to, which no killed engine may change."""

    diary: list[str]
    """Of the trainer: number and digest of each batch."""
    counts: Mapping[str, int]
    """Trees by their state at the end."""
    records: Counter[str]
    """Kind -> how many."""
    steps: Counter[tuple[int, int, int]]
    """(tree, command, number) -> how often it was grown."""
    versions: dict[int, set[int | None]]
    """Number of a batch -> weights that sampled its trees."""
    handed: Counter[int]
    """Tree -> batches that it is in."""


def read(path: Path, counts: Mapping[str, int]) -> Trained:
    records = list(stream(path / "run"))
    grown = [record for record in records if isinstance(record, GrownRecord)]
    batches = [record for record in records if isinstance(record, Handed)]
    sampled_by: dict[int, set[int | None]] = defaultdict(set)
    for record in grown:
        sampled_by[record.tree] |= {part.version for part in record.step.segments if part.origin == "sampled"}
    return Trained(
        entries(path / "diary"),
        counts,
        Counter(type(record).__name__ for record in records),
        Counter((record.tree, record.command_id, record.number) for record in grown),
        {batch.rollout_id: set().union(*(sampled_by[tree] for tree in batch.trees)) for batch in batches},
        Counter(tree for batch in batches for tree in batch.trees),
    )


def trained(
    path: Path,
    servers: Servers,
    *,
    configured: RunConfig = IN_ORDER,
    source: str = "weights",
    see: Callable[[int], None] = lambda number: None,
) -> Trained:
    """What comes of a service that is begun, or gone on with. Its trainer loads weights from `source`, and asks again
    where no engine could take them; `see` is called with the number of every record."""
    path.mkdir(parents=True, exist_ok=True)

    async def update(manager: RolloutManager, version: int) -> None:
        while True:
            try:
                return await manager.update_weights(version, source)
            except EngineError as error:
                if not error.is_retryable:
                    raise
            await asyncio.sleep(0.05)

    async def main() -> Trained:
        manager = RolloutManager(configured, path / "run", engine=servers.engine)
        try:
            with each_record(see):
                async with asyncio.timeout(60):
                    await manager.start()
                    await train(manager, path / "diary", num_batches=BATCHES, update=update)
            assert manager.run.prepared.engine.num_retries == 0, "a server that is lost costs no try"
            return read(path, manager.counts)
        finally:
            await manager.close()
            await servers.engine.close()

    return asyncio.run(main())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """What comes of a service that nothing disturbs."""
    folder = tmp_path_factory.mktemp("whole")
    return trained(folder / "service", Servers(folder / "logs"))


def killed(folder: Path, *, after: int, count: int = 1, configured: RunConfig = IN_ORDER) -> Trained:
    """What comes of a service whose first engine is killed when the journal has taken so many records."""
    servers = Servers(folder / "logs", count=count)

    def see(number: int) -> None:
        if number == after:
            servers.kill()

    found = trained(folder / "service", servers, configured=configured, see=see)
    assert len(servers.killed) == 1
    return found


def check_ahead(found: Trained) -> None:
    """Each of the first trees is in one batch, grown once, by weights that are not too far behind."""
    assert AHEAD.service is not None
    max_staleness = AHEAD.service.max_staleness
    assert [line.split()[0] for line in found.diary] == [str(number) for number in range(BATCHES)]
    assert found.handed == dict.fromkeys(range(2 * BATCHES), 1)
    assert {*found.steps.values()} == {1}
    assert all(found.versions[number] <= {*range(number - max_staleness, number + 1)} for number in range(BATCHES))


@pytest.mark.slow
@pytest.mark.covers("S3.8")
def test_undisturbed_every_batch_is_of_the_weights_of_its_time(whole: Trained) -> None:
    assert whole.versions == {number: {number} for number in range(BATCHES)}
    assert whole.counts == {"growing": 0, "checking": 0, "ready": 0, "handed": 2 * BATCHES}
    assert {*whole.steps.values()} == {*whole.handed.values()} == {1}


@pytest.mark.slow
@pytest.mark.covers("S3.2", "S3.8")
@pytest.mark.parametrize("after", [37, 38, 90])  # A batch was handed over; weights were loaded; trees grow.
def test_a_killed_engine_changes_no_batch(tmp_path: Path, whole: Trained, after: int) -> None:
    assert killed(tmp_path, after=after) == whole


@pytest.mark.slow
@pytest.mark.covers("S3.2", "S3.8")
def test_of_two_engines_the_one_that_is_left_goes_on_to_the_same_batches(tmp_path: Path, whole: Trained) -> None:
    assert killed(tmp_path, after=50, count=2) == whole


@pytest.mark.slow
@pytest.mark.covers("S3.2", "S3.8")
def test_ahead_of_the_trainer_too_no_tree_is_lost_or_of_other_weights_than_it_says(tmp_path: Path) -> None:
    check_ahead(killed(tmp_path, after=60, configured=AHEAD))


@pytest.mark.slow
@pytest.mark.covers("S3.2", "S3.7", "S3.8")
@pytest.mark.parametrize("count", [1, 2])
def test_an_engine_that_dies_of_weights_it_loads_has_them_before_it_is_asked(
    tmp_path: Path, whole: Trained, count: int
) -> None:
    deadly = tmp_path / "weights.deadly"
    deadly.touch()
    found = trained(tmp_path / "service", Servers(tmp_path / "logs", count=count), source=str(deadly))
    assert not deadly.exists()
    assert found == whole


@pytest.mark.slow
@pytest.mark.covers("S3.8")
def test_a_service_killed_with_its_engine_goes_on_with_another_that_has_the_weights(
    tmp_path: Path, whole: Trained
) -> None:
    assert died(lambda: trained(tmp_path / "service", Servers(tmp_path / "logs")), after=60)
    assert trained(tmp_path / "service", Servers(tmp_path / "logs")) == whole


@pytest.mark.slow
@pytest.mark.parametrize("every", [7, 10, 25])
def test_an_engine_killed_again_and_again_changes_no_batch(
    tmp_path: Path, whole: Trained, every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a slow machine one request may be in flight at any number of deaths, which here are not of its making."""
    monkeypatch.setattr(replicas, "MAX_LOSSES", 1000)
    servers = Servers(tmp_path / "logs")

    def see(number: int) -> None:
        if number % every == 0:
            servers.kill()

    assert trained(tmp_path / "service", servers, see=see) == whole
    assert len(servers.killed) > 3


@pytest.mark.parametrize(
    "count", [pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.endurance)]
)
def test_any_record_is_a_safe_place_for_an_engine_to_die(tmp_path: Path, whole: Trained, count: int) -> None:
    num_records = whole.records.total()
    assert num_records > 100
    for number in range(count, num_records + 1, STRIDE):
        assert killed(tmp_path / str(number), after=number, count=count) == whole, f"killed after {number} records"


@pytest.mark.slow
def test_ahead_of_the_trainer_any_record_is_a_safe_place_for_an_engine_to_die(tmp_path: Path) -> None:
    for number in range(1, 100, STRIDE):
        check_ahead(killed(tmp_path / str(number), after=number, configured=AHEAD))
