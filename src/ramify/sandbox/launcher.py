"""Launcher: the first process of a sandbox. It sets up the walls from inside, then keeps the sandbox alive.

Trusted code that runs once before any foreign code; standard library only. It mounts the file systems with their
limits, then forks. The child gives up all rights and becomes the first node. The launcher gives up its own rights,
under another uid if it can, and waits until the host hangs up. When the launcher ends, every process in the sandbox
ends.
"""

# ruff: noqa: PTH123 - paths are text here: pathlib is slow to import and knows no descriptors

import os
import resource
import select
import signal
import socket
import sys
from contextlib import suppress
from typing import Any, Final

from ramify.sandbox import folders, kernel, landlock, seccomp
from ramify.sandbox.node import SandboxNode, warm_up
from ramify.sandbox.protocol import Setup

MAX_LOCKED_BYTES: Final = 64 << 10
KEEPERS: Final = 4
"""Extra processes for the launcher and for steps that are not counted yet."""
NO_CORE_BYTES: Final = 1
"""The only limit that also stops a core dump that the kernel would pipe to a program of the host (core(5))."""


def main(life: int, channel: int, host: int, fields: dict[str, Any]) -> None:
    """Set everything up, tell the host through `life`, and never return. `host` is a pidfd of the host process.

    Raises OSError that names the wall that failed.
    """
    setup = Setup(**fields)
    kernel.prctl(kernel.PR_SET_THP_DISABLE, 1)
    for target, options in setup.file_systems.items():
        kernel.mount_tmpfs(target, options)
    folders.make_box(setup.box, setup.keeper_uid)
    parked = os.open(f"{setup.box}/{folders.PARKED}", os.O_PATH | os.O_DIRECTORY)
    if setup.walls == "strict":  # The host keeps the only way to write there.
        kernel.mount_read_only(f"{setup.box}/{folders.PARKED}")
    if setup.alone_uid is not None:
        kernel.become_alone(setup.alone_uid)
    handles = [os.open("/proc", os.O_RDONLY | os.O_DIRECTORY), parked]
    handles += [os.open(path, os.O_PATH | os.O_DIRECTORY) for path in (setup.box, *setup.shared)]
    if os.fork() == 0:
        for descriptor in (life, host, *handles):
            os.close(descriptor)
        _be_first_node(channel, setup)
    os.close(channel)
    _be_keeper(life, host, handles, setup)


def _be_first_node(channel: int, setup: Setup) -> None:
    _die_first()
    _give_up_rights(setup, setup.uid)
    _limit(setup)
    if setup.walls != "none":
        _close_in(setup)
    sys.path[:0] = [""]
    sys.path += setup.paths
    warm_up(setup.preload)
    _limit_memory(setup.memory_bytes)
    node = SandboxNode(
        channel,
        box=setup.box,
        shared=setup.shared,
        max_files=setup.max_files,
        max_files_bytes=setup.max_files_bytes,
        has_scopes=setup.walls != "none",
    )
    with socket.socket(fileno=channel) as stream:
        stream.send(b"S")
        stream.detach()
    for name in [name for name in sys.modules if name == "ramify" or name.startswith("ramify.")]:
        del sys.modules[name]
    node.serve()


def _be_keeper(life: int, host: int, handles: list[int], setup: Setup) -> None:
    """Send the host its descriptors of the sandbox, then wait until the host process ends or its side of the socket
    closes; other processes may hold copies of that socket. Orphans of the sandbox need no reaping."""
    for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    _give_up_rights(setup, setup.keeper_uid)
    if setup.walls != "strict":
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    with socket.socket(fileno=life) as stream:
        socket.send_fds(stream, [b"S"], handles)
        for handle in handles:
            os.close(handle)
        null = os.open("/dev/null", os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        watch = select.poll()
        watch.register(life, select.POLLIN)
        watch.register(host, select.POLLIN)
        watch.poll()
    if setup.walls != "strict":
        _end_children()
        folders.remove(setup.box)
    os._exit(0)


def _end_children() -> None:
    """Kill all processes of the sandbox. Needed without a pid namespace; orphans become children of this process."""
    own = os.getpid()
    while True:
        with open(f"/proc/{own}/task/{own}/children") as children:
            found = [int(pid) for pid in children.read().split()]
        if not found:
            return
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _die_first() -> None:
    """Make the kernel kill processes of the sandbox first when the machine runs out of memory."""
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("1000")


def _give_up_rights(setup: Setup, uid: int | None) -> None:
    """Become `uid` with no capability, no way to gain one, and not dumpable."""
    if setup.walls == "none":
        return
    if setup.walls == "strict":
        kernel.drop_bounding_set()
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    kernel.drop_capabilities()
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)


def _limit(setup: Setup) -> None:
    limits = {
        resource.RLIMIT_FSIZE: setup.max_files_bytes,
        resource.RLIMIT_NOFILE: setup.max_descriptors,
        resource.RLIMIT_CORE: NO_CORE_BYTES,
        resource.RLIMIT_MEMLOCK: MAX_LOCKED_BYTES,
        resource.RLIMIT_MSGQUEUE: 0,
    }
    if setup.uid is not None or setup.walls == "strict":  # Else the limit would count all processes of the user.
        limits[resource.RLIMIT_NPROC] = setup.max_processes + KEEPERS
    for kind, value in limits.items():
        resource.setrlimit(kind, (value, value))


def _limit_memory(memory_bytes: int) -> None:
    """Limit the address space to what is used now plus `memory_bytes`."""
    with open("/proc/self/statm") as sizes:
        there = int(sizes.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (there + memory_bytes, there + memory_bytes))


def _close_in(setup: Setup) -> None:
    """Apply Landlock, then seccomp. Both are permanent. With walls other than strict, Landlock is skipped if the kernel
    has none."""
    allowed = dict.fromkeys(setup.readable, landlock.READ)
    allowed |= dict.fromkeys(setup.writable, landlock.ALL) | {"/dev": landlock.DEVICES}
    try:
        landlock.confine(allowed)
    except OSError:
        if setup.walls == "strict":
            raise
    machine = "x86_64" if setup.machine == "x86_64" else "aarch64"
    seccomp.install(machine, has_sockets=setup.walls == "strict")
