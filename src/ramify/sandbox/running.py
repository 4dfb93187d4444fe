"""Running: one step on its way, as the host knows it."""

import asyncio
import os
import secrets
import signal
from contextlib import suppress
from typing import Final

from ramify.sandbox.capture import Capture
from ramify.sandbox.channel import Channel
from ramify.sandbox.limits import SandboxLimits
from ramify.sandbox.protocol import MESSAGE_BYTES, NONCE_BYTES, SandboxStep
from ramify.sandbox.state import Outcome, SandboxState, StepEnd

_MIB: Final = 1 << 20


class RunningStep:
    """Owns the step's socket and its output. `fault` is why the host ended it, empty as long as it did not."""

    def __init__(self, step: SandboxStep, limits: SandboxLimits, *, base_bytes: int) -> None:
        self.step = step
        self.parked = secrets.token_hex(NONCE_BYTES)
        """Name for its files, once it is over."""
        self.base_bytes = base_bytes
        """Memory of the state it began in."""
        self.fault = ""
        self.pid = 0
        self._pidfd = -1
        self.channel = Channel()
        self.channel.num_expected = 2 * MESSAGE_BYTES
        self.capture = Capture(
            max_bytes=limits.max_output_bytes,
            killed_bytes=limits.killed_output_bytes,
            on_flood=lambda: self.stop(f"it printed more than {limits.killed_output_bytes // _MIB} MiB"),
        )

    @property
    def ends(self) -> tuple[int, int]:
        """Descriptors for the child: its socket and its output."""
        return self.channel.peer.fileno(), self.capture.written

    def handed_over(self) -> None:
        """The child has its ends: close the host's copies, so that theirs are the last."""
        self.channel.peer.close()
        self.capture.close_written()

    def watch(self) -> None:
        """From now on see the child's end by itself: others may hold copies of its socket."""
        try:
            self._pidfd = os.pidfd_open(self.channel.sender_pid)
        except OSError:
            self._ended()
        else:
            asyncio.get_running_loop().add_reader(self._pidfd, self._ended)

    def unwatch(self) -> None:
        """The child's end means nothing any more. Harmless when repeated."""
        if self._pidfd >= 0:
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1

    def kill(self) -> None:
        """End its first process, if it is still there."""
        if self._pidfd >= 0:
            with suppress(OSError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def stop(self, fault: str) -> None:
        """End it: who waits for its word sees the socket close."""
        self.fault = self.fault or fault
        self.channel.close()

    def close(self) -> None:
        """Of no use any more. Harmless when repeated; the text stays."""
        self.unwatch()
        self.channel.close()
        self.capture.close()

    def told(self, outcome: Outcome, state: SandboxState | None) -> StepEnd:
        """The end of this step: its text, and what the model should know beyond it."""
        text = self.capture.text
        if outcome in ("timeout", "crashed"):
            reason = f" {self.fault}" if self.fault else ""
            text += ("\n" if text and not text.endswith("\n") else "") + f"[{outcome}]{reason}"
        return StepEnd(outcome, text, state)

    def _ended(self) -> None:
        """What it said before is still read."""
        self.unwatch()
        self.channel.look()
        self.channel.close()


def new_step(code: str, *, number: int, folder: str, source: str) -> SandboxStep:
    """A step with a nonce that nobody can guess."""
    return SandboxStep(secrets.token_bytes(NONCE_BYTES), code, number, folder, source)
