"""ShellSession: the workspace of one branch: its files, its working directory and its variables.

A command acts on a draft of the files. If it ends by itself, the draft becomes the state; after a timeout or a limit,
the state is that before the call. A cancelled call is killed before this returns.

A server may act on the files, too (`serve`), and runs on between its calls. One actor at a time: before a command, or
another server, it ends, and the files are those that its last call left.
"""

import asyncio
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from ramify.core.errors import ToolError
from ramify.core.segment import ToolStatus
from ramify.core.tool import LOST, STATE_DIGEST, ToolResult
from ramify.workspaces.back_ends import WorkspaceState
from ramify.workspaces.command import CommandEnd, StopFlag
from ramify.workspaces.shell_order import (
    MAX_COMMAND_BYTES,
    MAX_VARIABLES_BYTES,
    CommandRules,
    ShellOrder,
    ShellVariables,
    num_bytes_of,
)
from ramify.workspaces.tree import TreeFault
from ramify.workspaces.tree_digest import TOP

if TYPE_CHECKING:
    from ramify.workspaces.remote import RemoteSession
    from ramify.workspaces.workspaces import Workspaces

T = TypeVar("T")

EXIT_CODE: Final = "exit_code"
"""Key of a result's metadata: the exit code of the command; 128 + n where signal n ended it."""

UNKEPT_NOTE: Final = f"\n[variables and working directory not kept: over {MAX_VARIABLES_BYTES} bytes]\n".encode()


@dataclass(frozen=True, slots=True)
class ForkScore:
    """What a command said on a fork that is gone."""

    exit_code: int | None
    """None = it reached the timeout or a limit."""
    output: str
    status: ToolStatus


@dataclass(frozen=True, slots=True)
class ServerStart:
    """What a server in a workspace starts on. Whoever lends the state holds it as long as the server may run."""

    rules: CommandRules
    state: WorkspaceState


class WorkspaceServer(Protocol):
    """A server that acts on a draft of the files of one workspace."""

    async def call(self, name: str, given: Mapping[str, Any]) -> ToolResult: ...

    async def fork(self) -> "WorkspaceServer": ...

    async def give_back(self) -> WorkspaceState | None:
        """End, and return the files as the last call left them; the caller is the state's user. None = no call was
        made."""
        ...

    async def close(self) -> None: ...


class WorkspaceServers(Protocol):
    """All servers of one kind."""

    def opened(self, problem: ServerStart) -> WorkspaceServer: ...


