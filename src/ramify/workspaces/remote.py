"""Remote: workspaces whose files and commands are on other machines (`Shell.hosts`).

A session is a number on a connection, and a fork is one message. A new session goes to the machine with the fewest; a
fork stays on its own. The tool's options hold there; what comes back is checked against them here.
"""

import asyncio
import itertools
import math
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ramify.core.errors import ConfigError, ToolError
from ramify.core.problem import Problem
from ramify.core.tool import LOST, STATE_DIGEST, ToolResult
from ramify.edge.daemon_threads import DaemonThreads
from ramify.workspaces.back_ends import BackEndName
from ramify.workspaces.frames import DIGEST, MAX_CONTENT_BYTES, Operation, RemoteAnswer
from ramify.workspaces.packed_start import PackedStart, pack
from ramify.workspaces.process_watch import CommandLimits
from ramify.workspaces.remote_host import MAX_STARTS, HostConnection, RemoteHost, printable
from ramify.workspaces.shell_session import EXIT_CODE, ForkScore, command_fault, placed
from ramify.workspaces.tree import TreeFault
from ramify.workspaces.workspaces import column

if TYPE_CHECKING:
    from ramify.workspaces.shell import Shell

T = TypeVar("T")

MAX_THREADS: Final = 16
"""Sessions that are opened at once."""
NOTE_BYTES: Final = 1 << 12
"""Beyond the output, a text holds what ended the command."""
_NUMBERS: Final = itertools.count(1)


