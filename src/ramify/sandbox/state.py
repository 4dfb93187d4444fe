"""State: the host's handle on one waiting node of a sandbox.

A state is stopped (SIGSTOP) unless it is being forked, so code that foreign programs left in it cannot run between two
steps.
"""

import asyncio
import os
import signal
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

from ramify.sandbox.channel import Channel

Outcome = Literal["ok", "error", "timeout", "crashed"]


class Lost(Exception):
    """A state cannot be used any more, or not in its sandbox, and has to be rebuilt. Private to sandboxes and tools."""


class Busy(Exception):
    """Another step runs in the sandbox. Private to sandboxes and tools."""


@dataclass(slots=True, eq=False)
class SandboxState:
    """`pid` is the number in the sandbox's own /proc; `held` is a descriptor of its folder there."""

    pid: int
    held: int
    channel: Channel
    rss_bytes: int = 0
    parked: str = ""
    """Name of its parked files; empty = it has none yet."""
    mapped_bytes: int = 0
    """Size of its mappings that are not private data."""
    num_users: int = 0
    """Sessions in this state."""
    num_steps: int = 0
    """Running steps that began in it, plus the step that produced it until that one is settled."""
    is_alive: bool = True
    is_forking: bool = False
    """Whether it runs now to fork a step."""
    is_restless: bool = False
    """Whether it was found running when it should be stopped."""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by the step that is being forked from it."""

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; nothing happens if the process is gone."""
        if self.held >= 0:
            with suppress(OSError):
                signal.pidfd_send_signal(self.held, number)

    def stop(self) -> None:
        """Stop it until `go`."""
        self.signal(signal.SIGSTOP)

    def go(self) -> None:
        self.signal(signal.SIGCONT)

    def end(self) -> None:
        """Kill the process and close the socket. Calling it again is harmless."""
        if not self.is_alive:
            return
        self.is_alive = False
        self.signal(signal.SIGKILL)
        self.channel.close()
        os.close(self.held)
        self.held = -1


@dataclass(frozen=True, slots=True)
class StepEnd:
    """How a step ended and what it printed. `state` None = the state before the step stays the current one."""

    outcome: Outcome
    text: str
    state: SandboxState | None = None
    took_s: float | None = None
    """Seconds from when its node had it to its last word; None = it said none."""
