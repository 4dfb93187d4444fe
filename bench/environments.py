"""What adapters of environments cost: turns a second through ramify and in the library's own loop, with the same
actions in turns on the same machine; milliseconds and megabytes of a fork; milliseconds of a replay by its depth; lines
of each adapter.

- thread: the episode works in a thread. process: each episode is a process, and a fork copies it.
- MB of a fork: memory of the copy after one step that it shares with nobody (private pages of /proc/PID/smaps_rollup).
- lines: of code, without blank lines, comments and docstrings.

A library that is not installed is left out. OpenEnv needs RAMIFY_OPENENV_PYTHON, an interpreter with the package.

Run: python bench/environments.py [--turns N]
"""

import argparse
import ast
import asyncio
import importlib.util
import os
import random
import re
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ramify.core.environment import AgentTurn, Environment, Episode
from ramify.core.problem import Problem
from ramify.environments.gym import Gym
from ramify.environments.openenv import OpenEnv
from ramify.environments.processes import ProcessEpisode
from ramify.environments.textarena import TextArena
from ramify.environments.textworld import TextWorld
from ramify.environments.trl import Trl

ROOT = Path(__file__).parent.parent
ADAPTERS = ROOT / "src" / "ramify" / "environments"
SHARED = ("blocking", "processes", "world_process", "text_games", "game_digest")
ROUNDS = 3
NUM_FORKS = 20
DEPTHS = (1, 5, 20)
PRIVATE = re.compile(r"^Private_\w+: +(\d+) kB$", re.MULTILINE)


@dataclass(frozen=True)
class Case:
    """An environment, the actions that it is played with, and the library's own loop."""

    name: str
    environment: Environment
    turns: Sequence[AgentTurn]
    own: Callable[[Sequence[str]], object]
    """Plays the actions once, starting over where a game ends."""


def texts(actions: Sequence[str], number: int) -> list[str]:
    rng = random.Random(0)
    return [rng.choice(actions) for _ in range(number)]


