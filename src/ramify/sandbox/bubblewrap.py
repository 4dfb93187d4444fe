"""Bubblewrap: the command line of the outermost wall.

It makes new pid, mount, network, ipc, uts and cgroup namespaces, and a user namespace if we are not root. Of the host
it shows only `/usr` and the interpreter, read only. As root, the launcher keeps a few rights to mount file systems and
to change its uid; the launcher is pid 1 and then gives them up. `--die-with-parent` is not used: it leaves pid 1 behind
forever if the parent dies just after the clone, and it kills the sandbox when the thread that started it ends. The
launcher watches the host process instead.
"""

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from ramify.core.errors import ToolError
from ramify.sandbox.interpreter import PACKAGES, PYTHON, Interpreter

INSTALL: Final = "apt-get install bubblewrap (or your system's package of that name)"
USER_UID: Final = 1000
"""Uid of the nodes inside a user namespace, after the launcher has mounted everything."""
ENVIRONMENT: Final = {
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    "LOGNAME": "user",
    "MKL_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "PYTHONHASHSEED": "0",
    "TZ": "UTC",
    "USER": "user",
}
"""The whole environment of foreign code. One thread per library: a fork copies only one thread of a process."""
READABLE: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/proc")
BOX, TMP, SHM = "/box", "/tmp", "/dev/shm"

_NAMESPACES: Final = ("pid", "net", "ipc", "uts", "cgroup")
_ROOT_RIGHTS: Final = ("CAP_SYS_ADMIN", "CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP", "CAP_CHOWN")
_USER_RIGHTS: Final = ("CAP_SYS_ADMIN", "CAP_SETPCAP", "CAP_SETFCAP")
"""CAP_SETFCAP allows an id of the next user namespace to be mapped to root of this one."""
_EMPTY_BYTES: Final = 4096


def found() -> str:
    """Path of `bwrap`. Raises `ToolError` with the command that installs it."""
    path = shutil.which("bwrap")
    if path is None:
        raise ToolError("tool_gave_up", f"isolation='strict' lacks its outermost wall, bubblewrap: {INSTALL}")
    return path


def command(python: Interpreter, inner: Sequence[str]) -> list[str]:
    """The command that runs `inner`, arguments of the interpreter, as pid 1 of its own namespaces."""
    rights = _ROOT_RIGHTS if os.geteuid() == 0 else _USER_RIGHTS
    arguments = [found(), "--new-session", "--as-pid-1", "--clearenv", "--hostname", "sandbox"]
    arguments += [f"--unshare-{name}" for name in _NAMESPACES]
    if os.geteuid() != 0:
        arguments += ["--unshare-user", "--uid", "0", "--gid", "0"]
    arguments += ["--cap-drop", "ALL"]
    for right in rights:
        arguments += ["--cap-add", right]
    arguments += [*_system(), *_python(python), *_places(python), *_environment(python)]
    return [*arguments, "--", *_repeatable(), python.executable, *inner]


def missing_wall(said: str) -> str:
    """Explain an error message of bubblewrap, with what would help."""
    said = re.sub(r"^bwrap: ", "", said.strip()) or "it said nothing"
    if "mount proc" in said:
        return (
            f"a private /proc ({said}): this container masks its own. Start it with unmasked system paths (docker: "
            "--security-opt systempaths=unconfined; kubernetes: procMount: Unmasked); binding the host's is not safe"
        )
    if re.search(r"namespace|uid map|Operation not permitted|clone|setting up", said):
        return (
            f"namespaces ({said}): allow them with `sysctl kernel.unprivileged_userns_clone=1` and, where AppArmor "
            "restricts them, `sysctl kernel.apparmor_restrict_unprivileged_userns=0`; in a container add CAP_SYS_ADMIN "
            "or run as a user that is not root"
        )
    return f"bubblewrap ({said})"


def _repeatable() -> tuple[str, ...]:
    """System tools, if present, that give all sandboxes the same memory addresses, so that a replay more often shows
    the same text. The kernel resets that setting for a program that could gain rights, so the rights are dropped
    first."""
    tools = ("/usr/bin/setpriv", "/usr/bin/setarch")
    if not all(Path(tool).exists() for tool in tools):
        return ()
    return ("/usr/bin/setpriv", "--bounding-set=-all", "/usr/bin/setarch", "--addr-no-randomize")


def _system() -> Iterator[str]:
    """`/usr`, the folders of the root that belong to it, and the two paths in `/etc` that programs need."""
    yield from ("--ro-bind", "/usr", "/usr")
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        path = Path("/", name)
        if path.is_symlink():
            yield from ("--symlink", str(path.readlink()), str(path))
        elif path.is_dir():
            yield from ("--ro-bind", str(path), str(path))
    yield from _folder("/etc")
    for path in ("/etc/ld.so.cache", "/etc/alternatives"):
        yield from ("--ro-bind-try", path, path)


def _python(python: Interpreter) -> Iterator[str]:
    yield from (*_folder("/opt"), *_folder(PACKAGES))
    if not python.is_of_system:
        yield from ("--ro-bind", str(python.prefix), PYTHON)
    for path in (*python.site_folders, *_private()):
        yield from ("--size", str(_EMPTY_BYTES), "--tmpfs", path, "--remount-ro", path)
    for name, path in python.packages.items():
        yield from ("--ro-bind", str(path), f"{PACKAGES}/{name}")


def _private() -> list[str]:
    """Folders under `/usr/local` that belong to a person, not to the system."""
    libraries = Path("/usr/local/lib")
    own = {path for path in (Path.home(), Path.cwd()) if Path("/usr/local") in path.parents}
    return sorted(str(path) for path in own if path != libraries and libraries not in path.parents)


def _places(python: Interpreter) -> Iterator[str]:
    for path in (BOX, TMP):
        yield from _folder(path)
    yield from ("--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/")


def _folder(path: str) -> tuple[str, ...]:
    """Make a folder that all can read: the parents that bubblewrap makes for a bind are readable only for itself."""
    return ("--perms", "0755", "--dir", path)


def _environment(python: Interpreter) -> Iterator[str]:
    loader = {} if python.library_path is None else {"LD_LIBRARY_PATH": python.library_path}
    for name, value in {**ENVIRONMENT, **loader}.items():
        yield from ("--setenv", name, value)
