"""A model server as a process of its own: the scripted random agent behind HTTP, and the engine that asks it.

`python -m tests.faults.replica_server` listens on a port of the system's choice and prints it.
"""

import asyncio
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np
from aiohttp import web

from ramify.core.codec import ByteCodec, Codec
from ramify.core.engine import Capabilities, Generation, Request
from ramify.core.segment import Finish, Sampling, token_array
from ramify.engines.faults import Delay
from ramify.engines.http import Http
from ramify.engines.scripted import SCRIPTED, Scripted

ROOT: Final = Path(__file__).parents[2]
ANSWER_S: Final = 0.05


class Wire:
    """The engine of one such server."""

    capabilities: Capabilities = SCRIPTED
    codec: Codec = ByteCodec(is_exact=True)

    def __init__(self, port: int) -> None:
        self._http = Http(f"http://127.0.0.1:{port}")

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
            num_billed=said["num_billed"],
            num_cached=said["num_cached"],
            num_prefilled=said["num_prefilled"],
        )

    async def close(self) -> None:
        await self._http.close()


class ReplicaProcess:
    """One server that can be killed. `started` waits until it listens."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self._process = process
        self.port = port

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
            "num_billed": said.num_billed,
            "num_cached": said.num_cached,
            "num_prefilled": said.num_prefilled,
        }
    )


async def serve() -> None:
    engine = Scripted(delay=Delay(call_s=ANSWER_S))
    app = web.Application()
    app.router.add_post("/generate", lambda request: answer(engine, request))
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)  # noqa: T201
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve())
