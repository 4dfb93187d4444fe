"""Command: runs one command on a draft of files, from its start until nothing of it is left.

`run` blocks. It ends in exactly one way: the command ended, reached a limit, or was stopped. In each of them the
command's process namespace is dead before `run` returns, daemons included, so the files are quiet. Its output and the
report of its shell are bounded in memory.
"""

import json
import os
import select
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal

from ramify.core.errors import ToolError
from ramify.core.tool import LOST
from ramify.sandbox.bubblewrap import missing_wall
from ramify.workspaces.process_watch import ProcessWatch
from ramify.workspaces.shell_order import STARTED, ShellOrder, ShellVariables, told
from ramify.workspaces.starter import CommandStarter

Ending = Literal["ended", "timeout", "limit", "stopped"]
START_S: Final = 30.0
"""Timeout for the set-up of the walls, on a machine that does much else; it takes 10 ms."""
END_S: Final = 10.0
"""Timeout for the end of killed processes: they may wait for a disk."""
PERIOD_S: Final = 0.04
PIPE_BYTES: Final = 1 << 16
MAX_REPORT_BYTES: Final = 1 << 18
MAX_STATUS_BYTES: Final = 1 << 12


@dataclass(frozen=True, slots=True)
class CommandEnd:
    """How a command ended."""

    ending: Ending
    exit_code: int | None
    """None = it did not end by itself. 128 + n = signal n ended it."""
    output: bytes
    """Both streams in order: head and tail."""
    variables: ShellVariables | None
    """None = its shell told none: it was killed, or replaced by `exec`."""
    took_s: float
    fault: str = ""
    """Which limit it reached."""


class StopFlag:
    """Asks a running command to end, from another thread."""

    def __init__(self) -> None:
        self.fd, self._write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def set(self) -> None:
        with suppress(OSError):
            os.write(self._write, b"x")

    def close(self) -> None:
        os.close(self.fd)
        os.close(self._write)


def run(starter: CommandStarter, order: ShellOrder, *, timeout_s: float, stop: StopFlag) -> CommandEnd:
    """Run a command; it may change the files of its draft. Raises `ToolError` that names the wall this machine lacks,
    or if the command's processes cannot be ended."""
    running = RunningCommand(order)
    try:
        try:
            running.begin(starter)
            has_begun = running.wait_for_namespaces()
        except OSError as error:  # Too late, or this process has no descriptor left.
            starter.close()  # Its end ends a command of which nothing is known.
            raise ToolError(LOST, f"a command of a workspace could not be started: {error}") from error
        if not has_begun:
            raise running.missing_wall()
        return running.followed(timeout_s, stop)
    finally:
        running.close()


