"""Servers on loopback that answer as their test says: well, badly or not at all."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

Answer = Callable[[dict[str, Any]], "web.Response | Awaitable[web.Response]"]


@dataclass
class Asked:
    """What a server was asked, and where it is."""

    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)

    @property
    def queries(self) -> list[list[str]]:
        return [body["queries"] for body in self.bodies]


@asynccontextmanager
async def answering(answer: Answer) -> AsyncIterator[Asked]:
    """A server whose `/retrieve` answers each request by `answer`."""
    asked = Asked()

    async def retrieve(request: web.Request) -> web.Response:
        body = await request.json()
        asked.bodies.append(body)
        said = answer(body)
        return said if isinstance(said, web.Response) else await said

    app = web.Application()
    app.router.add_post("/retrieve", retrieve)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        asked.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield asked
    finally:
        await runner.cleanup()


def echoed(body: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """One document a query, which holds the query."""
    return [[{"document": {"contents": f"T\nabout {query}"}, "score": 1.5}] for query in body["queries"]]


def said(result: object, **others: object) -> web.Response:
    return web.json_response({"result": result, **others}, dumps=json.dumps)