class ShellSession:
    """The workspace of one branch. One call at a time."""

    def __init__(
        self, workspaces: "Workspaces", rules: CommandRules, state: WorkspaceState, variables: ShellVariables
    ) -> None:
        self._workspaces = workspaces
        self._rules = rules
        self._state: WorkspaceState | None = state
        self.variables = variables
        """The working directory and the exported variables."""
        self._server: tuple[WorkspaceServers, WorkspaceServer] | None = None
        """Who acts on a draft of the files, and of which kind it is."""
        self._turn = asyncio.Lock()

    @property
    def state(self) -> WorkspaceState:
        """Its files; those that a server started on while one acts on them. Raises `ToolError` once it is closed."""
        if self._state is None:
            raise ToolError(LOST, "the workspace is closed")
        return self._state

    async def call(self, arguments: str) -> ToolResult:
        """Run `arguments` as a command. A command that fails is a result of status `error`."""
        fault = command_fault(arguments)
        if fault:
            return ToolResult(fault, "error", await self._metadata(None))
        async with self._turn:
            await self._take_back()
            return await self._with_stop(lambda stop: self._called(arguments, stop))

    async def serve(self, servers: WorkspaceServers, name: str, given: Mapping[str, Any]) -> ToolResult:
        """Call a tool of a server that acts on the files. Raises `ToolError`."""
        async with self._turn:
            if self._server is None or self._server[0] is not servers:
                await self._take_back()
                self._server = servers, servers.opened(ServerStart(self._rules, self.state))
            return await self._server[1].call(name, given)

    async def fork(self) -> "ShellSession":
        """A workspace with the same files, folder and variables, from here on its own. Copies nothing, except what a
        server wrote that runs."""
        async with self._turn:
            fork = ShellSession(self._workspaces, self._rules, self.state, self.variables)
            if self._server is not None:
                fork._server = self._server[0], await self._server[1].fork()
            self._workspaces.back_end.hold(self.state)
            return fork

    async def close(self) -> None:
        """Release its files. Calling it again is harmless."""
        async with self._turn:
            state, self._state = self._state, None
            server, self._server = self._server, None
            try:
                if server is not None:
                    await server[1].close()
            finally:
                if state is not None:
                    await self._workspaces.in_thread(lambda: self._workspaces.back_end.release(state))

    async def digest(self) -> str:
        """Sha256 of everything in `/w` (`tree_digest.py`)."""
        state = await self._quiet()
        return await self._workspaces.in_thread(lambda: state.digest)

    async def upload(self, files: Mapping[str, bytes], *, mode: int = 0o644) -> None:
        """Write files into `/w`, as a step that no command made: a replay must repeat it. Paths are relative to `/w`.
        Raises `ToolError` for a path that leads out or through a link, and for files that are too large."""
        async with self._turn:
            await self._take_back()
            await self._workspaces.in_thread(lambda: self._uploaded(files, mode))

    async def download(self, path: str, *, max_bytes: int = 64 << 20) -> bytes:
        """Content of a file of `/w`. Raises `ToolError` if it is missing, larger, or no file; links are not
        followed."""
        inner = placed(path)
        state = await self._quiet()
        try:
            return await self._workspaces.in_thread(lambda: state.read(inner, max_bytes))
        except (TreeFault, OSError) as error:
            raise ToolError("tool_gave_up", str(error)) from error

    async def _quiet(self) -> WorkspaceState:
        """The files, on which no server acts any more."""
        if self._server is not None:
            async with self._turn:
                await self._take_back()
        return self.state

    async def _take_back(self) -> None:
        """End the server that acts on the files, which are from here on those that its last call left."""
        old = self.state
        if self._server is not None:
            state = await self._server[1].give_back()
            self._server = None
            if state is not None:
                self._state = state
                self._workspaces.back_end.release(old)

    async def _metadata(self, exit_code: int | None) -> dict[str, Any]:
        known = {} if exit_code is None else {EXIT_CODE: exit_code}
        return known | {STATE_DIGEST: await self.digest()}

    async def _with_stop(self, work: Callable[[StopFlag], T]) -> T:
        """Run work in a thread; if cancelled, tell it to stop and wait for its end."""
        stop = StopFlag()
        loop = asyncio.get_running_loop()
        task = asyncio.ensure_future(loop.run_in_executor(self._workspaces.threads, lambda: work(stop)))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            stop.set()
            await asyncio.gather(task, return_exceptions=True)
            raise
        finally:
            stop.close()

    def _called(self, command: str, stop: StopFlag) -> ToolResult:
        end = self._run(command, stop, variables=self.variables, is_tmp_kept=True)
        status, text = _told(end)
        metadata: dict[str, Any] = {STATE_DIGEST: self.state.digest}
        if end.ending == "ended":
            metadata[EXIT_CODE] = end.exit_code
            text = _noted(text, f"[exit code {end.exit_code}]" if end.exit_code else "")
        return ToolResult(text, status, metadata, took_s=end.took_s)

    def _run(self, command: str, stop: StopFlag, *, variables: ShellVariables, is_tmp_kept: bool) -> CommandEnd:
        """Run a command on a draft; if it ended by itself, the draft becomes the state. Raises `ToolError`."""
        workspaces, state = self._workspaces, self.state
        try:
            draft = workspaces.back_end.draft(state)
        except (TreeFault, OSError) as error:
            raise ToolError(LOST, f"the files of a workspace cannot be copied: {error}") from error
        order = ShellOrder(
            rules=self._rules, draft=draft, command=command, variables=variables, is_tmp_kept=is_tmp_kept
        )
        end = workspaces.run(order, stop)
        if end.ending != "ended":
            workspaces.back_end.discard(draft)
            return end
        try:
            self._state = workspaces.back_end.keep(draft)
        except (TreeFault, OSError) as error:
            return replace(end, ending="limit", fault=f"its files cannot be kept: {error}")
        workspaces.back_end.release(state)
        if end.variables is None:
            return end
        if num_bytes_of(end.variables) > MAX_VARIABLES_BYTES:
            return replace(end, output=end.output + UNKEPT_NOTE)
        self.variables = end.variables
        return end

    def _uploaded(self, files: Mapping[str, bytes], mode: int) -> None:
        back_end, state = self._workspaces.back_end, self.state
        paths = {placed(name): data for name, data in files.items()}
        try:
            draft = back_end.draft(state)
            try:
                for path, data in paths.items():
                    back_end.write(draft, path, data, mode)
            except BaseException:
                back_end.discard(draft)
                raise
            self._state = back_end.keep(draft)
        except (TreeFault, OSError) as error:
            raise ToolError("tool_gave_up", f"the files cannot be uploaded: {error}") from error
        back_end.release(state)

    async def scored(self, files: Mapping[str, bytes], command: str) -> ForkScore:
        """See `score_on_fork`. The session must be a fork of its own."""
        fault = command_fault(command)
        if fault:
            raise ToolError("tool_gave_up", fault)
        await self.upload(files)
        async with self._turn:
            end = await self._with_stop(
                lambda stop: self._run(command, stop, variables=self._rules.first, is_tmp_kept=False)
            )
        status, text = _told(end)
        return ForkScore(end.exit_code if end.ending == "ended" else None, text, status)


