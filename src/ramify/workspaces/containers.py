"""Containers: the walls of a workspace from podman or docker: one fresh container a command.

The container shows the draft at `/w` and `/tmp`; the rest of its image is read-only. `container_guard.py` starts and
removes it. Both programs get the same options of `run`. The limits of `process_watch.py` hold here as well; those of
the container are a second wall.
"""

import json
import marshal
import os
import resource
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

from ramify.core.errors import ToolError
from ramify.workspaces import container_guard
from ramify.workspaces.back_ends import TEMPORARY
from ramify.workspaces.container_seccomp import narrowed
from ramify.workspaces.shell_order import MAX_DESCRIPTORS, SCRIPT, ShellOrder
from ramify.workspaces.system import ENVIRONMENT, SHM_BYTES
from ramify.workspaces.tree_digest import TOP

ContainerProgram = Literal["podman", "docker"]
CONTAINER_PROGRAMS: Final = ("podman", "docker")
ASK_S: Final = 60.0
"""Timeout of a question to the program; it answers in 0.1 s."""
LABEL: Final = "ramify.workspaces"
"""Label of every container; its value is the folder of all runs."""
INSIDE: Final = "/run/ramify"
"""Folder of the pipes of `container_guard.py`, inside."""
MAX_USER_PROCESSES: Final = 1 << 15
"""Podman's own default. It counts all processes of a user, so it is no limit of one command."""
KEPT: Final = ("DBUS_SESSION_BUS_ADDRESS", "HOME", "PATH", "USER")
KEPT_PREFIXES: Final = ("CONTAINER", "DOCKER_", "XDG_")
"""Variables of this process that the program gets. Podman would pass those of a proxy on to the container."""
OUTER: Final = r"""
cd /run/ramify && command -v env > /dev/null || { echo "the image has no program env" >&2; exit 127; }
exec 3> out 7> up 8< go 9> report < /dev/null > /dev/null 2>&1
printf U >&7; read -r x <&8 || exit 125
cd /; shell=/bin/bash; test -x "$shell" || shell=/bin/sh
command=$1; folder=$2; script=$3; shift 3
(exec env -i "$@" "$shell" -c "$script" "${shell##*/}" "$command" "$folder" >&3 2>&3 3>&- 7>&- 8<&-)
code=$?; printf E >&7; read -r x <&8; exit "$code"
"""
"""First process of the container. It is not the command's shell, since signals mean other things to a first process."""
REMEDIES: Final[Mapping[str, str]] = {
    "image not known": "fetch it: `{program} pull {image}`",
    "No such image": "fetch it: `{program} pull {image}`",
    "daemon running": "start the daemon (`systemctl start docker`), or set walls = 'podman', which needs none",
    "permission denied while trying to connect": "add your user to the group docker, or set walls = 'podman'",
    "/bin/sh": "the image needs /bin/sh and env: name another image",
    "no program env": "the image needs /bin/sh and env: name another image",
    "OCI runtime": 'name a runtime that works here in containers.conf: [engine] runtime = "runc"',
    "controller": "this user may set no limits: delegate control groups to it (systemd: Delegate=yes), or run as root",
}
"""Words of the program -> what helps."""


