"""Shell: the outermost processes of a sandbox, from start to end.

Owns the child process of the host, the launcher it becomes, and the socket whose close ends the sandbox. The
interpreter is the one that runs this; it starts with an empty environment and without `site`, and reads its code from
that socket.
"""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

from ramify.core.errors import ToolError
from ramify.sandbox import bubblewrap, folders
from ramify.sandbox.capture import Capture
from ramify.sandbox.channel import Broken, Channel
from ramify.sandbox.interpreter import Interpreter, interpreter
from ramify.sandbox.leftovers import Leftovers
from ramify.sandbox.processes import Processes
from ramify.sandbox.protocol import STARTED, Setup
from ramify.sandbox.setup import SandboxConfig, bare_setup, bundle, strict_setup
from ramify.sandbox.state import SandboxState

REAP_S, END_S = 2.0, 5.0
PF_EXITING: Final = 0x4
"""Process flag (linux/sched.h), in /proc/PID/stat."""

_BOOT: Final = """
import marshal, os, select, sys, types
life, channel, host = map(int, sys.argv[1:])
watch = select.poll()
watch.register(life, select.POLLIN)
watch.register(host, select.POLLIN)
def read(size):
    if any(descriptor == host for descriptor, _ in watch.poll()):
        os._exit(1)
    return os.read(life, size) or os._exit(1)
size, text = int.from_bytes(read(4), "little"), b""
while len(text) < size:
    text += read(size - len(text))
modules, setup = marshal.loads(text)
for name, code in modules:
    module = sys.modules[name] = types.ModuleType(name)
    if code is None:
        module.__path__ = []
    else:
        exec(code, module.__dict__)
module.main(life, channel, host, setup)
"""
_FLAGS: Final = ("-S", "-s", "-P", "-B", "-X", "utf8", "-c", _BOOT)


