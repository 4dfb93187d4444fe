"""Process: one server started here. It never outlives this process.

Owns the command, the log file and the guard process (`edge/stdio_guard.py`) that watches the server. The server has its
own session, so Ctrl-C at a terminal reaches us and not the server. The server gets only the environment variables of
its command, none of ours. Invariant: when `wait` or `stop` has returned, or this process is gone, neither the server
nor any of its descendants is left.
"""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ramify.core.errors import ConfigError, EngineError
from ramify.edge import stdio_guard
from ramify.edge.http import MIN_SECRET_CHARS
from ramify.edge.stdio_guard import KILL_S, LINE, descendants, kill, processes
from ramify.servers.environment import is_key
from ramify.servers.log_cause import cause_of
from ramify.servers.ports import listeners

GRACE_S: Final = 15.0
"""Between SIGTERM and SIGKILL. vLLM on CPU took 1-4 s, SGLang waits up to 5 s for its children."""
GUARD_S: Final = 15.0
"""Time the guard has after the grace period. It waits 10 s for killed processes to disappear; then it is killed
itself."""
TAIL_LINES: Final = 40
TAIL_BYTES: Final = 8000
CAUSE_BYTES: Final = 1 << 20
"""End of a log that is searched for the cause. vLLM says up to 130 lines after it."""


@dataclass(frozen=True, slots=True)
class Command:
    """The program with its arguments, and its whole environment."""

    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """Not shown by `repr`: it may hold keys."""

    def __post_init__(self) -> None:
        if not self.argv or not self.argv[0]:
            raise ConfigError(f"argv = {self.argv!r}: name a program")
        odd = [part for part in self.argv if "\0" in part]
        odd += [name for name, value in self.environment.items() if "\0" in name + value]
        if odd:
            raise ConfigError(f"command: {odd[0]!r} holds a zero byte")

    def without_keys(self, text: str) -> str:
        """`text` with the value of each secret variable replaced by `$NAME`. A variable is secret if `is_key` says
        so."""
        for name, value in self.environment.items():
            if is_key(name) and len(value) >= MIN_SECRET_CHARS:
                text = text.replace(value, f"${name}")
        return text


class ServerProcess:
    """One server. Made by `started`."""

    def __init__(self, line: "GuardLine", *, pid: int, log: Path, command: Command) -> None:
        self.pid = pid
        self.log = log
        self._command = command
        self._line = line
        self._ended = asyncio.create_task(self._end())

    @classmethod
    async def started(cls, command: Command, *, log: Path) -> "ServerProcess":
        """Start a server whose output is appended to `log`.

        Raises `ConfigError` if this system cannot start servers or the program is missing, `EngineError` if the system
        cannot start the guard or open the log, or the guard is killed.
        """
        if sys.platform != "linux":
            raise ConfigError(
                f"servers are started on Linux only, this is {sys.platform}; "
                "start the server yourself and name it by --base-url"
            )
        try:
            line = await GuardLine.to_guard(command, log)
        except OSError as error:
            raise EngineError("server_not_started", f"{command.argv[0]!r}, log {log}: {error}") from error
        try:
            word, _, rest = (await line.heard()).partition(" ")
            if not word:
                said = command.without_keys(tail(log))
                raise EngineError("server_not_started", f"{command.argv[0]!r}: its guard died; log {log}: {said}")
            if word != "started":
                raise ConfigError(f"{command.argv[0]!r} cannot be started: {rest}")
        except BaseException:
            await line.let_go()
            raise
        return cls(line, pid=int(rest), log=log, command=command)

    @property
    def is_running(self) -> bool:
        return not self._ended.done()

    async def last_words(self) -> str:
        """For people: the path of the log, the line that says why it ended, and the last lines. Keys in the command's
        environment are removed."""
        why = self._command.without_keys(await asyncio.to_thread(cause, self.log))
        lines = self._command.without_keys(await asyncio.to_thread(tail, self.log, num_lines=10 if why else TAIL_LINES))
        if not lines:
            return f"its log {self.log} is empty"
        says_why = f"says why:\n{why}\nand " if why else ""
        return f"its log {self.log} {says_why}ends so:\n{lines}"

    def owns(self, files: Set[str]) -> bool:
        """Whether the server or one of its descendants has one of these files open, such as `socket:[1234]`. Also true
        if we may not look."""
        try:
            return any(not files.isdisjoint(_open_files(each.id)) for each in descendants(self._line.guard))
        except PermissionError:
            return True

    async def listens(self, port: int) -> bool:
        """Whether this server is the one that listens at `port` of this machine; true if the system does not tell."""
        return await asyncio.to_thread(self._listens, port)

    async def wait(self) -> int:
        """Wait until nothing of the server is left; returns the exit code in the convention of `subprocess`."""
        return await asyncio.shield(self._ended)

    async def stop(self, *, grace_s: float = GRACE_S) -> int:
        """Ask the server to end, and kill what is left after `grace_s`; returns the exit code. If cancelled, it kills
        at once and waits for that; if cancelled again, it does not wait. Raises `EngineError` if something cannot be
        killed. Calling it again is harmless."""
        try:
            self._line.say(f"stop {grace_s}\n")
            await asyncio.wait({self._ended}, timeout=grace_s + GUARD_S)
        except asyncio.CancelledError:
            self.kill()
            await asyncio.wait({self._ended}, timeout=GUARD_S)
            raise
        if self.is_running:
            self._line.kill_guard()
        return await self.wait()

    def kill(self) -> None:
        """Kill the server and all its descendants without waiting."""
        self._line.hang_up()

    def _listens(self, port: int) -> bool:
        sockets = listeners(port)
        return not sockets or self.owns(sockets)

    async def _end(self) -> int:
        """The exit code that the guard reports. A guard that was killed reports none: then the server's session is
        killed.

        If cancelled, for example because the event loop ends before the server does, it kills everything.
        """
        try:
            word, _, rest = (await self._line.heard()).partition(" ")
        finally:
            await self._line.let_go()
        if word != "ended":
            await _kill_session(self.pid)
            return -signal.SIGKILL
        code, *left = rest.split()
        _refuse_left(left)
        return int(code)


