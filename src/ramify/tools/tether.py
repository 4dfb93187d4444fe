"""Tether: the small process between us and one server on standard input and output, which never outlives us.

Run as a script of its own, by the standard library alone: `tether.py PARENT_PID PROGRAM ARGUMENT…`. The server inherits
its standard streams, so what passes through them is theirs. When the parent is gone, however it went, or the server has
ended, or at SIGHUP, everything the server has started is killed, also what left its process group or was left by who
started it, such as a browser, and the tether last; should only the tether be killed, the kernel kills the server.
SIGTERM is the server's to answer. Linux only.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
MAX_ROUNDS = 100
"""Of killing what was started meanwhile."""


def main() -> None:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    signal.signal(signal.SIGHUP, lambda number, frame: end())
    die_with(parent, signal.SIGHUP)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    tether = os.getpid()
    try:
        # Nothing else runs in this process, so code between fork and exec is safe.
        server = subprocess.Popen(command, preexec_fn=lambda: die_with(tether, signal.SIGKILL))  # noqa: PLW1509
    except OSError as error:
        sys.stderr.write(f"{command[0]} cannot be started: {error}\n")
        return
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1):  # The ends of its streams are the server's alone: their other side sees it end.
        os.dup2(nothing, stream)
    with contextlib.suppress(ChildProcessError):
        while os.wait()[0] != server.pid:  # Orphans of the server end as children of ours.
            pass
    end()


def die_with(parent: int, number: int) -> None:
    """Be sent a signal when the parent is gone."""
    if ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number, 0, 0, 0) or os.getppid() != parent:
        os._exit(1)


def end() -> None:
    """Kill all that descends from this process, then its group, and this with it."""
    try:
        for _ in range(MAX_ROUNDS):
            descendants = below(os.getpid())
            for pid in descendants:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            if not descendants:
                break
    finally:
        os.killpg(0, signal.SIGKILL)


def below(root: int) -> list[int]:
    """Processes that descend from `root`."""
    children: dict[int, list[int]] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError), open(f"{entry.path}/stat", "rb") as file:  # noqa: PTH123 - pathlib is long to import
                parent = int(file.read().rpartition(b")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found[1:]


if __name__ == "__main__":
    main()
