"""Shell: the model's commands on a folder of its own, `/w`, which forks with its branch.

    from ramify.workspaces.shell import open_shell

    async with open_shell() as shell:
        await shell.call("echo one > a")
        fork = await shell.fork()            # the same files, from here on its own
        await fork.call("rm a")
        assert (await shell.call("cat a")).text == "one\\n"

Every call is a fresh process (the shape of mini-swe-agent), so files are all the state: `/w` and `/tmp`. The working
directory and exported variables are carried as data. Processes end with their call. A call that reaches its timeout or
a limit leaves the state before it. A result holds the exit code and the digest of the files in its metadata.

Walls are those of bubblewrap, seccomp and limits, or of a container (`docs/guides/workspaces.md`); there is no weaker
kind. The machine is checked when walls are tried and when sessions open, never when the tool is made, so a saved run
can be read anywhere.
"""

import asyncio
import shlex
import shutil
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

from ramify.core.errors import ConfigError, ToolError
from ramify.core.problem import Problem
from ramify.core.tool import Branching, Lasting, text_schema
from ramify.sandbox.bubblewrap import found
from ramify.sandbox.setup import is_known_machine, machine
from ramify.workspaces.back_ends import BackEndName
from ramify.workspaces.containers import CONTAINER_PROGRAMS, asked
from ramify.workspaces.containers import found as container_program
from ramify.workspaces.process_watch import CommandLimits
from ramify.workspaces.remote import RemoteSession, RemoteWorkspaces
from ramify.workspaces.shell_order import FIRST
from ramify.workspaces.shell_session import ForkScore, ShellSession, score_on_fork
from ramify.workspaces.system import NETWORKS, Network
from ramify.workspaces.workspaces import Workspaces

__all__ = ["ForkScore", "RemoteSession", "Shell", "ShellSession", "check", "open_shell", "score_on_fork"]

Files = Literal["auto", "overlay", "copy"]
FILES: Final = ("auto", "overlay", "copy")
Walls = Literal["bubblewrap", "podman", "docker"]
WALLS: Final = ("bubblewrap", *CONTAINER_PROGRAMS)
STATES: Final[Mapping[BackEndName, str]] = {"overlay": "layers of an overlay", "copy": "whole copies"}
MAX_TIMEOUT_S: Final = 3600.0
DESCRIPTION: Final = (
    "Runs a command in a shell and returns what it prints on both streams. The working directory is {folder} at first. "
    "Files, the working directory and exported variables are kept between calls; processes end with their call. "
    "{network} A call may take {timeout_s:g} seconds."
)


