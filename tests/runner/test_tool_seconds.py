"""The seconds of a call are its tool's, though the event loop stands still for most of the time."""

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import ClassVar

import pytest
from tests.tools.mcp_calls import PROBLEM, SERVER, branch
from tests.tools.retrievers import echoed

from ramify.core.format import ToolAction
from ramify.core.segment import ToolCall
from ramify.core.tool import Tool
from ramify.runner.toolbox import Toolbox
from ramify.tools.function import FunctionTool
from ramify.tools.mcp import Mcp
from ramify.tools.python import Python
from ramify.tools.retriever import Retriever

WORK_S = 0.05
"""Seconds that each tool works."""
BUSY_S = 0.5
"""Seconds that the event loop stands still at a time."""


def called(tool: Tool, *arguments: str, is_busy: bool = True) -> list[ToolCall]:
    """Calls of a tool one after the other, the first of them in peace."""

    async def main() -> list[ToolCall]:
        box = Toolbox([tool], problems={"t": PROBLEM})
        calls: list[ToolCall] = []
        try:
            for each in arguments:
                calling = asyncio.create_task(box.call("t", branch(*calls), ToolAction(tool.name, each)))
                while not calling.done():
                    await asyncio.sleep(0.005)
                    time.sleep(BUSY_S if is_busy and calls else 0)  # noqa: ASYNC251 - what is tested
                calls.append(calling.result())
        finally:
            await box.close()
        return calls

    return asyncio.run(main())


def check(calls: list[ToolCall]) -> None:
    assert {call.status for call in calls} == {"ok"}
    for call in calls[1:]:
        assert WORK_S <= call.duration_s < 0.2


@pytest.mark.slow
@pytest.mark.covers("S0.5")
def test_the_seconds_of_a_function_are_its_own() -> None:
    def work(arguments: str) -> str:
        time.sleep(WORK_S)
        return arguments

    check(called(FunctionTool(work), "1", "2"))


@pytest.mark.slow
@pytest.mark.covers("S0.5")
def test_the_seconds_of_code_in_a_sandbox_are_its_own() -> None:
    code = f"import time\ntime.sleep({WORK_S})\n7"
    check(called(Python(preload=()), code, code, code))


@pytest.mark.slow
@pytest.mark.covers("S0.5")
def test_the_seconds_of_an_mcp_server_that_was_started_here_are_its_own() -> None:
    (tool,) = Mcp(command=sys.executable, args=[SERVER], only=["fault"]).tools
    slow = json.dumps({"how": "slow"})
    check(called(tool, slow, slow, slow))


class Slow(BaseHTTPRequestHandler):
    """A retriever in a thread of its own."""

    closes: ClassVar[bool] = False

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        time.sleep(WORK_S)
        answer = json.dumps({"result": echoed(body)}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


class Kept(Slow):
    """Keeps its connections."""

    protocol_version = "HTTP/1.1"


@contextmanager
def serving(kind: type[Slow]) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.slow
@pytest.mark.covers("S0.5")
@pytest.mark.parametrize("kind", [Kept, Slow])
def test_the_seconds_of_a_retriever_are_its_servers(kind: type[Slow]) -> None:
    with serving(kind) as url:
        check(called(Retriever(url), "a", "b", "c"))
        check(called(Retriever(url), "a", "b", is_busy=False))
