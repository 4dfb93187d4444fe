"""Stdio guard: the small process between us and a server that we started. The server never outlives us.

Run as a script of its own, by the standard library alone: `stdio_guard.py WAY PARENT_PID PROGRAM ARGUMENT…`. When the
parent is gone, however it went, or the server has ended, the guard kills everything that stems from the server, and
then ends. It adopts what the server leaves behind (`PR_SET_CHILD_SUBREAPER`), so a second fork, a session of its own or
ignoring SIGTERM is no way out. If the guard itself is killed, the kernel kills the server (`PR_SET_PDEATHSIG`). Linux
only. There are two ways:

`line`: the guard's standard input and output are a line to the parent, and the end of its input means that the parent
is gone. In: `stop SECONDS` asks the server to end (SIGTERM) and kills it after so long. Out, one line each: `started
PID` or `failed REASON`; `ended CODE LEFT`, where CODE is as `subprocess` has it and LEFT lists processes that cannot be
killed. Standard error is the log, which the server writes to. The server has a session of its own. SIGTERM, SIGINT and
SIGHUP make the guard kill it at once.

`streams`: the server inherits the standard streams and the session. SIGHUP makes the guard kill everything; SIGTERM is
the server's to answer.
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
LOG = 2
MAX_LOG_BYTES = 64 << 20
"""A longer log is moved to `LOG.old`, so that a server which logs every request fills no disk."""
LOOK_S = 1.0
"""How often the guard looks at the log's length and for its parent when nothing happens."""
KILL_S = 10.0
"""How long the guard waits for killed processes; a process that a driver holds in the kernel may never go."""


class Process:
    """One process, as the kernel shows it."""

    __slots__ = ("group", "id", "parent", "session", "state")

    def __init__(self, number: int, stat: str) -> None:
        # The program name, in parentheses, may contain any character.
        self.state, *numbers = stat.rpartition(")")[2].split()[:4]
        self.id = number
        self.parent, self.group, self.session = map(int, numbers)


class Stopped(Exception):
    """The parent is gone, or the guard is told to end."""


def main() -> None:
    way, parent, command = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
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
    _die_with(parent, signal.SIGHUP)
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
    """The exit code of the server, when it has one. Raises `Stopped` at one of the signals `ends`, where the parent is
    gone, and where the parent asked the server over the `line` to end and it took too long."""
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
    """Read what the parent says and do it; seconds until the server is killed."""
    said = os.read(0, 4096).split()
    if not said:
        raise Stopped
    os.kill(server, signal.SIGTERM)
    return float(said[-1])


def _spawned(command: list[str], *, log: int | None = None) -> int:
    """Start the server: with a session of its own and its output in `log`; None = it inherits session and streams."""
    guard = os.getpid()
    process = subprocess.Popen(
        command,
        stdin=None if log is None else subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=log is not None,
        # Nothing else runs in this process, so code between fork and exec is safe.
        preexec_fn=lambda: _die_with(guard, signal.SIGKILL),  # noqa: PLW1509
    )
    process.returncode = 0  # `_reaped` reaps it, with the orphans.
    return process.pid


def _die_with(parent: int, number: int) -> None:
    """Have the kernel send this process a signal when its parent is gone."""
    _prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(1)


def _reaped() -> dict[int, int]:
    """Process -> exit code of every child that has ended."""
    codes: dict[int, int] = {}
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            codes[ended[0]] = os.waitstatus_to_exitcode(ended[1])
    return codes


def _kill_all() -> list[int]:
    """Kill all descendants, again and again until none is left; returns those that stay."""
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
    """Whether anything is below us, as the kernel has it: whatever loses its parent becomes our child."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def kill(processes: Collection[Process]) -> None:
    """Kill processes with their whole groups: one that forks and ends, over and over, has another id before its own is
    known, but nothing is forked out of a group that is being killed. In our own group they are killed one by one."""
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
    """Everything below a process. Below a guard are orphans too: it has adopted them."""
    children: dict[int, list[Process]] = {}
    for process in processes():
        children.setdefault(process.parent, []).append(process)
    below = list(children.get(ancestor, ()))
    while below:
        process = below.pop()
        yield process
        below += children.get(process.id, ())


def processes() -> Iterator[Process]:
    """Every process there is."""
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                with open(f"{entry.path}/stat", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
                    stat = file.read()
            except OSError:
                continue
            yield Process(int(entry.name), stat)


def _keep_log_short() -> None:
    """Move a long log to LOG.old. Where that cannot be, for the disk is full or the log was deleted, it is emptied all
    the same: a server does not go down for its log."""
    if os.fstat(LOG).st_size > MAX_LOG_BYTES:
        import shutil  # Rarely needed, and slow to import.

        log = os.readlink(f"/proc/self/fd/{LOG}")  # noqa: PTH115
        with contextlib.suppress(OSError):
            shutil.copyfile(log, f"{log}.old")
        os.ftruncate(LOG, 0)


def _wakes_on(numbers: Iterable[int]) -> int:
    """A file with the numbers of signals that came. Their handlers raise nothing, so that none can stop the killing."""
    woken, wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wakes)
    for number in numbers:
        signal.signal(number, lambda number, frame: None)
    return woken


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def _say(line: str) -> None:
    """Tell the parent, if it is there."""
    with contextlib.suppress(OSError):
        os.write(1, f"{line}\n".encode())


if __name__ == "__main__":
    main()
