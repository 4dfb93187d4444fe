"""Calls of an MCP server's tools through a toolbox, and what is left of the server behind them."""

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ramify.config.run_config import ToolsConfig
from ramify.core.branch import Branch, Piece
from ramify.core.codec import ByteCodec
from ramify.core.format import ToolAction
from ramify.core.problem import Problem
from ramify.core.segment import Segment, ToolCall, token_array
from ramify.core.tool import Tool
from ramify.runner.toolbox import Toolbox
from ramify.tools.mcp import Mcp

T = TypeVar("T")
SERVER = str(Path(__file__).with_name("mcp_server.py"))
PROBLEM = Problem("p", "what?")
PATIENCE_S = 20.0


def mcp(*ways: str, **options: Any) -> Mcp:
    return Mcp(command=sys.executable, args=[SERVER, *ways], **options)


def tools_of(listing: str, *ways: str, **options: Any) -> dict[str, Tool]:
    return {tool.name: tool for tool in mcp(*ways, listed=listing, **options).tools}


def branch(*calls: ToolCall) -> Branch:
    pieces = [Piece(0, Segment("prompt", token_array([1])))]
    pieces += [Piece(n, Segment("given", token_array([3]), tool_call=call)) for n, call in enumerate(calls, 1)]
    return Branch(ByteCodec(), len(calls), tuple(pieces))


def used(tools: Mapping[str, Tool], work: Callable[[Toolbox], Coroutine[Any, Any, T]], **config: Any) -> T:
    """What `work` returns with a toolbox, which is closed behind it; nothing that was started is left then."""

    async def main() -> T:
        box = Toolbox(tools.values(), ToolsConfig(**config), problems={"t": PROBLEM})
        try:
            return await work(box)
        finally:
            await box.close()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            assert not others

    result = asyncio.run(main())
    assert not servers()
    return result


async def ask(box: Toolbox, tool: str, arguments: object = "{}", *, after: Sequence[ToolCall] = ()) -> ToolCall:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return await box.call("t", branch(*after), ToolAction(tool, text))


async def forked_reads(box: Toolbox) -> list[str]:
    """What three branches behind one note read, each after a note of its own, and what a fourth reads."""
    root = await ask(box, "write", "root")
    said: list[str] = []
    for note in ("red", "green", "blue"):
        own = await ask(box, "write", note, after=[root])
        said.append((await ask(box, "read", after=[root, own])).result)
    return [*said, (await ask(box, "read", after=[root])).result]


def called(tools: Mapping[str, Tool], tool: str, arguments: object = "{}", **config: Any) -> ToolCall:
    return used(tools, lambda box: ask(box, tool, arguments), **config)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def servers() -> list[int]:
    """Processes of the test's server that were started by this one."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            parent = int((entry / "stat").read_text("utf-8").rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
        if SERVER.encode() in words and parent == os.getpid() and is_alive(int(entry.name)):
            found.append(int(entry.name))
    return found


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.01)
