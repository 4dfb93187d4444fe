"""Member process: one member of a planned engine on its own node, and the interface to call it from elsewhere.

`MemberProcess` does the work. A `RemoteMember` is anything that forwards calls to one. All arguments and answers can be
pickled. Invariant: when the process that holds a member ends, for whatever reason, the member's server ends too
(`edge/stdio_guard.py`).
"""

import asyncio
import os
from pathlib import Path
from typing import Final, Protocol

from ramify.core.errors import ConfigError
from ramify.edge.stdio_guard import KILL_S
from ramify.servers.home import Logs
from ramify.servers.launch import Launch
from ramify.servers.pool.members import member_command
from ramify.servers.pool.plan import EngineMember, EnginePlan
from ramify.servers.ports import Ports
from ramify.servers.process import ServerProcess

LOOK_S: Final = 0.1


class MemberLost(Exception):
    """The process that holds a member is gone or cannot be reached. Only `SpreadServer` catches this."""


class RemoteMember(Protocol):
    """One member on some node. Every async method raises `MemberLost` if the member cannot be reached. `start` may then
    be called again; it makes the member anew at its place."""

    @property
    def name(self) -> str:
        """Name for people."""
        ...

    async def start(self) -> int:
        """Start its server; returns the process id on its node. Raises as `MemberProcess.start` does."""
        ...

    async def wait(self) -> int:
        """Wait until nothing of its server is left; returns the exit code."""
        ...

    async def listens(self) -> bool:
        """Whether it is its own server that listens at its address."""
        ...

    async def last_words(self) -> str:
        """For people: the path of its log and the last lines."""
        ...

    async def stop(self, grace_s: float) -> None:
        """Ask its server to end, and kill it after `grace_s`. Harmless if there is none."""
        ...

    def kill(self) -> None:
        """Kill its server without waiting. Never raises."""
        ...


class MemberProcess:
    """The member itself. It is made on its node."""

    def __init__(self, engine: EnginePlan, member: EngineMember, launch: Launch, logs: Path) -> None:
        self.name = f"engine-{engine.index}-node-{member.rank}"
        self._engine = engine
        self._member = member
        self._launch = launch
        self._logs = Logs(logs, self.name)
        self._ports: Ports | None = None
        self._process: ServerProcess | None = None
        self._changing = asyncio.Lock()

    async def start(self) -> int:
        """Start its server; returns the process id. Raises `ConfigError` if a planned port is taken, and whatever
        `member_command` and `ServerProcess.started` raise."""
        async with self._changing:
            await self._hold_ports()
            command = member_command(self._engine, self._member, self._launch, ours=os.environ)
            self._process = await ServerProcess.started(command, log=self._logs.new())
            return self._process.pid

    async def wait(self) -> int:
        return await self._started.wait()

    async def listens(self) -> bool:
        return await self._started.listens(self._member.address.port)

    async def last_words(self) -> str:
        return await self._started.last_words()

    async def stop(self, grace_s: float) -> None:
        """Waits for a running start first."""
        async with self._changing:
            if self._process is not None:
                await self._process.stop(grace_s=grace_s)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def close(self) -> None:
        """Release its ports. Calling it again is harmless."""
        ports, self._ports = self._ports, None
        if ports is not None:
            ports.close()

    @property
    def _started(self) -> ServerProcess:
        assert self._process is not None, "asked before it was started"
        return self._process

    async def _hold_ports(self) -> None:
        """Hold the planned ports. After a member was lost, its ports become free as soon as its guard has killed it."""
        if self._ports is not None:
            return
        ports, loop = Ports(self._member.address.host), asyncio.get_running_loop()
        give_up = loop.time() + KILL_S
        while True:
            try:
                ports.hold(self._member.address)
            except ConfigError:
                if loop.time() > give_up:
                    raise
                await asyncio.sleep(LOOK_S)
            else:
                self._ports = ports
                return
