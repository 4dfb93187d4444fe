"""Running: one running step, as the host sees it."""

import asyncio
import os
import secrets
import signal
import time
from contextlib import suppress
from typing import Final

from ramify.sandbox.capture import Capture
from ramify.sandbox.channel import Channel
from ramify.sandbox.limits import SandboxLimits
from ramify.sandbox.protocol import MESSAGE_BYTES, NONCE_BYTES, SandboxStep
from ramify.sandbox.state import Outcome, SandboxState, StepEnd

_MIB: Final = 1 << 20


class RunningStep:
    """Owns the step's socket and its output. `fault` is the reason why the host ended it; empty = the host did not."""

    def __init__(
        self, step: SandboxStep, limits: SandboxLimits, *, base_bytes: int, base_mapped_bytes: int = 0
    ) -> None:
        self.step = step
        self.parked = secrets.token_hex(NONCE_BYTES)
        """Name of its parked files, once it is over."""
        self.base_bytes = base_bytes
        """Memory of the state in which it began."""
        self.base_mapped_bytes = base_mapped_bytes
        """Size of that state's mappings that are not private data."""
        self.fault = ""
        self.pid = 0
        self._pidfd = -1
        self.channel = Channel()
        self.channel.num_expected = 2 * MESSAGE_BYTES
        self._words = self.channel.watched()
        self._began = 0.0
        self._took_s: float | None = None
        self.capture = Capture(
            max_bytes=limits.max_output_bytes,
            killed_bytes=limits.killed_output_bytes,
            on_flood=lambda: self.stop(f"it printed more than {limits.killed_output_bytes // _MIB} MiB"),
        )

    @property
    def ends(self) -> tuple[int, int]:
        """Descriptors for the child: its socket and its output."""
        return self.channel.peer.fileno(), self.capture.written

    def begin(self) -> None:
        """The node is told now. Noted before, so that the seconds of a step are at least the child's own."""
        self._began = time.monotonic()

    def handed_over(self) -> None:
        """The node has the step from now on. Close the host's copies of the child's ends, so that the child holds the
        last ones."""
        self.channel.peer.close()
        self.capture.close_written()

    def heard(self) -> None:
        """Its last word was read just now."""
        now = time.monotonic()
        self._took_s = min(now, self._words.at(2 * MESSAGE_BYTES) or now) - self._began

    def watch(self) -> None:
        """Watch for the end of the child process from now on. The socket alone does not show it: others may hold
        copies."""
        try:
            self._pidfd = os.pidfd_open(self.channel.sender_pid)
        except OSError:
            self._ended()
        else:
            asyncio.get_running_loop().add_reader(self._pidfd, self._ended)

    def unwatch(self) -> None:
        """Stop watching for the child's words and its end. Calling it again is harmless."""
        self._words.close()
        if self._pidfd >= 0:
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1

    def kill(self) -> None:
        """Kill its first process, if it still exists."""
        if self._pidfd >= 0:
            with suppress(OSError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def stop(self, fault: str) -> None:
        """End it with a reason. Whoever waits for its word sees the socket close."""
        self.fault = self.fault or fault
        self.channel.close()

    def close(self) -> None:
        """Close everything. Calling it again is harmless; the text stays."""
        self.unwatch()
        self.channel.close()
        self.capture.close()

    def told(self, outcome: Outcome, state: SandboxState | None) -> StepEnd:
        """The result of this step: its output, and for a timeout or crash a note for the model."""
        text = self.capture.text
        if outcome in ("timeout", "crashed"):
            reason = f" {self.fault}" if self.fault else ""
            text += ("\n" if text and not text.endswith("\n") else "") + f"[{outcome}]{reason}"
        return StepEnd(outcome, text, state, self._took_s)

    def _ended(self) -> None:
        """Close its socket. What it sent before is still read."""
        self.unwatch()
        self.channel.look()
        self.channel.close()


def new_step(code: str, *, number: int, folder: str, source: str) -> SandboxStep:
    """A step with a random nonce."""
    return SandboxStep(secrets.token_bytes(NONCE_BYTES), code, number, folder, source)