class RemoteWorkspaces:
    """The machines of one tool. Event loops may share it."""

    def __init__(self, tool: "Shell", limits: CommandLimits) -> None:
        self._tool, self._limits = tool, limits
        self._hosts = [RemoteHost(name, tool) for name in tool.hosts]
        self._threads = DaemonThreads(MAX_THREADS)
        self._lock, self._packing = threading.Lock(), threading.Lock()
        self._starts: dict[str, PackedStart] = {}

    async def open(self, problem: Problem) -> "RemoteSession":
        """A session in the state of the problem's start folder, which is of this machine. Raises `ToolError`."""
        source = column(problem, "workspace", self._tool.workspace)
        image = column(problem, "image", self._tool.image)
        opening = asyncio.ensure_future(self._in_thread(lambda: self._opened(source, image)))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_unwanted)
            raise

    async def try_walls(self) -> None:
        """Connect to every machine and try its walls. Raises `ToolError` that names the machine, and `ConfigError` for
        a start folder that is not here."""
        if self._tool.workspace:
            await self._in_thread(self._check_start)
        await asyncio.gather(*(self._asked(host, "try_walls") for host in self._hosts))

    async def back_end(self) -> tuple[BackEndName, str]:
        """How states lie on the disk of the first machine, and why. Raises `ToolError`."""
        found = await self._asked(self._hosts[0], "back_end")
        return "overlay" if found.data == b"overlay" else "copy", printable(found.text)

    def close(self) -> None:
        """End all connections. Blocks."""
        threads = [threading.Thread(target=host.close, daemon=True) for host in self._hosts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self._starts.clear()

    def _check_start(self) -> None:
        if not Path(self._tool.workspace).exists():
            raise ConfigError(f"workspace = {self._tool.workspace!r}: there is no such folder on this machine")

    def _opened(self, source: str, image: str) -> "RemoteSession":
        start = self._packed(source) if source else None
        host, connection = self._least()
        number = next(_NUMBERS)
        try:
            connection.open(number, start, source, image)
            return RemoteSession(connection, number, self._limits)
        finally:
            with self._lock:
                host.num_opening -= 1

    def _least(self) -> tuple[RemoteHost, HostConnection]:
        """The machine with the fewest sessions that answers, with one more that is about to be opened. Raises
        `ToolError` if there is none."""
        refused: dict[str, str] = {}
        while True:
            with self._lock:
                left = [host for host in self._hosts if host.name not in refused]
                if not left:
                    why = "; ".join(refused[host.name] for host in self._hosts)
                    raise ToolError(LOST, f"no machine of hosts is left: {why}")
                host = min(left, key=lambda each: (each.is_failing, each.num_sessions))
                host.num_opening += 1
            try:
                return host, host.connected()
            except BaseException as error:
                with self._lock:
                    host.num_opening -= 1
                if not isinstance(error, ToolError):
                    raise
                refused[host.name] = str(error).removeprefix(f"{error.reason}: ")

    def _packed(self, source: str) -> PackedStart:
        """A start folder as a file; it is read once, and kept for the next branch."""
        with self._packing:
            start = self._starts.pop(source, None)
            if start is None:
                try:
                    start = pack(Path(source), self._limits.of_tree)
                except (TreeFault, OSError) as error:
                    raise ToolError("tool_gave_up", f"the workspace {source!r} cannot be copied: {error}") from error
            self._starts[source] = start
            if len(self._starts) > MAX_STARTS:
                del self._starts[next(iter(self._starts))]
            return start

    async def _asked(self, host: RemoteHost, op: Operation) -> RemoteAnswer:
        connection = await self._in_thread(host.connected)
        try:
            return await connection.answer(op)
        except ToolError as error:
            text = str(error).removeprefix(f"{error.reason}: ")
            raise ToolError(error.reason, text if error.reason == LOST else f"on {host.name!r}: {text}") from error

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


class RemoteSession:
    """The workspace of one branch on another machine, as `ShellSession`. One call at a time. What the machine says
    raises `ToolError` alone."""

    def __init__(self, connection: HostConnection, number: int, limits: CommandLimits) -> None:
        self._connection, self._number, self._limits = connection, number, limits
        connection.sessions.add(number)

    async def call(self, arguments: str) -> ToolResult:
        """Run `arguments` as a command. A command that fails is a result of status `error`."""
        fault = command_fault(arguments)
        if fault:
            return ToolResult(fault, "error", {STATE_DIGEST: await self.digest()})
        found = self._bounded(await self._answer("call", text=arguments))
        metadata: dict[str, Any] = {STATE_DIGEST: self._digest(found)}
        if found.exit_code is not None:
            metadata[EXIT_CODE] = found.exit_code
        return ToolResult(found.text, found.status, metadata, took_s=found.took_s)

    async def fork(self) -> "RemoteSession":
        """A workspace with the same files, folder and variables, from here on its own. Copies nothing."""
        fork = RemoteSession(self._connection, next(_NUMBERS), self._limits)
        try:
            await self._answer("fork", fork=fork._number)
        except BaseException:
            fork.abandon()
            raise
        return fork

    async def close(self) -> None:
        """Release its files. Calling it again is harmless."""
        if self._is_open:
            self._connection.sessions.discard(self._number)
            with suppress(ToolError):  # They went with the machine.
                await self._connection.answer("close", session=self._number)

    def abandon(self) -> None:
        """As `close`, without waiting for it."""
        self._connection.sessions.discard(self._number)
        with suppress(ToolError):
            self._connection.ask("close", session=self._number)

    async def digest(self) -> str:
        """Sha256 of everything in `/w` (`tree_digest.py`)."""
        return self._digest(await self._answer("digest"))

    async def upload(self, files: Mapping[str, bytes], *, mode: int = 0o644) -> None:
        """As `ShellSession.upload`; the files of one call hold `MAX_CONTENT_BYTES` at most."""
        await self._answer("upload", files=_packed_files(files), mode=mode)

    async def download(self, path: str, *, max_bytes: int = MAX_CONTENT_BYTES) -> bytes:
        """As `ShellSession.download`, of a file of `MAX_CONTENT_BYTES` at most."""
        placed(path)
        found = await self._answer("download", data=os.fsencode(path), size=max_bytes)
        if len(found.data) > max_bytes:
            raise self._connection.breach(f"a file of {len(found.data)} bytes came, and {max_bytes} were asked for")
        return found.data

    async def scored(self, files: Mapping[str, bytes], command: str) -> ForkScore:
        """See `score_on_fork`. The session must be a fork of its own."""
        fault = command_fault(command)
        if fault:
            raise ToolError("tool_gave_up", fault)
        found = self._bounded(await self._answer("scored", files=_packed_files(files), text=command))
        return ForkScore(found.exit_code, found.text, found.status)

    @property
    def _is_open(self) -> bool:
        return self._number in self._connection.sessions

    async def _answer(self, op: Operation, **values: Any) -> RemoteAnswer:
        if not self._is_open:
            raise ToolError(LOST, "the workspace is closed")
        return await self._connection.answer(op, session=self._number, **values)

    def _bounded(self, found: RemoteAnswer) -> RemoteAnswer:
        """What a command said, if it keeps to the limits. A byte that is no text becomes three."""
        num_bytes, took_s = len(found.text.encode()), found.took_s
        if num_bytes > 3 * self._limits.max_output_bytes + NOTE_BYTES:
            raise self._connection.breach(
                f"a text of {num_bytes} bytes came, and max_output_bytes is {self._limits.max_output_bytes}"
            )
        if took_s is not None and not 0 <= took_s < math.inf:
            raise self._connection.breach(f"a command took {took_s!r} s")
        return found

    def _digest(self, found: RemoteAnswer) -> str:
        if not DIGEST.fullmatch(found.digest):
            raise self._connection.breach(f"{printable(found.digest)[:80]!r} is no digest")
        return found.digest


def _packed_files(files: Mapping[str, bytes]) -> tuple[tuple[bytes, bytes], ...]:
    num_bytes = sum(map(len, files.values()))
    if num_bytes > MAX_CONTENT_BYTES:
        raise ToolError(
            "tool_gave_up",
            f"the files cannot be uploaded: they hold {num_bytes} bytes, and {MAX_CONTENT_BYTES} go to another machine "
            "at once: upload them in parts",
        )
    for name in files:
        placed(name)
    return tuple((os.fsencode(name), bytes(data)) for name, data in files.items())


def _close_unwanted(opening: "asyncio.Task[RemoteSession]") -> None:
    """Close a session that was opened for nobody."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result().abandon()
