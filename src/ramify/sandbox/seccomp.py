"""Seccomp: the filter between a sandbox and the kernel, as BPF code.

It is a deny list, since foreign code may be any Python program. Refused calls answer EPERM. Calls for which honest
libraries have a fallback (clone3, POSIX timers, calls newer than this list) answer ENOSYS. A call through another
machine's table (32 bits, x32) kills the process. Runs inside the sandbox. The filter also refuses memory that no memory
or file limit can bound in sum (memfd, SysV memory, huge pages), and changes to limits, priorities and affinities of
other processes.
"""

import ctypes
import errno
import struct
from collections.abc import Iterable, Sequence
from typing import Final

from ramify.sandbox.kernel import prctl
from ramify.sandbox.syscalls import NEWEST, REFUSED, Machine, number_of, numbers

Instruction = tuple[int, int, int, int]
"""Code, jump if true, jump if false, constant."""

ARCHES: Final[dict[Machine, int]] = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
X32_BIT: Final = 0x4000_0000
FORBIDDEN_CLONES: Final = 0x7E02_80EE
"""Every CLONE_NEW* flag of `clone`; CLONE_PARENT, because the processes of a step must descend from it; and the bits of
SIGCONT that SIGCHLD lacks, in the signal that a child sends when it ends."""
FORBIDDEN_NAMESPACES: Final = 0x7E02_0080
"""Every CLONE_NEW* flag of `clone`."""
FOR_SHELLS: Final = frozenset({"setpgid", "inotify_init", "inotify_init1"})
"""Refused in a sandbox whose stopped processes are states; allowed where all processes end with a command."""
ATTRIBUTE_WRITES: Final = (
    "setxattr", "lsetxattr", "fsetxattr", "setxattrat", "removexattr", "lremovexattr", "fremovexattr",
)  # fmt: skip
"""A shell's programs are told that the file system has no attributes: `sed -i` and `cp -p` complain about any other
answer."""
F_SETSIG: Final = 10
"""Command of `fcntl`. With it, or with a POSIX timer, a stopped process could wake itself."""
SCHEDULING: Final = ("sched_setparam", "sched_setscheduler", "sched_setaffinity", "sched_setattr")
PRIO_PROCESS, IOPRIO_WHO_PROCESS = 0, 1
MAP_HUGETLB: Final = 0x4_0000
TERMINAL_TRICKS: Final = (0x5412, 0x541C, 0x541D, 0x540E, 0x5441, 0x4004_5431)
"""TIOCSTI, TIOCLINUX, TIOCCONS; TIOCSCTTY, TIOCGPTPEER, TIOCSPTLCK: a terminal that closes wakes the process it
controls."""
FILE_FLAGS: Final = (0x4008_6602, 0x401C_5820)
"""FS_IOC_SETFLAGS, FS_IOC_FSSETXATTR: like extended attributes, marks on a folder that outlive the step."""
FORBIDDEN_REQUESTS: Final = (*TERMINAL_TRICKS, *FILE_FLAGS)
SIGCONT: Final = 18
SENDERS: Final = {
    "kill": 1,
    "tkill": 1,
    "tgkill": 2,
    "rt_sigqueueinfo": 1,
    "rt_tgsigqueueinfo": 2,
    "pidfd_send_signal": 1,
}
"""Calls that send a signal, and which argument is its number."""
PR_SET_PDEATHSIG: Final = 1
PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_MM, PR_SET_CHILD_SUBREAPER, PR_SET_THP_DISABLE = 4, 22, 35, 36, 41
FORBIDDEN_OPTIONS: Final = (PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_MM, PR_SET_THP_DISABLE)
AF_UNIX: Final = 1
FAMILIES: Final = (AF_UNIX, 2, 10, 16)
"""Families of a shell's sockets: AF_UNIX, AF_INET, AF_INET6, AF_NETLINK. Others, such as AF_VSOCK and AF_ALG, know no
network namespace or are ways into the kernel that no test suite needs."""

_LOAD, _EQUAL, _GREATER, _SHARES, _RETURN = 0x20, 0x15, 0x25, 0x45, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF_0000, 0x8000_0000, 0x0005_0000
_NUMBER, _ARCH = 0, 4
_PR_SET_SECCOMP_FILTER: Final = 2


