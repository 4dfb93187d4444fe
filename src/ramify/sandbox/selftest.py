"""Selftest: tests every wall from inside before foreign code runs, once per process for each kind of walls.

A wall that does not hold raises `ToolError("tool_gave_up")` with its name and the way to get it; a sandbox never starts
with a missing wall. The probes really do what is forbidden: read a file of the host, reach a port of the host, take
twice the memory, outlive their step.
"""

import socket
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ramify.core.errors import ToolError
from ramify.sandbox.bubblewrap import ENVIRONMENT
from ramify.sandbox.host import Sandbox
from ramify.sandbox.limits import SandboxLimits
from ramify.sandbox.setup import SandboxConfig, Walls
from ramify.sandbox.state import Lost

PROBE_S: Final = 20.0
LIMITS: Final = SandboxLimits(memory_bytes=48 << 20, max_files_bytes=1 << 20, max_files=64, max_processes=4)
_passed: set[Walls] = set()


@dataclass(frozen=True, slots=True)
class WallProbe:
    """Code that prints each forbidden thing it could do. `fault` = for a probe that the host must end: part of the
    expected reason."""

    wall: str
    code: str
    remedy: str
    fault: str = ""


async def passed(config: SandboxConfig) -> None:
    """Test the walls of this kind, unless they were already found to hold. Raises `ToolError` for the first that does
    not hold."""
    if config.walls in _passed or config.walls == "none":
        return
    sandbox = await Sandbox.open(SandboxConfig(walls=config.walls, limits=LIMITS, preload=()))
    try:
        with socket.create_server(("127.0.0.1", 0)) as listener, tempfile.NamedTemporaryFile() as secret:
            for probe in _probes(config.walls, port=listener.getsockname()[1], secret=secret.name):
                await _try(sandbox, probe, config.walls)
    finally:
        await sandbox.close()
    _passed.add(config.walls)


async def _try(sandbox: Sandbox, probe: WallProbe, walls: Walls) -> None:
    try:
        ended = await sandbox.step(sandbox.states.first, probe.code, number=1, timeout_s=PROBE_S)
    except Lost:
        raise _missing(walls, probe, "the probe could not be started") from None
    if ended.state is not None:
        sandbox.let_go(ended.state)
    is_held = probe.fault in ended.text if probe.fault else ended.outcome == "ok" and not ended.text
    if not is_held:
        raise _missing(walls, probe, ended.text.strip()[-300:] or "nothing stopped it")


def _missing(walls: Walls, probe: WallProbe, said: str) -> ToolError:
    what = f"isolation={walls!r} is not possible here, missing: {probe.wall} ({said}). {probe.remedy}"
    return ToolError("tool_gave_up", what)


def _probes(walls: Walls, *, port: int, secret: str) -> Iterator[WallProbe]:
    if walls == "strict":
        yield from _strict(port, secret)
    yield WallProbe(
        "the seccomp filter",
        _SECCOMP.format(is_strict=walls == "strict"),
        "It needs a kernel built with CONFIG_SECCOMP_FILTER.",
    )
    yield WallProbe(
        "the watch over processes", _FORKS, "The host must be able to read /proc.", fault="processes and threads"
    )
    yield WallProbe("the limit on the memory of one process", _MEMORY, "RLIMIT_AS is not kept by this kernel.")
    yield WallProbe(
        "the watch over the memory of many", _MANY, "The host must be able to read /proc/PID/stat.", fault="of memory"
    )
    yield WallProbe("the limit on files", _FILES, "RLIMIT_FSIZE is not kept by this kernel.")
    yield WallProbe("the sweep, setting out", _DAEMON, "The host must be able to signal what it started.")
    if walls == "strict":
        yield WallProbe(
            "the sweep: a process outlived its step", _ALONE, "The host must be able to signal what it started."
        )


