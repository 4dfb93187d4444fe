"""The own loops of gymnasium, TextWorld, TextArena, TRL, OpenEnv, verifiers, Inspect and tau2 over given turns.

`environments.py` grows paths with ramify and lets the library play the same turns, as its own users would. Each loop
opens, plays and scores every path, and returns turns per second.
"""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ramify.core.branch import Branch
from ramify.core.environment import REPLIES, TURN, Environment
from ramify.core.problem import Problem
from ramify.core.segment import ToolCall

LAST_WORDS: Final = "That is all."
"""Ends a path that a limit of ramify ended: the loops of others go on until the model makes no call."""


@dataclass(frozen=True)
class Played:
    """A path that ramify grew."""

    problem: Problem
    seed: int
    """Of its episode."""
    branch: Branch
    calls: Sequence[ToolCall]
    """Its steps."""


Loop = Callable[[Environment, Sequence[Played]], float]


def num_turns(paths: Sequence[Played]) -> int:
    return sum(len(path.calls) for path in paths)


def turns_per_s(paths: Sequence[Played], play: Callable[[Played], object]) -> float:
    """Of paths that are played one after another."""
    began = time.perf_counter()
    for path in paths:
        play(path)
    return num_turns(paths) / (time.perf_counter() - began)


def gym_loop(id: str, names: Sequence[str]) -> Loop:
    """`step` and `render` of one environment, which is reset for each path and where a game ends."""

    def loop(_: Environment, paths: Sequence[Played]) -> float:
        import gymnasium

        env = gymnasium.make(id, **({} if id.startswith("Cart") else {"render_mode": "ansi"}))

        def play(path: Played) -> None:
            env.reset(seed=path.seed % 2**31)
            for call in path.calls:
                _, _, is_done, is_truncated, _ = env.step(names.index(call.arguments))
                env.render() if env.render_mode else None
                if is_done or is_truncated:
                    env.reset()

        with contextlib.closing(env):
            return turns_per_s(paths, play)

    return loop


def text_world_loop(environment: Any, paths: Sequence[Played]) -> float:
    import textworld

    def play(path: Played) -> None:
        game = str(environment._generated(path.problem.public["seed"]))
        env = textworld.start(game, textworld.EnvInfos(feedback=True, facts=True, score=True))
        env.reset()
        for call in path.calls:
            if env.step(call.arguments)[2]:
                env.reset()
        env.close()

    return turns_per_s(paths, play)


def text_arena_loop(_: Environment, paths: Sequence[Played]) -> float:
    import textarena

    def play(path: Played) -> None:
        env = textarena.make("2048-v0")
        env.reset(num_players=1, seed=path.seed % 2**31)
        for call in path.calls:
            env.get_observation()
            if env.step(call.arguments)[0]:
                env.reset(num_players=1, seed=0)

    return turns_per_s(paths, play)


def trl_loop(environment: Any, paths: Sequence[Played]) -> float:
    """An instance for each path; what a method raises is told to the model, as in TRL's trainer."""

    def play(path: Played) -> None:
        instance = environment.made()
        instance.reset(**path.problem.public)
        for call in path.calls:
            with contextlib.suppress(Exception):
                said = getattr(instance, call.tool)(**json.loads(call.arguments))
                asyncio.run(said) if asyncio.iscoroutine(said) else None
        instance.get_reward()

    return turns_per_s(paths, play)


OPENENV_CLIENT: Final = """
import asyncio, json, sys, time
from openenv.core.generic_client import GenericEnvClient
async def main():
    client = GenericEnvClient(base_url=sys.argv[1])
    await client.connect()
    began = time.perf_counter()
    for number, path in enumerate(json.load(sys.stdin)):
        await client.reset(seed=number)
        for message in path:
            try:
                is_done = (await client.step({"message": message})).done
            except RuntimeError:  # the server refuses the action
                continue
            if is_done:
                await client.reset(seed=number)
    print(time.perf_counter() - began)
    await client.close()
asyncio.run(main())
"""


