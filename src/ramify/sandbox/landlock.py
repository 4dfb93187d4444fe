"""Landlock: a second wall for files, TCP, abstract sockets and signals. Runs inside the sandbox.

Rules can only get stricter, and they apply to all processes started later. `confine` is called once, before any foreign
code. `enter_scope` is called at each step, so that its signals and its tracing reach no older process. The kernel
stacks at most 16 layers. Raises OSError if the kernel has no Landlock.
"""

import ctypes
import os
import struct
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from ramify.sandbox.kernel import syscall

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
MAX_LAYERS: Final = 16

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_MAKE_CHAR, _MAKE_BLOCK, _REFER, _TRUNCATE, _IOCTL_DEV = 1 << 6, 1 << 11, 1 << 13, 1 << 14, 1 << 15
_NUM_RIGHTS: Final = {1: 13, 2: 14, 3: 15, 4: 15}
"""ABI -> number of file rights it knows; 16 from ABI 5 on."""
_TCP: Final = 3
_SCOPES: Final = 3
"""Scopes: abstract sockets and signals."""

READ: Final = _EXECUTE | _READ_FILE | _READ_DIR
DEVICES: Final = _READ_FILE | _READ_DIR | _WRITE_FILE | _TRUNCATE
ALL: Final = ((1 << 16) - 1) & ~(_MAKE_CHAR | _MAKE_BLOCK | _IOCTL_DEV)


def abi() -> int:
    """The Landlock ABI version of the kernel, 1 or above."""
    return syscall(CREATE_RULESET, None, 0, 1)


def confine(allowed: Mapping[str, int]) -> None:
    """Refuse all TCP, and the whole file system except `allowed` (path -> rights; missing paths are skipped)."""
    version = abi()
    known = (1 << _NUM_RIGHTS.get(version, 16)) - 1
    ruleset = _ruleset(version, files=known, tcp=_TCP, scopes=_SCOPES)
    for path, rights in allowed.items():
        with suppress(FileNotFoundError):
            _allow(ruleset, path, rights & known)
    _enter(ruleset)


def enter_scope() -> None:
    """Limit this process's signals and abstract sockets to itself and the processes it starts from now on."""
    version = abi()
    if version >= 6:
        # Each layer refuses moves between folders unless it allows them.
        ruleset = _ruleset(version, files=_REFER, tcp=0, scopes=_SCOPES)
        _allow(ruleset, "/", _REFER)
        _enter(ruleset)


def _ruleset(version: int, *, files: int, tcp: int, scopes: int) -> int:
    size = 8 if version < 4 else 16 if version < 6 else 24
    rules = struct.pack("=QQQ", files, tcp, scopes)[:size]
    return syscall(CREATE_RULESET, ctypes.create_string_buffer(rules, size), size, 0)


def _allow(ruleset: int, path: str, rights: int) -> None:
    folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = ctypes.create_string_buffer(struct.pack("=Qi", rights, folder), 12)
        syscall(ADD_RULE, ruleset, 1, rule, 0)
    finally:
        os.close(folder)


def _enter(ruleset: int) -> None:
    try:
        syscall(RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)
