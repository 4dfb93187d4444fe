"""States: all waiting states of one sandbox.

Owns which states exist and for how long: a state is dropped when its last user leaves. If there are too many, or they
hold too much memory, the least recently used are dropped. A session whose state was dropped replays its steps.
"""

from typing import Final

from ramify.sandbox.leftovers import Leftovers
from ramify.sandbox.limits import SandboxLimits
from ramify.sandbox.processes import PAGE_BYTES, STOPPED, Processes
from ramify.sandbox.running import RunningStep
from ramify.sandbox.state import SandboxState

HELD_STEPS: Final = 2
"""Waiting states may together hold the memory of this many steps."""


class States:
    """States by pid, least recently used first. `first` is the state without any step; it is never dropped to make
    room."""

    def __init__(
        self, processes: Processes, leftovers: Leftovers, limits: SandboxLimits, *, first: SandboxState
    ) -> None:
        self._processes = processes
        self._leftovers = leftovers
        self._limits = limits
        self._unmeasured_bytes = 0
        """Upper bound of the memory added since the last measurement."""
        self.first = first
        self.by_pid: dict[int, SandboxState] = {}
        self._keep(first)

    @property
    def are_used(self) -> bool:
        return any(state.num_users or state.num_steps for state in self.by_pid.values())

    @property
    def have_steps(self) -> bool:
        """Whether a step that began in one of them is running."""
        return any(state.num_steps for state in self.by_pid.values())

    @property
    def forking(self) -> dict[int, SandboxState]:
        """States that run now to fork a step."""
        return {pid: state for pid, state in self.by_pid.items() if state.is_forking}

    def touch(self, state: SandboxState) -> None:
        """Mark it as just used."""
        if self.by_pid.pop(state.pid, None) is state:
            self.by_pid[state.pid] = state

    def adopt(self, running: RunningStep, *, busy: set[int]) -> SandboxState | None:
        """Turn the finished child of a step into a state. None = it is not a valid finished child: it must exist, have
        one thread, and be neither another state nor one of the `busy` pids."""
        pid = self._processes.inner_pid(running.channel.sender_pid)
        if pid is None or pid in self.by_pid or pid in busy or not running.channel.is_open:
            return None
        look = self._processes.look(pid)
        held = self._processes.hold(pid)
        if held is None:
            return None
        state = SandboxState(pid, held, running.channel, 0, running.parked, num_users=1, num_steps=1)
        if look is None or look.is_gone or look.num_threads != 1:
            state.end()
            return None
        state.rss_bytes = look.rss_bytes
        state.mapped_bytes = self._processes.mapped_bytes(pid)
        is_forked = pid != running.pid  # By the step itself: it then has pages of its parent without any fault.
        self._unmeasured_bytes += look.rss_bytes if is_forked else min(look.rss_bytes, look.num_faults * PAGE_BYTES)
        self._unmeasured_bytes += max(0, state.mapped_bytes - running.base_mapped_bytes)
        self._keep(state)
        return state

    def release(self, state: SandboxState) -> None:
        """Drop it if nobody needs it any more."""
        if state.num_users <= 0 and not state.num_steps and state is not self.first:
            self.drop(state)

    def drop(self, state: SandboxState) -> None:
        """End it. Calling it again is harmless."""
        if self.by_pid.get(state.pid) is state:
            del self.by_pid[state.pid]
        if state.is_alive:
            state.end()
            if state.parked:
                self._leftovers.drop(state.parked)

    def rest(self) -> None:
        """Stop every state that should not run: a process that is gone now may have woken it."""
        for state in self.by_pid.values():
            if not state.is_forking:
                state.stop()

    def check(self) -> None:
        """Drop states that do not stay stopped, and count the memory that others gained while they forked."""
        for state in [*self.by_pid.values()]:
            look = self._processes.look(state.pid)
            if state.is_forking:
                continue
            if look is None or (look.state not in STOPPED and state.is_restless):
                self.drop(state)
                continue
            state.is_restless = look.state not in STOPPED
            self._unmeasured_bytes += max(0, look.rss_bytes - state.rss_bytes)
            state.rss_bytes = max(look.rss_bytes, state.rss_bytes)
        self.rest()
        self._evict()

    def end(self) -> None:
        """End all of them; their files go with the sandbox."""
        for state in self.by_pid.values():
            state.end()
        self.by_pid.clear()

    def _keep(self, state: SandboxState) -> None:
        state.stop()
        state.channel.on_lost = lambda: self.drop(state)
        self.by_pid[state.pid] = state
        self._evict()

    def _evict(self) -> None:
        """Drop states beyond the limits; the newest and the first stay."""
        while len(self.by_pid) > self._limits.max_nodes + 1 and self._drop_oldest():
            pass
        most_bytes = HELD_STEPS * self._limits.memory_bytes
        while self._unmeasured_bytes > most_bytes:
            self._unmeasured_bytes = sum(map(self._processes.held_bytes, self.by_pid))
            if self._unmeasured_bytes <= most_bytes or not self._drop_oldest():
                return

    def _drop_oldest(self) -> bool:
        *older, _ = self.by_pid.values()
        found = next((state for state in older if state is not self.first and not state.num_steps), None)
        if found is not None:
            self.drop(found)
        return found is not None
