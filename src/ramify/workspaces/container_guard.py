"""ContainerGuard: the process beside one container, from its start until it is removed. Runs as a program of its own,
standard library only.

It starts `podman run`, passes the pipes of the container on, and says the same words as bubblewrap on the status pipe
(`child-pid`, `exit-code`), so `command.py` follows both alike. The container waits twice for the guard: before the
command, and after it, while the guard asks the kernel whether memory ran out. If the host hangs up, or the guard ends,
the container ends too.
"""

# ruff: noqa: PTH102, PTH123, PTH208 - paths are texts here: pathlib is slow to import

import ctypes
import json
import marshal
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any

CLONE_NEWNS = 0x0002_0000
MS_REC, MS_PRIVATE, MS_NOSUID, MS_NODEV = 1 << 14, 1 << 18, 2, 4
OUTPUT_FD, REPORT_FD = 1, 9
PIPE_BYTES = 1 << 16
MAX_WORDS = 4000
END_S = 20.0
"""Timeout for the removal of a container whose processes are dead."""
PIPES = ("out", "report", "up", "go")
"""Named pipes that the container sees. `up` says `U` before the command and `E` after it; `go` lets it go on."""


class Guard:
    """The guard of one container."""

    def __init__(self, order: dict[str, Any], *, status: int, block: int) -> None:
        self._order = order
        self._status = status
        self._block = block
        self._pipes = made_pipes(order["pipes"], order["uid"])
        self._go: int | None = self._pipes.pop("go")
        self._first: int | None = None
        """A pidfd of the container's first process; None = it is not up yet."""
        self._pid = 0
        self._words = os.memfd_create("words", os.MFD_CLOEXEC)
        self._end_at: float | None = None
        """When the container is removed by force; None = the host is still there."""

    def run(self) -> None:
        """Start the container and follow it until it is removed."""
        client = subprocess.Popen(
            self._order["run"],
            env=self._order["environment"],
            stdin=subprocess.DEVNULL,
            stdout=self._words,
            stderr=self._words,
        )
        self._follow(os.pidfd_open(client.pid))
        if client.poll() is None:
            subprocess.run(self._order["remove"], env=self._order["environment"], check=False)
            client.kill()
        code = client.wait()
        self._relay("out", OUTPUT_FD)
        self._relay("report", REPORT_FD)
        if self._first is None:
            words = os.pread(self._words, MAX_WORDS, 0).strip()
            _write(OUTPUT_FD, b"container: " + (words or b"exit code %d" % code))
        elif code >= 0:
            self._tell("exit-code", code)
        shutil.rmtree(self._order["pipes"], ignore_errors=True)

    def _follow(self, client: int) -> None:
        """Until the client has ended, or must be ended."""
        watch = select.poll()
        for fd in (client, self._block, *self._pipes.values()):
            watch.register(fd, select.POLLIN)
        watch.register(self._status, 0)  # It says when the host has closed its end.
        while self._end_at is None or time.monotonic() < self._end_at:
            ready = {fd for fd, _ in watch.poll(None if self._end_at is None else 1000 * END_S)}
            if self._status in ready:
                watch.unregister(self._status)
                self._end()
            self._relay("out", OUTPUT_FD)
            self._relay("report", REPORT_FD)
            if self._pipes["up"] in ready:
                self._heard(os.read(self._pipes["up"], PIPE_BYTES))
            if self._block in ready:
                watch.unregister(self._block)
                if self._go is not None:
                    _write(self._go, b"\n")
            if client in ready:
                return

    def _heard(self, said: bytes) -> None:
        if self._first is None and b"U" in said:
            self._pid = first_process(self._order["name"].encode())
            self._first = os.pidfd_open(self._pid)
            self._tell("child-pid", self._pid)
            if self._end_at is not None:
                self._end()
        elif b"E" in said:
            if num_kills := oom_kills(self._pid):
                self._tell("oom-kills", num_kills)
            self._let_end()

    def _end(self) -> None:
        """The host is gone: kill every process of the container."""
        self._end_at = time.monotonic() + END_S
        self._let_end()
        if self._first is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._first, signal.SIGKILL)

    def _let_end(self) -> None:
        """The first process ends when nobody holds this pipe."""
        if self._go is not None:
            os.close(self._go)
            self._go = None

    def _relay(self, name: str, target: int) -> None:
        with suppress(BlockingIOError):
            while data := os.read(self._pipes[name], PIPE_BYTES):
                _write(target, data)

    def _tell(self, key: str, value: int) -> None:
        _write(self._status, json.dumps({key: value}).encode() + b"\n")


def made_pipes(folder: str, uid: int | None) -> dict[str, int]:
    """Named pipes in a new folder, each held open at both ends, so that no open waits."""
    os.mkdir(folder)
    pipes: dict[str, int] = {}
    for name in PIPES:
        path = f"{folder}/{name}"
        os.mkfifo(path, 0o600)
        if uid is not None:
            os.chown(path, uid, uid)
        pipes[name] = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    return pipes


def first_process(name: bytes) -> int:
    """Pid of the process that is pid 1 of its namespace and has `name` among its arguments. Raises OSError."""
    for pid in sorted((int(each) for each in os.listdir("/proc") if each.isdigit()), reverse=True):
        with suppress(OSError):
            if name in _read(f"/proc/{pid}/cmdline").split(b"\0"):
                pids = next(line for line in _read(f"/proc/{pid}/status").splitlines() if line.startswith(b"NSpid:"))
                if len(pids.split()) > 2 and pids.split()[-1] == b"1":
                    return pid
    raise OSError("the container's processes are not among those of this machine; a client of a remote one is no use")


def oom_kills(pid: int) -> int:
    """How many processes the kernel has killed in a process's control group because its memory ran out."""
    with suppress(OSError):
        for line in _read(f"/proc/{pid}/cgroup").decode().splitlines():
            path = line.split(":", 2)[2]
            for file in (f"/sys/fs/cgroup{path}/memory.events", f"/sys/fs/cgroup/memory{path}/memory.oom_control"):
                with suppress(OSError):
                    words = _read(file).split()
                    return int(words[words.index(b"oom_kill") + 1])
    return 0


def mount(target: str, options: str) -> None:
    """Mount an overlay where only this process and its children see it. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mount.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p]
    flags = MS_NOSUID | MS_NODEV
    if (
        libc.unshare(CLONE_NEWNS) < 0
        or libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None) < 0
        or libc.mount(b"overlay", target.encode(), b"overlay", flags, options.encode()) < 0
    ):
        code = ctypes.get_errno()
        raise OSError(code, f"mount the overlay: {os.strerror(code)}")


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _write(fd: int, data: bytes) -> None:
    """Write all of it, or what the host still takes."""
    view = memoryview(data)
    with suppress(BrokenPipeError):
        while view:
            view = view[os.write(fd, view) :]


def main() -> None:
    status, block, spec = map(int, sys.argv[1:])
    with suppress(OSError):  # The launcher kills the group of its child; the guard has a container to remove.
        os.setpgid(0, os.getpgid(os.getppid()))
    try:
        with os.fdopen(spec, "rb") as file:
            order = marshal.load(file)
        os.umask(0o022)
        os.chdir(order["folder"])
        if order["overlay"] is not None:
            mount(*order["overlay"])
        Guard(order, status=status, block=block).run()
    except OSError as error:
        _write(OUTPUT_FD, f"launcher: {error}".encode())


if __name__ == "__main__":
    main()