def openenv_loop(python: str) -> Loop:
    """The client of openenv, in an interpreter that has it; the start of that process does not count."""

    def loop(environment: Any, paths: Sequence[Played]) -> float:
        told = json.dumps([[call.arguments for call in path.calls] for path in paths])
        command = [python, "-c", OPENENV_CLIENT, environment.url]
        ran = subprocess.run(command, input=told, stdout=subprocess.PIPE, text=True, check=True)
        return num_turns(paths) / float(ran.stdout)

    return loop


def verifiers_loop(environment: Any, paths: Sequence[Played]) -> float:
    """verifiers' rollouts, all at once: its chat program and its tool servers in processes, and a scripted provider."""
    from tests.environments.verifiers_loop import own_traces

    folder = str(Path(sys.modules[type(environment._loaded).__module__].__file__ or "").parent)
    os.environ["PYTHONPATH"] = folder  # for the tool servers
    chains = [(int(path.problem.uid.rpartition("-")[2]), _ended(path)) for path in paths]

    async def evaluated() -> list[Any]:
        return await asyncio.gather(*(own_traces(environment._loaded, [chain]) for chain in chains))

    began = time.perf_counter()
    for (trace,) in asyncio.run(evaluated()):
        assert not trace.errors, trace.errors
    return num_turns(paths) / (time.perf_counter() - began)


def inspect_loop(environment: Any, paths: Sequence[Played]) -> float:
    """`inspect_ai.eval` of one sample for each path, with Inspect's own double of a model."""
    from inspect_ai import eval as evaluated
    from inspect_ai import task_with
    from inspect_ai.dataset import MemoryDataset, Sample
    from inspect_ai.model import ModelOutput, ModelUsage, get_model

    turns = [_ended(path) for path in paths]
    samples = [Sample.model_validate(path.problem.secret["sample"]) for path in paths]
    numbered = [each.model_copy(update={"id": i, "input": f"{each.input}\n{i}"}) for i, each in enumerate(samples)]

    def said(messages: list[Any], *_: object) -> ModelOutput:
        (asked,) = (message.text for message in messages if message.role == "user")
        number = sum(message.role == "assistant" for message in messages)
        tool, words = turns[int(asked.rpartition("\n")[2])][number]
        made = (
            ModelOutput.from_content("mockllm", words)
            if tool == TURN
            else ModelOutput.for_tool_call("mockllm", tool, {"text": words} if tool == "note" else json.loads(words))
        )
        made.usage = ModelUsage()  # without it, Inspect loads a tokenizer to count them
        return made

    task = task_with(environment._task, dataset=MemoryDataset(numbered))
    with tempfile.TemporaryDirectory() as logs:
        began = time.perf_counter()
        model = get_model("mockllm/model", custom_outputs=said, memoize=False)
        (log,) = evaluated(task, model=model, log_dir=logs, display="none")
        took_s = time.perf_counter() - began
    assert log.status == "success", log.error
    return num_turns(paths) / took_s


def tau2_loop(environment: Any, paths: Sequence[Played]) -> float:
    """tau2's Orchestrator and evaluator, with an agent and a customer that say what they are told to say."""
    from tau2.data_model.tasks import Task
    from tests.environments.tau2_loop import own_run

    parameters = {each["name"]: each["parameters"] for each in environment.schemas}

    def play(path: Played) -> None:
        steps = [(call.tool, call.arguments, [each["text"] for each in _replies(call)]) for call in path.calls]
        own_run(Task.model_validate(path.problem.secret["task"]), steps, parameters)

    return turns_per_s(paths, play)


def is_left(path: Played) -> bool:
    """Whether the customer of tau2 ended the path: its own loop has none of ramify's limits."""
    return "###STOP###" in "".join(each["text"] for each in _replies(path.calls[-1])) if path.calls else False


def _replies(call: ToolCall) -> Sequence[Any]:
    return call.metadata.get(REPLIES, ())


def _ended(path: Played) -> list[tuple[str, str]]:
    """The turns of a path, each with its function ('' = none) and the arguments or words; the last makes no call."""
    turns = [(call.tool, call.arguments) for call in path.calls]
    return turns if turns and turns[-1][0] == TURN else [*turns, (TURN, LAST_WORDS)]
