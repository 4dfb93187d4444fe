"""A service killed at any record, by a trainer that lives on or dies with it, goes on to the batches of the
uninterrupted one."""

import asyncio
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faults.dying import died
from tests.service.services import config, entries, train

from ramify.config.run_config import RunConfig
from ramify.service.manager import RolloutManager
from ramify.store.records import Dropped, GrownRecord, Handed, OpenedRecord, OutcomeRecord
from ramify.store.store import stream

BATCHES = 4
CONFIGS = {
    "in order": config(service__batch_size=2, strategy__options__n=3, growth__max_response_tokens=60),
    "ahead": config(
        service__batch_size=2, strategy__options__n=3, growth__max_response_tokens=60, service__max_staleness=2
    ),
    "tree": config("offline", service__batch_size=2, growth__max_response_tokens=60),
}


def trained(configured: RunConfig, path: Path, *, num_batches: int = BATCHES) -> None:
    """Train to the end, or as far as it goes; begins the service, or goes on with it."""

    async def main() -> None:
        manager = await RolloutManager(configured, path / "run").start()
        try:
            await train(manager, path / "diary", num_batches=num_batches)
        finally:
            await manager.close()

    asyncio.run(main())


def killed(configured: RunConfig, path: Path, *, after: int) -> bool:
    """Train in a child process that kills itself after so many records; whether it was killed."""
    path.mkdir(exist_ok=True)
    return died(lambda: trained(configured, path), after=after)


def diary(path: Path) -> list[str]:
    return entries(path / "diary")


def whole(configured: RunConfig, path: Path) -> list[str]:
    path.mkdir()
    trained(configured, path)
    return diary(path)


def handed(path: Path) -> Counter[int]:
    """How often each tree was handed over or dropped."""
    counts: Counter[int] = Counter()
    for record in stream(path / "run"):
        if isinstance(record, Handed):
            counts.update(record.trees)
        elif isinstance(record, Dropped):
            counts[record.tree] += 1
    return counts


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    shutil.rmtree(tmp_path, ignore_errors=True)


@pytest.mark.covers("S3.8")
@pytest.mark.parametrize("name", ["in order", "tree"])
@pytest.mark.parametrize("after", [1, 2, 9, 47, 85])
def test_a_killed_service_hands_the_same_batches_over(folder: Path, name: str, after: int) -> None:
    expected = whole(CONFIGS[name], folder / "whole")
    assert killed(CONFIGS[name], folder / "killed", after=after)
    trained(CONFIGS[name], folder / "killed")
    assert diary(folder / "killed") == expected
    assert handed(folder / "killed") == handed(folder / "whole")


@pytest.mark.covers("S3.8")
@pytest.mark.parametrize("after", [1, 9, 47, 85])
def test_ahead_of_the_trainer_too_no_tree_is_lost_or_handed_over_twice(folder: Path, after: int) -> None:
    assert killed(CONFIGS["ahead"], folder / "killed", after=after)
    trained(CONFIGS["ahead"], folder / "killed")
    assert [line.split()[0] for line in diary(folder / "killed")] == [str(number) for number in range(BATCHES)]
    counts = handed(folder / "killed")
    assert set(counts.values()) == {1} and sorted(counts) == list(range(2 * BATCHES))


@pytest.mark.slow
@pytest.mark.covers("S3.8")
def test_killed_again_and_again_it_gets_there(folder: Path) -> None:
    expected = whole(CONFIGS["in order"], folder / "whole")
    num_kills = 0
    while killed(CONFIGS["in order"], folder / "killed", after=12):
        num_kills += 1
    assert num_kills > 5
    assert diary(folder / "killed") == expected


@pytest.mark.covers("S3.8")
def test_acknowledged_steps_are_not_grown_again(folder: Path) -> None:
    assert killed(CONFIGS["tree"], folder / "killed", after=60)
    before = [r for r in stream(folder / "killed" / "run") if isinstance(r, GrownRecord)]
    trained(CONFIGS["tree"], folder / "killed")
    records = list(stream(folder / "killed" / "run"))
    steps = [(r.tree, r.command_id, r.number) for r in records if isinstance(r, GrownRecord)]
    assert len(steps) == len(set(steps)) > len(before) > 10
    opened = [r.tree for r in records if isinstance(r, OpenedRecord)]
    assert len(opened) == len(set(opened))
    ended = [(r.tree, r.command_id) for r in records if isinstance(r, OutcomeRecord)]
    assert len(ended) == len(set(ended))


@pytest.mark.parametrize(
    "stride", [pytest.param(3, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.endurance)]
)
@pytest.mark.parametrize("name", CONFIGS)
def test_every_record_is_a_safe_place_to_die(folder: Path, name: str, stride: int) -> None:
    expected = whole(CONFIGS[name], folder / "whole")
    number = 1
    while killed(CONFIGS[name], folder / "killed", after=number):
        trained(CONFIGS[name], folder / "killed")
        if name == "ahead":
            counts = handed(folder / "killed")
            assert set(counts.values()) == {1}, f"killed after {number} records"
            assert [line.split()[0] for line in diary(folder / "killed")] == [str(number) for number in range(BATCHES)]
        else:
            assert diary(folder / "killed") == expected, f"killed after {number} records"
        shutil.rmtree(folder / "killed")
        number += stride
    assert number > 80
