"""Wrong states: every state of a tree is compared with that of a fresh episode that makes the same turns alone.

Each environment grows with eight presets until about 1,000 states are compared; a random player acts. The path to every
leaf is played again in a fresh episode with the recorded seeds, and each text, status, reward, end and digest must be
the same, and so must the score at the leaf. A cell is `wrong/compared`; a path that failed counts as wrong, because a
replay that finds another state fails its path. A leaky environment, whose copies are itself, shows that the comparison
finds what it looks for.

Run: python bench/environment_states.py [--turns 1000] [--env NAME]
Libraries that are not installed are left out: `make test-environments` and `make test-tau2` set up an environment for
each, and tau2 needs TAU2_DATA_DIR. The server of OpenEnv runs in the interpreter that RAMIFY_OPENENV_PYTHON names.
"""

import argparse
import asyncio
import atexit
import importlib
import importlib.util
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from smoke import few

import ramify
from ramify.core.command import Score
from ramify.core.environment import AgentTurn, Environment, Observation
from ramify.core.judge import Verdict
from ramify.core.problem import Problem
from ramify.core.seeds import world_seed
from ramify.core.segment import ToolCall
from ramify.core.tool import STATE_DIGEST
from ramify.core.tree import Tree
from ramify.environments.blocking import BlockingEnvironment
from ramify.environments.episodes import EpisodeSession, environment_tools
from ramify.environments.hops import HopsLibrary
from ramify.environments.score import EnvironmentScore
from ramify.environments.task import EnvironmentTask
from ramify.runner.world_model import RecordedModel
from ramify.testing import Scripted, ScriptedTurn

PRESETS: Final = few(("chains", "arpo", "offline", "tree_grpo", "treerl", "treepo", "at2po", "spo"), ("arpo",))
ROOT: Final = Path(__file__).parents[1]
TOYS: Final = ROOT / "tests" / "environments"
"""Toy tasks of the libraries that have none, which the tests use, too."""
MOVES: Final = ("left", "down", "right", "up", "pickup", "stick", "hit", "0", "1", "look", "go east", "open door")


@dataclass
class Counter:
    """A world that counts, and whose copies are itself."""

    number: int = 0

    def step(self, turn: AgentTurn, seed: int) -> Observation:
        self.number += 1 + seed % 3
        return Observation(f"now {self.number}", reward=1.0)

    def copy(self) -> "Counter":
        return self

    def digest(self) -> str:
        return str(self.number)

    def score(self, said: str, problem: Problem) -> None:
        return None

    def close(self) -> None:
        pass


class Leaky(BlockingEnvironment):
    """An environment with shared state."""

    name = "leaky"

    def problems(self, split: str, num_problems: int, seed: int) -> list[Problem]:
        return [Problem(f"leaky-{i}", "count") for i in range(num_problems)]

    def world(self, problem: Problem, seed: int) -> Counter:
        return Counter()


def gym(name: str, **options: Any) -> Callable[[], Environment]:
    def made() -> Environment:
        from ramify.environments.gym import Gym

        return Gym(id=name, **options)

    return made


def text_world() -> Environment:
    from ramify.environments.textworld import TextWorld

    return TextWorld(max_steps=20)


def text_arena() -> Environment:
    from ramify.environments.textarena import TextArena

    return TextArena(id="2048-v0")


def repair() -> Environment:
    from ramify.environments.repair import CodeRepair

    return CodeRepair()


def call(name: str, **arguments: Any) -> str:
    return f"<{name}>{json.dumps(arguments)}</{name}>"


def open_env() -> Environment:
    """A server of OpenEnv in a process of its own, which ends with this one."""
    from ramify.environments.openenv import OpenEnv

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [os.environ[OPENENV_PYTHON], str(TOYS / "openenv_server.py"), str(port), "256"]
    server = subprocess.Popen(command, stderr=subprocess.DEVNULL)  # it logs a traceback for each session that is closed
    atexit.register(server.kill)
    url = f"http://127.0.0.1:{port}"
    while server.poll() is None:
        with suppress(OSError), urllib.request.urlopen(f"{url}/schema"):
            break
        time.sleep(0.1)
    else:
        raise SystemExit(f"the server of OpenEnv ended with {server.returncode}: {' '.join(command)}")
    return OpenEnv(url=url, id="counter", action_field="message", text_field="echo")


