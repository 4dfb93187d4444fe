"""A search in a folder is resumed: it asks for the same, and no recorded call is made again."""

import asyncio
import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from ramify.cli.main import main
from ramify.core.errors import ConfigError, ContractError, EngineError
from ramify.core.tree import Tree
from ramify.runner.found import Found
from ramify.runner.search import ScoredState, search, search_steps

PRESETS = ["ab_mcts", "ab_mcts_m", "mcts", "beam", "best_first", "lats", "best_of_n", "reject"]


class Numbers:
    """A function whose states follow from their parents and from how often each was a parent. It counts its calls, and
    raises an interrupt at the `last`."""

    def __init__(self, last: int | None = None) -> None:
        self.num_calls, self.last = 0, last
        self.times: dict[str, int] = {}

    def __call__(self, parent: list[float] | None) -> tuple[list[float], float]:
        self.num_calls += 1
        if self.num_calls == self.last:
            raise KeyboardInterrupt
        key = json.dumps(parent)
        self.times[key] = self.times.get(key, 0) + 1
        digest = hashlib.sha256(f"{key} {self.times[key]}".encode()).digest()
        state = [*(parent or []), digest[0] / 255]
        return state, sum(state) / len(state)


def shape(tree: Tree) -> list[tuple[object, ...]]:
    """All there is of a tree, without what depends on where its nodes came from."""
    return [
        (tree.parent(node), tree.stop(node), tree.action(node), tree.scores(node), tree.branch(node).messages[-1])
        for node in tree.subtree()
    ]


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("last", [1, 2, 9, 20])
def test_an_interrupted_search_goes_on_where_it_was(preset: str, last: int, tmp_path: Path) -> None:
    budget, out = {"calls": 20}, tmp_path / "run"
    whole = search(Numbers(), preset=preset, budget=budget, out=tmp_path / "whole")
    first = Numbers(last)
    with pytest.raises(KeyboardInterrupt):
        search(first, preset=preset, budget=budget, out=out)
    second = Numbers()
    second.times = dict(first.times)
    found = search(second, preset=preset, budget=budget, out=out, resume=True)
    assert shape(found.tree) == shape(whole.tree)
    assert second.num_calls == len(whole.nodes) - (last - 1)
    assert found.best == whole.best


KILLED = """
import sys
import ramify

num_calls = 0

def generate(parent):
    global num_calls
    num_calls += 1
    return f"{parent or ''}{num_calls % 3}", (num_calls * 37 % 11) / 11

found = ramify.search(generate, preset=sys.argv[2], budget={"calls": 24}, out=sys.argv[1], resume=True, max_in_flight=2)
print(num_calls, len(found.nodes))
"""


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["ab_mcts", "beam"])
@pytest.mark.parametrize("kills_after", [2, 13, 40])
def test_a_killed_search_makes_no_recorded_call_again(preset: str, kills_after: int, tmp_path: Path) -> None:
    program, out = tmp_path / "program.py", tmp_path / "run"
    program.write_text(KILLED)

    def run(**environment: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(program), str(out), preset]
        return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **environment})

    assert run(RAMIFY_KILL_AFTER=str(kills_after)).returncode == -signal.SIGKILL
    num_recorded = b"".join(path.read_bytes() for path in (out / "journal").glob("0*")).count(b'"encoded"')
    done = run()
    assert done.returncode == 0, done.stderr
    num_calls, num_states = map(int, done.stdout.split())
    assert (num_calls, num_states) == (24 - num_recorded, 24)
    assert num_recorded == 0 if kills_after == 2 else 2 <= num_recorded < 24


def test_calls_at_once_are_resumed_too(tmp_path: Path) -> None:
    calls = 0

    async def generate(parent: str | None) -> tuple[str, float]:
        nonlocal calls
        calls += 1
        if calls == 11:
            raise KeyboardInterrupt
        await asyncio.sleep(0)
        return f"{parent or ''}x", 0.5

    settings: dict[str, Any] = {"preset": "rebase", "budget": {"calls": 40}, "max_in_flight": 4, "out": tmp_path / "a"}
    with pytest.raises(KeyboardInterrupt):
        search(generate, **settings)
    found = search(generate, **settings, resume=True)
    assert len(found.nodes) == 40
    assert 40 < calls <= 40 + 4


def test_a_search_that_is_left_step_by_step_is_resumed_with_its_new_states_alone(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"preset": "best_first", "budget": {"calls": 12}, "out": tmp_path / "run"}
    first, seen = Numbers(), list[Any]()
    for step in search_steps(first, **settings):
        seen.append(step.state)
        if len(seen) == 5:
            break
    assert first.num_calls == 5
    seen += [step.state for step in search_steps(first, **settings, resume=True)]
    assert first.num_calls == len(seen) == 12
    found = Found.open(tmp_path / "run")
    assert seen == [found.state(node) for node in found.nodes]


