"""RemoteServer: the other end of a `Shell` with `hosts`, started there by ssh (`python -m …remote_server`).

It holds a `Shell` of that machine and its sessions, by the numbers that the near side gave them. It answers requests
as they come, many at once. When its standard input ends, it kills every command, removes all files and ends.
"""

import asyncio
import hashlib
import os
import signal
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from ramify.core.errors import ConfigError, ToolError
from ramify.core.problem import Problem
from ramify.core.tool import LOST, STATE_DIGEST
from ramify.sandbox.folders import remove
from ramify.version import __version__
from ramify.workspaces.frames import DIGEST, MAX_CONTENT_BYTES, FrameChannel, FrameFault, RemoteAnswer, RemoteRequest
from ramify.workspaces.packed_start import unpack
from ramify.workspaces.shell import RemoteSession, Shell
from ramify.workspaces.shell_session import EXIT_CODE, ShellSession
from ramify.workspaces.tree import TreeFault

END_S: Final = 15.0
"""Timeout for the end of commands that are killed."""
AnySession = ShellSession | RemoteSession


class RemoteServer:
    """The sessions of one connection."""

    def __init__(self) -> None:
        self.channel: FrameChannel | None = None
        self._tool: Shell | None = None
        self._sessions: dict[int, AnySession] = {}
        self._tasks: dict[int, asyncio.Task[RemoteAnswer]] = {}

    def take(self, frame: bytes) -> None:
        """Begin to answer a request, or cancel an earlier one. Raises what msgspec raises."""
        request = msgspec.msgpack.decode(frame, type=RemoteRequest)
        if request.op != "cancel":
            task = self._tasks[request.id] = asyncio.create_task(self._done(request))
            task.add_done_callback(partial(self._answer, request_id=request.id))
        elif request.id in self._tasks:
            self._tasks[request.id].cancel()

    async def close(self) -> None:
        """Kill every command and remove all files."""
        for task in self._tasks.values():
            task.cancel()
        if self._tasks:
            await asyncio.wait([*self._tasks.values()], timeout=END_S)
        if self._tool is not None:
            await self._tool.let_go()

    def _answer(self, task: "asyncio.Task[RemoteAnswer]", request_id: int) -> None:
        """Boundary: whatever an operation raised becomes an answer. A task may be cancelled before it begins."""
        del self._tasks[request_id]
        if task.cancelled():
            answer = RemoteAnswer(request_id, reason=LOST, text="it was cancelled")
        else:
            match task.exception():
                case None:
                    answer = task.result()
                case ToolError() as error:
                    text = str(error).removeprefix(f"{error.reason}: ")
                    answer = RemoteAnswer(
                        request_id, reason=LOST if error.reason == LOST else "tool_gave_up", text=text
                    )
                case error:
                    text = f"{type(error).__name__}: {error}"
                    answer = RemoteAnswer(
                        request_id, reason=LOST if isinstance(error, OSError) else "tool_gave_up", text=text
                    )
        assert self.channel is not None
        try:
            self.channel.send(answer)
        except FrameFault as error:
            self.channel.send(RemoteAnswer(request_id, reason="tool_gave_up", text=str(error)))

    async def _done(self, request: RemoteRequest) -> RemoteAnswer:
        match request.op:
            case "setup":
                self._tool = _tool(request.data)
            case "try_walls":
                try:
                    await self.tool.try_walls()
                except ConfigError as error:
                    raise ToolError("tool_gave_up", str(error)) from error
            case "back_end":
                name, why = await self.tool.back_end()
                return RemoteAnswer(request.id, text=why, data=name.encode())
            case "start":
                await self.tool.workspaces.in_thread(lambda: self._store(request))
            case "drop":
                await self.tool.workspaces.in_thread(lambda: _removed(self._start(request.digest)))
            case "open":
                self._sessions[request.session] = await self._opened(request)
            case _:
                return await self._acted(request, self._session(request.session))
        return RemoteAnswer(request.id)

    async def _acted(self, request: RemoteRequest, session: AnySession) -> RemoteAnswer:
        """Carry out an operation on one session."""
        match request.op:
            case "call":
                found = await session.call(request.text)
                code, digest = found.metadata.get(EXIT_CODE), found.metadata[STATE_DIGEST]
                return RemoteAnswer(request.id, "", found.text, found.status, code, digest, found.took_s)
            case "fork":
                self._sessions[request.fork] = await session.fork()
            case "close":
                del self._sessions[request.session]
                await session.close()
            case "digest":
                return RemoteAnswer(request.id, digest=await session.digest())
            case "upload":
                await session.upload(_files(request), mode=request.mode)
            case "download":
                max_bytes = min(request.size, MAX_CONTENT_BYTES)
                return RemoteAnswer(
                    request.id, data=await session.download(os.fsdecode(request.data), max_bytes=max_bytes)
                )
            case "scored":
                score = await session.scored(_files(request), request.text)
                return RemoteAnswer(request.id, "", score.output, score.status, score.exit_code)
            case _:
                raise ToolError("tool_gave_up", f"{request.op!r} is no operation on a session; use the same version")
        return RemoteAnswer(request.id)

    @property
    def tool(self) -> Shell:
        assert self._tool is not None
        return self._tool

    def _session(self, number: int) -> AnySession:
        if number not in self._sessions:
            raise ToolError(LOST, "the workspace is closed")
        return self._sessions[number]

    async def _opened(self, request: RemoteRequest) -> AnySession:
        start = str(self._start(request.digest)) if request.digest else ""
        public = {"workspace": start, "image": request.text}
        try:
            return await self.tool.open(Problem("workspace", "a workspace of another machine", public))
        except ToolError as error:
            text = str(error).removeprefix(f"{error.reason}: ")
            raise ToolError(error.reason, text.replace(start, request.source) if start else text) from error

    def _start(self, digest: str) -> Path:
        """Where a start folder lies. The folder of the run is removed with all that it holds."""
        assert DIGEST.fullmatch(digest), digest
        folder = self.tool.workspaces.store.run / "starts"
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder / digest

    def _store(self, request: RemoteRequest) -> None:
        """Keep one part of a packed start folder. The last one makes the folder, or the tar file. Blocks."""
        place = self._start(request.digest)
        part = place.with_suffix(".part")
        try:
            with part.open("ab" if request.offset else "wb") as file:
                file.write(request.data)
            if part.stat().st_size < request.size:
                return
            with part.open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != request.digest:
                    raise ToolError(LOST, f"the workspace {request.source!r} did not arrive whole")
            if request.mode:
                place.mkdir(mode=0o700)
                unpack(part, place)
                part.unlink()
            else:
                part.rename(place)
        except (TreeFault, OSError) as error:
            part.unlink(missing_ok=True)
            _removed(place)
            raise ToolError("tool_gave_up", f"the workspace {request.source!r} cannot be kept: {error}") from error


