"""Parts of these tests: shells on each back end, and what a call of theirs showed."""

import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from ramify.core.problem import Problem
from ramify.core.tool import STATE_DIGEST, ToolResult
from ramify.workspaces.shell import Shell
from ramify.workspaces.shell_session import EXIT_CODE, ShellSession

BACK_ENDS = ("overlay", "copy")


STRAYS = "ps -e | grep -cE 'python|sleep|yes|head|touch' || true"
"""Counts processes of an earlier call."""


@contextmanager
def open_folder() -> Iterator[Path]:
    """An empty folder that all users may pass. Those of pytest are closed to others whenever a pytest starts."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o711)
        yield Path(folder)


@asynccontextmanager
async def shell(**options: Any) -> AsyncIterator[ShellSession]:
    """A session, and an end that leaves nothing."""
    public = options.pop("public", {})
    tool = Shell(**options)
    try:
        yield await tool.open(Problem("p", "q", public))
    finally:
        await tool.let_go()


async def said(session: ShellSession, command: str) -> str:
    """The text of a command that must succeed."""
    result = await session.call(command)
    assert result.status == "ok", result
    return result.text


def digest(result: ToolResult) -> str:
    return result.metadata[STATE_DIGEST]


def exit_code(result: ToolResult) -> int:
    return result.metadata[EXIT_CODE]
