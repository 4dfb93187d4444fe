"""What adapters of environments cost: turns per second through ramify and in the library's own loop, which plays the
same turns; milliseconds and megabytes of a fork; milliseconds of a replay by its depth; lines of each adapter.

- run: `ramify.rollout` of chains by a scripted model, eight for each problem at once, with their scores, from their
  second turn on. adapter: the same paths one after another, by the adapter alone, with their scores. own: the
  same paths by the library's own loop (`environment_loops.py`). The three take turns. Medians of the rounds; a ratio is
  the median of each round's ratio. More is better.
- thread: the episode works in a thread. process: each episode is a process, and a fork copies it. TextWorld in threads
  is left out: its own copy takes longer than ten steps.
- fork: a copy of an episode after one turn. + step: its next turn, which may copy what the fork shared.
- MB of a fork: memory of the copy after that turn that it shares with nobody. Of a process: private pages of
  /proc/PID/smaps_rollup. Of a thread: what Python allocated (tracemalloc).
- replay: opens an episode and plays so many turns; empty = no path was so long.
- lines: of code, without blank lines, comments and docstrings.

Libraries that are not installed are left out: `make test-environments` and `make test-tau2` set up an environment for
each, and tau2 needs TAU2_DATA_DIR. The server of OpenEnv runs in the interpreter that RAMIFY_OPENENV_PYTHON names.

Run: python bench/environments.py [--env PREFIX] [--rounds 5]
"""

import argparse
import ast
import asyncio
import math
import os
import random
import re
import statistics
import sys
import time
import tracemalloc
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import environment_loops as loops
import environment_states as states
from environment_loops import Loop, Played, num_turns
from smoke import few

import ramify
from ramify.core.environment import Environment
from ramify.core.seeds import world_seed
from ramify.core.segment import ToolCall
from ramify.environments.episodes import EnvironmentTool, EpisodeSession, environment_tools
from ramify.environments.processes import ProcessEpisode
from ramify.environments.score import EnvironmentScore
from ramify.environments.task import EnvironmentTask
from ramify.runner.world_model import RecordedModel
from ramify.testing import Scripted, ScriptedTurn

ADAPTERS: Final = states.ROOT / "src" / "ramify" / "environments"
MODULES: Final[Mapping[str, Sequence[str]]] = {
    "shared": ("blocking", "processes", "world_process", "text_games", "game_digest", "state_digest"),
    "gymnasium": ("gym", "action_spaces"),
    "TextWorld": ("textworld",),
    "TextArena": ("textarena",),
    "OpenEnv": ("openenv", "openenv_session"),
    "TRL": ("trl", "trl_class"),
    "verifiers": ("verifiers", "verifiers_episode", "verifiers_hooks", "verifiers_tools"),
    "Inspect": ("inspect", "inspect_episode", "inspect_sandbox", "inspect_scores"),
    "tau2": ("tau2", "tau2_episode", "tau2_dialogue"),
}
NUM_PROBLEMS: Final = 2
NUM_FORKS: Final = 20
NUM_REPLAYS: Final = 5
DEPTHS: Final = (1, 5, 20)
MAX_STEPS: Final = 40
"""Of a game, which may have no end."""
GROWTH: Final[Mapping[str, Any]] = {"growth.max_tool_calls": 20, "growth.max_response_tokens": 100_000}
PRIVATE: Final = re.compile(r"^Private_\w+: +(\d+) kB$", re.MULTILINE)

Player = Callable[[ScriptedTurn], str]


@dataclass(frozen=True)
class Case:
    """An environment, what it needs, what the model says in it, and the library's own loop."""

    environment: Callable[[], Environment]
    says: Player
    own: Loop | None
    """None = it is not measured."""
    needs: Callable[[], object] = field(default=lambda: True)
    max_own: int | None = None
    """Most paths that the own loop plays in a round; None = all."""
    is_playable: Callable[[Played], bool] = bool
    """Whether the own loop can play a path."""


