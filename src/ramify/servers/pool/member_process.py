"""Member process: one member of a planned engine on its own node, and how it is spoken to from elsewhere.

`MemberProcess` is the work itself; a `RemoteMember` is anything that passes its calls on, over whatever lies between.
All that it is told and answers can be pickled. Invariant: a process with a member in it that ends, however it does,
takes the member's server with it (`edge/stdio_guard.py`).
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
    """Whoever has the process of a member is gone, or cannot be reached. For `SpreadServer` alone."""


class RemoteMember(Protocol):
    """One member, somewhere. Every method that waits raises `MemberLost` where it cannot be reached; `start` may be
    called again then, and has it made anew at its place."""

    @property
    def name(self) -> str:
        """For people."""
        ...

    async def start(self) -> int:
        """Start its server; returns the process, by its node's number. Raises as `MemberProcess.start` does."""
        ...

    async def wait(self) -> int:
        """The exit code, once nothing of its server is left."""
        ...

    async def listens(self) -> bool:
        """Whether it is its server that listens at its address."""
        ...

    async def last_words(self) -> str:
        """Where its log is, and how that ends, for people."""
        ...

    async def stop(self, grace_s: float) -> None:
        """Ask its server to end, and kill it after `grace_s`. Harmless where there is none."""
        ...

    def kill(self) -> None:
        """Kill its server and do not wait for it. Never raises."""
        ...


class MemberProcess:
    """The member itself, to be made on its node."""

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
        """Start its server; returns the process. Raises `ConfigError` where a planned port cannot be had, and what
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
        """Behind a start that is under way."""
        async with self._changing:
            if self._process is not None:
                await self._process.stop(grace_s=grace_s)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def close(self) -> None:
        """Let its ports go. Harmless when repeated."""
        ports, self._ports = self._ports, None
        if ports is not None:
            ports.close()

    @property
    def _started(self) -> ServerProcess:
        assert self._process is not None, "asked before it was started"
        return self._process

    async def _hold_ports(self) -> None:
        """Hold the ports of the plan. Those of a member that was lost are had as soon as its guard has killed it."""
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