def test_a_finished_search_is_read_and_no_function_is_called(tmp_path: Path) -> None:
    first = search(Numbers(), budget={"calls": 10}, out=tmp_path / "run")
    never = Numbers(1)
    again = search(never, budget={"calls": 10}, out=tmp_path / "run", resume=True)
    opened = Found.open(tmp_path / "run")
    for found in (again, opened):
        assert shape(found.tree) == shape(first.tree)
        assert found.top(10) == first.top(10)
        assert (found.best, found.score, found.reason) == (first.best, first.score, "done")
    assert never.num_calls == 0
    assert not list(search_steps(never, budget={"calls": 10}, out=tmp_path / "run", resume=True))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"budget": {"calls": 11}}, "engine_calls = 10, and this one .*engine_calls = 11"),
        ({"preset": "beam"}, 'holds another search, .* preset = "ab_mcts"'),
        ({"seed": 1}, "it has seed = 0, and this one seed = 1"),
        ({"max_in_flight": 2}, "max_in_flight = 1"),
        ({"options": {"family": "beta"}}, 'family = "gaussian"'),
    ],
)
def test_another_search_does_not_go_on_in_its_folder(changed: dict[str, Any], said: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"preset": "ab_mcts", "budget": {"calls": 10}, "out": tmp_path / "run"}
    search(Numbers(), **settings)
    with pytest.raises(ConfigError, match=said):
        search(Numbers(), **{**settings, **changed}, resume=True)


def test_other_functions_do_not_go_on_in_its_folder(tmp_path: Path) -> None:
    search({"one": Numbers(), "other": Numbers()}, budget={"calls": 4}, out=tmp_path / "run")
    with pytest.raises(ConfigError, match="holds another search"):
        search({"one": Numbers(), "another": Numbers()}, budget={"calls": 4}, out=tmp_path / "run", resume=True)


def test_a_function_that_returned_nonsense_is_mended_and_the_search_goes_on(tmp_path: Path) -> None:
    numbers, settings = Numbers(), {"budget": {"calls": 12}, "out": tmp_path / "run"}

    def broken(parent: list[float] | None) -> tuple[list[float], float]:
        state, score = numbers(parent)
        return state, float("nan") if numbers.num_calls == 7 else score

    with pytest.raises(ContractError, match="the score nan"):
        search(broken, **settings)  # type: ignore[arg-type]
    found = search(numbers, **settings, resume=True)  # type: ignore[arg-type]
    assert len(found.nodes) == 12
    assert numbers.num_calls == 12 + 1


def test_a_search_whose_calls_all_failed_asks_for_them_again(tmp_path: Path) -> None:
    def failing(parent: object) -> Any:
        raise OSError("no network")

    with pytest.raises(EngineError, match=r"no call gave a state; .* no network"):
        search(failing, budget={"calls": 50}, out=tmp_path / "run")
    found = search(Numbers(), budget={"calls": 50}, out=tmp_path / "run", resume=True)
    assert len(found.nodes) == 50


# -- states that are no JSON ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    steps: tuple[str, ...] = ()


def planning(fails_at: int | None = None) -> Callable[[Plan | None], ScoredState]:
    calls = 0

    def generate(parent: Plan | None) -> ScoredState:
        nonlocal calls
        calls += 1
        if calls == fails_at:
            raise KeyboardInterrupt
        assert parent is None or type(parent) is Plan
        steps = (*(parent.steps if parent else ()), "do")
        return ScoredState(Plan(steps), 1 / len(steps), is_final=len(steps) == 3)

    return generate


def encode(plan: Plan) -> str:
    return json.dumps(asdict(plan))


def decode(text: str) -> Plan:
    return Plan(tuple(json.loads(text)["steps"]))


@pytest.mark.parametrize("preset", ["ab_mcts", "beam"])
def test_states_of_any_kind_come_back_by_encode_and_decode(preset: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"preset": preset, "budget": {"calls": 15}, "encode": encode, "decode": decode}
    with pytest.raises(KeyboardInterrupt):
        search(planning(8), **settings, out=tmp_path / "run")
    found = search(planning(), **settings, out=tmp_path / "run", resume=True)
    assert all(type(found.state(node)) is Plan for node in found.nodes)
    opened = Found.open(tmp_path / "run", decode=decode)
    assert [opened.at(node) for node in opened.nodes] == [found.at(node) for node in found.nodes]


def test_a_decode_that_fails_is_named(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"budget": {"calls": 15}, "encode": encode, "out": tmp_path / "run"}
    with pytest.raises(KeyboardInterrupt):
        search(planning(8), **settings, decode=decode)
    with pytest.raises(ContractError, match=r"decode raised KeyError: 'nothing' \(.*\) for '\{"):
        search(planning(), **settings, decode=lambda text: json.loads(text)["nothing"], resume=True)
    assert search(planning(), **settings, decode=decode, resume=True).reason == "done"


def test_a_state_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    search(planning(), budget={"calls": 3}, encode=lambda plan: f"<{plan.steps}>", decode=decode, out=tmp_path / "run")
    found = Found.open(tmp_path / "run")
    assert found.score == 1.0
    with pytest.raises(ContractError, match=r"decode raised JSONDecodeError: .* for \"<\('do',\)>\""):
        _ = found.best


def test_a_state_is_written_as_text_and_never_pickled(tmp_path: Path) -> None:
    search(planning(), budget={"calls": 5}, encode=encode, decode=decode, out=tmp_path / "run")
    journal = b"".join(path.read_bytes() for path in sorted((tmp_path / "run" / "journal").iterdir()))
    assert journal.count(b'"encoded"') == 5
    assert b"pickle" not in journal and b"\\x80\\x04" not in journal


def test_the_command_line_says_how_to_resume(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt):
        search(Numbers(4), budget={"calls": 10}, out=tmp_path / "run")
    assert main(["resume", str(tmp_path / "run")]) == 2
    assert "ramify.search(generate, out=…, resume=True)" in capsys.readouterr().err
