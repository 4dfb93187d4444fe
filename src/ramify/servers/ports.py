"""Ports: addresses of this machine for servers, none given out twice.

A port is held by a socket that is bound and does not listen, from when it is given out until it is released, also while
the server listens and while it is being restarted: the system gives such a port to nobody who asks for any. A server
can bind it all the same, because both sockets say SO_REUSEADDR, as asyncio's, uvicorn's, vLLM's, SGLang's and the
router's do. One that does not say so finds its address in use, and is started again on a port that is let go first. So
can any other program that is told the port's number: who listens there in the end is for `listeners` to say.
"""

import contextlib
import random
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ramify.core.errors import ConfigError, EngineError

BLOCK: Final = 16
"""Ports beside each other that one server has for the groups its own processes form."""
FIRST_PORT: Final = 10_000
"""Blocks lie from here on; below are the usual ports of well-known services."""
RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
MAX_DRAWS: Final = 1000
TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
LISTENS: Final = "0A"
"""The state of a socket that listens, in those tables."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where one server listens."""

    host: str
    port: int
    block: int
    """First of a block of ports for its own process groups."""

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


class Ports:
    """The ports of one host that one pool has given out. `close` releases them all."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        if host in ("", "0.0.0.0", "::"):
            raise ConfigError(f"host = {host!r}: name the one address that clients use")
        self.host = host
        self._held: dict[int, list[socket.socket]] = {}

    def address(self, port: int | None = None) -> Address:
        """An address at `port`, or at any. Raises `ConfigError` where `port` is taken or the host is not ours."""
        return Address(self.host, self._any() if port is None else self._named(port), self._block())

    def hold(self, address: Address) -> None:
        """Hold an address that was planned elsewhere: its port, and the first of its block. Raises `ConfigError` where
        somebody has one of them, or the host is not ours; none is held then."""
        try:
            self._named(address.port)
            self._named(address.block)
        except BaseException:
            self.release(address)
            raise

    def moved(self, address: Address) -> Address:
        """Another one for a server that found `address` in use. Its port is not held: the server may be one that shares
        a port with nobody."""
        self.release(address)
        moved = self.address()
        self._let_go(moved.port)
        return moved

    def release(self, address: Address) -> None:
        """Let an address go. Harmless when repeated."""
        self._let_go(address.port)
        self._let_go(address.block)

    def close(self) -> None:
        for port in list(self._held):
            self._let_go(port)

    def _let_go(self, port: int) -> None:
        for held in self._held.pop(port, ()):
            held.close()

    def _any(self) -> int:
        try:
            return self._hold(self._bound(0))
        except OSError as error:
            raise ConfigError(f"host = {self.host!r} cannot be listened on: {error.strerror}") from None

    def _named(self, port: int) -> int:
        """A port that a server may have had a moment ago, which a socket that shares nothing could not bind."""
        try:
            if port == 0:
                raise OverflowError("a port is from 1 to 65535")
            with contextlib.ExitStack() as opened:
                claim = opened.enter_context(_claim(self.host, port))
                bound = opened.enter_context(self._bound(port, socket.SO_REUSEADDR))
                opened.pop_all()
                return self._hold(bound, claim)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"port {port} of {self.host} cannot be used ({error}); name another one, or none"
            ) from None

    def _block(self) -> int:
        """A block that nothing else of this pool lies in, outside the range that the system gives away from. Its first
        port is held, which keeps other pools off it."""
        last = _first_given_away() - BLOCK
        for _ in range(MAX_DRAWS):
            first = random.SystemRandom().randrange(FIRST_PORT, last, BLOCK)
            if not any(first <= port < first + BLOCK for port in self._held):
                with contextlib.suppress(OSError):
                    return self._hold(self._bound(first))
        raise EngineError("no_ports", f"no {BLOCK} free ports beside each other from {FIRST_PORT} to {last}")

    def _bound(self, port: int, *options: int) -> socket.socket:
        bound = socket.socket(socket.AF_INET6 if ":" in self.host else socket.AF_INET, socket.SOCK_STREAM)
        try:
            for option in options:
                bound.setsockopt(socket.SOL_SOCKET, option, 1)
            bound.bind((self.host, port))
        except BaseException:
            bound.close()
            raise
        return bound

    def _hold(self, bound: socket.socket, *claims: socket.socket) -> int:
        """Keep a bound socket, and let a server bind its port as well."""
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        port = bound.getsockname()[1]
        self._held[port] = [bound, *claims]
        return port


def listeners(port: int) -> frozenset[str]:
    """The sockets that listen at a port of this machine, by the names that /proc/PID/fd has for them."""
    rows = [line.split() for table in TABLES if table.exists() for line in table.read_text().splitlines()[1:]]
    listening = [row for row in rows if row[3] == LISTENS and int(row[1].rpartition(":")[2], 16) == port]
    return frozenset(f"socket:[{row[9]}]" for row in listening)


def _claim(host: str, port: int) -> socket.socket:
    """What no two pools of this machine can have for one port, while both could hold it: an abstract name, which ends
    with its socket. Raises `OSError` where another pool has it."""
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0ramify holds {host} {port}")
    except OSError:
        claim.close()
        raise
    return claim


def _first_given_away() -> int:
    """First port that the system gives to whoever asks for any; the blocks lie below it where there is room."""
    try:
        first = int(RANGE.read_text().split()[0])
    except (OSError, ValueError):
        first = 32_768  # Linux's own default.
    return first if first >= FIRST_PORT + 64 * BLOCK else 60_000
