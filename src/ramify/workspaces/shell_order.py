"""ShellOrder: everything that starts one command, as data: the files to mount, the walls, the limits and the shell.

The launcher gets it with descriptors in the order of `DATA`. Options of bubblewrap lie in a file, so a list of
processes inside shows no path of this machine.
"""

import marshal
import os
import re
import resource
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ramify.sandbox.bubblewrap import found
from ramify.sandbox.seccomp import shell_program
from ramify.sandbox.setup import machine
from ramify.workspaces.back_ends import TEMPORARY, FileDraft
from ramify.workspaces.launcher import FIRST_FD
from ramify.workspaces.process_watch import CommandLimits
from ramify.workspaces.system import ENVIRONMENT, GROUP, PASSWD, USER_UID, Network
from ramify.workspaces.tree_digest import TOP

if TYPE_CHECKING:
    from ramify.workspaces.containers import Container

DATA: Final = ("json", "block", "args", "seccomp", "passwd", "group")
"""Descriptors of bubblewrap, after those of the launcher."""
FDS: Final = {name: FIRST_FD + 3 + at for at, name in enumerate(DATA)}
MAX_COMMAND_BYTES: Final = 100_000
"""The kernel takes 128 KiB as one argument."""
MAX_VARIABLES_BYTES: Final = 1 << 16
MAX_DESCRIPTORS: Final = 1024
NPROC_RELEASE: Final = (5, 14)
"""Linux counts processes by user namespace from this release on; before, a limit would count all of a user's."""
OVERLAY_OPTIONS: Final = "userxattr,volatile"
"""What a user namespace may mount, and no flush of files to the disk: states do not outlive this machine."""
STARTED: Final = b"S\0"
UNKEPT: Final = frozenset(
    {"_", "PWD", "OLDPWD", "SHLVL", "BASH_ENV", "ENV", "SHELLOPTS", "BASHOPTS", "LD_PRELOAD", "LD_AUDIT"}
)
"""Variables that the shell sets by itself, or by which one command could run code before the next one begins."""
SCRIPT: Final = (
    r"""trap '{ printf "R\0"; pwd -P; printf "\0"; env -0 || /usr/bin/env -0; } 2>/dev/null >&9' EXIT; """
    r"""printf 'S\0' >&9; cd -- "$2" 2>/dev/null || cd /w 2>/dev/null; unset OLDPWD; eval "$1" """
)
"""Run by the shell with the command and the folder. Descriptor 9 takes the report."""


@dataclass(frozen=True, slots=True)
class ShellVariables:
    """What a shell carries from one command to the next, as data."""

    folder: str
    """The working directory."""
    environment: Mapping[str, str]


