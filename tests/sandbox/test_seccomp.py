"""The filter as the kernel runs it: a small interpreter of BPF asks it about calls of both machines."""

import errno
import struct

import pytest

from ramify.sandbox import seccomp
from ramify.sandbox.syscalls import NEWEST, REFUSED, Machine, number_of

MACHINES: tuple[Machine, ...] = ("x86_64", "aarch64")
ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000


def verdict(program: bytes, number: int, *arguments: int, arch: int) -> int:
    data = struct.pack("<IIQ6Q", number, arch, 0, *arguments, *[0] * (6 - len(arguments)))
    at = loaded = 0
    while True:
        code, if_true, if_false, constant = struct.unpack_from("<HBBI", program, 8 * at)
        match code:
            case 0x20:
                (loaded,) = struct.unpack_from("<I", data, constant)
            case 0x15 | 0x25 | 0x45:
                holds = {0x15: loaded == constant, 0x25: loaded > constant, 0x45: bool(loaded & constant)}[code]
                at += if_true if holds else if_false
            case 0x06:
                return constant
            case _:
                pytest.fail(f"unknown instruction {code:#x}")
        at += 1


def asked(machine: Machine, name: str | int, *arguments: int, has_sockets: bool = True) -> int:
    number = name if isinstance(name, int) else number_of(name, machine)
    assert number is not None
    program = seccomp.program(machine, has_sockets=has_sockets)
    return verdict(program, number, *arguments, arch=seccomp.ARCHES[machine])


@pytest.mark.parametrize("machine", MACHINES)
def test_every_listed_call_is_refused(machine: Machine) -> None:
    for name in REFUSED:
        if number_of(name, machine) is not None:
            assert asked(machine, name) == ERRNO | errno.EPERM


@pytest.mark.parametrize("machine", MACHINES)
def test_what_honest_programs_need_is_allowed(machine: Machine) -> None:
    needed = {"x86_64": (0, 1, 57, 59, 202, 257, 334, 439), "aarch64": (56, 63, 64, 221, 98, 93, 439)}
    assert {asked(machine, number) for number in needed[machine]} == {ALLOW}
    assert asked(machine, "clone", 0x3D0F00) == ALLOW  # a thread
    assert asked(machine, "clone", 17) == ALLOW  # a fork
    assert asked(machine, "mmap", 0, 4096, 3, 0x22) == ALLOW
    assert asked(machine, "ioctl", 1, 0x5401) == ALLOW
    assert asked(machine, "prctl", 36, 1) == asked(machine, "fcntl", 0, 2) == ALLOW
    assert asked(machine, "socket", 1, 1) == asked(machine, "socketpair", 1, 1) == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_some_arguments_are_refused(machine: Machine) -> None:
    for bit in (0x8000, 0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        assert asked(machine, "clone", bit | 17) == ERRNO | errno.EPERM
    assert asked(machine, "mmap", 0, 4096, 3, 0x40022) == ERRNO | errno.ENOMEM
    assert asked(machine, "ioctl", 0, 0x5412) == ERRNO | errno.EPERM
    assert asked(machine, "ioctl", 0, 0xFFFF_FFFF_0000_5412) == ERRNO | errno.EPERM
    for option in (4, 22, 35, 41):
        assert asked(machine, "prctl", option, 1) == ERRNO | errno.EPERM
    assert asked(machine, "prctl", 36, 0) == ERRNO | errno.EPERM
    for family in (2, 10, 16, 17, 38, 40):
        assert asked(machine, "socket", family) == asked(machine, "socketpair", family) == ERRNO | errno.EACCES
    assert asked(machine, "clone3") == asked(machine, "timer_create") == ERRNO | errno.ENOSYS
    assert asked(machine, "fcntl", 0, 10) == ERRNO | errno.EPERM


@pytest.mark.parametrize("machine", MACHINES)
def test_nothing_can_send_the_signal_that_wakes_a_stopped_process(machine: Machine) -> None:
    for name, at in seccomp.SENDERS.items():
        for number, answer in ((18, ERRNO | errno.EPERM), (9, ALLOW), (15, ALLOW), (19, ALLOW)):
            assert asked(machine, name, *[7] * at, number) == answer
    assert asked(machine, "prctl", 1, 18) == ERRNO | errno.EPERM
    assert asked(machine, "clone", 18) == asked(machine, "clone", 0x4112) == ERRNO | errno.EPERM
    assert asked(machine, "clone", 0x4111) == ALLOW  # posix_spawn
    for request in (0x540E, 0x5441, 0x40045431):
        assert asked(machine, "ioctl", 5, request) == ERRNO | errno.EPERM


@pytest.mark.parametrize("machine", MACHINES)
def test_limits_and_priorities_are_the_callers_own(machine: Machine) -> None:
    for name in ("prlimit64", "sched_setparam", "sched_setscheduler", "sched_setaffinity", "sched_setattr"):
        assert asked(machine, name, 0) == ALLOW
        assert asked(machine, name, 7) == ERRNO | errno.EPERM
    for name, itself in (("setpriority", 0), ("ioprio_set", 1)):
        assert asked(machine, name, itself, 0) == ALLOW
        assert asked(machine, name, itself, 7) == asked(machine, name, 2, 0) == ERRNO | errno.EPERM


@pytest.mark.parametrize("machine", MACHINES)
def test_without_sockets_only_pairs_are_made(machine: Machine) -> None:
    assert asked(machine, "socket", 1, has_sockets=False) == ERRNO | errno.EACCES
    assert asked(machine, "socketpair", 1, has_sockets=False) == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_calls_newer_than_the_list_are_unknown_and_other_machines_end_the_process(machine: Machine) -> None:
    assert asked(machine, NEWEST + 1) == ERRNO | errno.ENOSYS
    assert asked(machine, NEWEST) == ALLOW
    program = seccomp.program(machine, has_sockets=True)
    for arch in (0x40000003, 0x40000028, 0):
        assert verdict(program, 0, arch=arch) == KILL
    if machine == "x86_64":
        assert asked(machine, 0x40000000) == KILL
