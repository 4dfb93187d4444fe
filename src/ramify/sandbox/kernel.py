"""Kernel: system calls that Python does not offer. Runs inside the sandbox: standard library only.

Every function raises OSError that names what failed.
"""

# ruff: noqa: PTH123 - paths are text here: pathlib is slow to import and knows no descriptors

import ctypes
import errno
import os
import struct
from typing import Final

PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 4, 24, 36, 38
PR_SET_THP_DISABLE, PR_CAP_AMBIENT = 41, 47
_CLONE_NEWUSER: Final = 0x1000_0000
_AMBIENT_CLEAR_ALL: Final = 4
_CAPABILITY_VERSION: Final = 0x2008_0522

_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_REMOUNT, _MS_BIND = 1, 2, 4, 32, 4096

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
_libc.mount.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p]


def _checked(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def prctl(option: int, first: int = 0, second: int = 0) -> int:
    """`prctl(option, first, second, 0, 0)`."""
    return _checked(_libc.prctl(option, first, second, 0, 0), f"prctl {option}")


def syscall(number: int, *arguments: int | ctypes.Array[ctypes.c_char] | None) -> int:
    """Make a system call by number; buffers are passed by address."""
    values = [ctypes.c_long(v) if isinstance(v, int) else v for v in arguments]
    return _checked(_libc.syscall(ctypes.c_long(number), *values), f"system call {number}")


def mount_tmpfs(target: str, options: str) -> None:
    """Mount an in-memory file system without devices and set-uid files."""
    flags = _MS_NOSUID | _MS_NODEV
    _checked(_libc.mount(b"tmpfs", target.encode(), b"tmpfs", flags, options.encode()), f"mount tmpfs on {target}")


def mount_read_only(folder: str) -> None:
    """Mount a folder over itself, read-only: nothing below it can be changed by its path, modes and times included."""
    path, locked = folder.encode(), _MS_NOSUID | _MS_NODEV | _MS_RDONLY
    _checked(_libc.mount(path, path, None, _MS_BIND, None), f"mount {folder} over itself")
    _checked(_libc.mount(None, path, None, _MS_REMOUNT | _MS_BIND | locked, None), f"mount {folder} read-only")


def drop_bounding_set() -> None:
    """Drop the bounding set: no program started from now on can gain a capability."""
    for capability in range(64):
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except OSError as error:
            if error.errno == errno.EINVAL:  # Above the kernel's last capability.
                return
            raise


def drop_capabilities() -> None:
    """Drop every capability: ambient, inheritable, permitted and effective."""
    prctl(PR_CAP_AMBIENT, _AMBIENT_CLEAR_ALL)
    header = ctypes.create_string_buffer(struct.pack("=Ii", _CAPABILITY_VERSION, 0))
    data = ctypes.create_string_buffer(bytes(24), 24)
    _checked(_libc.capset(header, data), "capset")


def become_alone(uid: int) -> None:
    """Change from root in this user namespace to `uid` in a new one, which owns no mount made before."""
    outer_uid, outer_gid = os.geteuid(), os.getegid()
    _checked(_libc.unshare(_CLONE_NEWUSER), "unshare the user namespace")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {outer_uid} 1"), ("gid_map", f"{uid} {outer_gid} 1")):
        try:
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
        except OSError as error:
            raise OSError(error.errno, f"user namespace, {name}: {error.strerror}") from error