class GuardLine:
    """The connection to a guard: a socket that is the guard's standard input and output. It closes when either side
    ends."""

    def __init__(
        self, guard: subprocess.Popen[bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.guard = guard.pid
        self._guard = guard
        self._reader = reader
        self._writer = writer
        self._is_hung_up = False

    @classmethod
    async def to_guard(cls, command: Command, log: Path) -> "GuardLine":
        """Start a guard, which starts `command`."""
        log.parent.mkdir(parents=True, exist_ok=True)
        argv = (sys.executable, "-I", "-S", stdio_guard.__file__, LINE, str(os.getpid()), *command.argv)
        ours, its = socket.socketpair()
        with its:
            try:
                reader, writer = await asyncio.open_connection(sock=ours)
            except BaseException:
                ours.close()
                raise
            # No await from here until an owner holds the guard. Starting the guard takes a millisecond or two.
            try:
                with log.open("ab") as file:
                    guard = subprocess.Popen(  # noqa: ASYNC220
                        argv,
                        stdin=its.fileno(),
                        stdout=its.fileno(),
                        stderr=file,
                        env=dict(command.environment),
                        start_new_session=True,
                    )
            except OSError:
                writer.close()
                raise
        return cls(guard, reader, writer)

    async def heard(self) -> str:
        """The next line; '' = the guard is gone."""
        with contextlib.suppress(ConnectionError):
            return (await self._reader.readline()).decode().strip()
        return ""

    def say(self, text: str) -> None:
        if not self._is_hung_up and not self._writer.is_closing():
            self._writer.write(text.encode())

    def hang_up(self) -> None:
        """Close our sending side for good. The guard then kills everything and ends; what it still says can be read."""
        if not self._is_hung_up and not self._writer.is_closing():
            self._writer.write_eof()
        self._is_hung_up = True

    def kill_guard(self) -> None:
        self._guard.kill()

    async def let_go(self) -> None:
        """Close the connection and wait until the guard has ended."""
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()
        await asyncio.to_thread(self._guard.wait)


def tail(log: Path, *, num_lines: int = TAIL_LINES) -> str:
    """The last lines of a log, for people; '' if it cannot be read."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(text.rstrip().splitlines()[-num_lines:])


def cause(log: Path) -> str:
    """The line of a log that says why its server ended; '' if none does, or it cannot be read."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - CAUSE_BYTES))
            return cause_of(file.read().decode("utf-8", "replace").splitlines())
    except OSError:
        return ""


async def _kill_session(session: int) -> None:
    """Kill every process of a session. Used for a server whose guard is gone; the server itself is dead already."""
    give_up = asyncio.get_running_loop().time() + KILL_S
    while left := [each for each in processes() if each.session == session and each.state not in "ZX"]:
        kill(left)
        if asyncio.get_running_loop().time() > give_up:
            _refuse_left(each.id for each in left)
        await asyncio.sleep(0.01)


def _refuse_left(left: Iterable[object]) -> None:
    if names := " ".join(map(str, left)):
        raise EngineError("server_stuck", f"processes {names} of a server cannot be killed")


def _open_files(process: int) -> Iterator[str]:
    """Names of the files a process has open; none if it has ended. Raises `PermissionError` for another user's
    process."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for file in list(Path(f"/proc/{process}/fd").iterdir()):
            with contextlib.suppress(FileNotFoundError):
                yield str(file.readlink())