def _tool(data: bytes) -> Shell:
    try:
        return Shell(**msgspec.msgpack.decode(data))
    except (ConfigError, TypeError) as error:
        raise ToolError("tool_gave_up", str(error)) from error


def _files(request: RemoteRequest) -> dict[str, bytes]:
    return {os.fsdecode(name): data for name, data in request.files}


def _removed(start: Path) -> None:
    if start.is_dir():
        remove(str(start))
    else:
        start.unlink(missing_ok=True)


async def served(read: int, write: int) -> None:
    """Answer what comes from one descriptor on another, until it ends."""
    loop, over, side = asyncio.get_running_loop(), asyncio.Event(), RemoteServer()

    def take(frame: bytes) -> None:
        try:
            side.take(frame)
        except (msgspec.MsgspecError, RecursionError, ValueError):
            over.set()

    side.channel = FrameChannel(
        read,
        write,
        heard=lambda frame: loop.call_soon_threadsafe(take, frame) and None,
        ended=lambda fault: loop.call_soon_threadsafe(over.set) and None,
    )
    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, over.set)
    side.channel.send(RemoteAnswer(0, text=__version__))
    await over.wait()
    await side.close()


def main() -> None:
    """Serve standard input and output, which nothing else may use from here on."""
    read, write = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    asyncio.run(served(read, write))


if __name__ == "__main__":
    main()