class RunningCommand:
    """The pipes and the first process of a command."""

    def __init__(self, order: ShellOrder) -> None:
        self._order = order
        self._limits = order.rules.limits
        self._output = KeptOutput(self._limits.max_output_bytes)
        self._report, self._status = bytearray(), bytearray()
        self._sinks: dict[int, Callable[[bytes], None]] = {}
        self._block: int | None = None
        """Our end of the pipe for which the command waits."""
        self._first: int | None = None
        """A pidfd of the first process of its namespace."""
        self._watch: ProcessWatch | None = None

    def begin(self, starter: CommandStarter) -> None:
        """Start it. Nothing foreign runs before `followed`."""
        theirs: list[int] = []
        try:
            theirs.extend(map(self._pipe, (self._output.add, self._reported, self._told)))
            block, self._block = os.pipe2(os.O_CLOEXEC)
            theirs.append(block)
            theirs.extend(map(memory_file, self._order.files()))
            out, report, status, block, spec, *rest = theirs
            starter.send([spec, out, report, status, block, *rest])
        finally:
            for fd in theirs:
                os.close(fd)

    def wait_for_namespaces(self) -> bool:
        """Wait until its namespaces stand. False = they do not. Raises OSError, such as TimeoutError."""
        deadline = time.monotonic() + START_S
        waiting = set(self._sinks)
        while (pid := self._said("child-pid")) is None:
            ready = polled(waiting, deadline - time.monotonic())
            if not ready:
                raise TimeoutError(f"its walls did not stand within {START_S:g} s")
            waiting -= {fd for fd in ready if not _is_read(fd, self._sinks[fd])}
            if not waiting:
                return False
        with suppress(ProcessLookupError):
            self._first = os.pidfd_open(pid)
            self._watch = ProcessWatch(pid, self._limits, self._order.draft.layer.files)
        return True

    def followed(self, timeout_s: float, stop: StopFlag) -> CommandEnd:
        """Let the command run, and end it. Raises `ToolError`."""
        began = time.monotonic()
        try:
            if self._block is not None:
                os.close(self._block)
                self._block = None
            ending, fault = self._ending(began + timeout_s, stop)
        finally:
            is_dead = self._killed()
        took_s = time.monotonic() - began
        if not is_dead:
            raise ToolError(LOST, "the processes of a command could not be ended")
        self._read_rest()
        exit_code = self._said("exit-code") if ending == "ended" else None
        if ending == "ended" and self._is_no_start(exit_code):
            raise self.missing_wall()
        if ending == "ended" and exit_code is None:
            ending, fault = "limit", "this machine ended its first process"
        if ending == "ended" and self._said("oom-kills"):
            ending, fault = "limit", self._limits.memory_fault
        variables = told(bytes(self._report)) if ending == "ended" else None
        return CommandEnd(ending, exit_code, self._output.text(), variables, took_s, fault)

    def missing_wall(self) -> ToolError:
        """What was said in place of a start."""
        said = self._output.text().decode(errors="replace").strip()
        if said.startswith("container: ") and self._order.rules.container is not None:
            return self._order.rules.container.fault(said)
        if said.startswith("launcher: "):
            return ToolError("tool_gave_up", f"a workspace cannot be set up: {said.removeprefix('launcher: ')}")
        return ToolError("tool_gave_up", f"a workspace lacks a wall: {missing_wall(said)}")

    def close(self) -> None:
        """Close what is left of it."""
        for fd in (*self._sinks, self._first, self._block):
            if fd is not None:
                os.close(fd)
        if self._watch is not None:
            self._watch.close()

    def _ending(self, deadline: float, stop: StopFlag) -> tuple[Ending, str]:
        waiting = {*self._sinks, stop.fd}
        look_at = time.monotonic() + PERIOD_S
        while True:
            now = time.monotonic()
            if now >= deadline:
                return "timeout", ""
            if now >= look_at and self._watch is not None:
                if fault := self._watch.fault():
                    return "limit", fault
                now = time.monotonic()
                look_at = now + PERIOD_S
            for fd in polled(waiting, min(deadline, look_at) - now):
                if fd == stop.fd:
                    return "stopped", ""
                if not _is_read(fd, self._sinks[fd]):
                    waiting.discard(fd)
            if self._said("exit-code") is not None or waiting == {stop.fd}:
                return "ended", ""
            if self._output.num_bytes > self._limits.killed_output_bytes:
                return "limit", f"it printed more than {self._limits.killed_output_bytes} bytes"

    def _is_no_start(self, exit_code: int | None) -> bool:
        """Whether the shell never ran."""
        said = self._output.head.startswith((b"bwrap: ", b"launcher: "))
        return not self._report.startswith(STARTED) and (exit_code is None or said)

    def _killed(self) -> bool:
        """Kill its namespace and wait until that is gone. False = it is not."""
        if self._first is None:
            return True
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._first, signal.SIGKILL)
        return bool(polled({self._first}, END_S))

    def _read_rest(self) -> None:
        """Read what dead processes wrote, until those that started them have ended too: the guard of a container ends
        once that is removed."""
        waiting = set(self._sinks)
        deadline = time.monotonic() + END_S
        while waiting and (ready := polled(waiting, deadline - time.monotonic())):
            waiting -= {fd for fd in ready if not _is_read(fd, self._sinks[fd])}

    def _pipe(self, sink: Callable[[bytes], None]) -> int:
        """A pipe that is read into `sink`; returns the end to hand over."""
        read, write = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(read, False)
        self._sinks[read] = sink
        return write

    def _reported(self, data: bytes) -> None:
        self._report += data[: MAX_REPORT_BYTES - len(self._report)]

    def _told(self, data: bytes) -> None:
        self._status += data[: MAX_STATUS_BYTES - len(self._status)]

    def _said(self, key: str) -> int | None:
        """The first number of that name in bubblewrap's words."""
        for line in self._status.splitlines(keepends=True):
            with suppress(ValueError):
                words = json.loads(line) if line.endswith(b"\n") else {}
                if key in words:
                    return int(words[key])
        return None


class KeptOutput:
    """The head and the tail of an output, in bounded memory."""

    def __init__(self, max_bytes: int) -> None:
        self._half = max(1, max_bytes // 2)
        self.head = bytearray()
        self._tail = bytearray()
        self.num_bytes = 0

    def add(self, data: bytes) -> None:
        self.num_bytes += len(data)
        room = self._half - len(self.head)
        if room > 0:
            self.head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > 2 * self._half:
            del self._tail[: -self._half]

    def text(self) -> bytes:
        tail = self._tail[-self._half :]
        num_lost = self.num_bytes - len(self.head) - len(tail)
        note = f"\n[… {num_lost} bytes left out …]\n".encode() if num_lost else b""
        return bytes(self.head + note + tail)


def memory_file(data: bytes) -> int:
    """A file in memory that holds `data`, at its beginning. The caller closes it."""
    file = os.memfd_create("ramify", os.MFD_CLOEXEC)
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
    os.lseek(file, 0, os.SEEK_SET)
    return file


def polled(fds: Iterable[int], timeout_s: float) -> list[int]:
    """Those of `fds` that can be read, or have ended, within a time."""
    watch = select.poll()
    for fd in fds:
        watch.register(fd, select.POLLIN)
    return [fd for fd, _ in watch.poll(max(0.0, timeout_s) * 1000)]


def _is_read(fd: int, sink: Callable[[bytes], None]) -> bool:
    """Read once. False = it has ended, or there is nothing to read."""
    try:
        data = os.read(fd, PIPE_BYTES)
    except BlockingIOError:
        return False
    sink(data)
    return bool(data)
