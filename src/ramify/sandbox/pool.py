"""Pool: the sandboxes of one tool, with spares that are warm when they are asked for.

Owns how many there are and how many start at once. It is empty as long as nobody uses it: the last session's end closes
the spares too, so a tool needs no closing of its own. Beyond `max_sandboxes` the least recently used idle one is ended;
whoever was in it replays.
"""

import asyncio
import os
import resource
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final

from ramify.core.errors import ToolError
from ramify.sandbox.host import Sandbox
from ramify.sandbox.selftest import passed
from ramify.sandbox.setup import SandboxConfig

MAX_STARTS: Final = max(2, os.cpu_count() or 2)
"""Sandboxes that start at once: each needs a core."""


class SandboxPool:
    """Of one tool, in one event loop at a time."""

    def __init__(self, config: SandboxConfig, *, max_sandboxes: int, num_spares: int) -> None:
        self.config = config
        self._max_sandboxes = max_sandboxes
        self._num_spares = num_spares
        self._num_users = 0
        self._used: dict[Sandbox, None] = {}
        """The least recently used first."""
        self._spares: list[Sandbox] = []
        self._ending: set[Sandbox] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._starts = asyncio.Semaphore(MAX_STARTS)
        self._tested = asyncio.Lock()

    def enter(self) -> None:
        """One more session may ask for sandboxes."""
        if not self._num_users:
            self._starts, self._tested = asyncio.Semaphore(MAX_STARTS), asyncio.Lock()
        self._num_users += 1

    async def leave(self) -> None:
        """One session less; the last one closes everything."""
        self._num_users -= 1
        if self._num_users:
            return
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        sandboxes, self._spares, self._used = [*self._spares, *self._used], [], {}
        for sandbox in sandboxes:
            sandbox.kill()
        sandboxes += self._ending
        self._ending = set()
        await asyncio.gather(*tasks, *(sandbox.close() for sandbox in sandboxes), return_exceptions=True)

    async def take(self) -> Sandbox:
        """A sandbox nobody was in. Raises `ToolError` where this machine lacks a wall."""
        async with self._tested:
            await passed(self.config)
        while self._spares:
            sandbox = self._spares.pop()
            if sandbox.is_usable:
                break
            self._close_soon(sandbox)
        else:
            sandbox = await self._started()
        self.touch(sandbox)
        if self._num_spares:
            self._soon(self._refill())
        return sandbox

    def touch(self, sandbox: Sandbox) -> None:
        """It is used now; those that were not for the longest time make room where there is too little."""
        self._used.pop(sandbox, None)
        self._used[sandbox] = None
        self._evict()

    async def give_back(self, sandbox: Sandbox) -> None:
        """Close it if nobody needs it any more: what foreign code was in is never used for another."""
        if sandbox in self._used and (sandbox.is_idle or not sandbox.is_alive):
            del self._used[sandbox]
            await sandbox.close()

    async def _started(self) -> Sandbox:
        """A new one. Raises `ToolError("sandbox_lost")`, for this machine has been found to have all walls."""
        async with self._starts:
            try:
                return await Sandbox.open(self.config)
            except ToolError as error:
                raise ToolError("sandbox_lost", f"the sandbox ended while it started: {error}") from error

    async def _refill(self) -> None:
        """Spares are a matter of speed: one that does not start is missed by nobody."""
        with suppress(ToolError, OSError):
            if len(self._spares) < self._num_spares:
                sandbox = await self._started()
                if self._num_users and len(self._spares) < self._num_spares:
                    self._spares.append(sandbox)
                else:
                    await sandbox.close()

    def _evict(self) -> None:
        """End idle sandboxes beyond their number, or where they hold half of this process's descriptors."""
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2
        held = sum(sandbox.num_descriptors for sandbox in self._used)
        for sandbox in [*self._used][:-1]:
            if len(self._used) <= self._max_sandboxes and held <= most:
                return
            if not sandbox.is_running:
                held -= sandbox.num_descriptors
                del self._used[sandbox]
                self._close_soon(sandbox)

    def _close_soon(self, sandbox: Sandbox) -> None:
        sandbox.kill()
        self._ending.add(sandbox)
        self._soon(self._ended(sandbox))

    async def _ended(self, sandbox: Sandbox) -> None:
        await sandbox.close()
        self._ending.discard(sandbox)

    def _soon(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
