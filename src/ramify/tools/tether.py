"""Tether: the small process between us and one server on standard input and output, which never outlives us.

Run as a script of its own, by the standard library alone: `tether.py PARENT_PID PROGRAM ARGUMENT…`. The server inherits
its standard streams, so what passes through them is theirs. When the parent is gone, however it went, or the server has
ended, everything of its process group is killed, the tether too; should only the tether be killed, the kernel kills the
server. SIGTERM is the server's to answer. Linux only.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    signal.signal(signal.SIGHUP, lambda number, frame: end())
    die_with(parent, signal.SIGHUP)
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
        server.wait()
    end()


def die_with(parent: int, number: int) -> None:
    """Be sent a signal when the parent is gone."""
    if ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number, 0, 0, 0) or os.getppid() != parent:
        os._exit(1)


def end() -> None:
    """Kill the process group, this process with it."""
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
