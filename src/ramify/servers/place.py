"""Place: where one server of a pool is and how it is started there. It may be one process here or several on other
nodes.

`ServerPool` waits for servers, watches them and restarts them. It knows them only through these three protocols.
`home.py` has the places of this machine.
"""

from typing import Protocol

from ramify.servers.ports import Address


class StartedServer(Protocol):
    """A started server. Invariant: when `wait` or `stop` has returned, nothing of it is left."""

    @property
    def pid(self) -> int:
        """Id, on its own machine, of the process that answers."""
        ...

    @property
    def is_running(self) -> bool: ...

    async def listens(self, port: int) -> bool:
        """Whether this server is the one that listens at `port`; true if the system does not tell."""
        ...

    async def last_words(self) -> str:
        """For people: the path of its log and the last lines."""
        ...

    async def wait(self) -> int:
        """The exit code in the convention of `subprocess`."""
        ...

    async def stop(self, *, grace_s: float) -> int:
        """Ask it to end, and kill what is left after `grace_s`; returns the exit code. If cancelled, it kills at once.
        Raises `EngineError` if something cannot be killed. Calling it again is harmless."""
        ...

    def kill(self) -> None:
        """Kill it without waiting."""
        ...


class ServerPlace(Protocol):
    """Where one server is."""

    @property
    def name(self) -> str:
        """Name for people."""
        ...

    @property
    def address(self) -> Address: ...

    async def start(self) -> StartedServer:
        """Start it at `address`. Raises `EngineError` or `ConfigError` if that fails; nothing is left then."""
        ...

    def move(self) -> bool:
        """Use another address from the next start on. False = the address cannot change."""
        ...


class ServerPlaces(Protocol):
    """The places of several servers."""

    def place(self, index: int) -> ServerPlace:
        """The place of server `index`. Raises `ConfigError` if there is none."""
        ...

    def close(self) -> None:
        """Release all places. Calling it again is harmless."""
        ...
