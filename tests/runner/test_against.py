"""A run held against its engine's log: equal to the id, and every kind of difference is found."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.runner.parts import Plan, Small, grown

from ramify.cli.main import main
from ramify.config.run_config import StrategyConfig
from ramify.core.command import Command, Grow, Tokens
from ramify.core.errors import StoreError
from ramify.core.tree import ROOT, Tree
from ramify.engines.logged import Entry, Logged, read_log
from ramify.engines.policies import chains
from ramify.engines.scripted import Scripted
from ramify.runner.against import Compared, Log
from ramify.runner.clock import run_virtual

ONLINE = StrategyConfig(name="online", options={"n": 6, "initial_rollouts": 3})


class ForksInside(Plan):
    """A chain, then forks inside its runs: nodes are split, so generations are divided."""

    def wanted(self, tree: Tree) -> list[Command] | None:
        if not self.told:
            return [Grow(ROOT)]
        if len(self.told) > 4:
            return None
        leaf = tree.leaves()[0]
        start, end = tree.num_prompt(leaf), tree.length(leaf)
        return [Grow(leaf, at=start + (len(self.told) * 7) % (end - start), until=Tokens(30))]


def logged(path: Path, plan: type[Plan] | None = None, **fields: Any) -> tuple[list[Tree], Path]:
    log = path / "engine.jsonl"
    engine = Logged(Scripted(chains(3)), log)
    result = grown(plan, engine, task=Small(), **fields)
    run_virtual(engine.close())
    return list(result.trees), log


def compared(trees: list[Tree], log: Path) -> Compared:
    found = Compared()
    against = Log(read_log(log))
    for index, tree in enumerate(trees):
        against.compare(tree, index, found)
    return against.finish(found)


@pytest.mark.parametrize(("plan", "fields"), [(None, {"strategy": ONLINE}), (ForksInside, {})])
def test_every_id_of_a_run_is_in_its_engines_log(
    plan: type[Plan] | None, fields: dict[str, Any], tmp_path: Path
) -> None:
    trees, log = logged(tmp_path, plan, **fields)
    found = compared(trees, log)
    assert found.differences == []
    assert found.turns == len(list(read_log(log)))
    assert found.ids_sampled == sum(len(entry.sampled) for entry in read_log(log))
    assert found.only_in_log == 0


def changed(log: Path, change: Callable[[list[dict[str, Any]]], None]) -> None:
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    change(entries)
    log.write_text("".join(json.dumps(entry) + "\n" for entry in entries))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda entries: entries[1]["sampled"].__setitem__(0, 1), "sampled id 0: the log has 1"),
        (lambda entries: entries[1]["fed"].__setitem__(5, 1), "fed id 5: the log has 1"),
        (lambda entries: entries[1]["sampled"].append(7), "of which the run holds"),
        (lambda entries: entries[1]["sampled"].pop(), "the end"),
        (lambda entries: entries.pop(1), "the log has no request"),
    ],
)
def test_a_difference_of_one_id_is_found(
    change: Callable[[list[dict[str, Any]]], None], said: str, tmp_path: Path
) -> None:
    trees, log = logged(tmp_path, strategy=ONLINE)
    changed(log, change)
    found = compared(trees, log)
    assert found.differences and any(said in difference for difference in found.differences)


def test_turns_that_only_the_log_holds_are_counted_and_are_no_difference(tmp_path: Path) -> None:
    trees, log = logged(tmp_path, strategy=ONLINE)
    changed(log, lambda entries: entries.append({**entries[0], "request_id": "0/00000000000000aa"}))
    found = compared(trees, log)
    assert (found.differences, found.only_in_log) == ([], 1)


def test_a_turn_that_was_tried_again_may_be_there_twice(tmp_path: Path) -> None:
    trees, log = logged(tmp_path, strategy=ONLINE)
    changed(log, lambda entries: entries.insert(0, {**entries[0], "sampled": entries[0]["sampled"][:-1]}))
    assert compared(trees, log).differences == []


def test_a_torn_last_line_is_left_out_and_any_other_is_refused(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b'{"request_id":"0/1","fed":[1],"sampled":[2]}\n{"request_id":"0/2","fe')
    assert list(read_log(log)) == [Entry("0/1", [1], [2])]
    log.write_bytes(b"no json\n")
    with pytest.raises(StoreError, match="line 1"):
        list(read_log(log))


def test_the_command_compares_a_saved_run_and_its_exit_code_tells(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, log = tmp_path / "run", tmp_path / "engine.jsonl"
    settings = ["--preset", "offline", "--prompts", "2", "--set", f"engine.log={log}", "-q"]
    assert main(["rollout", *settings, "--out", str(run)]) == 0
    assert main(["check", str(run), "--against", str(log)]) == 0
    assert "0 differences" in capsys.readouterr().out
    changed(log, lambda entries: entries[0]["sampled"].__setitem__(0, 3))
    assert main(["check", str(run), "--against", str(log)]) == 5
    assert main(["check", str(run), "--against", str(tmp_path / "none")]) != 0
    assert "cannot be read" in capsys.readouterr().err