def says(*moves: str) -> Player:
    """Chooses a move by the seed."""
    return lambda turn: random.Random(turn.seed).choice(moves)


def installed(library: str) -> Callable[[], object]:
    return lambda: find_spec(library)


def gym_case(id: str, *names: str, runs_in: str) -> Case:
    made = states.gym(id, max_steps=MAX_STEPS, runs_in=runs_in)
    return Case(made, says(*names), loops.gym_loop(id, names), installed("gymnasium"))


def text_world(runs_in: Any) -> Case:
    def made() -> Environment:
        from ramify.environments.textworld import TextWorld

        return TextWorld(max_steps=MAX_STEPS, runs_in=runs_in)

    moves = says("look", "inventory", "go north", "go south", "go east", "go west")
    return Case(made, moves, loops.text_world_loop, installed("textworld"))


def text_arena(runs_in: Any) -> Case:
    def made() -> Environment:
        from ramify.environments.textarena import TextArena

        return TextArena(id="2048-v0", max_steps=MAX_STEPS, runs_in=runs_in)

    return Case(made, says("[Up]", "[Down]", "[Left]", "[Right]"), loops.text_arena_loop, installed("textarena"))


def trl(runs_in: Any) -> Case:
    def made() -> Environment:
        from ramify.environments.trl import Trl

        rows = [{"prompt": f"Guess {i}.", "size": 10 + i} for i in range(NUM_PROBLEMS)]
        return Trl(factory=f"{states.TOYS / 'trl_classes.py'}:GuessGame", rows=rows, runs_in=runs_in)

    return Case(made, says(*(states.call("guess", number=n) for n in range(10))), loops.trl_loop)


def inspect(task: str) -> Case:
    def made() -> Environment:
        from tests.environments.toy_inspect import COUNTER

        from ramify.environments.inspect import Inspect

        part = "sum" if task == "noted" else None
        return Inspect(task=f"{states.written('toy_counter', COUNTER)}@{task}", reward_part=part)

    adds = [states.call("add", number=n) for n in range(10)]
    notes = [states.call("note", text=word) for word in "abcdefghij"]
    return Case(made, says(*adds, *(notes if task == "noted" else ())), loops.inspect_loop, installed("inspect_ai"))


def tau2_retail() -> Environment:
    from ramify.environments.tau2 import Tau2

    return Tau2(domain="retail", judged="skip")


def cancelling(turn: ScriptedTurn) -> str:
    """An agent of tau2's retail, whose calls write or read, and its customer."""
    from tests.environments.tau2_loop import DONE, HELLO

    from ramify.environments.tau2_dialogue import NOW

    if NOW in turn.context:
        return "Thank you. ###STOP###" if DONE in turn.context else "Go on."
    cancel = states.call("cancel_pending_order", order_id="#0", reason="no longer needed")
    return (
        says(cancel, cancel, "<list_all_product_types>{}</list_all_product_types>", DONE)(turn)
        if HELLO in turn.context
        else HELLO
    )


DIALS: Final = [*(states.call("dial_turn", digit=n) for n in range(10)), states.call("dial_look")]
OPENENV: Final = os.environ.get(states.OPENENV_PYTHON, "")

CASES: Final[Mapping[str, Case]] = {
    **{
        f"gymnasium {id}, {runs_in}": gym_case(id, *names, runs_in=runs_in)
        for id, names in {
            "FrozenLake-v1": ("left", "down", "right", "up"),
            "Taxi-v4": ("south", "north", "east", "west"),
            "CartPole-v1": ("left", "right"),
        }.items()
        for runs_in in ("thread", "process")
    },
    "TextWorld, process": text_world("process"),
    **{f"TextArena 2048-v0, {runs_in}": text_arena(runs_in) for runs_in in ("thread", "process")},
    **{f"TRL class, {runs_in}": trl(runs_in) for runs_in in ("thread", "process")},
    "OpenEnv, toy server": Case(
        states.open_env, says("a", "b"), loops.openenv_loop(OPENENV), lambda: OPENENV, max_own=None
    ),
    "verifiers, toy vault": Case(
        states.verifiers, says(*DIALS), loops.verifiers_loop, installed("verifiers"), max_own=few(4, 4, book=2)
    ),
    "Inspect, store": inspect("counter"),
    "Inspect, sandbox local": inspect("noted"),
    "tau2 mock": Case(states.tau2, states.talking, loops.tau2_loop, installed("tau2"), is_playable=loops.is_left),
    "tau2 retail": Case(tau2_retail, cancelling, None, installed("tau2")),
}


