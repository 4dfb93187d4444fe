"""Servers behind a URL that misbehave: plain HTTP servers that say what their test has them say."""

import asyncio
import gzip
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from ramify.core.errors import ToolError
from ramify.tools.mcp import Mcp
from ramify.tools.mcp_client import CLOSE_S, McpServer
from ramify.tools.mcp_process import MAX_MESSAGE_BYTES

TOOL = {"name": "look", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}
STARTED = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "t", "version": "1"}}
MODERN = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}, "resultType": "complete"}
CACHE = {"ttlMs": 0, "cacheScope": "public", "resultType": "complete"}
FORM = {"message": "who?", "requestedSchema": {"type": "object", "properties": {}}}
ASKING = {
    "resultType": "input_required",
    "inputRequests": {"who": {"method": "elicitation/create", "params": FORM}},
}


def said(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}]}


@asynccontextmanager
async def serving(
    calls: list[Any], *, methods: Mapping[str, Any] = {}, is_stuck_at_its_end: bool = False
) -> AsyncIterator[McpServer]:
    """Sessions with a server that answers one call after another by `calls`, results or whole responses."""

    async def post(request: web.Request) -> web.StreamResponse:
        message = await request.json()
        results = {"initialize": STARTED, "tools/list": {"tools": [TOOL]}, **methods}
        if "id" not in message:
            return web.Response(status=202)
        result = calls.pop(0) if message["method"] == "tools/call" else results.get(message["method"])
        if isinstance(result, web.Response):
            return result
        error = {"error": {"code": -32601, "message": "no such method"}}
        answer = {"jsonrpc": "2.0", "id": message["id"], **(error if result is None else {"result": result})}
        return web.json_response(answer, headers={"Mcp-Session-Id": "one"})

    async def delete(request: web.Request) -> web.Response:
        if is_stuck_at_its_end:
            await asyncio.Event().wait()
        return web.Response()

    app = web.Application()
    app.add_routes([web.post("/mcp", post), web.delete("/mcp", delete)])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server = Mcp(url=f"http://127.0.0.1:{runner.addresses[0][1]}/mcp").server()
    try:
        yield server
    finally:
        await server.let_go()
        await runner.cleanup()
        assert asyncio.all_tasks() == {asyncio.current_task()}


async def looked(server: McpServer) -> str:
    (block,) = (await server.shared().call("look", {})).content
    return block.text  # type: ignore[union-attr]


async def test_a_session_that_expired_is_replaced_by_the_next_call() -> None:
    async with serving([said("one"), web.Response(status=404), said("two")]) as server:
        assert await looked(server) == "one"
        with pytest.raises(ToolError, match="tool_crashed: the server failed: Session terminated"):
            await looked(server)
        assert await looked(server) == "two"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (
            web.Response(body=b" " * (MAX_MESSAGE_BYTES + 1), content_type="application/json"),
            f"it is longer than {MAX_MESSAGE_BYTES} bytes",
        ),
        (
            web.Response(
                body=gzip.compress(json.dumps(said("x")).encode()),
                content_type="application/json",
                headers={"Content-Encoding": "gzip"},
            ),
            "it is compressed, which was not asked for",
        ),
        (web.Response(text="<html>", content_type="text/html"), "Unexpected content type: text/html"),
        (web.Response(text="no JSON", content_type="application/json"), "Failed to parse JSON response"),
        (web.Response(status=202), "server answered a request with 202 Accepted"),
        (web.Response(status=302, headers={"Location": "http://127.0.0.1:9/"}), "not followed"),
        (web.Response(status=500), "Server returned an error response"),
    ],
    ids=["long", "packed", "a page", "no JSON", "accepted", "led elsewhere", "broken"],
)
async def test_an_answer_that_is_none_is_a_fault_of_the_server_and_the_next_call_is_well(
    answer: web.Response, why: str
) -> None:
    async with serving([answer, said("two")]) as server:
        with pytest.raises(ToolError) as caught:
            await looked(server)
        assert why in str(caught.value)
        assert await looked(server) == "two"


async def test_a_tool_that_asks_for_a_person_is_told_there_is_none_and_its_session_lives_on() -> None:
    methods = {"server/discover": MODERN, "tools/list": {"tools": [TOOL], **CACHE}}
    async with serving([ASKING, {**said("two"), "resultType": "complete"}], methods=methods) as server:
        session = server.shared()
        result = await session.call("look", {})
        assert (result.is_error, result.content[0].text) == (True, "Elicitation not supported")  # type: ignore[union-attr]
        assert await looked(server) == "two"
        assert server.shared() is session


@pytest.mark.slow
async def test_a_server_that_will_not_let_go_of_a_session_is_left() -> None:
    async with serving([said("one")], is_stuck_at_its_end=True) as server:
        assert await looked(server) == "one"
        began = time.monotonic()
        await server.let_go()
        assert time.monotonic() - began < CLOSE_S + 5
