"""Stdio guard: the small process between us and a server that we started. The server never outlives us.

It runs as a script of its own, with the standard library alone: `stdio_guard.py WAY PARENT_PID PROGRAM ARGUMENT…`. When
the parent is gone for any reason, or the server has ended, the guard kills all descendants of the server and then ends.
It adopts processes that the server leaves behind (`PR_SET_CHILD_SUBREAPER`). So a server cannot escape with a second
fork, its own session, or by ignoring SIGTERM. If the guard itself is killed, the kernel kills the server
(`PR_SET_PDEATHSIG`). Linux only. There are two ways:

`line`: the guard's standard input and output are a line to the parent. The end of its input means that the parent is
gone. Input: `stop SECONDS` asks the server to end (SIGTERM) and kills it after that time. Output, one line each:
`started PID` or `failed REASON`; `ended CODE LEFT`, where CODE is as in `subprocess` and LEFT lists processes that
cannot be killed. The server writes to the guard's standard error, which is the log. The server has its own session.
SIGTERM, SIGINT and SIGHUP make the guard kill it at once.

`streams`: the server inherits the standard streams and the session. SIGHUP makes the guard kill everything; the server
itself handles SIGTERM.
"""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterable, Iterator

# An MCP server waits for these imports. typing and pathlib take longer than all others, so they are not used.

LINE = "line"
STREAMS = "streams"
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
PR_GET_CHILD_SUBREAPER = 37
LOG = 2
MAX_LOG_BYTES = 64 << 20
"""A longer log is moved to `LOG.old`, so that a server that logs every request cannot fill the disk."""
LOOK_S = 1.0
"""How often the guard checks the log's length and its parent when nothing happens."""
KILL_S = 10.0
"""How long the guard waits for killed processes. A process that a driver holds in the kernel may never end."""


class Process:
    """One process, as the kernel reports it."""

    __slots__ = ("group", "id", "parent", "session", "state")

    def __init__(self, number: int, stat: str) -> None:
        # The program name, in parentheses, may contain any character.
        self.state, *numbers = stat.rpartition(")")[2].split()[:4]
        self.id = number
        self.parent, self.group, self.session = map(int, numbers)


class Stopped(Exception):
    """The parent is gone, or the guard was told to end."""


def main() -> None:
    way, parent, command = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    if way == LINE:
        _guard_on_a_line(parent, command)
    else:
        _guard_on_streams(parent, command)


def _guard_on_a_line(parent: int, command: list[str]) -> None:
    ends = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
    woken = _wakes_on({signal.SIGCHLD, *ends})
    code = -signal.SIGKILL
    try:
        server = _spawned(command, log=LOG)
        _say(f"started {server}")
        code = _waited(server, parent, woken, ends=ends, line=[0])
    except Stopped:
        pass
    except OSError as error:
        _say(f"failed {error.strerror}: {error.filename}")
        return
    finally:
        left = " ".join(map(str, _kill_all()))
    _say(f"ended {code} {left}".rstrip())


def _guard_on_streams(parent: int, command: list[str]) -> None:
    woken = _wakes_on({signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP})
    die_with(parent, signal.SIGHUP)
    try:
        server = _spawned(command)
    except OSError as error:
        sys.stderr.write(f"{command[0]} cannot be started: {error}\n")
        return
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1):  # Only the server keeps its streams open, so the other side sees it end.
        os.dup2(nothing, stream)
    try:
        with contextlib.suppress(Stopped):
            _waited(server, parent, woken, ends={signal.SIGHUP})
        _kill_all()
    finally:
        os.killpg(0, signal.SIGKILL)


def _waited(server: int, parent: int, woken: int, *, ends: Collection[int], line: Collection[int] = ()) -> int:
    """Wait for the server to end and return its exit code. Raises `Stopped` at one of the signals `ends`, if the parent
    is gone, and if the parent asked over the `line` for the server to end and this took too long."""
    kill_at = float("inf")
    while True:
        wait_s = min(LOOK_S, max(0.0, kill_at - time.monotonic()))
        ready, _, _ = select.select([*line, woken], [], [], wait_s)
        if woken in ready and any(number in ends for number in os.read(woken, 4096)):
            raise Stopped
        if (code := _reaped().get(server)) is not None:
            return code
        if 0 in ready:
            kill_at = min(kill_at, time.monotonic() + _asked_to_stop(server))
        if time.monotonic() >= kill_at or os.getppid() != parent:
            raise Stopped
        if line:
            _keep_log_short()