@dataclass(frozen=True, kw_only=True)
class Shell:
    """Opens workspaces. Raises `ConfigError` for options that are invalid on every machine."""

    name: str = "shell"
    """Name that the model calls."""
    workspace: str = ""
    """Folder or tar file that `/w` starts as, for problems without the public column `workspace`; empty = nothing."""
    walls: Walls = "bubblewrap"
    """What runs commands: bubblewrap, or a fresh container of podman or docker each."""
    image: str = ""
    """Root file system, shown read-only, for problems without the public column `image`. For bubblewrap it is a folder
    that holds one; empty = the programs of this machine. For podman and docker it is the name of an image that was
    fetched before."""
    readable: tuple[str, ...] = ()
    """Other folders of this machine that commands may read, at the same paths."""
    network: Network = "none"
    """`none`: a loopback of its own. `host`: this machine's network, with all that it reaches."""
    files: Files = "auto"
    """How states lie on disk. `overlay`: layers; a fork costs the same for any size. `copy`: whole copies. `auto`:
    layers where this machine can mount them, else copies."""
    folder: str = ""
    """Where the files of states lie; empty = the folder for temporary files."""
    hosts: tuple[str, ...] = ()
    """Machines on which workspaces lie and commands run, as ssh names them (`user@box`, `ssh://user@box:2222`); empty =
    this one. A new branch goes to the machine with the fewest. All options hold there, and `image`, `readable` and
    `folder` are of there; `workspace` is of here and is sent."""
    remote_python: str = "python3"
    """Command of the shell of `hosts` that starts a Python with the same ramify."""
    ssh: str = "ssh"
    """Command that connects to `hosts`, with options of your own."""
    timeout_s: float = 60.0
    """Timeout of a call; after it the state is that before the call. Set it below `tools.deadline_s`."""
    cpu_s: float = 300.0
    """CPU time of a call, all its processes together."""
    memory_bytes: int = 2 << 30
    """Memory of a call, all its processes together."""
    max_processes: int = 256
    """Processes and threads of a call at once."""
    disk_bytes: int = 4 << 30
    """Size of all files of a state."""
    max_files: int = 200_000
    """Files and folders of a state."""
    max_output_bytes: int = 1 << 20
    """Maximum size of a call's text; the toolbox keeps less."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "readable", tuple(self.readable))
        object.__setattr__(self, "hosts", (self.hosts,) if isinstance(self.hosts, str) else tuple(self.hosts))
        if not self.name.isidentifier():
            raise ConfigError(f"a tool's name must be an identifier, so that a format can call it; got {self.name!r}")
        for name, known in (("files", FILES), ("network", NETWORKS), ("walls", WALLS)):
            value = getattr(self, name)
            if value not in known:
                raise ConfigError(f"{name} = {value!r}: it is one of {', '.join(known)}")
        if not 0 < self.timeout_s <= MAX_TIMEOUT_S:
            raise ConfigError(f"timeout_s = {self.timeout_s!r}: above 0 and at most {MAX_TIMEOUT_S:g} seconds")
        for path in self.readable:
            if not Path(path).is_absolute():
                raise ConfigError(f"readable names {path!r}: an absolute path is needed")
            if any(Path(path).is_relative_to(own) for own in ("/tmp", "/w")):
                raise ConfigError(f"readable names {path!r}: /w and /tmp are the branch's own; put the files elsewhere")
        self._check_hosts()
        self._limits()

    @property
    def branching(self) -> Branching:
        return "fork"

    @property
    def isolation(self) -> str:
        return "strict"

    @property
    def schema(self) -> Mapping[str, Any]:
        network = "There is no network." if self.network == "none" else "The network can be used."
        text = DESCRIPTION.format(folder=FIRST.folder, network=network, timeout_s=self.timeout_s)
        return text_schema(self.name, text, parameter="command")

    async def open(self, problem: Problem) -> ShellSession | RemoteSession:
        """A workspace in the state of the problem's start folder. Raises `ToolError`, also for a start folder that is
        missing or too large."""
        if self.hosts:
            return await self.remote.open(problem)
        workspaces = self.workspaces
        rules, state = await workspaces.start(problem)
        return ShellSession(workspaces, rules, state, rules.first)

    async def try_walls(self) -> None:
        """Attack the walls once per process and set of options. Raises `ToolError` that names the wall this machine
        lacks, and `ConfigError` for a folder that is not there. If only problems name images, the first that opens does
        it. With `hosts`, each is connected to and tried."""
        if self.hosts:
            await self.remote.try_walls()
            return
        workspaces = self.workspaces
        workspaces.check_folders()
        if self.walls == "bubblewrap":
            await workspaces.tried()
        else:
            await asyncio.to_thread(asked, self.walls, "info")
            if self.image:
                await workspaces.tried(self.image)

    async def let_go(self) -> None:
        """End the servers that act on the files of states, then remove all files and end the process that starts
        commands; with `hosts`, the connections."""
        await asyncio.gather(*(server.let_go() for server in self.servers))
        for name in ("workspaces", "remote"):
            held = self.__dict__.pop(name, None)
            if held is not None:
                await asyncio.to_thread(held.close)

    async def back_end(self) -> tuple[BackEndName, str]:
        """How states lie on disk on this machine or the first of `hosts`, and why; for `ramify doctor`. Raises
        `ToolError` as `try_walls`."""
        if self.hosts:
            return await self.remote.back_end()
        workspaces = self.workspaces
        await workspaces.ready(self.image)
        return workspaces.back_end.name, workspaces.why

    @cached_property
    def workspaces(self) -> Workspaces:
        """What its sessions share: for other tools whose states are such files. Raises `ToolError` on a machine that
        can have none."""
        _check_machine(self.walls)
        return Workspaces(self, self._limits())

    @cached_property
    def servers(self) -> list[Lasting]:
        """What else acts on the files of its workspaces."""
        return []

    def _check_hosts(self) -> None:
        for host in self.hosts:
            if not host or host.startswith("-") or not host.isprintable() or " " in host:
                raise ConfigError(f"hosts names {host!r}: a machine as ssh names it is needed, such as 'user@box'")
        if len(set(self.hosts)) < len(self.hosts):
            raise ConfigError(f"hosts = {self.hosts!r}: name each machine once")
        for name in ("remote_python", "ssh"):
            try:
                words = shlex.split(getattr(self, name))
            except ValueError as error:
                raise ConfigError(f"{name} = {getattr(self, name)!r}: a command is needed; {error}") from error
            if not words:
                raise ConfigError(f"{name} is empty: a command is needed")

    @cached_property
    def remote(self) -> RemoteWorkspaces:
        """The machines of `hosts`. Nothing is connected yet."""
        return RemoteWorkspaces(self, self._limits())

    def _limits(self) -> CommandLimits:
        return CommandLimits(
            cpu_s=self.cpu_s,
            memory_bytes=self.memory_bytes,
            max_processes=self.max_processes,
            disk_bytes=self.disk_bytes,
            max_files=self.max_files,
            max_output_bytes=self.max_output_bytes,
        )


@asynccontextmanager
async def open_shell(**options: Any) -> AsyncIterator[ShellSession | RemoteSession]:
    """A session of `Shell(**options)`; its files are removed at the end of the block, and those of its forks."""
    tool = Shell(**options)
    try:
        session = await tool.open(Problem("workspace", "a workspace outside any tree"))
        yield session
        await session.close()
    finally:
        await tool.let_go()


async def check() -> str:
    """Try every wall, and say how states lie on disk here, for `ramify doctor`. Raises `ToolError` that names what
    this machine lacks."""
    tool = Shell()
    try:
        await tool.try_walls()
        name, why = await tool.back_end()
    finally:
        await tool.let_go()
    others = "its hosts are reached by ssh" if shutil.which("ssh") else "hosts need ssh: install openssh-client"
    return f"the tool shell runs here: every wall holds; states are {STATES[name]} ({why}); {others}"


def _check_machine(walls: Walls) -> None:
    """Check what needs no trial. Raises `ToolError`."""
    if sys.platform != "linux":
        raise ToolError("tool_gave_up", f"workspaces need Linux, not {sys.platform}; run them in a Linux machine")
    if walls != "bubblewrap":
        container_program(walls)
        return
    if not is_known_machine():
        raise ToolError("tool_gave_up", f"workspaces know the system calls of x86_64 and aarch64, not of {machine()}")
    found()
