"""Launcher: the process that starts commands. Runs as a program of its own, standard library only.

It gets one message and some descriptors a command, forks, and the child mounts the files and becomes bubblewrap. A
fork takes 1 ms; a new interpreter with `ctypes` took 40 ms. It holds no thread and no foreign code. It ends when the
socket of the host closes, and everything that it started ends with it (`bwrap --die-with-parent`). Bubblewrap has no
such tie to its parent while it starts, so each child also has a process group of its own, which is killed at the end.

The child of root becomes another user first. Then root and others go the same way: a user namespace in which the
overlay is mounted, and bubblewrap's inside it. A command in a container is started by `container_guard.py` instead,
which this child becomes.

A server, which lives on with streams of its own, is one such child: `launcher.py server FOLDER` becomes it, by the file
`order` of that folder.
"""

import ctypes
import fcntl
import marshal
import os
import resource
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

CLONE_NEWNS, CLONE_NEWUSER = 0x0002_0000, 0x1000_0000
MS_REC, MS_PRIVATE, MS_NOSUID, MS_NODEV = 1 << 14, 1 << 18, 2, 4
PR_SET_DUMPABLE = 4
REPORT_FD = 9
"""Descriptor of the report in the command's shell: dash knows one digit alone."""
FIRST_FD = 32
"""Number of the first descriptor of a command; lower ones have a meaning."""
MAX_FDS = 16

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p]


def serve(channel: socket.socket) -> None:
    """Start commands until the host hangs up."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # The host may have had few left.
    children: set[int] = set()
    while True:
        word, fds, _, _ = socket.recv_fds(channel, 1, MAX_FDS)
        if not word:
            break
        children -= set(_reaped())
        child = os.fork()
        if child == 0:
            _become(channel, fds)
        _lead(child)
        children.add(child)
        for fd in fds:
            os.close(fd)
    for child in children:  # Not reaped, so nobody else has got its number.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child, signal.SIGKILL)


def _reaped() -> Iterator[int]:
    """Children that have ended, which are forgotten."""
    with suppress(ChildProcessError):
        while (child := os.waitpid(-1, os.WNOHANG)[0]) != 0:
            yield child


def _lead(child: int) -> None:
    """Give a child a process group of its own. Both it and its parent do so: either may be first."""
    with suppress(ProcessLookupError, PermissionError):  # It has ended, or become another program.
        os.setpgid(child, child)


def _become(channel: socket.socket, fds: list[int]) -> None:
    """The child: become the command, or write why not to its output."""
    try:
        _lead(os.getpid())
        channel.close()
        spec, output, report, *others = _moved(fds)
        null = os.open("/dev/null", os.O_RDONLY)
        for fd, wanted in ((null, 0), (output, 1), (output, 2), (report, REPORT_FD)):
            os.dup2(fd, wanted)
        with os.fdopen(spec, "rb") as file:
            order = marshal.load(file)
        _run(order, others)
    except BaseException as error:  # noqa: BLE001 - the host reads it, and nobody is above
        with suppress(OSError):
            os.write(1, f"launcher: {error}".encode())
    os._exit(126)


def become_server(home: str) -> None:
    """Become the server of a layer, with the streams of this process. Its descriptors are those of a command; `status`
    is a file, and nothing holds its start up."""
    try:
        with open(f"{home}/order", "rb") as file:  # noqa: PTH123
            spec, *data = marshal.load(file)
        os.unlink(f"{home}/order")  # noqa: PTH108
        status = os.open(f"{home}/status", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        spare = [os.open("/dev/null", os.O_RDONLY) for _ in range(4)]
        _run(marshal.loads(spec), _moved([*spare[:3], status, spare[3], *map(_in_memory, data)])[3:])
    except BaseException as error:  # noqa: BLE001 - the host reads it, and nobody is above
        with suppress(OSError):
            os.write(2, f"launcher: {error}".encode())
    os._exit(126)


def _in_memory(data: bytes) -> int:
    file = os.memfd_create("ramify")
    os.write(file, data)
    os.lseek(file, 0, os.SEEK_SET)
    return file


def _run(order: dict[str, Any], fds: list[int]) -> None:
    """Become bubblewrap or the guard of a container, which keeps `fds`. Raises OSError."""
    for fd in fds:
        os.set_inheritable(fd, True)
    for each in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores the last two.
        signal.signal(each, signal.SIG_DFL)
    if "guard" in order:
        os.execve(sys.executable, [sys.executable, "-I", "-S", "-B", order["guard"], *map(str, fds)], {})
    _prepare(order)
    os.execve(order["program"], ["bwrap", "--args", str(order["args"]), "--", *order["inner"]], {})


def _moved(fds: list[int]) -> list[int]:
    """The same descriptors with the numbers that bubblewrap's options name. Raises OSError if one is taken."""
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, FIRST_FD) for fd in fds]
    if moved != list(range(FIRST_FD, FIRST_FD + len(fds))):
        raise OSError(f"descriptors {moved} are not those from {FIRST_FD} on")
    for fd in fds:
        os.close(fd)
    return moved


def _prepare(order: dict[str, Any]) -> None:
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:  # noqa: PTH123
        score.write("1000")
    os.umask(0o022)
    uid = order["uid"]
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        _checked(_libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0), "prctl")
    os.chdir(order["folder"])
    # Also without an overlay: a limit of processes counts in the user namespace it is set in, and in those below. Set
    # outside, it would count the processes of all calls together.
    _own_namespaces()
    overlay = order["overlay"]
    if overlay is not None:
        target, options = overlay
        flags = MS_NOSUID | MS_NODEV
        mounted = _libc.mount(b"overlay", target.encode(), b"overlay", flags, options.encode())
        _checked(mounted, "mount the overlay")
    for kind, value in order["limits"]:
        resource.setrlimit(kind, (value, value))


def _own_namespaces() -> None:
    uid, gid = os.geteuid(), os.getegid()
    _checked(_libc.unshare(CLONE_NEWUSER | CLONE_NEWNS), "make a user namespace")
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:  # noqa: PTH123
            file.write(text)
    _checked(_libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None), "make mounts private")


def _checked(result: int, what: str) -> None:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


if __name__ == "__main__":
    if sys.argv[1] == "server":
        become_server(sys.argv[2])
    serve(socket.socket(fileno=int(sys.argv[1])))