def _asked_to_stop(server: int) -> float:
    """Read and carry out the parent's request; returns the seconds until the server is killed."""
    said = os.read(0, 4096).split()
    if not said:
        raise Stopped
    os.kill(server, signal.SIGTERM)
    return float(said[-1])


def _spawned(command: list[str], *, log: int | None = None) -> int:
    """Start the server with its own session and its output in `log`; None = it inherits session and streams."""
    guard = os.getpid()
    process = subprocess.Popen(
        command,
        stdin=None if log is None else subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=log is not None,
        # Nothing else runs in this process, so code between fork and exec is safe.
        preexec_fn=lambda: die_with(guard, signal.SIGKILL),  # noqa: PLW1509
    )
    process.returncode = 0  # `_reaped` reaps it, with the orphans.
    return process.pid


def die_with(parent: int, number: int) -> None:
    """Let the kernel send this process a signal when its parent is gone."""
    prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(1)


def _reaped() -> dict[int, int]:
    """Process id -> exit code, of every child that has ended."""
    codes: dict[int, int] = {}
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            codes[ended[0]] = os.waitstatus_to_exitcode(ended[1])
    return codes


def _kill_all() -> list[int]:
    """Kill all descendants, repeatedly until none is left; returns those that cannot be killed."""
    give_up = time.monotonic() + KILL_S
    while _has_children():
        left = list(descendants(os.getpid()))
        kill(left)
        _reaped()
        if time.monotonic() > give_up:
            return [process.id for process in left]
        time.sleep(0.005)
    return []


def _has_children() -> bool:
    """Whether the kernel knows any child of ours: a process that loses its parent becomes our child."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def kill(processes: Collection[Process]) -> None:
    """Kill processes with their whole groups. A process that keeps forking and ending changes its id before we know it,
    but no fork escapes from a group that is being killed. Processes in our own group are killed one by one."""
    ours = os.getpgrp()
    for process in processes:
        if process.group == ours:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process.id, signal.SIGKILL)
    for group in {process.group for process in processes} - {ours}:
        if group > 1:  # Group 1 would mean every process.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)


def descendants(ancestor: int) -> Iterator[Process]:
    """All descendants of a process. For a guard this includes orphans, which it has adopted."""
    children: dict[int, list[Process]] = {}
    for process in processes():
        children.setdefault(process.parent, []).append(process)
    below = list(children.get(ancestor, ()))
    while below:
        process = below.pop()
        yield process
        below += children.get(process.id, ())


def processes() -> Iterator[Process]:
    """All processes in /proc."""
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                with open(f"{entry.path}/stat", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
                    stat = file.read()
            except OSError:
                continue
            yield Process(int(entry.name), stat)


def _keep_log_short() -> None:
    """Move a long log to LOG.old. If that fails because the disk is full or the log was deleted, the log is emptied
    anyway: a server must not fail because of its log."""
    if os.fstat(LOG).st_size > MAX_LOG_BYTES:
        import shutil  # Rarely needed, and slow to import.

        log = os.readlink(f"/proc/self/fd/{LOG}")  # noqa: PTH115
        with contextlib.suppress(OSError):
            shutil.copyfile(log, f"{log}.old")
        os.ftruncate(LOG, 0)


def _wakes_on(numbers: Iterable[int]) -> int:
    """A file with the numbers of signals that came. The signal handlers raise nothing, so that no signal interrupts the
    killing."""
    woken, wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wakes)
    for number in numbers:
        signal.signal(number, lambda number, frame: None)
    return woken


def prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, ctypes.c_ulong(value), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def _say(line: str) -> None:
    """Send the parent a line, if it is there."""
    with contextlib.suppress(OSError):
        os.write(1, f"{line}\n".encode())


if __name__ == "__main__":
    main()
