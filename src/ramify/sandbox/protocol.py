"""Protocol: what passes between the host and a node, a process of a sandbox. Used on both sides of the wall.

One stream socket a node. The host sends a `SandboxStep` and two descriptors, the ends of the child's own socket and
output; the node forks, and the child answers on its socket with messages of 17 bytes, a word of one and the step's
nonce: `STARTED` at once, then one of the others. Any other byte is a violation. Only the host's words are ever decoded
(marshal, on the node's side); what comes back is compared, never read.
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
"""From the child: the files of the state before do not fit beside themselves."""
TOO_MUCH: Final = b"T"
"""From the child: it leaves more files than a state may have."""
OK: Final = b"K"
ERROR: Final = b"E"
"""From the child, last of all: the step is over, and it raised nothing or something."""
WORDS: Final = frozenset({STARTED, NO_PROCESS, NO_ROOM, TOO_MUCH, OK, ERROR})


@dataclass(frozen=True, slots=True)
class SandboxStep:
    """One step as a node is told it. `folder` is where it runs, `source` the parked files it begins with; '' = none."""

    nonce: bytes
    code: str
    number: int
    folder: str
    source: str

    def word(self, message: bytes) -> bytes:
        """What a message says about this step; empty = it is none of its."""
        word, nonce = message[:1], message[1:]
        return word if word in WORDS and hmac.compare_digest(nonce, self.nonce) else b""

    def packed(self) -> bytes:
        return framed((self.nonce, self.code, self.number, self.folder, self.source))


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What a launcher is told: which walls to put up, and what its first node has."""

    walls: str
    """`strict`, `process` or `none`."""
    machine: str
    box: str
    """Folder of all states' files."""
    uid: int | None
    """Who the nodes are; None = whoever started the launcher."""
    alone_uid: int | None
    """Who everybody is in one more user namespace; None = there is none."""
    keeper_uid: int | None
    """Who the launcher itself is afterwards."""
    file_systems: Mapping[str, str]
    """Mount point -> options of a file system in memory."""
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
    """More folders to import from."""
    preload: tuple[str, ...]

    def packed(self) -> dict[str, Any]:
        """As plain data, for marshal."""
        return {name: _plain(getattr(self, name)) for name in self.__slots__}


def framed(value: Any) -> bytes:
    """A plain value with its length in front."""
    body = marshal.dumps(value)
    return len(body).to_bytes(LENGTH_BYTES, "little") + body


def read_exactly(descriptor: int, length: int) -> bytes:
    """`length` bytes of a blocking descriptor. Raises EOFError where they end before."""
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
