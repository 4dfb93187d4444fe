"""CommandStarter: the process that starts commands, seen from the host.

It runs `launcher.py`, is started when first needed, and ends with this process. If it was killed, the next command
starts another.
"""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

from ramify.core.errors import ToolError
from ramify.core.tool import LOST
from ramify.workspaces import launcher

END_S: Final = 5.0
NUM_TRIES: Final = 2


class CommandStarter:
    """Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None

    def send(self, fds: Sequence[int]) -> None:
        """Start one command, described by descriptors. Raises `ToolError` if the launcher ends at once."""
        with self._lock:
            for _ in range(NUM_TRIES):
                channel = self._opened()
                try:
                    socket.send_fds(channel, [b"x"], list(fds))
                except OSError:  # It was killed.
                    self._close()
                else:
                    return
        raise ToolError(LOST, "the process that starts commands ends at once")

    def close(self) -> None:
        """End it, and every command that still runs."""
        with self._lock:
            self._close()

    def _opened(self) -> socket.socket:
        if self._channel is None:
            text = Path(launcher.__file__).read_text("utf-8")
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs, ExitStack() as stack:
                stack.callback(ours.close)
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-B", "-c", text, str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    env={},
                    cwd=os.sep,
                    start_new_session=True,
                )
                stack.pop_all()
            self._channel = ours
        return self._channel

    def _close(self) -> None:
        if self._channel is not None:
            self._channel.close()
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(END_S)
            self._process.kill()
            self._process.wait()
        self._channel = self._process = None
