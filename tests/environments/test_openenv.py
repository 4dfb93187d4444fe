"""OpenEnv against a real server of openenv, in a process of its own. RAMIFY_OPENENV_PYTHON names an interpreter that
has the package, which cannot be installed beside mcp 2."""

import os
import random
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.environments.same_state import compare_forks_with_replays, compare_siblings
from tests.environments.worlds import paths_of

from ramify.core.environment import AgentTurn
from ramify.core.errors import ConfigError, ToolError
from ramify.environments.openenv import OpenEnv
from ramify.environments.task import EnvironmentTask

PYTHON = os.environ.get("RAMIFY_OPENENV_PYTHON") or (sys.executable if find_spec("openenv") else "")
pytestmark = pytest.mark.skipif(not PYTHON, reason="needs a Python with openenv")
SERVER = Path(__file__).parent / "openenv_server.py"


@pytest.fixture(scope="module")
def serve() -> Iterator[Callable[[int], str]]:
    """Starts a server with so many sessions; returns its URL."""
    started: dict[int, tuple[subprocess.Popen[bytes], str]] = {}

    def served(max_sessions: int) -> str:
        if max_sessions not in started:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            process = subprocess.Popen([PYTHON, str(SERVER), str(port), str(max_sessions)])
            started[max_sessions] = process, f"http://127.0.0.1:{port}"
            until = time.monotonic() + 90
            while process.poll() is None and time.monotonic() < until:
                with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/schema"):
                    break
                time.sleep(0.1)  # A server says nowhere else that it listens.
        return started[max_sessions][1]

    yield served
    for process, _ in started.values():
        process.kill()
        process.wait()


def counter(url: str, **options: object) -> OpenEnv:
    return OpenEnv(url=url, id="counter", action_field="message", text_field="echo", **options)  # pyright: ignore[reportArgumentType]


async def test_a_replayed_state_is_the_same(serve: Callable[[int], str]):
    environment = counter(serve(64))
    for problem in environment.problems("train", 2, 0):
        words = ["a", "ab", "abc", "cheat"]
        await compare_forks_with_replays(environment, problem, lambda rng, _, w=words: rng.choice(w), num_turns=1000)


async def test_siblings_are_independent(serve: Callable[[int], str]):
    environment = counter(serve(64))
    (problem,) = environment.problems("train", 1, 0)
    await compare_siblings(environment, problem, [random.Random(1).choice(["a", "bb"]) for _ in range(12)])


async def test_a_path_ends_where_the_server_says(serve: Callable[[int], str]):
    environment = counter(serve(64))
    (problem,) = environment.problems("heldout", 1, 0)
    assert problem.uid == f"counter-{1 << 30}" and "the total is 0" in problem.question
    assert '"message"' in problem.question
    episode = await environment.open(problem, 0)
    observed = await episode.step(AgentTurn("I think.\n" + "x" * 50), 0)
    assert (observed.end, observed.reward) == ("done", 1.0)
    await episode.close()


async def test_what_the_server_refuses_is_an_error_and_no_step(serve: Callable[[int], str]):
    environment = counter(serve(64))
    (problem,) = environment.problems("train", 1, 0)
    episode = await environment.open(problem, 0)
    observed = await episode.step(AgentTurn("cheat"), 0)
    assert (observed.status, observed.text) == ("error", "cheating is not allowed")
    whole = OpenEnv(url=environment.url)
    other = await whole.open(problem, 0)
    assert (await other.step(AgentTurn("no JSON"), 0)).status == "error"
    observed = await other.step(AgentTurn('{"words": 3}'), 0)
    assert observed.status == "error" and "words" in observed.text
    assert (await other.step(AgentTurn('{"message": "abc"}'), 0)).status == "ok"
    await other.close()
    await episode.close()


async def test_a_full_server_is_told_with_the_remedy(serve: Callable[[int], str]):
    environment = counter(serve(1))
    (problem,) = environment.problems("train", 1, 0)
    episode = await environment.open(problem, 0)
    with pytest.raises(ToolError, match=r"CAPACITY_REACHED.*max_concurrent_envs"):
        await environment.open(problem, 0)
    await episode.close()


async def test_a_server_that_is_not_there_is_told_by_its_address():
    with pytest.raises(ConfigError, match=r"127\.0\.0\.1:9"):
        counter("http://127.0.0.1:9").problems("train", 1, 0)
    with pytest.raises(ConfigError, match="cannot be forked"):
        counter("http://127.0.0.1:9", branching="fork")


@pytest.mark.parametrize("preset", ["arpo", "offline", "mcts"])
def test_a_run_grows_it_twice_the_same(preset: str, serve: Callable[[int], str]):
    task = EnvironmentTask(counter(serve(256), max_steps=5))
    assert paths_of(task, preset) == paths_of(task, preset)