def program(machine: Machine, *, has_sockets: bool) -> bytes:
    """The filter in the kernel's format. Without `has_sockets` it also refuses every new socket except socket pairs."""
    body = [
        *_first(ARCHES[machine], is_x86=machine == "x86_64"),
        *(step for number in numbers(machine) for step in _when(number, [_refuse(errno.EPERM)])),
        *_examined(machine, has_sockets=has_sockets),
        (_RETURN, 0, 0, _ALLOW),
    ]
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in body)


def shell_program(machine: Machine) -> bytes:
    """The filter for a command whose processes all end with it, so no state of processes has to be kept from waking.
    Job control, timers and sockets of the local families are allowed; whether the latter lead anywhere is a matter of
    the network namespace."""
    refused = {name: errno.EPERM for name in REFUSED if name not in FOR_SHELLS}
    refused |= dict.fromkeys(ATTRIBUTE_WRITES, errno.EOPNOTSUPP)
    rules: dict[str, Sequence[Instruction]] = {
        "clone3": [_refuse(errno.ENOSYS)],
        "clone": [_load(0), (_SHARES, 0, 1, FORBIDDEN_NAMESPACES), _refuse(errno.EPERM)],
        "mmap": [_load(3), (_SHARES, 0, 1, MAP_HUGETLB), _refuse(errno.ENOMEM)],
        "ioctl": [_load(1), *(step for code in FORBIDDEN_REQUESTS for step in _when(code, [_refuse(errno.EPERM)]))],
        "prctl": [_load(0), *_when(PR_SET_MM, [_refuse(errno.EPERM)])],
        "socket": [_load(0), *_one_of(FAMILIES), _refuse(errno.EAFNOSUPPORT)],
    }
    body: list[Instruction] = [*_first(ARCHES[machine], is_x86=machine == "x86_64")]
    for name, code in refused.items():
        number = number_of(name, machine)
        body += [] if number is None else _when(number, [_refuse(code)])
    for name, rule in rules.items():
        number = number_of(name, machine)
        assert number is not None
        body += _when(number, [*rule, (_LOAD, 0, 0, _NUMBER)])
    body.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in body)


def install(machine: Machine, *, has_sockets: bool) -> None:
    """Install the filter on this process and its descendants, permanently. Raises OSError; needs no_new_privs."""
    text = program(machine, has_sockets=has_sockets)
    buffer = ctypes.create_string_buffer(text, len(text))
    header = ctypes.create_string_buffer(struct.pack("@HP", len(text) // 8, ctypes.addressof(buffer)))
    prctl(PR_SET_SECCOMP, _PR_SET_SECCOMP_FILTER, ctypes.addressof(header))


def _first(arch: int, *, is_x86: bool) -> Iterable[Instruction]:
    """Kill on calls through another machine's table; answer ENOSYS to calls newer than the list. Leaves the call number
    loaded."""
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
        **{name: [_load(at), *_when(SIGCONT, [_refuse(errno.EPERM)])] for name, at in SENDERS.items()},
        "mmap": [_load(3), (_SHARES, 0, 1, MAP_HUGETLB), _refuse(errno.ENOMEM)],
        "ioctl": [_load(1), *(step for code in FORBIDDEN_REQUESTS for step in _when(code, [_refuse(errno.EPERM)]))],
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
    """Run `then` if the loaded value equals `value`; else skip it."""
    yield (_EQUAL, 0, len(then), value)
    yield from then


def _one_of(values: Sequence[int]) -> Iterable[Instruction]:
    """Skip the next instruction if the loaded value is one of `values`."""
    for at, value in enumerate(values):
        yield (_EQUAL, len(values) - at, 0, value)


def _only(argument: int, value: int) -> Sequence[Instruction]:
    """Refuse any other value of an argument. In an argument that names a process, 0 is the caller."""
    return [_load(argument), (_EQUAL, 1, 0, value), _refuse(errno.EPERM)]


def _load(argument: int) -> Instruction:
    """Load the low half of an argument: in these calls the kernel reads flags, families and options as 32 bits."""
    return (_LOAD, 0, 0, 16 + 8 * argument)


def _refuse(code: int) -> Instruction:
    return (_RETURN, 0, 0, _ERRNO | code)
