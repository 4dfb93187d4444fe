"""A model server as a process of its own: the scripted random agent behind HTTP, and the engine that asks it.

`python -m tests.faults.replica_server [PORT]` listens there, or on a port of the system's choice, and prints it. It
begins with weights of version 0, and says which ones every token was sampled by.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from aiohttp import web

from ramify.core.codec import ByteCodec, Codec
from ramify.core.engine import Capabilities, Generation, Request
from ramify.core.segment import Finish, Sampling, token_array
from ramify.edge.http import Http
from ramify.testing.planned_faults import Delay
from ramify.testing.scripted import SCRIPTED, Scripted

ROOT: Final = Path(__file__).parents[2]
ANSWER_S: Final = 0.02


class Wire:
    """The engine of one such server, with its control side."""

    capabilities: Capabilities = replace(SCRIPTED, has_versions=True)
    codec: Codec = ByteCodec(is_exact=True)

    def __init__(self, base_url: str) -> None:
        self._http = Http(base_url)

    async def generate(self, request: Request) -> Generation:
        wanted = {
            "ids": request.ids.tolist(),
            "max_tokens": request.max_tokens,
            "seed": request.seed,
            "stops": request.stops,
            "num_run": request.num_run,
            "sampling": asdict(request.sampling),
            "topk": request.topk,
            "topk_tokens": request.topk_tokens,
            "measures": sorted(request.measures),
            "request_id": request.request_id,
        }
        said: Any = json.loads(await self._http.post("/generate", json.dumps(wanted).encode(), deadline_s=10.0))
        return Generation(
            ids=token_array(said["ids"]),
            finish=Finish(*said["finish"]),
            logprobs=np.array(said["logprobs"], np.float32),
            measures={name: np.array(values, np.float32) for name, values in said["measures"].items()},
            topk=tuple(np.array(values, np.float32) for values in said["topk"]),
            versions=tuple((version, num) for version, num in said["versions"]),
            num_billed=said["num_billed"],
            num_cached=said["num_cached"],
            num_prefilled=said["num_prefilled"],
        )

    async def pause(self) -> None:
        await self._order("pause")

    async def resume(self) -> None:
        await self._order("resume")

    async def update_weights(self, source: str, version: int) -> None:
        await self._order("update_weights", source=source, version=version)

    async def offload(self, tags: tuple[str, ...] = ()) -> None:
        await self._order("offload", tags=tags)

    async def onload(self, tags: tuple[str, ...] = ()) -> None:
        await self._order("onload", tags=tags)

    async def is_healthy(self) -> bool:
        await self._http.get("/health", deadline_s=10.0)
        return True

    async def close(self) -> None:
        await self._http.close()

    async def _order(self, name: str, **told: Any) -> None:
        await self._http.post(f"/{name}", json.dumps(told).encode(), deadline_s=10.0)


class ReplicaProcess:
    """One server that can be killed. `started` waits until it listens."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self._process = process
        self.url = f"http://127.0.0.1:{port}"

    @classmethod
    async def started(cls) -> "ReplicaProcess":
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.faults.replica_server", cwd=ROOT, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        return cls(process, int(await process.stdout.readline()))

    async def kill(self) -> None:
        """SIGKILL, as the kernel does it when memory is short. Harmless when repeated."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()


async def answer(engine: Scripted, request: web.Request) -> web.Response:
    wanted = await request.json()
    said = await engine.generate(
        Request(
            **{
                **wanted,
                "ids": token_array(wanted["ids"]),
                "stops": tuple(wanted["stops"]),
                "sampling": Sampling(**wanted["sampling"]),
                "measures": frozenset(wanted["measures"]),
            }
        )
    )
    assert said.logprobs is not None
    return web.json_response(
        {
            "ids": said.ids.tolist(),
            "finish": [said.finish.kind, said.finish.matched],
            "logprobs": said.logprobs.tolist(),
            "measures": {name: values.tolist() for name, values in said.measures.items()},
            "topk": [values.tolist() for values in said.topk],
            "versions": said.versions,
            "num_billed": said.num_billed,
            "num_cached": said.num_cached,
            "num_prefilled": said.num_prefilled,
        }
    )


async def say_hello(request: web.Request) -> web.Response:
    return web.json_response({})


async def loaded(engine: Scripted, *, source: str, version: int) -> None:
    """Load weights. Those of a file `*.deadly` kill one server, before it has said that it has them, and are gone."""
    await engine.update_weights(source, version)
    if source.endswith(".deadly"):
        await asyncio.to_thread(die_of, Path(source))


def die_of(weights: Path) -> None:
    with suppress(FileNotFoundError):
        weights.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


async def carry_out(order: Callable[..., Awaitable[None]], request: web.Request) -> web.Response:
    await order(**await request.json())
    return web.json_response({})


async def serve(port: int) -> None:
    engine = Scripted(delay=Delay(call_s=ANSWER_S), version=0)
    app = web.Application()
    app.router.add_get("/health", say_hello)
    app.router.add_post("/generate", partial(answer, engine))
    app.router.add_post("/update_weights", partial(carry_out, partial(loaded, engine)))
    for order in (engine.pause, engine.resume, engine.offload, engine.onload):
        app.router.add_post(f"/{order.__name__}", partial(carry_out, order))
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    print(runner.addresses[0][1], flush=True)  # noqa: T201
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]) if sys.argv[1:] else 0))
