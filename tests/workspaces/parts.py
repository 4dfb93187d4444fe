"""Parts of these tests: shells on each back end, and what a call of theirs showed."""

import atexit
import os
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.workspaces import docker_daemon, remote_machine

from ramify.core.problem import Problem
from ramify.core.tool import STATE_DIGEST, ToolResult
from ramify.workspaces.shell import RemoteSession, Shell
from ramify.workspaces.shell_session import EXIT_CODE, ShellSession

BACK_ENDS = ("overlay", "copy")
PROGRAM = os.environ.get("RAMIFY_CONTAINER_PROGRAM", "podman")
"""What runs containers in these tests: podman, or docker, whose daemon is then these tests' own."""
IN_CONTAINERS = [
    pytest.param(f"{PROGRAM} {files}", marks=pytest.mark.containers)
    for files in (BACK_ENDS if PROGRAM == "podman" else ("copy",))
]
"""The same back ends with the walls of a container, for `make test-podman` and `make test-docker`."""
REMOTE = [pytest.param(f"remote {files}", marks=pytest.mark.remote) for files in BACK_ENDS]
"""The same back ends on another machine, for `make test-remote`."""
HERE = (*BACK_ENDS, *IN_CONTAINERS)
EVERYWHERE = (*HERE, *REMOTE)
SYSTEM = ("/usr", "/etc/alternatives")
"""Folders of this machine that stand in for the programs of an image."""


STRAYS = "ps -e | grep -cE 'python|sleep|yes|head|touch' || true"
"""Counts processes of an earlier call."""


@contextmanager
def open_folder() -> Iterator[Path]:
    """An empty folder that all users may pass. Those of pytest are closed to others whenever a pytest starts."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o711)
        yield Path(folder)


@cache
def image() -> str:
    """Name of an image, made now and removed at the end: a root whose programs are those of `SYSTEM`. Debian's podman
    names a runtime that it does not install, so this one is named beside the tests."""
    os.environ.setdefault("CONTAINERS_CONF", str(Path(__file__).with_name("containers.conf")))
    if PROGRAM == "docker":
        docker_daemon.start()
    links = {
        name: Path("/", name).readlink() for name in ("bin", "lib", "lib64", "sbin") if Path("/", name).is_symlink()
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, target in links.items():
            Path(folder, name).symlink_to(target)
        for name in ("etc", "proc", "sys", "dev", "run", "tmp", "usr", "w"):
            Path(folder, name).mkdir()
        Path(folder, "etc/mark").write_text("an image\n")
        return imported(Path(folder), "system", ["ENV FRUIT=pear", "ENV HOME=/root"])


def imported(root: Path, name: str, changes: Sequence[str] = ()) -> str:
    """Import a folder as an image, which is removed at the end of this process; returns its name."""
    name = f"localhost/ramify-tests-{name}-{os.getpid()}:latest"
    tar = subprocess.run(["tar", "c", "--owner=0", "--group=0", "."], cwd=root, check=True, capture_output=True).stdout
    options = [f"--change={change}" for change in changes]
    subprocess.run([PROGRAM, "import", *options, "-", name], input=tar, check=True, capture_output=True)
    atexit.register(subprocess.run, [PROGRAM, "rmi", "-f", name], capture_output=True)
    return name


def options_of(place: str) -> dict[str, Any]:
    """Options of the tool for a back end, with the walls of a container or on another machine where `place` says so."""
    walls, _, files = place.rpartition(" ")
    if walls == "remote":
        return {"files": files, **remote_machine.options()}
    return {"files": files} if not walls else {"files": files, "walls": walls, "image": image(), "readable": SYSTEM}


@asynccontextmanager
async def shell(**options: Any) -> AsyncIterator[ShellSession | RemoteSession]:
    """A session, and an end that leaves nothing."""
    public = options.pop("public", {})
    tool = Shell(**options)
    try:
        yield await tool.open(Problem("p", "q", public))
    finally:
        await tool.let_go()


async def said(session: ShellSession | RemoteSession, command: str) -> str:
    """The text of a command that must succeed."""
    result = await session.call(command)
    assert result.status == "ok", result
    return result.text


def digest(result: ToolResult) -> str:
    return result.metadata[STATE_DIGEST]


def exit_code(result: ToolResult) -> int:
    return result.metadata[EXIT_CODE]
