"""Ports: addresses of this machine for servers, none given out twice.

A port is held by a socket that is bound and does not listen, from when it is given out until it is released, also while
the server listens and while it is being restarted: the system gives such a port to nobody who asks for any. A server
can bind it all the same, because both sockets say SO_REUSEADDR, as asyncio's, uvicorn's, vLLM's, SGLang's and the
router's do. One that does not say so finds its address in use, and is started again on a port that is let go first.
"""

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
            raise ConfigError(f"host = {host!r}: name the address that clients use, not all of them")
        self.host = host
        self._held: dict[int, socket.socket] = {}

    def address(self, port: int | None = None) -> Address:
        """An address at `port`, or at any. Raises `ConfigError` where `port` is taken or the host is not ours."""
        return Address(self.host, self._any() if port is None else self._named(port), self._block())

    def moved(self, address: Address) -> Address:
        """Another one for a server that found `address` in use. Its port is not held: the server may be one that shares
        a port with nobody."""
        self.release(address)
        moved = self.address()
        self._held.pop(moved.port).close()
        return moved

    def release(self, address: Address) -> None:
        """Let an address go. Harmless when repeated."""
        for port in (address.port, address.block):
            if port in self._held:
                self._held.pop(port).close()

    def close(self) -> None:
        for held in self._held.values():
            held.close()
        self._held.clear()

    def _any(self) -> int:
        held = self._socket()
        try:
            held.bind((self.host, 0))
        except OSError as error:
            held.close()
            raise ConfigError(f"host = {self.host!r} cannot be listened on: {error.strerror}") from None
        return self._hold(held)

    def _named(self, port: int) -> int:
        """A port that a server may have had a moment ago, which a socket that shares nothing could not bind."""
        held = self._socket()
        try:
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.bind((self.host, port))
        except (OSError, OverflowError) as error:
            held.close()
            raise ConfigError(
                f"port {port} of {self.host} cannot be had ({error}); name another one, or none"
            ) from None
        return self._hold(held)

    def _block(self) -> int:
        """A block that nothing else of this pool lies in, outside the range that the system gives away from. Its first
        port is held, which keeps other pools off it."""
        last = _first_given_away() - BLOCK
        for _ in range(MAX_DRAWS):
            first = random.SystemRandom().randrange(FIRST_PORT, last, BLOCK)
            if any(first <= port < first + BLOCK for port in self._held):
                continue
            held = self._socket()
            try:
                held.bind((self.host, first))
            except OSError:
                held.close()
                continue
            return self._hold(held)
        raise EngineError("no_ports", f"no {BLOCK} free ports beside each other from {FIRST_PORT} to {last}")

    def _socket(self) -> socket.socket:
        return socket.socket(socket.AF_INET6 if ":" in self.host else socket.AF_INET, socket.SOCK_STREAM)

    def _hold(self, held: socket.socket) -> int:
        """Keep a bound socket, and let a server bind its port as well."""
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        port = held.getsockname()[1]
        self._held[port] = held
        return port


def _first_given_away() -> int:
    """First port that the system gives to whoever asks for any; the blocks lie below it where there is room."""
    try:
        first = int(RANGE.read_text().split()[0])
    except (OSError, ValueError):
        first = 32_768  # Linux's own default.
    return first if first >= FIRST_PORT + 64 * BLOCK else 60_000
