"""Seccomp: the filter between a sandbox and the kernel, written out as BPF.

A deny list, for code that may be anything a Python program is: what is refused answers EPERM, what honest libraries
have a fallback for (clone3, POSIX timers, calls newer than this list) answers ENOSYS, and a call by another machine's
table (32 bits, x32) ends the process. Runs inside the sandbox. What memory and file limits cannot bound in sum (memfd,
SysV memory, huge pages) is refused here, and so are limits, priorities and affinities of any process but the caller.
"""

import ctypes
import errno
import struct
from collections.abc import Iterable, Sequence
from typing import Final

from ramify.sandbox.kernel import prctl
from ramify.sandbox.syscalls import NEWEST, Machine, number_of, numbers

Instruction = tuple[int, int, int, int]
"""Code, jump if true, jump if false, constant."""

ARCHES: Final[dict[Machine, int]] = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
X32_BIT: Final = 0x4000_0000
FORBIDDEN_CLONES: Final = 0x7E02_8000
"""Every CLONE_NEW* that `clone` takes, and CLONE_PARENT: what a step starts must descend from it."""
F_SETSIG: Final = 10
"""Of `fcntl`: with it, and with a POSIX timer, a process that was stopped could wake itself."""
SCHEDULING: Final = ("sched_setparam", "sched_setscheduler", "sched_setaffinity", "sched_setattr")
PRIO_PROCESS, IOPRIO_WHO_PROCESS = 0, 1
MAP_HUGETLB: Final = 0x4_0000
TERMINAL_TRICKS: Final = (0x5412, 0x541C, 0x541D)
"""TIOCSTI, TIOCLINUX, TIOCCONS."""
PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_MM, PR_SET_CHILD_SUBREAPER, PR_SET_THP_DISABLE = 4, 22, 35, 36, 41
FORBIDDEN_OPTIONS: Final = (PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_MM, PR_SET_THP_DISABLE)
AF_UNIX: Final = 1

_LOAD, _EQUAL, _GREATER, _SHARES, _RETURN = 0x20, 0x15, 0x25, 0x45, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF_0000, 0x8000_0000, 0x0005_0000
_NUMBER, _ARCH = 0, 4
_PR_SET_SECCOMP_FILTER: Final = 2


def program(machine: Machine, *, has_sockets: bool) -> bytes:
    """The filter as the kernel takes it. `has_sockets` false also refuses every new socket but pairs."""
    body = [
        *_first(ARCHES[machine], is_x86=machine == "x86_64"),
        *(step for number in numbers(machine) for step in _when(number, [_refuse(errno.EPERM)])),
        *_examined(machine, has_sockets=has_sockets),
        (_RETURN, 0, 0, _ALLOW),
    ]
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in body)


def install(machine: Machine, *, has_sockets: bool) -> None:
    """Put the filter on this process and all it starts, for ever. Raises OSError; needs no_new_privs."""
    text = program(machine, has_sockets=has_sockets)
    buffer = ctypes.create_string_buffer(text, len(text))
    header = ctypes.create_string_buffer(struct.pack("@HP", len(text) // 8, ctypes.addressof(buffer)))
    prctl(PR_SET_SECCOMP, _PR_SET_SECCOMP_FILTER, ctypes.addressof(header))


def _first(arch: int, *, is_x86: bool) -> Iterable[Instruction]:
    """Another table's calls end the process; calls newer than the list are unknown. Leaves the number loaded."""
    yield (_LOAD, 0, 0, _ARCH)
    yield (_EQUAL, 1, 0, arch)
    yield (_RETURN, 0, 0, _KILL)
    yield (_LOAD, 0, 0, _NUMBER)
    if is_x86:
        yield (_SHARES, 0, 1, X32_BIT)
        yield (_RETURN, 0, 0, _KILL)
    yield (_GREATER, 0, 1, NEWEST)
    yield _refuse(errno.ENOSYS)


def _examined(machine: Machine, *, has_sockets: bool) -> Iterable[Instruction]:
    rules: dict[str, Sequence[Instruction]] = {
        "clone3": [_refuse(errno.ENOSYS)],
        "timer_create": [_refuse(errno.ENOSYS)],
        "clone": [_load(0), (_SHARES, 0, 1, FORBIDDEN_CLONES), _refuse(errno.EPERM)],
        "fcntl": [_load(1), *_when(F_SETSIG, [_refuse(errno.EPERM)])],
        "prlimit64": _only(0, 0),
        "setpriority": [*_only(0, PRIO_PROCESS), *_only(1, 0)],
        "ioprio_set": [*_only(0, IOPRIO_WHO_PROCESS), *_only(1, 0)],
        **{name: _only(0, 0) for name in SCHEDULING},
        "mmap": [_load(3), (_SHARES, 0, 1, MAP_HUGETLB), _refuse(errno.ENOMEM)],
        "ioctl": [_load(1), *(step for code in TERMINAL_TRICKS for step in _when(code, [_refuse(errno.EPERM)]))],
        "prctl": [
            _load(0),
            *(step for code in FORBIDDEN_OPTIONS for step in _when(code, [_refuse(errno.EPERM)])),
            *((_EQUAL, 0, 3, PR_SET_CHILD_SUBREAPER), _load(1), (_EQUAL, 0, 1, 0), _refuse(errno.EPERM)),
        ],
        "socket": [_load(0), (_EQUAL, int(has_sockets), 0, AF_UNIX), _refuse(errno.EACCES)],
        "socketpair": [_load(0), (_EQUAL, 1, 0, AF_UNIX), _refuse(errno.EACCES)],
    }
    for name, rule in rules.items():
        number = number_of(name, machine)
        assert number is not None
        yield from _when(number, [*rule, (_LOAD, 0, 0, _NUMBER)])


def _when(value: int, then: Sequence[Instruction]) -> Iterable[Instruction]:
    """`then` if what is loaded equals `value`, else on behind it."""
    yield (_EQUAL, 0, len(then), value)
    yield from then


def _only(argument: int, value: int) -> Sequence[Instruction]:
    """Refuse any other value; 0 stands for the caller where a process is named."""
    return [_load(argument), (_EQUAL, 1, 0, value), _refuse(errno.EPERM)]


def _load(argument: int) -> Instruction:
    """The low half of an argument: the kernel reads flags, families and options of these calls as 32 bits."""
    return (_LOAD, 0, 0, 16 + 8 * argument)


def _refuse(code: int) -> Instruction:
    return (_RETURN, 0, 0, _ERRNO | code)
