"""An OpenAI-compatible endpoint on this machine: a real server in a thread of its own, whose model is a function."""

import asyncio
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from aiohttp import web

STARTED_S = 10.0


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer byte by byte."""

    body: bytes
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


Said = Mapping[str, Any] | Reply
Model = Callable[[Mapping[str, Any]], Said]
"""The body of a request -> the body of its answer."""


def said(content: Any = None, *, finish: str | None = "stop", usage: Any = (7, 3), **fields: Any) -> dict[str, Any]:
    """A completion. `usage` = tokens read and sampled; fields called `choice_NAME` are the choice's, others the
    message's."""
    choice = {name.removeprefix("choice_"): fields.pop(name) for name in [*fields] if name.startswith("choice_")}
    message = {"role": "assistant", "content": content, "refusal": None, "annotations": [], **fields}
    answer: dict[str, Any] = {
        "object": "chat.completion",
        "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": finish, **choice}],
    }
    if usage is not None:
        read, sampled = usage
        answer["usage"] = {"prompt_tokens": read, "completion_tokens": sampled, "total_tokens": read + sampled}
    return answer


def call(name: str, arguments: str, call_id: str = "call_a") -> dict[str, Any]:
    """A native call, its arguments as the model wrote them."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def calling(*calls: Mapping[str, Any], content: str | None = None, **fields: Any) -> dict[str, Any]:
    """A completion that calls tools."""
    return said(content, finish="tool_calls", tool_calls=[*calls], **fields)


class Endpoint:
    """Serves `model` while the context lasts; keeps the requests. `models` is its list, None = it keeps none."""

    def __init__(self, model: Model, *, models: Sequence[Mapping[str, Any]] | None = ({"id": "m"},)) -> None:
        self.requests: list[dict[str, Any]] = []
        self.headers: list[Mapping[str, str]] = []
        self._model = model
        self._models = models
        self._port = 0
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/v1"

    def __enter__(self) -> "Endpoint":
        self._thread.start()
        assert self._started.wait(STARTED_S)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(STARTED_S)

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_get("/v1/models", self._list)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self._port = runner.addresses[0][1]
        self._started.set()
        await self._stop.wait()
        await runner.cleanup()

    async def _complete(self, request: web.Request) -> web.Response:
        body = json.loads(await request.read())
        self.requests.append(body)
        self.headers.append(request.headers.copy())
        answer = self._model(body)
        if isinstance(answer, Reply):
            return web.Response(body=answer.body, status=answer.status, headers=dict(answer.headers))
        return web.Response(body=json.dumps(answer).encode(), content_type="application/json")

    async def _list(self, request: web.Request) -> web.Response:
        self.headers.append(request.headers.copy())
        if self._models is None:
            return web.Response(status=404, text="<html>no such page</html>", content_type="text/html")
        return web.json_response({"object": "list", "data": [*self._models]})