FIRST: Final = ShellVariables("/w", ENVIRONMENT)
"""What the first command of a branch starts with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRules:
    """What all commands of a tool have in common."""

    limits: CommandLimits
    network: Network
    shell: str
    """Path of the shell inside."""
    root: tuple[str, ...]
    """Options of bubblewrap for the root file system."""
    has_own_users: bool
    """Whether `/etc/passwd` is made here; an image brings its own."""
    owner: int | None
    """Uid of the commands on this machine; None = ours."""
    container: "Container | None" = None
    """What runs commands in place of bubblewrap; then `shell`, `root` and `has_own_users` mean nothing."""
    first: ShellVariables = FIRST
    """What the first command of a branch starts with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellOrder:
    """One command on one draft."""

    rules: CommandRules
    draft: FileDraft
    command: str
    variables: ShellVariables
    is_tmp_kept: bool
    """Whether `/tmp` is the state's; else it is empty and is lost."""

    def files(self) -> list[bytes]:
        """What the launcher and bubblewrap read: the launcher's order, then bubblewrap's options and data."""
        if self.rules.container is not None:
            return self.rules.container.files(self)
        layer = self.draft.layer
        order: dict[str, Any] = {
            "uid": self.rules.owner,
            "folder": str(layer.run),
            "overlay": self.overlay(),
            "limits": list(self._rlimits()),
            "program": found(),
            "args": FDS["args"],
            "inner": list(map(os.fsencode, self._inner())),
        }
        args = b"".join(os.fsencode(each) + b"\0" for each in self._options())
        name = machine()
        program = shell_program("x86_64" if name == "x86_64" else "aarch64")
        users = (PASSWD, GROUP) if self.rules.has_own_users else ()
        return [marshal.dumps(order), args, program, *users]

    def overlay(self) -> tuple[str, str] | None:
        """Where to mount the draft, and the options; None = it is no overlay. Paths are relative to the run: all must
        fit in a page."""
        name = self.draft.layer.name
        if not self.draft.lower:
            return None
        lower = ":".join(f"{each.name}/f" for each in self.draft.lower)
        return f"{name}/m", f"lowerdir={lower},upperdir={name}/f,workdir={name}/k,{OVERLAY_OPTIONS}"

    def _options(self) -> Iterator[str]:
        rules, layer = self.rules, self.draft.layer
        yield from ("--unshare-user", "--uid", str(USER_UID), "--gid", str(USER_UID), "--cap-drop", "ALL")
        yield from ("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try")
        if rules.network == "none":
            yield "--unshare-net"
        yield from ("--die-with-parent", "--clearenv", "--hostname", "workspace")
        yield from rules.root
        files = f"{layer.run}/{layer.name}/{'m' if self.draft.lower else 'f'}"
        yield from ("--bind", f"{files}/{os.fsdecode(TOP)}", "/w")
        if self.is_tmp_kept:
            yield from ("--bind", f"{files}/{os.fsdecode(TEMPORARY)}", "/tmp")
        else:
            yield from ("--perms", "1777", "--size", str(rules.limits.memory_bytes), "--tmpfs", "/tmp")
        if rules.has_own_users:
            for name in ("passwd", "group"):
                yield from ("--ro-bind-data", str(FDS[name]), f"/etc/{name}")
        yield from ("--remount-ro", "/", "--chdir", "/")
        yield from ("--seccomp", str(FDS["seccomp"]), "--json-status-fd", str(FDS["json"]))
        yield from ("--block-fd", str(FDS["block"]))
        for name, value in self.variables.environment.items():
            yield from ("--setenv", name, value)

    def _inner(self) -> tuple[str, ...]:
        shell = self.rules.shell
        return (shell, "-c", SCRIPT, shell.rpartition("/")[2], self.command, self.variables.folder)

    def _rlimits(self) -> Iterator[tuple[int, int]]:
        limits = self.rules.limits
        cpu_s = int(limits.cpu_s) + 1
        yield from ((resource.RLIMIT_CPU, cpu_s), (resource.RLIMIT_FSIZE, limits.disk_bytes))
        yield from ((resource.RLIMIT_NOFILE, MAX_DESCRIPTORS), (resource.RLIMIT_CORE, 1))
        yield from ((resource.RLIMIT_MEMLOCK, 64 << 10), (resource.RLIMIT_MSGQUEUE, 0))
        if _release() >= NPROC_RELEASE:
            yield (resource.RLIMIT_NPROC, limits.max_processes + 8)


def told(report: bytes) -> ShellVariables | None:
    """What a shell said at its end; None = nothing that can be used. The report is foreign: it is taken apart and
    never run."""
    begin, end, rest = report.removeprefix(STARTED).partition(b"R\0")
    folder, null, variables = rest.partition(b"\n\0")
    if begin or not end or not null or not folder.startswith(b"/"):
        return None
    if variables and not variables.endswith(b"\0"):
        return None
    pairs = (line.partition(b"=") for line in variables.split(b"\0")[:-1])
    environment = {os.fsdecode(name): os.fsdecode(value) for name, sign, value in pairs if name and sign}
    kept = {name: value for name, value in environment.items() if name not in UNKEPT}
    return ShellVariables(os.fsdecode(folder), kept)


def num_bytes_of(variables: ShellVariables) -> int:
    """Size of the variables and the folder, as the kernel counts them."""
    pairs = variables.environment.items()
    return len(os.fsencode(variables.folder)) + sum(len(os.fsencode(name + value)) + 2 for name, value in pairs)


def _release() -> tuple[int, ...]:
    numbers = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return tuple(map(int, numbers.groups())) if numbers else (0, 0)