def trl() -> Environment:
    from ramify.environments.trl import Trl

    rows = [{"prompt": [{"role": "user", "content": f"Guess {i}."}], "size": 10 + i, "answer": 5 + i} for i in range(8)]
    return Trl(factory=f"{TOYS / 'trl_classes.py'}:GuessGame", rows=rows)


def verifiers() -> Environment:
    from tests.environments.toy_vault import VAULT

    from ramify.environments.verifiers import Verifiers

    return Verifiers(name=written("toy_vault_pkg", VAULT).stem)


def inspect() -> Environment:
    from tests.environments.toy_inspect import COUNTER

    from ramify.environments.inspect import Inspect

    return Inspect(task=f"{written('toy_counter', COUNTER)}@noted", reward_part="sum")


def written(module: str, text: str) -> Path:
    """The file of a module that can be imported from now on."""
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    path = Path(folder.name, f"{module}.py")
    path.write_text(text, "utf-8")
    sys.path.insert(0, folder.name)
    importlib.invalidate_caches()
    return path


def tau2() -> Environment:
    from tests.environments.tau2_loop import TASKS

    from ramify.environments.tau2 import Tau2

    return Tau2(domain="mock", tasks=TASKS)


def talking(turn: ScriptedTurn) -> str:
    """An agent and a customer of tau2."""
    from tests.environments.tau2_loop import talking

    return talking(turn)


@dataclass(frozen=True, slots=True)
class Case:
    """An environment, what it needs, and what a random player says."""

    environment: Callable[[], Environment]
    library: str = ""
    moves: tuple[str, ...] = MOVES
    says: Callable[[ScriptedTurn], str] | None = None
    """Instead of random moves."""
    variable: str = ""
    """Variable of this process that must be set."""

    def player(self, turn: ScriptedTurn) -> str:
        return random.Random(turn.seed).choice(self.moves) if self.says is None else self.says(turn)

    @property
    def is_here(self) -> bool:
        is_installed = not self.library or importlib.util.find_spec(self.library) is not None
        return is_installed and (not self.variable or self.variable in os.environ)


OPENENV_PYTHON: Final = "RAMIFY_OPENENV_PYTHON"
NUMBERS: Final = range(-1, 11)
"""Arguments of calls; some are refused."""
CODE: Final = (9, 6, 4) * 8
"""Digits that open the first two vaults, often enough that some are opened."""
WORDS: Final = ("I think that it begins with 9.",)
"""A turn without a call, which ends a path."""
NUM_PROMPTS: Final = few(2, 1)
MAX_SEEDS: Final = 200

CASES: Final[Mapping[str, Case]] = {
    "leaky": Case(Leaky),
    "hops": Case(HopsLibrary, moves=tuple(f"<search> {word} </search>" for word in ("friend", "town", "boss", "pet"))),
    "repair": Case(repair, moves=tuple(f"<shell>{c}</shell>" for c in ("ls", "echo a >> b", "cat b", "rm -f b; ls"))),
    "FrozenLake": Case(gym("FrozenLake-v1", max_steps=20), "gymnasium"),
    "Blackjack": Case(gym("Blackjack-v1", max_steps=20), "gymnasium"),
    "CartPole": Case(gym("CartPole-v1", max_steps=20), "gymnasium"),
    "FrozenLake, process": Case(gym("FrozenLake-v1", max_steps=20, runs_in="process"), "gymnasium"),
    "TextWorld": Case(text_world, "textworld"),
    "TextArena 2048": Case(text_arena, "textarena", moves=("[up]", "[down]", "[left]", "[right]")),
    "OpenEnv": Case(open_env, variable=OPENENV_PYTHON, moves=("a", "ab", "abc", "cheat")),
    "TRL": Case(
        trl,
        moves=(*(call("guess", number=n) for n in NUMBERS), call("guess", number="x"), call("history"), *WORDS),
    ),
    "verifiers": Case(
        verifiers,
        "verifiers",
        moves=(*(call("dial_turn", digit=n) for n in (*NUMBERS, *CODE)), call("dial_look"), *WORDS),
    ),
    "Inspect": Case(
        inspect,
        "inspect_ai",
        moves=(*(call("add", number=n) for n in NUMBERS), *(call("note", text=word) for word in "abcdef"), *WORDS),
    ),
    "tau2": Case(tau2, "tau2", says=talking),
}