def grown(task: EnvironmentTask, case: Case, seed: int) -> tuple[list[Played], float]:
    """The paths of chains, and turns per second from the second turn on, when all processes have started."""
    (judge,) = task.judges
    assert isinstance(judge, EnvironmentScore)
    asked_s: list[float] = []

    def said(turn: ScriptedTurn) -> str:
        asked_s.append(time.perf_counter())
        return case.says(turn)

    rollout = ramify.rollout_sync(
        task=task, engine=Scripted(said), preset="chains", prompts=NUM_PROBLEMS, seed=seed, **GROWTH
    )
    ended_s = time.perf_counter()
    assert not rollout.report.failed_leaves and not rollout.report.failed_trees
    problems = {problem.uid: problem for problem in rollout.problems}
    paths: list[Played] = []
    for tree in rollout.trees:
        for leaf in tree.leaves():
            branch = tree.branch(leaf)
            calls = judge.steps(branch.tool_calls)
            paths.append(Played(problems[tree.problem.uid], world_seed(tree.seed), branch, calls))
    return paths, (num_turns(paths) - len(paths)) / (ended_s - asked_s[len(paths)])


async def stepped(session: EpisodeSession, call: ToolCall) -> None:
    acting = EpisodeSession(session.episode, call.tool)
    await acting.step(call.arguments, call.seed or 0, RecordedModel(call).ask)


async def opened(tool: EnvironmentTool, path: Played, depth: int) -> EpisodeSession:
    """An episode after the first `depth` turns of a path."""
    session = await tool.open_seeded(path.problem, path.seed)
    for call in path.calls[:depth]:
        await stepped(session, call)
    return session


async def adapter_turns_per_s(tool: EnvironmentTool, paths: Sequence[Played]) -> float:
    """Of the adapter alone, once its processes have started."""
    await (await opened(tool, paths[0], 0)).close()
    began = time.perf_counter()
    for path in paths:
        session = await opened(tool, path, len(path.calls))
        await session.score(path.branch, path.problem)
        await session.close()
    took_s = time.perf_counter() - began
    await tool.let_go()
    return num_turns(paths) / took_s


@dataclass(frozen=True)
class Forks:
    """What a fork costs, in medians."""

    fork_ms: float
    step_ms: float
    """The next turn of the copy."""
    megabytes: float


async def forks(tool: EnvironmentTool, path: Played) -> Forks:
    parent = await opened(tool, path, 1)
    took_s: list[tuple[float, float]] = []
    megabytes: list[float] = []
    for _ in range(NUM_FORKS):
        began = time.perf_counter()
        copy = await parent.fork()
        forked = time.perf_counter()
        await stepped(copy, path.calls[1])
        took_s.append((forked - began, time.perf_counter() - forked))
        if isinstance(copy.episode, ProcessEpisode):
            megabytes.append(private_mb(copy.episode.pid))
        await copy.close()
    if not megabytes:
        megabytes = [await allocated_mb(parent, path.calls[1])]
    await parent.close()
    await tool.let_go()
    fork_s, step_s = (statistics.median(each) for each in zip(*took_s, strict=True))
    return Forks(1000 * fork_s, 1000 * step_s, statistics.median(megabytes))


def private_mb(pid: int | None) -> float:
    return sum(map(int, PRIVATE.findall(Path(f"/proc/{pid}/smaps_rollup").read_text("ascii")))) / 1024


