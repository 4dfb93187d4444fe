"""Processes: what runs in one sandbox, seen from the host.

Owns the looks into /proc and the signals. A process is held by a descriptor of its folder in /proc, so that a number
used again never stands for the one that had it before. With a pid namespace the sandbox's own /proc lists exactly what
is in it and the pids are those inside; without one the descendants of the launcher are walked, who adopts orphans.
"""

# ruff: noqa: PTH123, PTH208 - paths are text here: pathlib is slow to import and knows no descriptors

import os
import signal
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_MAX_ROUNDS: Final = 30
GONE: Final = frozenset("ZX")


@dataclass(frozen=True, slots=True)
class Look:
    """One process at one moment."""

    pid: int
    state: str
    parent: int
    num_threads: int
    rss_bytes: int
    num_faults: int
    """Pages it was given or copied since it was forked: no more of its memory than these is its own alone."""


class Processes:
    """All of one sandbox. `procfs` is a descriptor of the /proc to look into; `keeper` the launcher's pid in it."""

    def __init__(self, procfs: int, *, keeper: int, has_namespace: bool) -> None:
        self._procfs = procfs
        self._keeper = keeper
        self._has_namespace = has_namespace

    def pids(self) -> set[int]:
        """Of everything but the launcher."""
        if self._has_namespace:
            found = {int(name) for name in os.listdir(self._procfs) if name.isdigit()}
            return found - {self._keeper}
        return self._descendants()

    def hold(self, pid: int) -> int | None:
        """A descriptor that stands for the process; None = it is gone."""
        try:
            return os.open(str(pid), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._procfs)
        except OSError:
            return None

    def look(self, pid: int) -> Look | None:
        """None = it is gone."""
        text = self._read(f"{pid}/stat")
        if text is None:
            return None
        # The name in parentheses may hold anything; what follows the last one is numbers.
        fields = text[text.rindex(b")") + 2 :].split()
        numbers = [int(fields[index]) for index in (1, 17, 21, 7)]
        return Look(pid, fields[0].decode(), numbers[0], numbers[1], numbers[2] * PAGE_BYTES, numbers[3])

    def fair_bytes(self, pid: int) -> int | None:
        """Its memory where a page shared by n counts for 1/n; None = the kernel does not say."""
        text = self._read(f"{pid}/smaps_rollup")
        for line in (text or b"").splitlines():
            if line.startswith(b"Pss:"):
                return int(line.split()[1]) * 1024
        return None

    def groups(self, running: Collection[int], waiting: Collection[int]) -> dict[int, list[Look]]:
        """Every process that is no waiting node, by the running one it descends from; 0 = from none, so a stray."""
        looks: dict[int, Look] = {}
        for pid in self.pids().difference(waiting):
            look = self.look(pid)
            if look is not None and (look.state not in GONE or pid in running):
                looks[pid] = look
        found: dict[int, list[Look]] = {}
        for look in looks.values():
            found.setdefault(_owner(look.pid, looks, running), []).append(look)
        return found

    def kill(self, pid: int) -> None:
        """End one process, whatever it ignores."""
        held = self.hold(pid)
        if held is not None:
            with suppress(OSError):
                signal.pidfd_send_signal(held, signal.SIGKILL)
            os.close(held)

    def kill_all(self, known: Collection[int]) -> None:
        """The launcher, whose end is that of a namespace; without one all there is, `known` at the least."""
        if not self._has_namespace:
            for pid in known:
                self.kill(pid)
            for _ in range(_MAX_ROUNDS):
                pids = self._descendants()
                for pid in pids:
                    self.kill(pid)
                if not pids:
                    break
        self.kill(self._keeper)

    def inner_pid(self, host_pid: int) -> int | None:
        """The number in this sandbox's /proc of a process that the kernel named to the host; None = it is gone."""
        if not self._has_namespace:
            return host_pid
        try:
            with open(f"/proc/{host_pid}/status", "rb") as status:
                return next(int(line.split()[-1]) for line in status if line.startswith(b"NSpid:"))
        except (OSError, StopIteration):
            return None

    def close(self) -> None:
        os.close(self._procfs)

    def _descendants(self) -> set[int]:
        found: set[int] = set()
        waiting = [self._keeper]
        while waiting:
            pid = waiting.pop()
            for child in self._children(pid):
                if child not in found:
                    found.add(child)
                    waiting.append(child)
        return found

    def _children(self, pid: int) -> list[int]:
        """Of all its threads."""
        children: list[int] = []
        with suppress(OSError):
            held = os.open(f"{pid}/task", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._procfs)
            try:
                for thread in os.listdir(held):
                    children += map(int, (self._read(f"{pid}/task/{thread}/children") or b"").split())
            finally:
                os.close(held)
        return children

    def _read(self, path: str) -> bytes | None:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._procfs)
        except OSError:
            return None
        try:
            return os.read(descriptor, 1 << 16)
        except OSError:
            return None
        finally:
            os.close(descriptor)


def _owner(pid: int, looks: Mapping[int, Look], running: Collection[int]) -> int:
    """The running node that `pid` is or descends from; the way up ends at a node that waits, or outside."""
    seen: set[int] = set()
    while pid in looks and pid not in seen:
        if pid in running:
            return pid
        seen.add(pid)
        pid = looks[pid].parent
    return 0