def has(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def gym_cases(number: int) -> Iterator[Case]:
    import gymnasium  # pyright: ignore[reportMissingImports]

    named: dict[str, list[str]] = {
        "FrozenLake-v1": ["left", "down", "right", "up"],
        "Taxi-v4": ["south", "north", "east", "west"],
        "CartPole-v1": ["left", "right"],
    }
    for id, names in named.items():

        def own(played: Sequence[str], id: str = id, names: Sequence[str] = names) -> None:
            env = gymnasium.make(id, **({} if id.startswith("Cart") else {"render_mode": "ansi"}))
            env.reset(seed=0)
            for action in played:
                _, _, is_done, is_truncated, _ = env.step(names.index(action))
                env.render() if env.render_mode else None
                if is_done or is_truncated:
                    env.reset(seed=0)
            env.close()

        for runs_in in ("thread", "process"):
            actions = texts(names, number)
            environment = Gym(id=id, runs_in=runs_in, max_steps=10**6)
            yield Case(f"gymnasium {id}, {runs_in}", environment, [AgentTurn(each) for each in actions], own)


def textworld_cases(number: int) -> Iterator[Case]:
    import textworld

    first = TextWorld(max_steps=10**6)
    (problem,) = first.problems("train", 1, 0)
    path = str(first._generated(problem.public["seed"]))

    def own(played: Sequence[str]) -> None:
        env = textworld.start(path, textworld.EnvInfos(feedback=True, facts=True, score=True))
        env.reset()
        for action in played:
            if env.step(action)[2]:
                env.reset()
        env.close()

    actions = texts(["look", "inventory", "go north", "go south", "go east", "go west"], number)
    for runs_in in ("thread", "process"):
        environment = TextWorld(games=[path], runs_in=runs_in, max_steps=10**6)
        yield Case(f"TextWorld, {runs_in}", environment, [AgentTurn(each) for each in actions], own)


def textarena_cases(number: int) -> Iterator[Case]:
    import textarena

    def own(played: Sequence[str]) -> None:
        env = textarena.make("2048-v0")
        env.reset(num_players=1, seed=0)
        for action in played:
            env.get_observation()
            if env.step(action)[0]:
                env.reset(num_players=1, seed=0)

    actions = texts(["[Up]", "[Down]", "[Left]", "[Right]"], number)
    for runs_in in ("thread", "process"):
        environment = TextArena(id="2048-v0", runs_in=runs_in, max_steps=10**6)
        yield Case(f"TextArena 2048-v0, {runs_in}", environment, [AgentTurn(each) for each in actions], own)


def trl_cases(number: int) -> Iterator[Case]:
    rows = [{"prompt": "Guess.", "size": 10}]
    turns = [AgentTurn(tool="guess", arguments=f'{{"number": {i % 5}}}') for i in range(min(number, 500))]
    for runs_in in ("thread", "process"):
        factory = f"{ROOT}/tests/environments/trl_classes.py:GuessGame"
        environment = Trl(factory=factory, rows=rows, runs_in=runs_in)

        def own(played: Sequence[str], environment: Trl = environment) -> None:
            instance = environment.made()
            instance.reset(**rows[0])
            for i, _ in enumerate(played):
                instance.guess(i % 5)

        yield Case(f"TRL class, {runs_in}", environment, turns, own)


OWN_CLIENT = """
import asyncio, sys, time
from openenv.core.generic_client import GenericEnvClient
async def main():
    client = GenericEnvClient(base_url=sys.argv[1])
    await client.connect()
    await client.reset(seed=0)
    began = time.perf_counter()
    for _ in range(int(sys.argv[2])):
        if (await client.step({"message": "a"})).done:
            await client.reset(seed=0)
    print(int(sys.argv[2]) / (time.perf_counter() - began))
    await client.close()
asyncio.run(main())
"""


@contextmanager
def openenv_server(python: str) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    script = str(ROOT / "tests" / "environments" / "openenv_server.py")
    process = subprocess.Popen([python, script, str(port), "64"])
    try:
        while process.poll() is None:
            with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/schema"):
                break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def openenv_case(python: str, url: str, number: int) -> Case:
    def own(played: Sequence[str]) -> float:
        command = [python, "-c", OWN_CLIENT, url, str(len(played))]
        return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    environment = OpenEnv(url=url, action_field="message", text_field="echo", max_steps=10**6)
    return Case("OpenEnv, toy server", environment, [AgentTurn("a")] * number, own)


async def played(case: Case, problem: Problem, turns: Sequence[AgentTurn]) -> tuple[float, Episode]:
    """Seconds of the steps alone, and the last episode."""
    episode = await case.environment.open(problem, 0)
    seconds = 0.0
    for number, turn in enumerate(turns):
        began = time.perf_counter()
        observed = await episode.step(turn, number)
        seconds += time.perf_counter() - began
        if observed.end is not None and number + 1 < len(turns):
            await episode.close()
            episode = await case.environment.open(problem, 0)
    return seconds, episode


async def forks(case: Case, problem: Problem) -> tuple[float, float | None]:
    """Milliseconds of a fork, and the megabytes of a copy in a process."""
    _, parent = await played(case, problem, case.turns[:1])
    seconds: list[float] = []
    megabytes: list[float] = []
    for _ in range(NUM_FORKS):
        began = time.perf_counter()
        copy = await parent.fork()
        seconds.append(time.perf_counter() - began)
        await copy.step(case.turns[1], 1)
        if isinstance(copy, ProcessEpisode):
            megabytes.append(private_mb(copy.pid))
        await copy.close()
    await parent.close()
    return 1000 * statistics.median(seconds), statistics.median(megabytes) if megabytes else None


def private_mb(pid: int | None) -> float:
    return sum(map(int, PRIVATE.findall(Path(f"/proc/{pid}/smaps_rollup").read_text("ascii")))) / 1024


async def replay_ms(case: Case, problem: Problem, depth: int) -> float:
    seconds: list[float] = []
    for _ in range(5):
        began = time.perf_counter()
        episode = await case.environment.open(problem, 0)
        for number, turn in enumerate(case.turns[:depth]):
            if (await episode.step(turn, number)).end is not None:
                break
        seconds.append(time.perf_counter() - began)
        await episode.close()
    return 1000 * statistics.median(seconds)


async def measure(case: Case) -> None:
    (problem,) = case.environment.problems("train", 1, 0)
    actions = [turn.text for turn in case.turns]
    ours: list[float] = []
    own: list[float] = []
    for _ in range(ROUNDS):
        seconds, episode = await played(case, problem, case.turns)
        await episode.close()
        ours.append(len(case.turns) / seconds)
        began = time.perf_counter()
        told = case.own(actions)
        own.append(told if isinstance(told, float) else len(actions) / (time.perf_counter() - began))
    cells = [f"{statistics.median(ours):9.0f}", f"{statistics.median(own):9.0f}"]
    if case.environment.branching == "fork":
        fork_ms, megabytes = await forks(case, problem)
        cells += [f"{fork_ms:8.2f}", f"{'':8}" if megabytes is None else f"{megabytes:8.2f}"]
    else:
        cells += [f"{'':8}", f"{'':8}"]
    cells += [f"{await replay_ms(case, problem, depth):8.1f}" for depth in DEPTHS]
    print(f"  {case.name:34}{''.join(cells)}", flush=True)
    let_go: Any = getattr(case.environment, "let_go", None)
    await let_go()


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
    parser.add_argument("--turns", type=int, default=300)
    number = parser.parse_args().turns
    warnings.simplefilter("ignore")
    depths = "".join(f"{f'replay {depth}':>8}" for depth in DEPTHS)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before the first figure")
    print(f"  {'':34}{'turns/s':>9}{'own':>9}{'fork ms':>8}{'fork MB':>8}{depths} (ms)")
    found = {"gymnasium": gym_cases, "textworld": textworld_cases, "textarena": textarena_cases}
    for package, cases in found.items():
        if not has(package):
            print(f"  {package}: not installed")
            continue
        for case in cases(number):
            asyncio.run(measure(case))
    for case in trl_cases(number):
        asyncio.run(measure(case))
    if python := os.environ.get("RAMIFY_OPENENV_PYTHON") or (sys.executable if has("openenv") else ""):
        with openenv_server(python) as url:
            asyncio.run(measure(openenv_case(python, url, number)))
    else:
        print("  OpenEnv: RAMIFY_OPENENV_PYTHON names no interpreter with openenv")
    print("lines of code")
    own = ("gym", "action_spaces", "textworld", "textarena", "openenv", "openenv_session", "trl", "trl_class")
    for name in (*SHARED, *own):
        print(f"  {name:34}{num_lines(ADAPTERS / f'{name}.py'):9}{'  shared' if name in SHARED else ''}")


if __name__ == "__main__":
    main()
