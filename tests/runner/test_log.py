"""The log says what happens in a run, a line a phase, round, fault and tree, with who is active and what was called."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.runner.parts import OneChain, Plan, Small, problems

from ramify.config.run_config import RunConfig, StrategyConfig
from ramify.core.errors import StoreError
from ramify.core.tree import Tree
from ramify.runner.events import Observer, PhaseBegan, TreeClosed
from ramify.runner.library import rollout
from ramify.runner.log import RunLog
from ramify.testing.clock import run_virtual
from ramify.testing.planned_faults import Fault
from ramify.testing.policies import chains
from ramify.testing.scripted import Scripted

OFFLINE = StrategyConfig(name="offline", options={"initial_rollouts": 3, "expansion_iterations": 2})
ONLINE = StrategyConfig(name="online", options={"n": 6, "initial_rollouts": 2})


def logged(
    path: Path, engine: Scripted | None = None, *, num_trees: int = 1, plan: type[Plan] | None = None, **fields: Any
) -> list[dict[str, Any]]:
    """The lines of a run's log."""
    with closing(RunLog(path / "log.jsonl")) as log:
        grow([log.observe], engine or Scripted(chains(1, 2)), num_trees=num_trees, plan=plan, **fields)
    return [msgspec.json.decode(line) for line in (path / "log.jsonl").read_bytes().splitlines()]


def grow(
    observers: list[Observer], engine: Scripted, *, num_trees: int = 1, plan: type[Plan] | None = None, **fields: Any
) -> None:
    run = rollout(
        problems(num_trees),
        config=RunConfig(**fields),
        engine=engine,
        task=Small(),
        strategy=plan,
        observers=observers,
    )
    run_virtual(run)


@pytest.mark.covers("S0.9")
def test_the_offline_plan_names_its_phases_and_rounds(tmp_path: Path) -> None:
    lines = logged(tmp_path, strategy=OFFLINE)
    phases = [(line["phase"], line["round"]) for line in lines if line["event"] == "phase"]
    assert phases == [("build", 0), ("initial chains", 0), ("expansion", 1), ("expansion", 2), ("collection", 2)]
    active = [line["active_branches"] for line in lines if line["event"] == "phase"]
    assert active == [0, 3, 1, 1, 0]


@pytest.mark.covers("S0.9")
def test_online_rounds_are_told_with_their_paths_and_calls(tmp_path: Path) -> None:
    lines = [line for line in logged(tmp_path, strategy=ONLINE) if line["event"] == "phase"]
    names = [line["phase"] for line in lines]
    assert names[:2] == ["build", "initial chains"]
    assert names[-1] == "collection"
    assert set(names[2:-1]) == {"expansion"}
    assert [line["round"] for line in lines[2:-1]] == list(range(1, len(lines) - 2))
    assert lines[1]["active_branches"] == 2
    calls = [line["tool_calls"] for line in lines]
    assert calls == sorted(calls)
    assert calls[-1] > 0


@pytest.mark.covers("S0.9")
def test_active_branches_and_calls_are_those_of_all_trees(tmp_path: Path) -> None:
    lines = logged(tmp_path, num_trees=4, strategy=StrategyConfig(name="chains", options={"n": 3}))
    begun = [line for line in lines if line.get("phase") == "initial chains"]
    assert [line["active_branches"] for line in begun] == [3, 6, 9, 12]
    assert lines[-1]["active_branches"] == 0
    assert all(line["max_rss_mb"] > 1 for line in lines)
    assert all(line["time"] > 1.7e9 for line in lines)


def test_a_closed_tree_says_how_it_ended(tmp_path: Path) -> None:
    class Moody(OneChain):
        def tell(self, tree: Tree, outcome: object) -> None:
            if tree.problem.uid == "p1":
                raise KeyError("no")
            super().tell(tree, outcome)  # type: ignore[arg-type]

    closed = {line["tree"]: line for line in logged(tmp_path, num_trees=2, plan=Moody) if line["event"] == "closed"}
    assert closed[0]["reason"] == "done"
    assert "raised KeyError: 'no'" in closed[1]["reason"]
    assert (closed[0]["leaves"], closed[1]["leaves"]) == (1, 1)


def test_a_failed_command_is_a_line(tmp_path: Path) -> None:
    engine = Scripted(chains(1), faults=[Fault("error", share=1.0, is_retryable=False)])
    (fault,) = [line for line in logged(tmp_path, engine, plan=OneChain) if line["event"] == "fault"]
    assert (fault["tree"], fault["command"], fault["reason"]) == (0, 0, "engine_500")


def test_a_log_goes_on_where_it_was(tmp_path: Path) -> None:
    first = logged(tmp_path, plan=OneChain)
    assert logged(tmp_path, plan=OneChain)[: len(first)] == first


def test_lines_can_be_read_while_the_run_goes_on(tmp_path: Path) -> None:
    seen: list[int] = []

    def count(event: object) -> None:
        if isinstance(event, TreeClosed | PhaseBegan):
            seen.append((tmp_path / "log.jsonl").read_bytes().count(b"\n"))

    with closing(RunLog(tmp_path / "log.jsonl")) as log:
        grow([log.observe, count], Scripted(chains(1)), num_trees=2)
    assert seen == list(range(1, len(seen) + 1))


@pytest.mark.parametrize("spoil", [Path.mkdir, lambda path: path.symlink_to("/dev/full")], ids=["open", "write"])
def test_a_log_that_cannot_be_written_stops_the_run(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    spoil(tmp_path / "log.jsonl")
    with pytest.raises(StoreError, match="cannot write the log"):
        logged(tmp_path, plan=OneChain)