class SandboxShell:
    """Starts when it is made. Ends by itself when its socket closes or this process ends."""

    def __init__(self, config: SandboxConfig) -> None:
        self.life = Channel(max_descriptors=8)
        """The launcher's socket; when it closes, the sandbox ends."""
        self._config = config
        self._channel = Channel()
        self._said = Capture(max_bytes=1 << 14, killed_bytes=1 << 20, on_flood=lambda: None)
        self._box: str | None = None
        try:
            self._setup, command, environment = self._planned()
            self._process = self._spawned(command, environment)
        except BaseException:
            self._close_ends()
            raise
        self._pidfds = [os.pidfd_open(self._process.pid)]
        self._said.close_written()

    @property
    def keeper_pid(self) -> int:
        """Pid of the launcher on this machine."""
        return self.life.sender_pid

    @property
    def is_ending(self) -> bool:
        """Whether the launcher is gone or ending: its processes die before its own end is reported."""
        try:
            stat = Path(f"/proc/{self.keeper_pid}/stat").read_bytes()
        except OSError:
            return True
        fields = stat.rpartition(b")")[2].split()
        return bool(int(fields[6]) & PF_EXITING)

    async def greet(self) -> tuple[Processes, Leftovers, SandboxState]:
        """Send the launcher its orders, and wait until it and the first state are ready. Raises `Broken`, `OSError`."""
        life, channel = self.life, self._channel
        life.num_expected = channel.num_expected = len(STARTED)
        life.peer.close()
        channel.peer.close()
        await life.send(bundle(self._setup))
        await life.message(len(STARTED))
        procfs, parked, box, *shared = life.taken()
        has_namespace = self._config.walls == "strict"
        processes = Processes(procfs, keeper=1 if has_namespace else self.keeper_pid, has_namespace=has_namespace)
        with ExitStack() as unwanted:
            unwanted.callback(processes.close)
            leftovers = Leftovers(box, parked=parked, shared=shared)
            unwanted.callback(leftovers.close)
            self._pidfds.append(os.pidfd_open(self.keeper_pid))
            await channel.message(len(STARTED))
            first = _first(processes, channel)
            unwanted.pop_all()
        return processes, leftovers, first

    def fault(self) -> ToolError:
        """The error for a sandbox that could not start; it names the missing wall."""
        self._said.close()
        lines = [line for line in self._said.text.splitlines() if line.strip()] or [""]
        if self._config.walls == "strict" and lines[-1].startswith("bwrap:"):
            wall = bubblewrap.missing_wall(lines[-1])
        else:
            wall = lines[-1] or "its first process ended without a word"
        return ToolError("tool_gave_up", f"isolation={self._config.walls!r} is not possible here, missing: {wall}")

    async def end(self) -> None:
        """Close the sockets, wait until all processes have ended, and remove what it had on the host."""
        self.life.on_lost = lambda: None
        self._close_ends()
        for pidfd in reversed(self._pidfds):  # The outermost process reaps the launcher and then ends by itself.
            if not await _gone(pidfd, REAP_S):
                with suppress(OSError):
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                await _gone(pidfd, END_S)
            os.close(pidfd)
        if self._process.poll() is None:  # Killed, but the machine is slow to end it.
            threading.Thread(target=self._process.wait, daemon=True).start()
        if self._box is not None:
            with suppress(OSError):
                await asyncio.to_thread(folders.remove, self._box)

    def _planned(self) -> tuple[Setup, list[str], Mapping[str, str]]:
        """The launcher's setup, the command that starts it, and the environment of that command."""
        config = self._config
        python = interpreter(config.preload)
        if config.walls == "strict":
            return strict_setup(config), bubblewrap.command(python, _FLAGS), {}
        _check_reach(config, python)
        self._box = tempfile.mkdtemp(prefix="ramify-")
        environment = bubblewrap.ENVIRONMENT | {"HOME": f"{self._box}/{folders.LIVE}/{folders.TMP}"}
        return bare_setup(config, self._box), [_own_executable(python), *_FLAGS], environment

    def _spawned(self, command: list[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Start the process in its own session, so that only the host gets the terminal's Ctrl-C."""
        host = os.pidfd_open(os.getpid())
        descriptors = (self.life.peer.fileno(), self._channel.peer.fileno(), host)
        try:
            return subprocess.Popen(
                [*command, *map(str, descriptors)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._said.written,
                env=dict(environment),
                cwd="/",
                pass_fds=descriptors,
                start_new_session=True,
            )
        finally:
            os.close(host)

    def _close_ends(self) -> None:
        self._said.close()
        self._channel.close()
        self.life.close()


def _first(processes: Processes, channel: Channel) -> SandboxState:
    """The state without any step. Raises `Broken` if it is already gone."""
    pid = processes.inner_pid(channel.sender_pid)
    look = processes.look(pid) if pid is not None else None
    held = processes.hold(pid) if pid is not None else None
    if pid is None or look is None or held is None:
        raise Broken
    return SandboxState(pid, held, channel, look.rss_bytes, mapped_bytes=processes.mapped_bytes(pid))


def _check_reach(config: SandboxConfig, python: Interpreter) -> None:
    """Raises `ToolError` if the sandbox's own uid could not read the standard library."""
    closed = [path for path in (python.prefix, *python.prefix.parents) if not path.stat().st_mode & 0o005]
    if config.walls == "process" and os.geteuid() == 0 and closed:
        said = f"{closed[-1]} is closed to other users, and this Python lives in {python.prefix}"
        what = f"isolation='process' is not possible here, missing: an interpreter that another uid can read ({said})"
        raise ToolError("tool_gave_up", f"{what}. Use a Python that is installed for all users, or isolation='strict'.")


def _own_executable(python: Interpreter) -> str:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return str(python.prefix / "bin" / version)


async def _gone(pidfd: int, seconds: float) -> bool:
    """Whether a process has ended within `seconds`."""
    loop = asyncio.get_running_loop()
    gone = loop.create_future()
    loop.add_reader(pidfd, lambda: gone.done() or gone.set_result(None))
    try:
        done, _ = await asyncio.wait([gone], timeout=seconds)
    finally:
        loop.remove_reader(pidfd)
    return bool(done)
