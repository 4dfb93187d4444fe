"""Servers in processes of their own that speak vLLM's `/v1/completions` and answer at once."""

import asyncio
import json
import multiprocessing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from aiohttp import web

from ramify.engines.builtin import FOLDER

MODEL = str(FOLDER)
"""The model that they say they serve."""
Answer = Callable[[Mapping[str, Any]], bytes]
"""The body of a request -> the body of its answer. A function of a module, since it is sent to a process."""


def completion(request_id: str, num_prompt: int, choice: Mapping[str, Any]) -> bytes:
    """An answer with one choice, whose `token_ids` are counted."""
    usage = {
        "prompt_tokens": num_prompt,
        "completion_tokens": len(choice["token_ids"]),
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    return json.dumps({"id": f"cmpl-{request_id}", "model": MODEL, "choices": [choice], "usage": usage}).encode()


@contextmanager
def instant_servers(answer: Answer, number: int = 1) -> Iterator[list[str]]:
    """The addresses of so many servers, which end behind the block."""
    context = multiprocessing.get_context("spawn")
    pipes = [multiprocessing.Pipe() for _ in range(number)]
    processes = [context.Process(target=_serve, args=(answer, theirs), daemon=True) for _, theirs in pipes]
    try:
        for process in processes:
            process.start()
        yield [f"http://127.0.0.1:{ours.recv()}" for ours, _ in pipes]
    finally:
        for process in processes:
            if process.pid is not None:
                process.kill()
                process.join()


def _serve(answer: Answer, told: Connection) -> None:
    async def completions(request: web.Request) -> web.Response:
        return web.Response(body=answer(json.loads(await request.read())), content_type="application/json")

    async def models(request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": MODEL, "root": MODEL, "max_model_len": 4096}]})

    async def version(request: web.Request) -> web.Response:
        return web.json_response({"version": "0"})

    async def run() -> None:
        app = web.Application(client_max_size=1 << 26)
        app.add_routes([web.post("/v1/completions", completions), web.get("/v1/models", models)])
        app.add_routes([web.get("/version", version)])
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        told.send(runner.addresses[0][1])
        await asyncio.Event().wait()

    asyncio.run(run())
