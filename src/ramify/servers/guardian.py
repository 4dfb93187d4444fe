"""Guardian: the small process between us and one server, which sees to it that the server never outlives us.

Run as a script of its own, by the standard library alone: `guardian.py PARENT_PID PROGRAM ARGUMENT…`. Its standard
input is a line to the parent, and the end of that line (the parent is gone, however it went) kills everything that
stems from the server. It adopts whatever the server leaves behind (`PR_SET_CHILD_SUBREAPER`), so nothing gets away by a
second fork, a session of its own or a deaf ear for SIGTERM. Should the guardian itself be killed, the kernel kills the
server with it (`PR_SET_PDEATHSIG`).

In: `stop SECONDS` asks the server to end (SIGTERM) and kills it after so long. Out, one line each: `started PID` or
`failed REASON`; `ended CODE LEFT`, where CODE is as `subprocess` has it and LEFT lists processes that cannot be killed.
Standard error is the log, which the server writes to. SIGTERM, SIGINT and SIGHUP have it kill the server at once.
Invariant: when it exits, nothing of the server is left.
"""

import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
LOG = 2
ENDS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
MAX_LOG_BYTES = 64 << 20
"""A longer log is moved to `LOG.old`, so that a server which logs every request fills no disk."""
LOOK_S = 1.0
"""How often the log's length and the parent are looked at when nothing happens."""
KILL_S = 10.0
"""How long killed processes are waited for; a process that a driver holds in the kernel may never go."""


class Process(NamedTuple):
    """One process, as the kernel shows it."""

    id: int
    state: str
    parent: int
    group: int
    session: int


class Stopped(Exception):
    """The parent is gone, or we are told to end."""


def main() -> None:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    woken = _wakes_on({signal.SIGCHLD, *ENDS})
    code = -signal.SIGKILL
    try:
        code = _guarded(command, parent, woken)
    except Stopped:
        pass
    except OSError as error:
        _say(f"failed {error.strerror}: {error.filename}")
        return
    finally:
        left = " ".join(map(str, _kill_all()))
    _say(f"ended {code} {left}".rstrip())


def _guarded(command: list[str], parent: int, woken: int) -> int:
    """The exit code of the server, when it has one. Raises `Stopped`, or `OSError` where it cannot be started."""
    server = _spawned(command)
    _say(f"started {server}")
    kill_at = float("inf")
    while True:
        wait_s = min(LOOK_S, max(0.0, kill_at - time.monotonic()))
        ready, _, _ = select.select([0, woken], [], [], wait_s)
        if woken in ready and not ENDS.isdisjoint(os.read(woken, 4096)):
            raise Stopped
        if (code := _reaped().get(server)) is not None:
            return code
        if 0 in ready:
            kill_at = min(kill_at, time.monotonic() + _asked_to_stop(server))
        if time.monotonic() >= kill_at or os.getppid() != parent:
            raise Stopped
        _keep_log_short()


def _asked_to_stop(server: int) -> float:
    """Read what the parent says and do it; seconds until the server is killed."""
    said = os.read(0, 4096).split()
    if not said:
        raise Stopped
    os.kill(server, signal.SIGTERM)
    return float(said[-1])


def _spawned(command: list[str]) -> int:
    guardian = os.getpid()

    def dies_with_us() -> None:
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guardian:
            os._exit(1)

    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=LOG,
        stderr=LOG,
        start_new_session=True,
        # Nothing else runs in this process, so code between fork and exec is safe.
        preexec_fn=dies_with_us,  # noqa: PLW1509
    )
    process.returncode = 0  # It is reaped by `_reaped`, with the orphans.
    return process.pid


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


def kill(processes: Iterable[Process]) -> None:
    """Kill processes with their whole groups, ours excepted: one that forks and ends, over and over, has another id
    before its own is known, but nothing is forked out of a group that is being killed."""
    for group in {process.group for process in processes} - {os.getpgrp()}:
        if group > 1:  # As a group, 1 would mean everybody.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)


def descendants(ancestor: int) -> Iterator[Process]:
    """Everything below a process. Below a guardian are orphans too: it has adopted them."""
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
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text("utf-8", "replace")
            except OSError:
                continue
            # The name of the program, in parentheses, may hold anything.
            state, *numbers = stat.rpartition(")")[2].split()[:4]
            yield Process(int(entry.name), state, *map(int, numbers))


def _keep_log_short() -> None:
    """Move a long log to LOG.old. Where that cannot be, for the disk is full or the log was deleted, it is emptied all
    the same: a server does not go down for its log."""
    if os.fstat(LOG).st_size > MAX_LOG_BYTES:
        log = Path(f"/proc/self/fd/{LOG}").resolve()
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
