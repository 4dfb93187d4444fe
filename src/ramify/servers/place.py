"""Place: where one server of a pool is and how it is started there, be it one process here or several on other nodes.

`ServerPool` waits for servers, watches them and starts them again; all that it knows of them is in these three.
`home.py` has the places of this machine.
"""

from typing import Protocol

from ramify.servers.ports import Address


class StartedServer(Protocol):
    """A server that was started. Invariant: once `wait` or `stop` returned, nothing of it is left."""

    @property
    def pid(self) -> int:
        """The process that answers, by the number that its own machine has for it."""
        ...

    @property
    def is_running(self) -> bool: ...

    async def listens(self, port: int) -> bool:
        """Whether it is this server that listens at `port`; yes where the system does not tell."""
        ...

    async def last_words(self) -> str:
        """Where its log is, and how that ends, for people."""
        ...

    async def wait(self) -> int:
        """The exit code, as `subprocess` has it."""
        ...

    async def stop(self, *, grace_s: float) -> int:
        """Ask it to end, and kill after `grace_s` what has not; returns the exit code. Cancelled, it kills at once.
        Raises `EngineError` where something cannot be killed. Harmless when repeated."""
        ...

    def kill(self) -> None:
        """Kill it and do not wait for it."""
        ...


class ServerPlace(Protocol):
    """Where one server is."""

    @property
    def name(self) -> str:
        """For people."""
        ...

    @property
    def address(self) -> Address: ...

    async def start(self) -> StartedServer:
        """Start it at `address`. Raises `EngineError` or `ConfigError` where that cannot be; nothing is left then."""
        ...

    def move(self) -> bool:
        """Have another address from the next start on. False = it must be this one."""
        ...


class ServerPlaces(Protocol):
    """Where servers can be had."""

    def place(self, index: int) -> ServerPlace:
        """That of one server of several. Raises `ConfigError` where it cannot be had."""
        ...

    def close(self) -> None:
        """Let all go. Harmless when repeated."""
        ...
