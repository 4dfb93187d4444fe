"""Processes: the processes of one sandbox, seen from the host.

Owns the reads of /proc and the signals. A process is held by a descriptor of its folder in /proc, so a reused pid never
stands for an older process. With a pid namespace, the sandbox's own /proc lists exactly its processes, with their pids
inside. Without one, this walks the descendants of the launcher, which adopts orphans.
"""

# ruff: noqa: PTH123, PTH208 - paths are text here: pathlib is slow to import and knows no descriptors

import os
import re
import signal
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_MAX_ROUNDS: Final = 30
_SHARED: Final = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) ...s .*\(deleted\)$", re.MULTILINE)
"""A line of /proc/PID/maps for shared memory without a name."""
_MAPS_BYTES: Final = 16 << 20
"""A process has at most 65,530 mappings (vm.max_map_count)."""
GONE, STOPPED = frozenset("ZX"), frozenset("Tt")
STRAY, UNCLEAR = 0, -1
"""Owners of processes that descend from no step, and of processes whose parent died while they were being read."""


@dataclass(frozen=True, slots=True)
class Look:
    """One process at one moment."""

    pid: int
    state: str
    parent: int
    num_threads: int
    rss_bytes: int
    num_faults: int
    """Page faults since it was forked: an upper bound of the pages that it shares with nobody."""
    cpu_s: float = 0.0
    """CPU time of it and of the children that it has waited for."""

    @property
    def is_gone(self) -> bool:
        return self.state in GONE


class Processes:
    """All processes of one sandbox. `procfs` is a descriptor of the /proc to read; `keeper` is the launcher's pid in
    it."""

    def __init__(self, procfs: int, *, keeper: int, has_namespace: bool) -> None:
        self._procfs = procfs
        self._keeper = keeper
        self._has_namespace = has_namespace

    def pids(self) -> set[int]:
        """Pids of all processes except the launcher."""
        if self._has_namespace:
            found = {int(name) for name in os.listdir(self._procfs) if name.isdigit()}
            return found - {self._keeper}
        return self._descendants()

    def hold(self, pid: int) -> int | None:
        """A descriptor of the process; None = it is gone."""
        try:
            return os.open(str(pid), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._procfs)
        except OSError:
            return None

    def look(self, pid: int) -> Look | None:
        """Read the process's state; None = it is gone."""
        text = self._read(f"{pid}/stat")
        if text is None:
            return None
        # The name in parentheses may contain anything; only numbers follow the last parenthesis.
        fields = text[text.rindex(b")") + 2 :].split()
        numbers = [int(fields[index]) for index in (1, 17, 21, 7)]
        cpu_s = sum(map(int, fields[11:15])) / TICKS_PER_S
        return Look(pid, fields[0].decode(), numbers[0], numbers[1], numbers[2] * PAGE_BYTES, numbers[3], cpu_s)

    def fair_bytes(self, pid: int) -> int | None:
        """Its memory, where a page shared by n processes counts 1/n; None = the kernel does not report it."""
        return self._rolled_up(pid).get(b"Pss:")

    def held_bytes(self, pid: int) -> int:
        """As `fair_bytes`, and shared memory in full: also the pages that only a process which is gone has touched."""
        rolled_up = self._rolled_up(pid)
        return rolled_up.get(b"Pss:", 0) - rolled_up.get(b"Pss_Shmem:", 0) + self._shared_bytes(pid)

    def mapped_bytes(self, pid: int) -> int:
        """Size of its mappings that are not private data: an upper bound of the shared memory that it holds."""
        size, _, _, text, _, data, *_ = map(int, (self._read(f"{pid}/statm") or b"0 0 0 0 0 0 0").split())
        return (size - text - data) * PAGE_BYTES

    def _shared_bytes(self, pid: int) -> int:
        """Size of its shared mappings without a file."""
        total = 0
        for start, end in _SHARED.findall(self._read(f"{pid}/maps", max_bytes=_MAPS_BYTES) or b""):
            total += int(end, 16) - int(start, 16)
        return total

    def _rolled_up(self, pid: int) -> dict[bytes, int]:
        """The bytes of each line of smaps_rollup; empty = the kernel does not report it."""
        lines = (self._read(f"{pid}/smaps_rollup") or b"").splitlines()[1:]
        return {name: int(number) * 1024 for name, number, _ in map(bytes.split, lines)}

    def groups(self, owners: Collection[int], waiting: Collection[int]) -> dict[int, list[Look]]:
        """Every process except the waiting nodes, dead ones included, grouped by the one of `owners` it descends from,
        or under `STRAY` or `UNCLEAR`."""
        looks: dict[int, Look] = {}
        for pid in self.pids().difference(waiting):
            looks[pid] = self.look(pid) or Look(pid, "X", UNCLEAR, 0, 0, 0)
        roots = {self._keeper, *waiting}
        found: dict[int, list[Look]] = {}
        for look in looks.values():
            found.setdefault(_owner(look.pid, looks, owners, roots), []).append(look)
        return found

    def signal(self, pid: int, number: signal.Signals) -> None:
        """Send one process a signal; nothing happens if it is gone."""
        held = self.hold(pid)
        if held is not None:
            with suppress(OSError):
                signal.pidfd_send_signal(held, number)
            os.close(held)

    def kill_all(self, known: Collection[int]) -> None:
        """Kill everything. The launcher's end ends a namespace; without a namespace, all descendants and `known` are
        killed first."""
        if not self._has_namespace:
            for pid in self._stopped(known):
                self.signal(pid, signal.SIGKILL)
        self.signal(self._keeper, signal.SIGKILL)

    def _stopped(self, known: Collection[int]) -> set[int]:
        """Stop all descendants and `known`, so that none can fork: a fork bomb grows faster than it can be killed."""
        stopped: set[int] = set()
        for _ in range(_MAX_ROUNDS):
            more = self._descendants().union(known) - stopped
            if not more:
                break
            for pid in more:
                self.signal(pid, signal.SIGSTOP)
            stopped |= more
        return stopped

    def inner_pid(self, host_pid: int) -> int | None:
        """Translate a pid of the host to the pid in this sandbox's /proc; None = it is gone."""
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
        """Children of all its threads."""
        children: list[int] = []
        with suppress(OSError):
            held = os.open(f"{pid}/task", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._procfs)
            try:
                for thread in os.listdir(held):
                    children += map(int, (self._read(f"{pid}/task/{thread}/children") or b"").split())
            finally:
                os.close(held)
        return children

    def _read(self, path: str, *, max_bytes: int = 1 << 16) -> bytes | None:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._procfs)
        except OSError:
            return None
        parts: list[bytes] = []
        try:
            while max_bytes > 0 and (part := os.read(descriptor, max_bytes)):
                parts.append(part)
                max_bytes -= len(part)
            return b"".join(parts)
        except OSError:
            return None
        finally:
            os.close(descriptor)


def _owner(pid: int, looks: Mapping[int, Look], owners: Collection[int], roots: Collection[int]) -> int:
    """The owner that `pid` is or descends from. A process whose line ends at a waiting node or at the launcher is a
    stray."""
    seen: set[int] = set()
    while pid in looks and pid not in seen:
        if pid in owners:
            return pid
        seen.add(pid)
        pid = looks[pid].parent
    return STRAY if pid in roots else UNCLEAR