def _strict(port: int, secret: str) -> Iterator[WallProbe]:
    own = [str(path) for path in (Path.home(), Path.cwd()) if not path.is_relative_to("/usr") and len(path.parts) > 2]
    outside = [secret, *own, "/etc/shadow", "/etc/passwd", "/root", "/home", "/sys"]
    namespaces = "bubblewrap did not put up its namespaces: install a newer one."
    yield WallProbe("a file system of its own", _OUTSIDE.format(paths=outside), namespaces)
    yield WallProbe("an empty environment", _ENVIRONMENT.format(names={*ENVIRONMENT, *_OWN_NAMES}), namespaces)
    yield WallProbe("a network of its own", _NETWORK.format(port=port), namespaces)
    yield WallProbe("a uid without rights", _RIGHTS, "bubblewrap must be able to grant and drop capabilities.")
    yield WallProbe("Landlock", _LANDLOCK, "It needs Linux 5.13 or later with `landlock` in the boot parameter lsm=.")


_OWN_NAMES: Final = ("LD_LIBRARY_PATH", "PWD", "TMPDIR")

_OUTSIDE: Final = """
import os
seen = [path for path in {paths!r} if os.path.exists(path)]
if seen: print("it sees", *seen)
"""
_ENVIRONMENT: Final = """
import os
more = set(os.environ) - {names!r}
if more: print("it sees", *more)
for pid in (1, os.getppid()):
    try:
        if open(f"/proc/{{pid}}/environ").read(): print("it reads the environment of", pid)
    except OSError: pass
"""
_NETWORK: Final = """
import socket
for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
    try:
        with socket.socket(socket.AF_INET, kind) as s:
            s.settimeout(2); s.connect(("127.0.0.1", {port})); print("it reaches the host")
    except OSError: pass
if [line for line in open("/proc/net/dev").read().splitlines()[2:] if not line.strip().startswith("lo:")]:
    print("it sees an interface")
"""
_RIGHTS: Final = """
import os
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
    if int(status[name], 16): print(name, status[name])
if status["NoNewPrivs"] != "1": print("NoNewPrivs", status["NoNewPrivs"])
if os.getuid() == 0: print("it is root")
"""
_LANDLOCK: Final = """
import os
try: os.listdir("/"); print("it lists the root folder")
except PermissionError: pass
"""
_SECCOMP: Final = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
calls = {{"unshare": (0x10000000,), "ptrace": (0, 0, 0, 0), "setns": (0, 0), "keyctl": (0, 0)}}
calls["prlimit"] = os.getppid(), 7, None, None
for name, arguments in calls.items():
    ctypes.set_errno(0)
    if name == "keyctl" and not hasattr(libc, name): continue
    if getattr(libc, name)(*arguments) != -1 or ctypes.get_errno() != 1: print("it calls", name)
try: os.memfd_create("x"); print("it calls memfd_create")
except PermissionError: pass
if "Seccomp:\\t2" not in open("/proc/self/status").read(): print("there is no filter")
"""
_FORKS: Final = """
import os, time
while True:
    try:
        if os.fork() == 0:
            time.sleep(60); os._exit(0)
    except OSError: time.sleep(60)
"""
_MEMORY: Final = """
try: held = bytearray(96 << 20); print("it has twice its memory")
except MemoryError: pass
"""
_MANY: Final = """
import os, time
for number in range(3):
    if os.fork() == 0:
        held = bytearray(b"x") * (32 << 20); time.sleep(60)
time.sleep(60)
"""
_FILES: Final = """
import errno, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
try:
    with open("large", "wb") as file: file.write(bytes(2 << 20))
    print("it writes a large file")
except OSError: pass
import os; os.unlink("large")
"""
_DAEMON: Final = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for number in range(3): os.close(number)
        time.sleep(600)
    os._exit(0)
os.wait(); None
"""
_ALONE: Final = """
import os, time
def others():
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and int(name) not in own and os.stat(f"/proc/{name}").st_uid == os.getuid():
                if open(f"/proc/{name}/stat").read().rsplit(")", 1)[1].split()[0] not in "ZX": yield name
        except OSError: pass
own = {1, os.getpid(), os.getppid()}
end = time.monotonic() + 5
while time.monotonic() < end and any(others()): time.sleep(0.01)  # The state of the step before may be ending.
for pid in others(): print("still there:", pid)
"""
