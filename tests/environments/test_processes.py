"""Episodes in processes: a fault of a world harms its own episode alone, and nothing outlives the run."""

import asyncio
import json
import os
import pickle
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.environments.bad_worlds import MoodyEnvironment
from tests.environments.worlds import Walking, paths_of

import ramify
from ramify.core.environment import AgentTurn, Episode
from ramify.core.errors import ConfigError, ToolError
from ramify.core.problem import Problem
from ramify.environments.processes import ProcessEpisode
from ramify.environments.task import EnvironmentTask
from ramify.testing.scripted import Scripted

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux only")
PROBLEM = Problem("p", "q")
ROOT = Path(__file__).parents[2]


@pytest.fixture
async def moody() -> AsyncIterator[MoodyEnvironment]:
    environment = MoodyEnvironment(runs_in="process", max_memory_bytes=1 << 30, max_file_bytes=1 << 20, max_step_s=20)
    yield environment
    await environment.let_go()


async def said(episode: Episode, text: str, seed: int = 0) -> str:
    return (await episode.step(AgentTurn(text), seed)).text


def pid_of(episode: Episode) -> int:
    assert isinstance(episode, ProcessEpisode)
    assert episode.pid is not None
    return episode.pid


def is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def num_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def await_end(pid: int) -> None:
    """Block until a process is gone."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    import select

    ready, _, _ = select.select([handle], [], [], 10)
    os.close(handle)
    assert ready, f"process {pid} lives on"


@pytest.mark.parametrize(
    ("move", "reason", "words"),
    [
        ("raise", "world_raised", "ValueError: the dice fell off the table"),
        ("segfault", "world_ended", "by the signal SIGSEGV"),
        ("exit", "world_raised", "SystemExit: 3"),
        ("quit", "world_ended", "with exit code 7"),
        ("grow", "world_raised", "max_memory_bytes"),
        ("unpicklable", "world_raised", "pickle"),
        ("unreadable", "world_raised", "cannot be read: ValueError"),
        ("long", "world_raised", "at most 67108864 are read"),
        ("write", "world_raised", "File too large"),
    ],
)
async def test_a_fault_is_told_in_words_and_harms_no_other_episode(
    moody: MoodyEnvironment, move: str, reason: str, words: str
):
    victim = await moody.open(PROBLEM, 0)
    await said(victim, "add 5")
    sibling = await victim.fork()
    with pytest.raises(ToolError, match=words) as caught:
        await victim.step(AgentTurn(move), 0)
    assert caught.value.reason == reason
    await victim.close()
    assert await said(sibling, "add 2") == "total 7"
    assert await said(await moody.open(PROBLEM, 0), "add 1") == "total 1"


@pytest.mark.slow
async def test_a_step_that_hangs_is_killed_at_its_deadline():
    moody = MoodyEnvironment(runs_in="process", max_step_s=0.5)
    episode = await moody.open(PROBLEM, 0)
    sibling = await episode.fork()
    with pytest.raises(ToolError, match=r"did not answer in 0\.5 s") as caught:
        await episode.step(AgentTurn("hang"), 0)
    assert caught.value.reason == "tool_hang"
    await episode.close()
    assert not is_alive(pid_of(episode))
    assert await said(sibling, "add 3") == "total 3"
    await moody.let_go()


async def test_a_cancelled_step_kills_its_process(moody: MoodyEnvironment):
    episode = await moody.open(PROBLEM, 0)
    step = asyncio.ensure_future(episode.step(AgentTurn("hang"), 0))
    await asyncio.sleep(0)
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await step
    await episode.close()
    assert not is_alive(pid_of(episode))


async def test_what_a_world_prints_goes_nowhere(moody: MoodyEnvironment, capfd: pytest.CaptureFixture[str]):
    episode = await moody.open(PROBLEM, 0)
    assert await said(episode, "print") == "total 0"
    assert capfd.readouterr() == ("", "")


async def test_a_copy_moves_apart_from_its_parent_and_outlives_it(moody: MoodyEnvironment):
    parent = await moody.open(PROBLEM, 0)
    await said(parent, "add 1")
    copy = await parent.fork()
    assert copy.digest() == parent.digest() == "1"
    await said(copy, "add 10")
    assert (parent.digest(), copy.digest()) == ("1", "11")
    assert await said(parent, "add 2") == "total 3"
    await parent.close()
    assert not is_alive(pid_of(parent))
    assert await said(copy, "add 5") == "total 16"


@pytest.mark.slow
async def test_generations_of_copies_do_not_deepen_a_stack(moody: MoodyEnvironment):
    episode = await moody.open(PROBLEM, 0)
    for _ in range(400):
        copy = await episode.fork()
        await episode.close()
        episode = copy
    assert await said(episode, "add 5") == "total 5"


async def test_global_generators_follow_the_seed_of_the_step(moody: MoodyEnvironment):
    first, second = await moody.open(PROBLEM, 0), await moody.open(PROBLEM, 0)
    drawn = [await said(first, "draw", seed) for seed in (1, 2, 2**64 - 1)]
    copy = await second.fork()
    assert [await said(copy, "draw", seed) for seed in (1, 2, 2**64 - 1)] == drawn
    assert await said(second, "draw", 2) != drawn[0]


async def test_the_score_gets_the_problem_and_the_words(moody: MoodyEnvironment):
    episode = await moody.open(PROBLEM, 0)
    await said(episode, "add 4")

    class Spoken:
        said = "words"

    branch: Any = Spoken()
    verdict = await episode.score(branch, PROBLEM)
    assert verdict is not None and (verdict.value, verdict.parts) == (4.0, {"said": 5.0})


async def test_children_of_a_world_end_with_its_process(moody: MoodyEnvironment):
    episode = await moody.open(PROBLEM, 0)
    child = int(await said(episode, "spawn"))
    assert is_alive(child)
    await episode.close()
    await_end(child)


@pytest.mark.slow
async def test_nothing_is_left_after_the_run():
    moody = MoodyEnvironment(runs_in="process")
    episode = await moody.open(PROBLEM, 0)
    copy = await episode.fork()
    pids = [pid_of(episode), pid_of(copy), int(await said(episode, "spawn")), int(await said(copy, "escape"))]
    await moody.let_go()
    assert not any(map(is_alive, pids))
    with pytest.raises(ToolError):
        await copy.step(AgentTurn("add 1"), 0)
    await copy.close()
    await episode.close()
    assert await said(await moody.open(PROBLEM, 0), "add 1") == "total 1"
    await moody.let_go()
    await moody.let_go()


@pytest.mark.slow
async def test_nothing_is_left_when_the_parent_is_killed():
    code = (
        "import asyncio, os, signal, sys\n"
        "from tests.environments.test_processes import MoodyEnvironment, PROBLEM, pid_of, AgentTurn\n"
        "async def main():\n"
        "    moody = MoodyEnvironment(runs_in='process')\n"
        "    one = await moody.open(PROBLEM, 0)\n"
        "    two = await one.fork()\n"
        "    step = asyncio.ensure_future(two.step(AgentTurn('hang'), 0))\n"
        "    await asyncio.sleep(0)\n"
        "    print([pid_of(one), pid_of(two)], flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    for pid in json.loads(done.stdout):
        await_end(pid)


async def test_episodes_die_with_their_zygote_and_the_next_one_starts_another(moody: MoodyEnvironment):
    episode = await moody.open(PROBLEM, 0)
    copy = await episode.fork()
    zygote = episode._channel.zygote  # pyright: ignore[reportAttributeAccessIssue]
    zygote._process.kill()
    for pid in (pid_of(episode), pid_of(copy)):
        await_end(pid)
    with pytest.raises(ToolError, match="ended by itself"):
        await episode.step(AgentTurn("add 1"), 0)
    await copy.close()
    await zygote._process.wait()
    assert await said(await moody.open(PROBLEM, 0), "add 1") == "total 1"


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("prepare", "pip install mood"),
        ("exit", "did not start: with exit code 9"),
        ("world", "OSError: the world's file is missing"),
    ],
)
async def test_a_world_that_cannot_be_made_says_why(fault: str, words: str):
    moody = MoodyEnvironment(runs_in="process", fault=fault)
    for _ in range(2):
        with pytest.raises(ToolError, match=words):
            await moody.open(PROBLEM, 0)
    await moody.let_go()


def test_an_environment_that_cannot_be_sent_is_a_config_error():
    from dataclasses import dataclass

    @dataclass(frozen=True, kw_only=True)
    class Local(MoodyEnvironment):
        pass

    with pytest.raises(ConfigError, match="cannot be pickled"):
        Local(runs_in="process").check_start()


def test_an_environment_is_equal_to_its_pickle():
    environment = Walking(runs_in="process")
    assert pickle.loads(pickle.dumps(environment)) == environment


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["arpo", "offline", "mcts"])
def test_a_run_in_processes_gives_the_same_trees_as_in_threads(preset: str):
    def grown(**options: Any) -> list[Any]:
        return paths_of(EnvironmentTask(Walking(**options)), preset)

    assert grown(runs_in="process") == grown()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("move", "words"),
    [
        ("segfault", "by the signal SIGSEGV"),
        ("raise", "the dice fell off the table"),
        ("exit", "SystemExit"),
        ("nan", "a reward is a finite number"),
        ("unpicklable", "pickle"),
    ],
)
def test_a_run_goes_on_when_a_world_fails(move: str, words: str):
    task = EnvironmentTask(MoodyEnvironment(runs_in="process"))
    options: dict[str, Any] = {"tools.max_retries": 0, "max_failed_share": 1.0, "growth.max_response_tokens": 400}
    grown = ramify.rollout_sync(task=task, preset="chains", prompts=1, engine=Scripted(lambda turn: move), **options)
    (tree,) = grown.trees
    calls = [each.tool_call for node in range(len(tree)) for each in tree.segments(node) if each.tool_call is not None]
    assert calls and {call.status for call in calls} == {"crashed"}
    assert all(words in call.result for call in calls), calls[0]


async def test_the_end_of_the_run_wakes_a_step_in_progress():
    moody = MoodyEnvironment(runs_in="process")
    episode = await moody.open(PROBLEM, 0)
    step = asyncio.ensure_future(episode.step(AgentTurn("hang"), 0))
    await asyncio.sleep(0)
    await moody.let_go()
    with pytest.raises(ToolError):
        await asyncio.wait_for(step, 10)


async def test_closed_episodes_hold_no_descriptors(moody: MoodyEnvironment):
    first = await moody.open(PROBLEM, 0)
    before = num_descriptors()
    for _ in range(10):
        copy = await first.fork()
        with pytest.raises(ToolError):
            await copy.step(AgentTurn("raise"), 0)
        await copy.close()
        await (await moody.open(PROBLEM, 0)).close()
    assert num_descriptors() == before


async def test_episodes_open_at_once(moody: MoodyEnvironment):
    episodes = await asyncio.gather(*(moody.open(PROBLEM, 0) for _ in range(16)))
    texts = await asyncio.gather(*(said(episode, f"add {i}") for i, episode in enumerate(episodes)))
    assert texts == [f"total {i}" for i in range(16)]
    began = time.perf_counter()
    await asyncio.gather(*(episode.close() for episode in episodes))
    assert time.perf_counter() - began < 10