async def score_on_fork(session: "ShellSession | RemoteSession", files: Mapping[str, bytes], command: str) -> ForkScore:
    """Run `command` on a fork of a session, with `files` (path in `/w` -> content) added there alone: the branch never
    sees them, nor what the command does.

    The command starts in `/w` with the variables of a fresh branch and an empty `/tmp`, so what the branch exported or
    left there does not reach it. What it left in `/w` does: overwrite every file that the verdict hangs on. Raises
    `ToolError` as `upload` does.
    """
    fork = await session.fork()
    try:
        return await fork.scored(files, command)
    finally:
        await asyncio.shield(asyncio.ensure_future(fork.close()))


def placed(name: str) -> bytes:
    """Path of a file of `/w` in a state's tree. Raises `ToolError` for one that leads out."""
    path = PurePosixPath(name)
    if path.is_absolute() and path.is_relative_to("/w"):
        path = path.relative_to("/w")
    if not path.parts or path.is_absolute() or ".." in path.parts or "\0" in name:
        raise ToolError("tool_gave_up", f"{name!r} is no path of a file in /w")
    return os.fsencode(str(PurePosixPath(os.fsdecode(TOP)) / path))


def command_fault(command: str) -> str:
    """Why a text is no command; empty = it is one."""
    with suppress(UnicodeEncodeError):
        size = len(command.encode("utf-8"))
        if size > MAX_COMMAND_BYTES:
            return f"a command may have {MAX_COMMAND_BYTES} bytes, and this one has {size}: write a file in parts"
        return "a command cannot hold a NUL character" if "\0" in command else ""
    return "a command must be text that UTF-8 can hold"


def _told(end: CommandEnd) -> tuple[ToolStatus, str]:
    """The status of a command, and its output with a note of what ended it."""
    text = end.output.decode("utf-8", errors="replace")
    match end.ending:
        case "ended":
            return ("error" if end.exit_code else "ok"), text
        case "timeout":
            return "timeout", _noted(text, "[timeout]")
        case "limit" | "stopped":
            return "crashed", _noted(text, f"[killed: {end.fault or 'it was stopped'}]")


def _noted(text: str, note: str) -> str:
    if not note:
        return text
    return f"{text}{'' if not text or text.endswith(chr(10)) else chr(10)}{note}"