@dataclass(frozen=True)
class Container:
    """How commands run in containers of one image."""

    program: ContainerProgram
    image: str
    readable: tuple[str, ...] = ()
    seccomp: str = ""
    """File with the list of system calls; empty = the program's own list."""

    def __post_init__(self) -> None:
        if not self.image or self.image.startswith("-"):
            raise ToolError(
                "tool_gave_up",
                f"walls = {self.program!r} needs the name of an image, and {self.image!r} is none: set the option or "
                "the public column image, such as 'docker.io/library/python:3.12-slim'",
            )

    @cached_property
    def environment(self) -> Mapping[str, str]:
        """What the first command of a branch starts with: ours, and over it the image's. Blocks; raises `ToolError` if
        there is no such image here."""
        config = json.loads(asked(self.program, "image", "inspect", "--format", "{{json .Config}}", self.image))
        if self.program == "docker" and config.get("Volumes"):
            raise ToolError(
                "tool_gave_up",
                f"the image {self.image!r} has volumes ({', '.join(config['Volumes'])}), in which docker lets commands "
                "write without a limit: make an image without them, or set walls = 'podman'",
            )
        pairs = (each.partition("=") for each in config.get("Env") or ())
        return {**ENVIRONMENT, **{name: value for name, _, value in pairs}, "HOME": ENVIRONMENT["HOME"]}

    def files(self, order: ShellOrder) -> list[bytes]:
        """What the launcher and the guard read."""
        name, run = name_of(order), order.draft.layer.run
        guard: dict[str, Any] = {
            "name": name,
            "folder": str(run),
            "pipes": f"{order.draft.layer.name}/p",
            "uid": order.rules.owner,
            "overlay": order.overlay(),
            "run": list(map(os.fsencode, self._run(order))),
            "remove": [found(self.program), "rm", "-f", name],
            "environment": program_environment(),
        }
        return [marshal.dumps({"guard": container_guard.__file__}), marshal.dumps(guard)]

    def fault(self, said: str) -> ToolError:
        """Why a container did not start, with what would help."""
        return _fault(self.program, said, self.image)

    def _run(self, order: ShellOrder) -> Iterator[str]:
        name, variables = name_of(order), order.variables.environment.items()
        yield from (found(self.program), "run", "--rm", "--pull", "never", "--name", name)
        yield from ("--label", f"{LABEL}={order.draft.layer.run.parent}", "--log-driver", "none")
        yield from self._walls(order)
        yield from self._limits(order)
        yield from self._mounts(order)
        yield from ("--entrypoint", "/bin/sh", self.image, "-c", OUTER, name)
        yield from (order.command, order.variables.folder, SCRIPT)
        yield from (f"{name}={value}" for name, value in variables if not name.startswith("-"))

    def _walls(self, order: ShellOrder) -> Iterator[str]:
        uid = os.geteuid() if order.rules.owner is None else order.rules.owner
        yield from ("--user", f"{uid}:{uid}", "--cap-drop", "ALL", "--read-only", "--network", order.rules.network)
        yield from ("--security-opt", "no-new-privileges", "--security-opt", "label=disable")
        yield from ("--hostname", "workspace", "--workdir", "/", "--no-healthcheck", "--stop-signal", "KILL")
        if self.program == "podman":
            yield from ("--read-only-tmpfs=false", "--image-volume", "ignore")
            yield from ("--security-opt", f"seccomp={self.seccomp}") if self.seccomp else ()
            if os.geteuid() != 0:
                yield from ("--userns", "keep-id")

    @staticmethod
    def _limits(order: ShellOrder) -> Iterator[str]:
        limits = order.rules.limits
        memory = str(2 * limits.memory_bytes + SHM_BYTES)
        yield from ("--memory", memory, "--memory-swap", memory, "--pids-limit", str(limits.max_processes + 8))
        yield from ("--shm-size", str(SHM_BYTES), "--oom-score-adj", "1000")
        hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
        max_processes = MAX_USER_PROCESSES if hard < 0 else min(hard, MAX_USER_PROCESSES)
        values = {"cpu": int(limits.cpu_s) + 1, "fsize": limits.disk_bytes, "nofile": MAX_DESCRIPTORS, "core": 0}
        for name, value in (values | {"memlock": 64 << 10, "msgqueue": 0, "nproc": max_processes}).items():
            yield from ("--ulimit", f"{name}={value}:{value}")

    def _mounts(self, order: ShellOrder) -> Iterator[str]:
        layer = order.draft.layer
        home = f"{layer.run}/{layer.name}"
        files = f"{home}/{'m' if order.draft.lower else 'f'}"
        places = {"/w": f"{files}/{os.fsdecode(TOP)}"}
        if order.is_tmp_kept:
            places["/tmp"] = f"{files}/{os.fsdecode(TEMPORARY)}"
        else:
            yield from ("--tmpfs", f"/tmp:mode=1777,size={order.rules.limits.memory_bytes}")
        for target, source in places.items():
            yield from ("--mount", f"type=bind,source={source},target={target}")
        for target, source in ((INSIDE, f"{home}/p"), *((path, path) for path in self.readable)):
            yield from ("--mount", f"type=bind,source={source},target={target},readonly")


def name_of(order: ShellOrder) -> str:
    """Name of a command's container; no two commands have the same."""
    return f"ramify-{order.draft.layer.run.name}-{order.draft.layer.name}"


def found(program: ContainerProgram) -> str:
    """Path of the program. Raises `ToolError`."""
    path = shutil.which(program)
    if path is None:
        install = "apt-get install podman runc" if program == "podman" else "https://docs.docker.com/engine/install"
        raise ToolError("tool_gave_up", f"walls = {program!r} needs {program}, which is not installed: {install}")
    return path


def asked(program: ContainerProgram, *words: str) -> str:
    """What the program answers. Blocks. Raises `ToolError` with its words if it refuses."""
    try:
        done = subprocess.run(
            [found(program), *words],
            check=False,
            env=program_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ASK_S,
        )
    except subprocess.TimeoutExpired as error:
        raise ToolError("tool_gave_up", f"{program} does not answer `{program} {words[0]}` in {ASK_S:g} s") from error
    if done.returncode:
        raise _fault(program, done.stderr, words[-1])
    return done.stdout


def write_seccomp(program: ContainerProgram, file: Path) -> str:
    """Write the list of system calls for `Container.seccomp`; returns what to set there. Raises `ToolError`."""
    if program == "docker":
        return ""
    profile = asked(program, "info", "--format", "{{.Host.Security.SECCOMPProfilePath}}").strip()
    file.write_text(narrowed(Path(profile)))
    return str(file)


def remove_left(program: ContainerProgram, base: Path) -> None:
    """Remove containers of runs that were killed with their guards: their folder in `base` is gone. Raises
    `ToolError`."""
    for name in _left(program, base):
        try:
            asked(program, "rm", "-f", name)
        except ToolError:
            if not _is_gone(program, base, name):  # Docker refuses where it is removing the container already.
                raise


def _left(program: ContainerProgram, base: Path) -> list[str]:
    names = asked(program, "ps", "-a", "--filter", f"label={LABEL}={base}", "--format", "{{.Names}}").split()
    return [name for name in names if not (base / name.split("-")[1]).exists()]


def _is_gone(program: ContainerProgram, base: Path, name: str) -> bool:
    """Whether a container goes away by itself within `ASK_S`."""
    deadline = time.monotonic() + ASK_S
    while name in _left(program, base):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def program_environment() -> dict[str, str]:
    """Variables of this process that the program gets."""
    return {name: value for name, value in os.environ.items() if name in KEPT or name.startswith(KEPT_PREFIXES)}


def _fault(program: ContainerProgram, said: str, image: str) -> ToolError:
    said = said.strip().removeprefix("container: ")
    helps = next((helps for word, helps in REMEDIES.items() if word in said), "")
    remedy = f"; {helps.format(program=program, image=image)}" if helps else ""
    return ToolError("tool_gave_up", f"{program} cannot run a command of a workspace: {said}{remedy}")
