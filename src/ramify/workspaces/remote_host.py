"""RemoteHost: one machine of `Shell.hosts`, and the ssh connection to it.

A connection is one ssh process that runs `remote_server.py` there. Whatever ends it ends its sessions: they raise
`ToolError(LOST)`, and the next session makes a new connection, after a pause if the last try failed. Nothing that the
remote side says is trusted: a message that is malformed, or answers no request, ends the connection.
"""

import asyncio
import itertools
import os
import shlex
import subprocess
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTime
from contextlib import suppress
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ramify.core.errors import ToolError
from ramify.core.tool import LOST
from ramify.version import __version__
from ramify.workspaces.frames import MAX_SHOWN, FrameChannel, FrameFault, Operation, RemoteAnswer, RemoteRequest
from ramify.workspaces.packed_start import PackedStart

if TYPE_CHECKING:
    from ramify.workspaces.shell import Shell

HERE: Final = frozenset({"hosts", "ssh", "remote_python", "workspace"})
"""Options that the remote side does not get."""
OPTIONS: Final = (
    "-T", "-a", "-x", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15", "-o", "ServerAliveInterval=15", "-o",
    "ServerAliveCountMax=3", "-o", "ClearAllForwardings=yes", "-o", "ControlMaster=no",
)  # fmt: skip
"""Of ssh: no terminal, no forwarding, no questions; a machine that is silent for 45 s is gone."""
HELLO_S: Final = 40.0
"""Timeout of a connection; on a loopback one takes 0.5 s."""
END_S: Final = 8.0
"""Timeout for the remote side to remove its files before ssh is killed; it goes on removing them."""
LAST_WORDS_S: Final = 2.0
"""Time for ssh to end, and for its last words, once nothing comes any more."""
MAX_PAUSE_S: Final = 8.0
MAX_STARTS: Final = 16
"""Start folders that the remote side keeps packed out, as many as copies of them (`workspaces.py`)."""
PART_BYTES: Final = 4 << 20
SSH_FAILED: Final = 255
NOT_FOUND: Final = (126, 127)
"""Exit codes of ssh, and of a shell that finds no program."""


