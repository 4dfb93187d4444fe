"""Watchdog: checks all processes of a sandbox, and ends those that use too much or should not exist.

Counts every process that descends from a step, orphans included; a limit per process would not limit many processes.
Memory is the resident memory. If that is too much, the fair share is used, which does not count inherited pages twice.
A forking state is checked like a step: foreign code may have changed it. A process that descends from no step is
killed; at the end of a step this repeats until none is left.
"""

import asyncio
import signal
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from ramify.sandbox.limits import SandboxLimits
from ramify.sandbox.processes import PAGE_BYTES, STRAY, UNCLEAR, Look, Processes
from ramify.sandbox.running import RunningStep
from ramify.sandbox.states import States

PERIOD_S: Final = 0.04
REST_S: Final = 2.0
"""Time between two checks while nothing should run; one check takes 1 ms for 64 states."""
MAX_SWEEPS, MAX_PAUSE_S = 30, 0.05
MANY: Final = 8
"""With more strays than this, all are stopped before any is killed: a fork bomb refills the room that a killed process
leaves."""
_MIB: Final = 1 << 20


class Watchdog:
    """The watchdog of one sandbox. `running` is live: steps by the pid of their first process."""

    def __init__(
        self, processes: Processes, states: States, running: Mapping[int, RunningStep], *, limits: SandboxLimits
    ) -> None:
        self._processes = processes
        self._states = states
        self._running = running
        self._limits = limits
        self._task: asyncio.Task[None] | None = None
        self._is_resting = True

    def wake(self) -> None:
        """Start frequent checks, because a step begins."""
        if self._is_resting or self._task is None or self._task.done():
            self.end()
            self._is_resting = False
            self._task = asyncio.create_task(self._watch())

    def end(self) -> None:
        """Stop checking. Calling it again is harmless."""
        if self._task is not None:
            self._task.cancel()

    async def sweep(self) -> bool:
        """Kill all processes that are neither a state nor part of a step, until none is left. False = some are always
        left.

        A process that appeared and ended during a check may have left a child, so it counts as left.
        """
        known: set[int] = set()
        for number in range(MAX_SWEEPS):
            groups = self._groups()
            strays = groups.get(STRAY, [])
            dead = {stray.pid for stray in strays if stray.is_gone}
            living = {stray.pid for stray in strays} - dead
            if not living and dead <= known and UNCLEAR not in groups:
                return True
            is_bomb = len(living) > MANY and not living <= known
            self._send(living, signal.SIGSTOP if is_bomb else signal.SIGKILL)
            known |= living | dead
            await asyncio.sleep(min(MAX_PAUSE_S, 0.001 * 2**number))
        return False

    async def _watch(self) -> None:
        while self._running or self._states.forking:
            await asyncio.sleep(PERIOD_S)
            self._look()
        self._is_resting = True
        while self._states.by_pid:
            await asyncio.sleep(REST_S)
            self._look()
            self._states.check()

    def _look(self) -> None:
        forking = self._states.forking
        for pid, group in self._groups().items():
            pids = [look.pid for look in group if not look.is_gone]
            if pid in self._running:
                step = self._running[pid]
                fault = self._fault(group, base_bytes=step.base_bytes)
                if fault:
                    self._send(pids, signal.SIGSTOP)
                    step.stop(fault)
            elif pid in forking:
                if self._fault(group, base_bytes=forking[pid].rss_bytes):
                    self._states.drop(forking[pid])
                    self._send(pids, signal.SIGKILL)
            elif pid == STRAY:
                self._send(pids, signal.SIGKILL)

    def _groups(self) -> dict[int, list[Look]]:
        forking = self._states.forking.keys()
        return self._processes.groups(self._running.keys() | forking, self._states.by_pid.keys() - forking)

    def _send(self, pids: Iterable[int], number: signal.Signals) -> None:
        for pid in pids:
            self._processes.signal(pid, number)

    def _fault(self, group: Sequence[Look], *, base_bytes: int) -> str:
        """Which limit a step exceeds; empty = none."""
        if sum(look.num_threads for look in group if not look.is_gone) > self._limits.max_processes:
            return f"it ran more than {self._limits.max_processes} processes and threads at once"
        allowed = self._limits.memory_bytes + base_bytes
        if sum(look.rss_bytes for look in group) <= allowed:
            return ""
        used = sum(self._own_bytes(look) for look in group)
        return f"it used more than {self._limits.memory_bytes // _MIB} MiB of memory" if used > allowed else ""

    def _own_bytes(self, look: Look) -> int:
        """Its fair share of memory. If the kernel does not report that: the pages it got since it was forked."""
        fair = self._processes.fair_bytes(look.pid)
        return min(look.rss_bytes, look.num_faults * PAGE_BYTES) if fair is None else fair