def grown(task: EnvironmentTask, case: Case, preset: str, seed: int) -> ramify.Rollout:
    settings: dict[str, Any] = {
        "prompts": NUM_PROMPTS,
        "seed": seed,
        "growth.max_response_tokens": 4000,
        "growth.max_tool_calls": few(8, 2),
    }
    engine = Scripted(case.player)
    return ramify.rollout_sync(task=task, engine=engine, preset=preset, **settings, max_failed_share=1.0)


async def wrong(task: EnvironmentTask, tree: Tree, problem: Problem) -> tuple[int, int]:
    """Steps and scores of the paths to all leaves, and those that a fresh episode does not make so."""
    (judge,) = task.judges
    assert isinstance(judge, EnvironmentScore)
    tool = environment_tools(task.environment)[0]
    num_compared = num_wrong = 0
    for leaf in tree.leaves():
        branch = tree.branch(leaf)
        session = await tool.open_seeded(problem, world_seed(tree.seed))
        try:
            for call in judge.steps(branch.tool_calls):
                num_compared += 1
                acting = EpisodeSession(session.episode, call.tool)
                made = await acting.step(call.arguments, call.seed or 0, RecordedModel(call).ask)
                num_wrong += not _is_same(call, made)
            verdict = judge.of(branch, await session.score(branch, problem))
            num_compared += 1
            num_wrong += not _is_same_score(tree.reward_score(leaf), verdict)
        finally:
            await session.close()
    await tool.let_go()
    return num_compared, num_wrong


def _is_same(call: ToolCall, made: Observation) -> bool:
    status = "empty" if made.status == "ok" and not made.text else made.status
    then = (call.result, call.status, call.reward, call.end, call.metadata.get(STATE_DIGEST))
    return then == (made.text, status, made.reward, made.end, made.metadata.get(STATE_DIGEST))


def _is_same_score(then: Score | None, made: Verdict) -> bool:
    return then is None or (then.value, dict(then.parts)) == (made.value, dict(made.parts))


def cell(task: EnvironmentTask, case: Case, preset: str, num_turns: int) -> str:
    """Wrong steps, scores and paths of the trees of a preset, and all that were compared."""
    compared = bad = seed = 0
    while compared < num_turns and seed < MAX_SEEDS:
        rollout = grown(task, case, preset, seed)
        problems = {problem.uid: problem for problem in rollout.problems}
        each = [asyncio.run(wrong(task, tree, problems[tree.problem.uid])) for tree in rollout.trees]
        failed = rollout.report.failed_leaves + rollout.report.failed_trees
        compared, bad = compared + sum(n for n, _ in each) + failed, bad + sum(n for _, n in each) + failed
        seed += 1
    return f"{bad}/{compared}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=few(1000, 4))
    parser.add_argument("--env", choices=CASES)
    options = parser.parse_args()
    sys.path.append(str(ROOT))
    chosen = {name: case for name, case in CASES.items() if options.env in (None, name)}
    print(f"{'environment':22} " + " ".join(f"{preset:>11}" for preset in PRESETS))
    for name, case in chosen.items():
        if not case.is_here:
            print(f"{name:22} not here: {case.library or case.variable}", flush=True)
            continue
        print(f"{name:22}", end="", flush=True)
        task = EnvironmentTask(case.environment())
        for preset in PRESETS:
            print(f" {cell(task, case, preset, options.turns):>11}", end="", flush=True)
        print(flush=True)


if __name__ == "__main__":
    main()