async def allocated_mb(parent: EpisodeSession, call: ToolCall) -> float:
    """Megabytes that Python allocates for a copy and its next turn."""
    tracemalloc.start()
    copies = [await parent.fork() for _ in range(NUM_FORKS)]
    for copy in copies:
        await stepped(copy, call)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    for copy in copies:
        await copy.close()
    return held / NUM_FORKS / 2**20


async def replay_ms(tool: EnvironmentTool, path: Played, depth: int) -> float:
    await (await opened(tool, path, 0)).close()  # starts the processes
    took_s: list[float] = []
    for _ in range(NUM_REPLAYS):
        began = time.perf_counter()
        session = await opened(tool, path, depth)
        took_s.append(time.perf_counter() - began)
        await session.close()
    await tool.let_go()
    return 1000 * statistics.median(took_s)


def rates(case: Case, task: EnvironmentTask, num_rounds: int) -> list[str]:
    """Turns per second by the run, by the adapter and by the library's own loop, and both ratios."""
    tool = environment_tools(task.environment)[0]
    rounds: list[tuple[float, float, float]] = []
    for seed in range(num_rounds + 1):
        paths, by_run = grown(task, case, seed)
        by_adapter = asyncio.run(adapter_turns_per_s(tool, paths))
        playable = [path for path in paths if case.is_playable(path)][: case.max_own]
        rounds.append((by_run, by_adapter, case.own(task.environment, playable) if case.own else math.nan))
    del rounds[0]  # it imports what is imported only once
    medians = [statistics.median(each) for each in zip(*rounds, strict=True)]
    ratios = [statistics.median(each[number] / each[2] for each in rounds) for number in (0, 1)]
    return [*(f"{each:.{0 if each > 10 else 2}f}" for each in medians), *(f"{each:.3g}" for each in ratios)]


def forks_and_replays(task: EnvironmentTask, path: Played) -> list[str]:
    tool = environment_tools(task.environment)[0]
    cells = ["", "", ""]
    if task.environment.branching == "fork":
        cost = asyncio.run(forks(tool, path))
        cells = [f"{cost.fork_ms:.2f}", f"{cost.step_ms:.2f}", f"{cost.megabytes:.3f}"]
    depths = [depth for depth in DEPTHS if depth <= len(path.calls)]
    return cells + [f"{asyncio.run(replay_ms(tool, path, depth)):.1f}" for depth in depths]


def measure(case: Case, num_rounds: int) -> list[str]:
    """The cells of a case."""
    task = EnvironmentTask(case.environment())
    cells = rates(case, task, num_rounds)
    paths, _ = grown(task, case, 0)
    return cells + forks_and_replays(task, max(paths, key=lambda path: len(path.calls)))


def num_lines(path: Path) -> int:
    """Lines of code, without blank lines, comments and docstrings."""
    tree = ast.parse(path.read_text("utf-8"))
    words: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            words.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(path.read_text("utf-8").splitlines(), start=1)
    return sum(
        bool(line.strip()) and not line.strip().startswith("#") and number not in words for number, line in lines
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="", help="only cases whose name begins so")
    parser.add_argument("--rounds", type=int, default=few(5, 1))
    options = parser.parse_args()
    sys.path.append(str(states.ROOT))
    warnings.simplefilter("ignore")
    heads = ("run", "adapter", "own", "run/own", "adapt/own", "fork ms", "+ step", "fork MB")
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before the first figure")
    print(f"{'turns/s, then ms':34}" + "".join(f"{head:>10}" for head in (*heads, *(f"replay {d}" for d in DEPTHS))))
    for name, case in CASES.items():
        if not name.startswith(options.env):
            continue
        cells = measure(case, options.rounds) if case.needs() else ["not here"]
        print(f"{name:34}" + "".join(f"{cell:>10}" for cell in cells), flush=True)
    if not options.env:
        print("lines of code")
        for name, modules in MODULES.items():
            print(f"{name:34}{sum(num_lines(ADAPTERS / f'{module}.py') for module in modules):10}")


if __name__ == "__main__":
    main()
