"""Ports: addresses of this machine for servers. No address is given out twice.

A port is held by a socket that is bound but does not listen. It is held from when it is given out until it is released,
also while the server listens and while it restarts. The system never gives a held port to a program that asks for any
free port. A server can still bind it, because both sockets set SO_REUSEADDR, as asyncio, uvicorn, vLLM, SGLang and the
router do. A server that does not set it finds its address in use and is restarted on a port that is released first. Any
other program that is told the port number can bind it too: `listeners` tells who really listens there.
"""

import contextlib
import random
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ramify.core.errors import ConfigError, EngineError

BLOCK: Final = 16
"""Number of consecutive ports that one server gets for its own process groups."""
FIRST_PORT: Final = 10_000
"""Lowest port of a block; lower ports are often used by well-known services."""
RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
MAX_DRAWS: Final = 1000
TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
LISTENS: Final = "0A"
"""State of a listening socket in those tables."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where one server listens."""

    host: str
    port: int
    block: int
    """First port of its block, for its own process groups."""

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
        """An address at `port`; None = any free port. Raises `ConfigError` if `port` is taken or the host is not
        ours."""
        return Address(self.host, self._any() if port is None else self._named(port), self._block())

    def hold(self, address: Address) -> None:
        """Hold an address that was planned elsewhere: its port and the first port of its block. Raises `ConfigError` if
        one of them is taken or the host is not ours; then neither is held."""
        try:
            self._named(address.port)
            self._named(address.block)
        except BaseException:
            self.release(address)
            raise

    def moved(self, address: Address) -> Address:
        """Another address for a server that found `address` in use. Its port is not held, because the server may be one
        that cannot share a port."""
        self.release(address)
        moved = self.address()
        self._let_go(moved.port)
        return moved

    def release(self, address: Address) -> None:
        """Release an address. Calling it again is harmless."""
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
        """Hold this port. It may have been in use a moment ago, when a socket without SO_REUSEADDR could not bind
        it."""
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
        """A block that contains no other port of this pool and lies outside the system's range of ephemeral ports. Its
        first port is held, which keeps other pools away."""
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
        """Keep a bound socket, and let a server bind its port too."""
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        port = bound.getsockname()[1]
        self._held[port] = [bound, *claims]
        return port


def listeners(port: int) -> frozenset[str]:
    """The sockets that listen at `port` of this machine, named as in /proc/PID/fd."""
    rows = [line.split() for table in TABLES if table.exists() for line in table.read_text().splitlines()[1:]]
    listening = [row for row in rows if row[3] == LISTENS and int(row[1].rpartition(":")[2], 16) == port]
    return frozenset(f"socket:[{row[9]}]" for row in listening)


def _claim(host: str, port: int) -> socket.socket:
    """Make sure that only one pool of this machine holds a port. The claim is an abstract socket name; it ends with its
    socket. Raises `OSError` if another pool has it."""
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0ramify holds {host} {port}")
    except OSError:
        claim.close()
        raise
    return claim


def _first_given_away() -> int:
    """First port of the system's ephemeral range. Blocks lie below it if there is room."""
    try:
        first = int(RANGE.read_text().split()[0])
    except (OSError, ValueError):
        first = 32_768  # Linux's own default.
    return first if first >= FIRST_PORT + 64 * BLOCK else 60_000