class HostConnection:
    """One ssh process and the requests in flight. Threads may share it. Making one blocks until the remote side has
    answered, and raises `ToolError` that says what to do."""

    def __init__(self, host: str, tool: "Shell") -> None:
        self.host = host
        self.sessions: set[int] = set()
        """Numbers of the open ones."""
        self._starting = threading.Lock()
        """Held while a start folder is sent and copied."""
        self._starts: dict[str, None] = {}
        """Digests of the start folders that the remote side holds, the least recently used first."""
        self.lost = ""
        """Why it has ended; empty = it has not."""
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        hello: Future[RemoteAnswer] = Future()
        self._waiting = {0: hello}
        self._is_greeted = False
        self._words = b""
        self._has_ended = threading.Event()
        command = (
            *shlex.split(tool.ssh),
            *OPTIONS,
            "--",
            host,
            f"{tool.remote_python} -P -m ramify.workspaces.remote_server",
        )
        self._process = _process(command)
        self._channel = self._opened()
        try:
            self._greet(hello, tool)
        except BaseException:
            self.close(is_lost=True)
            raise

    def ask(self, op: Operation, **values: Any) -> tuple[int, "Future[RemoteAnswer]"]:
        """Send a request; returns its number and its answer, which is one of reason `LOST` if the connection ends."""
        future: Future[RemoteAnswer] = Future()
        future.set_running_or_notify_cancel()  # It cannot be cancelled: the remote side answers in any case.
        number = next(self._numbers)
        with self._lock:
            if self.lost:
                raise ToolError(LOST, self.lost)
            self._waiting[number] = future
        try:
            self._channel.send(RemoteRequest(number, op, **values))
        except FrameFault as error:
            self._waiting.pop(number, None)
            raise ToolError("tool_gave_up", str(error)) from error
        return number, future

    def done(self, op: Operation, **values: Any) -> RemoteAnswer:
        """The answer to a request. Blocks. Raises `ToolError`."""
        return self._checked(self.ask(op, **values)[1].result())

    async def answer(self, op: Operation, **values: Any) -> RemoteAnswer:
        """The answer to a request. If cancelled, cancel it there and wait for its end. Raises `ToolError`."""
        number, future = self.ask(op, **values)
        waiting = asyncio.wrap_future(future)
        try:
            return self._checked(await asyncio.shield(waiting))
        except asyncio.CancelledError:
            with suppress(FrameFault):
                self._channel.send(RemoteRequest(number, "cancel"))
            await asyncio.gather(waiting)
            raise

    def open(self, number: int, start: PackedStart | None, source: str, image: str) -> None:
        """Open a session, after its start folder was sent if it is not there. Blocks. Raises `ToolError`."""
        if start is None:
            self.done("open", session=number, text=image)
            return
        with self._starting:
            self._provide(start, source)
            self.done("open", session=number, digest=start.digest, source=source, text=image)

    def breach(self, what: str) -> ToolError:
        """End the connection to a remote side that broke a rule; returns what to raise."""
        self._end(f"{self.host!r} broke the protocol: {what}; use the same ramify there")
        return ToolError(LOST, self.lost)

    def close(self, *, is_lost: bool = False) -> None:
        """End the remote side, and wait for it."""
        if not is_lost:
            self._channel.close()
            self._has_ended.wait(END_S)
        self._process.kill()
        self._process.wait()
        self._has_ended.wait(END_S)

    def _opened(self) -> FrameChannel:
        process = self._process
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        read, write = os.dup(process.stdout.fileno()), os.dup(process.stdin.fileno())
        process.stdin.close()
        process.stdout.close()
        listener = threading.Thread(target=self._listen, args=(process.stderr,), name="ramify ssh", daemon=True)
        listener.start()

        def ended(fault: str) -> None:
            if fault:
                process.kill()
            with suppress(subprocess.TimeoutExpired):
                process.wait(LAST_WORDS_S)
            process.kill()
            process.wait()
            listener.join(LAST_WORDS_S)
            self._end(fault and printable(f"{self.host!r}: {fault}"))
            self._has_ended.set()

        return FrameChannel(read, write, heard=self._heard, ended=ended)

    def _greet(self, hello: "Future[RemoteAnswer]", tool: "Shell") -> None:
        """Check the version, and hand over the options."""
        try:
            found = self._checked(hello.result(HELLO_S))
        except NotInTime:
            raise ToolError(
                LOST, f"{self.host!r} did not answer in {HELLO_S:g} s; try `ssh {self.host} true`"
            ) from None
        self._is_greeted = True
        if found.text != __version__:
            raise ToolError(
                "tool_gave_up",
                f"{self.host!r} has ramify {found.text[:MAX_SHOWN]!r}, and this machine {__version__!r}: install the "
                "same on both",
            )
        options = {each.name: getattr(tool, each.name) for each in fields(tool) if each.name not in HERE}
        self.done("setup", data=msgspec.msgpack.encode(options))

    def _provide(self, start: PackedStart, source: str) -> None:
        """Send a start folder that the remote side does not hold."""
        known = {"digest": start.digest, "source": source}
        is_there = start.digest in self._starts
        self._starts.pop(start.digest, None)
        for offset in range(0, 0 if is_there else max(start.size, 1), PART_BYTES):
            part = start.part(offset, PART_BYTES)
            self.done("start", **known, data=part, offset=offset, size=start.size, mode=int(start.is_folder))
        self._starts[start.digest] = None
        if len(self._starts) > MAX_STARTS:
            oldest = next(iter(self._starts))
            del self._starts[oldest]
            self.done("drop", digest=oldest)

    def _heard(self, frame: bytes) -> None:
        try:
            answer = msgspec.msgpack.decode(frame, type=RemoteAnswer)
        except (msgspec.MsgspecError, RecursionError, ValueError) as error:
            raise FrameFault(f"it sent a message that is none ({error}); use the same ramify there") from error
        with self._lock:
            future = self._waiting.pop(answer.id, None)
        if future is None:
            raise FrameFault(f"it answered the request {answer.id}, which was not made; use the same ramify there")
        future.set_result(answer)

    def _checked(self, answer: RemoteAnswer) -> RemoteAnswer:
        if answer.reason:
            raise ToolError(answer.reason, printable(answer.text))
        return answer

    def _end(self, why: str) -> None:
        """Fail all requests in flight. `why`: empty = ssh has ended."""
        with self._lock:
            self.lost = self.lost or why or self._why_ended()
            waiting, self._waiting = self._waiting, {}
        self._process.kill()
        for number, future in waiting.items():
            future.set_result(RemoteAnswer(number, reason=LOST, text=self.lost))

    def _why_ended(self) -> str:
        words = printable(" ".join(self._words.decode(errors="replace").split()))
        said, code = f" ({words})" if words else "", self._process.returncode
        if code == SSH_FAILED and not self._is_greeted:
            return f"{self.host!r} cannot be reached{said}: `ssh {self.host} true` must work without a question"
        if not self._is_greeted:
            helps = (
                "set remote_python to a Python 3.11 there that has ramify"
                if code in NOT_FOUND
                else f"install ramify {__version__} there, and set remote_python to its Python"
            )
            return f"ramify does not start on {self.host!r}{said}: {helps}"
        return f"the connection to {self.host!r} was lost{said}"

    def _listen(self, errors: Any) -> None:
        """Keep the end of what ssh says."""
        with errors:
            while said := errors.read(4096):
                self._words = (self._words + said)[-4 * MAX_SHOWN :]


class RemoteHost:
    """A machine, and the connection to it while there is one. Methods block; threads may share it."""

    def __init__(self, name: str, tool: "Shell") -> None:
        self.name = name
        self.num_opening = 0
        """Sessions that are about to be opened."""
        self._tool = tool
        self._lock = threading.Lock()
        self._connection: HostConnection | None = None
        self._num_failures = 0
        self._retry_at = 0.0

    @property
    def num_sessions(self) -> int:
        """Open ones, and those about to be."""
        connection = self._connection
        if connection is None or connection.lost:
            return self.num_opening
        return self.num_opening + len(connection.sessions)

    @property
    def is_failing(self) -> bool:
        """Whether it must wait before it is tried again."""
        return time.monotonic() < self._retry_at

    def connected(self) -> HostConnection:
        """Its connection, made if there is none. Waits for the pause after a failure. Raises `ToolError`."""
        with self._lock:
            if self._connection is not None and not self._connection.lost:
                return self._connection
            time.sleep(max(0.0, self._retry_at - time.monotonic()))
            try:
                self._connection = HostConnection(self.name, self._tool)
            except ToolError:
                self._retry_at = time.monotonic() + min(2.0**self._num_failures, MAX_PAUSE_S)
                self._num_failures += 1
                raise
            self._num_failures = 0
            return self._connection

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
            self._connection = None


def _process(command: Sequence[str]) -> "subprocess.Popen[bytes]":
    pipe = subprocess.PIPE
    try:
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, start_new_session=True)
    except OSError as error:
        raise ToolError(
            "tool_gave_up", f"hosts need {command[0]!r}, which cannot be started ({error}): install openssh-client"
        ) from error


def printable(text: str) -> str:
    """The beginning of another machine's text, without characters that a terminal would obey."""
    return "".join(each if each.isprintable() or each == "\n" else "\N{REPLACEMENT CHARACTER}" for each in text[:2000])
