"""System: the files around a workspace, as options of bubblewrap: the programs of this machine or of an image.

Everything is read-only except `/w` and `/tmp`, which belong to the state, and `/dev/shm`, which is empty at each
command. Of this machine a command sees the folders of programs and what they need of `/etc`; it never sees a home.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Literal

from ramify.core.errors import ToolError

Network = Literal["none", "host"]
NETWORKS: Final = ("none", "host")
USER_UID: Final = 1000
SHM_BYTES: Final = 64 << 20
PROGRAMS: Final = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
SETTINGS: Final = (
    "alternatives", "ca-certificates", "java-11-openjdk", "java-17-openjdk", "java-21-openjdk", "ld.so.cache",
    "ld.so.conf", "ld.so.conf.d", "localtime", "mime.types", "perl", "pki", "protocols", "python3", "python3.11",
    "python3.12", "python3.13", "services", "ssl",
)  # fmt: skip
"""What of `/etc` programs need, and that says nothing about this machine's people."""
ADDRESSES: Final = ("resolv.conf", "hosts", "nsswitch.conf", "gai.conf", "host.conf")
"""What of `/etc` the network needs."""
OWN: Final = frozenset({"dev", "proc", "sys", "run", "tmp", "w"})
"""Folders of the root that come from nowhere but here."""
PASSWD: Final = (
    b"root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/tmp:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n"
)
GROUP: Final = b"root:x:0:\nuser:x:1000:\nnogroup:x:65534:\n"
ENVIRONMENT: Final = {
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    "LOGNAME": "user",
    "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "SHELL": "/bin/sh",
    "TZ": "UTC",
    "USER": "user",
}
"""Environment of the first command of a branch. A replay should leave the same files, so Python keeps no bytecode."""


def around(image: Path | None, *, network: Network, readable: Sequence[str]) -> list[str]:
    """Options that show the root file system and the folders `readable`, at the same paths. Raises `ToolError` for an
    image without a shell."""
    options = list(_programs() if image is None else _image(image))
    for path in readable:
        options += ["--ro-bind", path, path]
    if network == "host" and image is not None:
        for name in ADDRESSES:  # A file that the image lacks cannot be made: its `/etc` is read-only.
            there = image / "etc" / name
            if there.is_file() and not there.is_symlink():
                options += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    options += ["--proc", "/proc", "--dev", "/dev", "--size", str(SHM_BYTES), "--tmpfs", "/dev/shm"]
    options += ["--remount-ro", "/dev"]
    options += [
        "--perms",
        "0755",
        "--dir",
        "/run",
        "--perms",
        "0755",
        "--dir",
        "/w",
        "--perms",
        "1777",
        "--dir",
        "/tmp",
    ]
    if image is None:
        addresses = ADDRESSES if network == "host" else ()
        for name in (*SETTINGS, *addresses):
            options += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    return options


def shell_of(image: Path | None) -> str:
    """Path of the shell inside. Raises `ToolError` if the image has none."""
    root = image or Path("/")
    for path in ("bin/bash", "usr/bin/bash", "bin/sh", "usr/bin/sh"):
        if os.path.lexists(root / path):
            return f"/{path}"
    raise ToolError(
        "tool_gave_up", f"the image {str(root)!r} has no /bin/bash and no /bin/sh, so nothing can run in it"
    )


def _programs() -> Iterator[str]:
    for name in PROGRAMS:
        path = Path("/", name)
        if path.is_symlink():
            yield from ("--symlink", str(path.readlink()), str(path))
        elif path.is_dir():
            yield from ("--ro-bind", str(path), str(path))
    yield from ("--perms", "0755", "--dir", "/etc")
    for folder in _private():
        yield from ("--size", "4096", "--tmpfs", folder, "--remount-ro", folder)


def _private() -> list[str]:
    """Folders under `/usr/local` that belong to a person, not to the system."""
    libraries = Path("/usr/local/lib")
    own = {path for path in (Path.home(), Path.cwd()) if Path("/usr/local") in path.parents}
    return sorted(str(path) for path in own if path != libraries and libraries not in path.parents)


def _image(image: Path) -> Iterator[str]:
    """The folders of an image's root, since bubblewrap cannot make `/w` in a root that is read-only."""
    for path in sorted(image.iterdir()):
        if path.name in OWN:
            continue
        if path.is_symlink():
            yield from ("--symlink", str(path.readlink()), f"/{path.name}")
        else:
            yield from ("--ro-bind", str(path), f"/{path.name}")
