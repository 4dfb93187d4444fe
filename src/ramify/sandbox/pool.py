"""Pool: the sandboxes of one tool, with warm spares.

Owns how many sandboxes there are and how many start at once. It is empty while nobody uses it: when the last session
ends, the spares are closed too, so a tool needs no close of its own. Above `max_sandboxes` the least recently used idle
sandbox is ended; its sessions replay their steps.
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
"""Number of sandboxes that start at the same time; each needs a core."""


class SandboxPool:
    """The sandboxes of one tool, in one event loop at a time."""

    def __init__(self, config: SandboxConfig, *, max_sandboxes: int, num_spares: int) -> None:
        self.config = config
        self._max_sandboxes = max_sandboxes
        self._num_spares = num_spares
        self._num_users = 0
        self._used: dict[Sandbox, None] = {}
        """Least recently used first."""
        self._spares: list[Sandbox] = []
        self._ending: set[Sandbox] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._starts = asyncio.Semaphore(MAX_STARTS)
        self._tested = asyncio.Lock()

    def enter(self) -> None:
        """Count one more session."""
        if not self._num_users:
            self._starts, self._tested = asyncio.Semaphore(MAX_STARTS), asyncio.Lock()
        self._num_users += 1

    async def leave(self) -> None:
        """Count one session less; the last one closes everything."""
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
        """A sandbox that no session has used. Raises `ToolError` if this machine lacks a wall."""
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
        """Mark it as used now; idle sandboxes unused for longest are closed if there is too little room."""
        self._used.pop(sandbox, None)
        self._used[sandbox] = None
        self._evict()

    async def give_back(self, sandbox: Sandbox) -> None:
        """Close it if nobody needs it. A sandbox that ran foreign code is never given to another session."""
        if sandbox in self._used and (sandbox.is_idle or not sandbox.is_alive):
            del self._used[sandbox]
            await sandbox.close()

    async def _started(self) -> Sandbox:
        """Start a new one when a core is free for it. Raises as `_opened` does."""
        async with self._starts:
            return await self._opened()

    async def _opened(self) -> Sandbox:
        """A failure raises `ToolError("sandbox_lost")`, because the selftest has already found all walls on this
        machine."""
        try:
            sandbox = await Sandbox.open(self.config)
        except ToolError as error:
            raise ToolError("sandbox_lost", f"the sandbox ended while it started: {error}") from error
        sandbox.on_idle = lambda: self._close_unused(sandbox)
        return sandbox

    async def _refill(self) -> None:
        """Start a spare if one is missing when a core is free for it. A spare only saves time, so a failed start is
        ignored."""
        with suppress(ToolError, OSError):
            async with self._starts:
                if len(self._spares) >= self._num_spares:
                    return
                sandbox = await self._opened()
            if self._num_users and len(self._spares) < self._num_spares:
                self._spares.append(sandbox)
            else:
                await sandbox.close()

    def _evict(self) -> None:
        """End sandboxes without a running step, oldest use first, while there are too many or they hold half of this
        process's descriptors."""
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2
        held = sum(sandbox.num_descriptors for sandbox in self._used)
        for sandbox in [*self._used][:-1]:
            if len(self._used) <= self._max_sandboxes and held <= most:
                return
            if not sandbox.is_running:
                held -= sandbox.num_descriptors
                del self._used[sandbox]
                self._close_soon(sandbox)

    def _close_unused(self, sandbox: Sandbox) -> None:
        if sandbox in self._used:
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
