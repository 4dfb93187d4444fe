import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from ramify.core.errors import ConfigError, EngineError
from ramify.edge.http import Http
from ramify.servers.probe import Probe

PROBE = Probe(path="/generate", body={"text": "a"}, key="choices")


@asynccontextmanager
async def answering(body: bytes, *, status: int = 200) -> AsyncIterator[Http]:
    """A server that says this to everything."""

    async def say(request: web.Request) -> web.Response:
        return web.Response(body=body, status=status)

    app = web.Application()
    app.router.add_route("*", "/{any:.*}", say)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    http = Http(f"http://127.0.0.1:{runner.addresses[0][1]}")
    try:
        yield http
    finally:
        await http.close()
        await runner.cleanup()


async def test_a_server_that_answers_is_there_and_generates():
    faults: list[EngineError] = []
    async with answering(json.dumps({"choices": []}).encode()) as http:
        await PROBE.until_ready(http, health_s=5, probe_s=5, tell=faults.append)
    assert not faults


@pytest.mark.parametrize(
    "body", [b"<html>welcome</html>", b"[]", b'{"error": "no"}', b"", b"\xff\xfe", b"[" * 5000, b'"choices"']
)
async def test_what_is_no_generation_is_no_answer(body: bytes):
    async with answering(body) as http:
        await PROBE.is_there(http, deadline_s=5)
        with pytest.raises(EngineError, match=r"not_a_server: .*/generate answered without 'choices'"):
            await PROBE.generates(http, deadline_s=5)


async def test_a_server_that_says_no_is_not_there():
    async with answering(b"starting", status=503) as http:
        with pytest.raises(EngineError, match="busy"):
            await PROBE.is_there(http, deadline_s=5)


async def test_where_there_is_nothing_to_generate_nothing_is_asked():
    async with answering(b"<html>", status=500) as http:
        await Probe().generates(http, deadline_s=5)


def test_a_probe_has_a_path_and_a_body_or_neither():
    with pytest.raises(ConfigError, match="go together"):
        Probe(path="/generate")
