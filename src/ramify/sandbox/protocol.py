"""Protocol: the messages between the host and a node, a process of a sandbox. Used on both sides of the wall.

Each node has one stream socket. The host sends a `SandboxStep` and two descriptors: the child's socket and output. The
node forks. The child answers on its own socket with messages of 17 bytes, a word of one byte and the step's nonce:
first `STARTED`, later one of the other words. Any other byte is a violation. Only the host's messages are ever decoded
(by marshal, in the node); the host only compares what comes back.
"""

import hmac
import marshal
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

NONCE_BYTES: Final = 16
MESSAGE_BYTES: Final = 1 + NONCE_BYTES
LENGTH_BYTES: Final = 4

STARTED: Final = b"S"
"""From the child, before anything else."""
NO_PROCESS: Final = b"N"
"""From the node: it could not fork."""
NO_ROOM: Final = b"R"
"""From the child: there is no room for a copy of the previous state's files."""
TOO_MUCH: Final = b"T"
"""From the child: it leaves more files than a state may keep."""
OK: Final = b"K"
ERROR: Final = b"E"
"""From the child, as its last word: the step is over; it raised nothing (OK) or something (ERROR)."""
WORDS: Final = frozenset({STARTED, NO_PROCESS, NO_ROOM, TOO_MUCH, OK, ERROR})


@dataclass(frozen=True, slots=True)
class SandboxStep:
    """One step as sent to a node. `folder` is where it runs; `source` names the parked files it starts with; '' =
    none. A step of the first node in the folder of copies puts away the files of the step before."""

    nonce: bytes
    code: str
    number: int
    folder: str
    source: str

    def word(self, message: bytes) -> bytes:
        """The word of a message about this step; empty = the message is not about this step."""
        word, nonce = message[:1], message[1:]
        return word if word in WORDS and hmac.compare_digest(nonce, self.nonce) else b""

    def packed(self) -> bytes:
        return framed((self.nonce, self.code, self.number, self.folder, self.source))


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The launcher's orders: which walls to set up, and what its first node gets."""

    walls: str
    """`strict`, `process` or `none`."""
    machine: str
    box: str
    """Folder of all states' files."""
    uid: int | None
    """Uid of the nodes; None = the uid that started the launcher."""
    alone_uid: int | None
    """Uid of all processes inside one more user namespace; None = there is none."""
    keeper_uid: int | None
    """Uid of the launcher after setup."""
    shared: tuple[str, ...]
    """Folders outside the box that belong to the running step, at most two."""
    file_systems: Mapping[str, str]
    """Mount point -> options of an in-memory file system."""
    readable: tuple[str, ...]
    writable: tuple[str, ...]
    memory_bytes: int
    max_processes: int
    """Of all nodes together."""
    max_descriptors: int
    max_files: int
    max_files_bytes: int
    """Of one state."""
    paths: tuple[str, ...]
    """Additional folders to import from."""
    preload: tuple[str, ...]

    def packed(self) -> dict[str, Any]:
        """As plain data, for marshal."""
        return {name: _plain(getattr(self, name)) for name in self.__slots__}


def framed(value: Any) -> bytes:
    """A plain value, encoded with its length in front."""
    body = marshal.dumps(value)
    return len(body).to_bytes(LENGTH_BYTES, "little") + body


def read_exactly(descriptor: int, length: int) -> bytes:
    """Read `length` bytes from a blocking descriptor. Raises EOFError if it ends earlier."""
    parts: list[bytes] = []
    while length:
        part = os.read(descriptor, min(length, 1 << 20))
        if not part:
            raise EOFError("the other side is gone")
        parts.append(part)
        length -= len(part)
    return b"".join(parts)


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else value
