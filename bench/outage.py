"""What an outage costs: paths lost and extra seconds when a lone server is cut off and is back after 2.5 s.

Runs of chains keep 8 to 512 requests in flight; each run asks for three times as many paths. When the first of them
are done, the server goes: everything in flight is cut, and connections are refused. Two kinds of server:

- `simulated`: the engine `simulated`, whose time is virtual and exact.
- `endpoint`: a small server of chat completions in a process of its own, which is killed (SIGKILL) and started again
  at the same port. Each answer takes 0.3 s.

`lost` counts failed paths (0 is the aim); `extra s` compares with the same run without an outage (less is better; it
cannot be less than the outage).

Run: python bench/outage.py [--outage-s S]
"""

import argparse
import asyncio
import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from ramify.config.configure import resolve
from ramify.core.engine import Capabilities, Generation, Request
from ramify.core.errors import EngineError
from ramify.core.problem import Problem
from ramify.engines.in_front import InFront
from ramify.runner import loop
from ramify.runner.build import prepared_run
from ramify.runner.events import Event, StepGrown
from ramify.runner.library import rollout
from ramify.runner.report import RunReport
from ramify.runner.run import Run
from ramify.testing.clock import run_virtual
from ramify.testing.simulated import Simulated

IN_FLIGHT: Final = (8, 32, 64, 256, 512)
OUTAGE_S: Final = 2.5
PATHS_A_TREE: Final = 8
WAVES: Final = 3
"""Paths asked for, for each request in flight."""
BEFORE: Final = 8
"""The server goes when this part of the first requests is done: an eighth."""
ANSWER_S: Final = 0.3
MESSAGE: Final = {"role": "assistant", "content": "Some words of thought.\n<answer> 42 </answer>"}
REPLY: Final = {
    "id": "c",
    "object": "chat.completion",
    "model": "fixed",
    "choices": [{"index": 0, "message": MESSAGE, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 40, "completion_tokens": 12, "total_tokens": 52},
}
SERVER: Final = f"""
import asyncio, json, sys
from aiohttp import web
reply = json.loads({json.dumps(json.dumps(REPLY))})
async def complete(request):
    await request.read()
    await asyncio.sleep(float(sys.argv[2]))
    return web.json_response(reply)
async def models(request):
    return web.json_response({{"object": "list", "data": [{{"id": "fixed", "object": "model"}}]}})
async def main():
    app = web.Application()
    app.router.add_post("/v1/chat/completions", complete)
    app.router.add_get("/v1/models", models)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", int(sys.argv[1]), backlog=1024).start()
    print("listening", flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


@dataclass(frozen=True)
class Outcome:
    """What became of a run."""

    paths: int
    lost: int
    seconds: float


def outcome(report: RunReport) -> Outcome:
    return Outcome(report.leaves, report.failed_leaves, report.seconds)


# -- in virtual time --------------------------------------------------------------------------------------------------


class Mortal(InFront):
    """An engine whose server can go: what is in flight is cut, and whoever comes later finds nobody."""

    def __init__(self, *, later: str = "unreachable") -> None:
        """`later` is the failure of requests that come while it is gone."""
        super().__init__(Simulated())
        self._later = later
        self._is_gone = False
        self._running: set[asyncio.Task[Any]] = set()

    @property
    def capabilities(self) -> Capabilities:
        """As of a real server: its retries are limited."""
        return replace(self.engine.capabilities, is_deterministic=False)

    def go(self, seconds: float) -> None:
        self._is_gone = True
        for running in self._running:
            running.cancel()
        asyncio.get_running_loop().call_later(seconds, self._come_back)

    def _come_back(self) -> None:
        self._is_gone = False

    async def generate(self, request: Request) -> Generation:
        if self._is_gone:
            raise EngineError(self._later, "nobody is there", is_retryable=True)
        running = asyncio.ensure_future(self.engine.generate(request))
        self._running.add(running)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            if running.cancelled() and self._is_gone:
                raise EngineError("disconnected", "the connection was cut", is_retryable=True) from None
            running.cancel()
            raise
        finally:
            self._running.discard(running)


def simulated(in_flight: int, outage_s: float | None, *, waves: int = WAVES, later: str = "unreachable") -> Outcome:
    """A run with `in_flight` requests at once; `outage_s` None = nothing happens to it."""
    flags = {
        "prompts": waves * in_flight // PATHS_A_TREE,
        "max_trees": max(1, in_flight // PATHS_A_TREE),
        "strategy.options": {"n": PATHS_A_TREE},
        "engine.name": "simulated",
        "seed": 5,
        "growth.max_response_tokens": 200,
    }
    engine = Mortal(later=later)
    run = Run(prepared_run(resolve(preset="chains", flags=flags).config, engine=engine))
    strike = at_step(in_flight // BEFORE, lambda: engine.go(outage_s) if outage_s is not None else None)

    async def main() -> RunReport:
        try:
            return await run.grow([strike])
        finally:
            await run.close()

    return outcome(run_virtual(main()))


def at_step(number: int, do: Callable[[], object]) -> Callable[[Event], None]:
    """An observer that calls `do` once, at the step of this number."""
    num_steps = 0

    def observe(event: Event) -> None:
        nonlocal num_steps
        if isinstance(event, StepGrown):
            num_steps += 1
            if num_steps == number:
                do()

    return observe


# -- a process that is killed -----------------------------------------------------------------------------------------


class MortalEndpoint:
    """A server of chat completions that can be killed and started again at the same port."""

    def __init__(self, *, answer_s: float = ANSWER_S) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self._answer_s = answer_s
        self._process: subprocess.Popen[str] | None = None
        self._timer: threading.Timer | None = None
        self.up()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/v1"

    def up(self) -> None:
        arguments = [sys.executable, "-c", SERVER, str(self._port), str(self._answer_s)]
        self._process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline()

    def down(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.communicate()

    def go(self, seconds: float) -> None:
        """Die, and start again after `seconds`; returns at once."""
        self.down()
        self._timer = threading.Timer(seconds, self.up)
        self._timer.start()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.join()
        self.down()


@contextmanager
def mortal_endpoint(*, answer_s: float = ANSWER_S) -> Iterator[MortalEndpoint]:
    endpoint = MortalEndpoint(answer_s=answer_s)
    try:
        yield endpoint
    finally:
        endpoint.close()


def endpoint(in_flight: int, outage_s: float | None, *, waves: int = WAVES, **settings: Any) -> Outcome:
    """As `simulated`, with a real server."""
    with mortal_endpoint() as server:
        strike = at_step(in_flight // BEFORE, lambda: server.go(outage_s) if outage_s is not None else None)
        problems = [
            Problem(f"p{index}", f"What is question {index} worth?")
            for index in range(waves * in_flight // PATHS_A_TREE)
        ]
        grown = loop.run(
            rollout(
                problems,
                preset="self_consistency",
                task__name="data",
                data__questions=["-"],
                format="messages",
                engine__name="openai",
                engine__model="fixed",
                engine__base_url=server.url,
                engine__options={"max_in_flight": in_flight},
                strategy__options={"n": PATHS_A_TREE, "vote": "majority"},
                max_trees=max(1, in_flight // PATHS_A_TREE),
                observers=[strike],
                **settings,
            )
        )
    return outcome(grown.report)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--outage-s", type=float, default=OUTAGE_S)
    parser.add_argument("--smoke", action="store_true", help="with few in flight, for the form of the figures")
    options = parser.parse_args()
    outage_s: float = options.outage_s
    print(f"a lone server that is gone for {outage_s:g} s")
    print(f"{'server':>10} {'in flight':>9} {'paths':>6} {'lost':>5} {'calm s':>7} {'extra s':>8}")
    num_lost = 0
    for name, grow in (("simulated", simulated), ("endpoint", endpoint)):
        for in_flight in IN_FLIGHT[: 1 if options.smoke else None]:
            calm, cut = grow(in_flight, None), grow(in_flight, outage_s)
            lost = calm.paths - cut.paths + cut.lost
            num_lost += lost
            print(
                f"{name:>10} {in_flight:>9} {calm.paths:>6} {lost:>5} {calm.seconds:>7.1f} "
                f"{cut.seconds - calm.seconds:>8.1f}"
            )
    print(f"paths lost: {num_lost}; target 0: {'met' if not num_lost else 'MISSED'}")


if __name__ == "__main__":
    main()
