"""State: the host's hold on one node that waits in a sandbox.

A state is stopped (SIGSTOP) as long as nobody forks it, so that what foreign code left in it runs not at all between
two steps.
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
    """A state cannot be used any more, or not in its sandbox: it has to be rebuilt. Private to sandboxes and tools."""


@dataclass(slots=True, eq=False)
class SandboxState:
    """`pid` as the sandbox's own /proc has it, `held` a descriptor of its folder there."""

    pid: int
    held: int
    channel: Channel
    rss_bytes: int = 0
    parked: str = ""
    """Name of its files; empty = it has none yet."""
    folder: str = "0"
    """Where its last step ran: the paths it remembers begin there."""
    num_users: int = 0
    """Sessions in this state."""
    num_steps: int = 0
    """Steps on their way that began in it, and the one it is the end of until that is settled."""
    is_alive: bool = True
    is_forking: bool = False
    """Whether it runs now, to start a step."""
    is_restless: bool = False
    """Whether it was found running when it should not."""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Of the steps that begin in it."""

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; a process that is gone gets none."""
        if self.held >= 0:
            with suppress(OSError):
                signal.pidfd_send_signal(self.held, number)

    def stop(self) -> None:
        """Nothing of it runs until `go`."""
        self.signal(signal.SIGSTOP)

    def go(self) -> None:
        self.signal(signal.SIGCONT)

    def end(self) -> None:
        """Kill the process and hang up. Harmless when repeated."""
        if not self.is_alive:
            return
        self.is_alive = False
        self.signal(signal.SIGKILL)
        self.channel.close()
        os.close(self.held)
        self.held = -1


@dataclass(frozen=True, slots=True)
class StepEnd:
    """How a step ended and what it printed. `state` None = the state before is the one that holds."""

    outcome: Outcome
    text: str
    state: SandboxState | None = None
