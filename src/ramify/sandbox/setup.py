"""Setup: the configuration of a sandbox, and the orders for its launcher.

Owns the kinds of walls, the range of unused uids, and the bundle of modules that goes inside. The modules go in as code
without files, so no path of the project exists there.
"""

import os
import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final, Literal

from ramify.sandbox import bubblewrap, folders
from ramify.sandbox.interpreter import PACKAGES, outside
from ramify.sandbox.limits import SandboxLimits
from ramify.sandbox.protocol import Setup, framed
from ramify.sandbox.seccomp import ARCHES

Walls = Literal["strict", "process", "none"]
MODULES: Final = ("syscalls", "kernel", "protocol", "seccomp", "landlock", "inherited", "folders", "node", "launcher")
"""Modules that go inside, each after those it imports."""
UID_BASE, NUM_UIDS = 0x7000_0000, 1 << 28
"""Uids that no user has (systemd, UIDS-GIDS: 1879048192…2147483647 are unused)."""
TMP_BYTES, TMP_FILES = 64 << 20, 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxConfig:
    """Configuration of a sandbox: its walls, its limits, and the modules imported before anything runs."""

    walls: Walls = "strict"
    limits: SandboxLimits = field(default_factory=SandboxLimits)
    preload: tuple[str, ...] = ("numpy",)


def bundle(setup: Setup) -> bytes:
    """Everything that the launcher reads: its modules and its orders."""
    return framed((_modules(), setup.packed()))


def strict_setup(config: SandboxConfig) -> Setup:
    """Setup with all walls and its own file systems."""
    uid = UID_BASE + 2 * secrets.randbelow(NUM_UIDS // 2) if os.geteuid() == 0 else None
    owner = f",uid={uid},gid={uid}" if uid is not None else ""
    limits = config.limits
    shared = f"size={TMP_BYTES},nr_inodes={TMP_FILES},mode=1777"
    return _setup(
        config,
        box=bubblewrap.BOX,
        uid=uid,
        shared=(bubblewrap.TMP, bubblewrap.SHM),
        file_systems={
            bubblewrap.BOX: f"size={limits.box_bytes},nr_inodes={limits.box_files},mode=0755",
            bubblewrap.TMP: shared + owner,
            bubblewrap.SHM: shared + owner,
        },
        readable=(*bubblewrap.READABLE, f"{bubblewrap.BOX}/{folders.PARKED}"),
        writable=(*_writable(bubblewrap.BOX), bubblewrap.TMP, bubblewrap.SHM),
        paths=(PACKAGES,),
    )


def bare_setup(config: SandboxConfig, box: str) -> Setup:
    """Setup with the host's file system, and `box` for the sandbox's own files."""
    is_root = os.geteuid() == 0 and config.walls == "process"
    paths = outside(config.preload)
    return _setup(
        config,
        box=box,
        uid=UID_BASE + 2 * secrets.randbelow(NUM_UIDS // 2) if is_root else None,
        shared=(),
        file_systems={},
        readable=(*bubblewrap.READABLE, sys.base_prefix, *paths, f"{box}/{folders.PARKED}"),
        writable=_writable(box),
        paths=paths,
    )


def _setup(
    config: SandboxConfig,
    *,
    box: str,
    uid: int | None,
    shared: tuple[str, ...],
    file_systems: Mapping[str, str],
    readable: tuple[str, ...],
    writable: tuple[str, ...],
    paths: tuple[str, ...],
) -> Setup:
    limits = config.limits
    return Setup(
        walls=config.walls,
        machine=machine(),
        box=box,
        uid=uid,
        alone_uid=bubblewrap.USER_UID if config.walls == "strict" and os.geteuid() != 0 else None,
        keeper_uid=uid + 1 if uid is not None and config.walls == "strict" else uid,
        shared=shared,
        file_systems=file_systems,
        readable=readable,
        writable=writable,
        memory_bytes=limits.memory_bytes,
        max_processes=limits.all_processes,
        max_descriptors=limits.max_descriptors,
        max_files=limits.max_files,
        max_files_bytes=limits.max_files_bytes,
        paths=paths,
        preload=config.preload,
    )


def _writable(box: str) -> tuple[str, ...]:
    """Writable folders of the box: the two places. Files of waiting states and discarded ones are never among them."""
    return (f"{box}/{folders.LIVE}", f"{box}/{folders.COPY}")


def machine() -> str:
    """This machine's name in the filters."""
    name = os.uname().machine
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(name, name)


def is_known_machine() -> bool:
    return machine() in ARCHES


@cache
def _modules() -> tuple[tuple[str, object], ...]:
    """Name and code of every module that goes inside; packages have no code."""
    folder = Path(__file__).parent
    found: list[tuple[str, object]] = [("ramify", None), ("ramify.sandbox", None)]
    for name in MODULES:
        full = f"ramify.sandbox.{name}"
        found.append((full, compile((folder / f"{name}.py").read_text("utf-8"), f"<{full}>", "exec")))
    return tuple(found)
