# ruff: noqa: T201
"""verifiers' own evaluation of given turns: its rollout, its chat program, its tool servers, a scripted provider.

`python -m tests.environments.verifiers_loop 3` grows chains of 3 toy tasks with ramify, evaluates the same turns with
verifiers' own loop, and prints both mean rewards. It needs verifiers and takes about 10 s for each chain.
"""

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aiohttp import web
from tests.environments.toy_vault import VAULT

import ramify
from ramify.core.environment import TURN
from ramify.environments.task import EnvironmentTask
from ramify.environments.verifiers import Verifiers
from ramify.testing.scripted import Scripted
from ramify.testing.scripts import ScriptedTurn

Turn = tuple[str, str]
"""Name of a function ('' = none), and its arguments or the words."""
LAST = "I think that it begins with"


def dialling(turn: ScriptedTurn) -> str:
    """A policy that dials digits, which it chooses by the seed, and gives up at last."""
    num_calls = turn.context.count("</dial_turn>") + turn.context.count("</dial_look>")
    choice = (turn.seed >> 3) % 12
    if num_calls >= 4 or choice == 11:
        return f"{LAST} {turn.seed % 10}"
    if choice == 10:
        return "<dial_look>{}</dial_look>"
    code = "964"  # that of vault 0
    digit = code[num_calls % 3] if turn.seed % 4 else str(choice)
    return f'<dial_turn>{{"digit": {digit}}}</dial_turn>'


def grown_chains(environment: Verifiers, preset: str, *, prompts: int = 1, seed: int = 1) -> list[Any]:
    """(uid, turns, reward, parts) of every leaf that ramify grew."""
    task = EnvironmentTask(environment)
    options: dict[str, Any] = {"max_failed_share": 0.0, "growth.max_response_tokens": 2000}
    grown = ramify.rollout_sync(
        task=task, engine=Scripted(dialling), preset=preset, prompts=prompts, seed=seed, **options
    )
    return [_leaf(tree, node) for tree in grown.trees for node in tree.leaves() if tree.reward(node) is not None]


def _leaf(tree: Any, node: int) -> Any:
    path = [node]
    while (parent := tree.parent(path[0])) is not None:
        path.insert(0, parent)
    calls = [s.tool_call for each in path for s in tree.segments(each) if s.tool_call is not None]
    (score,) = (score for score in tree.scores(node) if score.judge == "environment")
    turns = [(call.tool, call.arguments) for call in calls if call.status in ("ok", "empty", "error")]
    return tree.problem.uid, turns, tree.reward(node), dict(score.parts)


async def own_traces(taskset: Any, chains: Sequence[tuple[int, Sequence[Turn]]]) -> list[Any]:
    """The Traces that verifiers itself makes of these turns: for each chain, the index of its task and its turns."""
    from verifiers.v1 import AgentConfig, EvalClientConfig, ModelContext, SubprocessConfig
    from verifiers.v1.harnesses.null.harness import NullHarness, NullHarnessConfig
    from verifiers.v1.harnesses.utils.launch import CHAT_PROGRAM_SOURCE
    from verifiers.v1.rollout import Rollout, RolloutTimeouts
    from verifiers.v1.session import RolloutLimits

    class ThisPython(NullHarness):
        """The chat program of verifiers, run by this Python and not by one that `uv` installs."""

        async def setup(self, runtime: Any) -> None:
            async def prepared(source: str, env: Any, *, activate: bool = True) -> list[str]:
                await runtime.write("program.py", CHAT_PROGRAM_SOURCE.encode())
                return [sys.executable, str(runtime.workdir / "program.py")]

            runtime.prepare_uv_script = prepared

    tasks = list(taskset)
    async with _Provider([turns for _, turns in chains]) as url:
        client = EvalClientConfig(base_url=url, api_key_var="NO_KEY")

        async def trace(number: int) -> Any:
            rollout = Rollout(
                task=tasks[chains[number][0]],
                agent_config=AgentConfig(),
                harness=ThisPython(NullHarnessConfig(id="null")),
                ctx=ModelContext(model=f"chain-{number}", client=client),
                runtime_config=SubprocessConfig(),
                timeouts=RolloutTimeouts(),
                limits=RolloutLimits(),
            )
            if await rollout.open():
                await rollout.step()
            return await rollout.close()

        return [await trace(number) for number in range(len(chains))]


class _Provider:
    """An OpenAI-compatible server that says the turns of chain `n` to the model `chain-n`."""

    def __init__(self, chains: Sequence[Sequence[Turn]]) -> None:
        self._chains = chains
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._answer)
        self._runner = web.AppRunner(app)

    async def __aenter__(self) -> str:
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"

    async def __aexit__(self, *error: object) -> None:
        await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        number = sum(message["role"] == "assistant" for message in body["messages"])
        tool, words = self._chains[int(body["model"].removeprefix("chain-"))][number]
        message: dict[str, Any] = {"role": "assistant", "content": words}
        if tool != TURN:
            call = {"id": f"call_{number}", "type": "function", "function": {"name": tool, "arguments": words}}
            message = {"role": "assistant", "content": None, "tool_calls": [{**call, "index": 0}]}
        ends = "stop" if tool == TURN else "tool_calls"
        shared = {"id": f"reply-{number}", "created": 0, "model": body["model"]}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        if not body.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": ends}
            return web.json_response({**shared, "object": "chat.completion", "choices": [choice], "usage": usage})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        chunk = {**shared, "object": "chat.completion.chunk"}
        for choice in (
            {"index": 0, "delta": message, "finish_reason": None},
            {"index": 0, "delta": {}, "finish_reason": ends},
        ):
            await response.write(f"data: {json.dumps({**chunk, 'choices': [choice]})}\n\n".encode())
        await response.write(
            f"data: {json.dumps({**chunk, 'choices': [], 'usage': usage})}\n\ndata: [DONE]\n\n".encode()
        )
        return response


def main() -> None:
    """Print the mean reward of the same chains by ramify and by verifiers, and turns per second."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "toy_vault_pkg.py").write_text(VAULT, "utf-8")
        sys.path.insert(0, folder)
        os.environ["PYTHONPATH"] = folder
        environment = Verifiers(name="toy_vault_pkg")
        environment.check_start()
        grown_chains(environment, "chains")  # what is imported only once
        began = time.perf_counter()
        leaves = grown_chains(environment, "chains", prompts=int(sys.argv[1]) if sys.argv[1:] else 1)
        ours_s = time.perf_counter() - began
        chains = [(int(uid.rpartition("-")[2]), turns) for uid, turns, _, _ in leaves]
        began = time.perf_counter()
        traces = asyncio.run(own_traces(environment._loaded, chains))
        own_s = time.perf_counter() - began
    num_turns = sum(len(turns) for _, turns in chains)
    for (uid, turns, reward, _), trace in zip(leaves, traces, strict=True):
        print(f"{uid}  {len(turns)} turns  ramify {reward:.3f}  verifiers {trace.reward:.3f}  {trace.stop_condition}")
    ours, own = (sum(values) / len(leaves) for values in ([leaf[2] for leaf in leaves], [t.reward for t in traces]))
    print(f"mean reward: ramify {ours:.6f}, verifiers {own:.6f}")
    print(f"turns/s: ramify {num_turns / ours_s:.1f}, verifiers' own loop {num_turns / own_s:.2f}")


if __name__ == "__main__":
    main()
