"""Member: one server of a pool, from its start to its stop, restarts included.

Owns the server started at its place and the connection used to ask it. A server is ready when it has answered the
health check and generated a token. It is down when its process has ended, or when it gave no answer several times in a
row. The pool decides whether to start it again.
"""

import asyncio
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ramify.core.errors import ConfigError, EngineError
from ramify.edge.http import Http
from ramify.edge.retries import doubled_s
from ramify.servers.place import ServerPlace, StartedServer
from ramify.servers.ports import Address
from ramify.servers.probe import POLL_S, Probe
from ramify.servers.process import GRACE_S

MAX_MOVES: Final = 3
LAST_LOOK_S: Final = 1.0
IN_USE: Final = re.compile(
    r"address (is )?already in use|EADDRINUSE|errno[ :]*98\b|port \S+ is (already )?in use", re.IGNORECASE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Care:
    """Timeouts and limits for starting, watching and restarting servers."""

    start_s: float = 600.0
    """Timeout for becoming ready (vllm-project/vllm: VLLM_ENGINE_READY_TIMEOUT_S)."""
    every_s: float = 5.0
    """Time between two health checks."""
    health_s: float = 20.0
    """Timeout of a health check (sgl-project/sglang: HEALTH_CHECK_TIMEOUT)."""
    probe_s: float = 60.0
    """Timeout for one generated token, which waits behind the server's other requests."""
    max_silent: int = 3
    """A server is down after this many health checks in a row without an answer (Kubernetes: failureThreshold of a
    liveness probe)."""
    max_restarts: int = 5
    """Most restarts in a row (systemd: StartLimitBurst)."""
    base_s: float = 1.0
    """Pause before the first restart; it doubles each time."""
    cap_s: float = 60.0
    steady_s: float = 600.0
    """After this time up, earlier restarts no longer count (Kubernetes: the back-off of a crash loop)."""
    grace_s: float = GRACE_S
    """Time between asking a server to end and killing it."""

    def __post_init__(self) -> None:
        times = (self.start_s, self.every_s, self.health_s, self.probe_s)
        if min(times) <= 0 or min(self.base_s, self.cap_s, self.steady_s, self.grace_s) < 0:
            raise ConfigError(f"impossible care {self!r}: every time above 0, every pause 0 or more")
        if self.max_silent < 1 or self.max_restarts < 0:
            raise ConfigError(f"impossible care {self!r}: max_silent >= 1, max_restarts >= 0")

    def pause_s(self, num_restarts: int) -> float:
        """Pause before the next restart, after `num_restarts` others in a row."""
        return doubled_s(num_restarts + 1, base_s=self.base_s, cap_s=self.cap_s)


CARE: Final = Care()


class Member:
    """One server, at its place."""

    def __init__(self, place: ServerPlace, *, probe: Probe, care: Care) -> None:
        self._place = place
        self._probe = probe
        self._care = care
        self._server: StartedServer | None = None
        self._http: Http | None = None
        self._fault: EngineError | None = None
        """Why the last check failed."""
        self._doubt = asyncio.Event()

    @property
    def address(self) -> Address:
        """Where it is, or was last."""
        return self._place.address

    @property
    def pid(self) -> int | None:
        """Its process id; None = it is down."""
        return None if self._server is None else self._server.pid

    def suspect(self) -> None:
        """Check at once whether the server can still generate; for a caller that waited for it in vain."""
        self._doubt.set()

    async def up(self) -> None:
        """Start it and wait until it is ready. Raises `EngineError` or `ConfigError` if that fails; what was started is
        stopped then."""
        try:
            for _ in range(MAX_MOVES):
                try:
                    return await self._started()
                except EngineError as error:
                    if not IN_USE.search(str(error)):
                        raise
                    await self.down()
                    if not self._place.move():
                        raise
            await self._started()
        except BaseException:
            await self.down()
            raise

    async def until_down(self) -> str:
        """Wait until it is down; returns the reason."""
        server, http = self._server, self._http
        assert server is not None and http is not None, "watched before it was up"
        num_silent = 0
        while num_silent < self._care.max_silent:
            # After a missing answer, doubt is no reason to ask again at once.
            await self._look(server, () if num_silent else (self._doubt,))
            if not server.is_running:
                break
            try:
                await self._asked(http)
                num_silent = 0
            except EngineError as error:
                self._fault = error
                num_silent += 1
        # A server that has just died gives no answer for a moment before its end is known.
        await self._look(server, (), seconds=LAST_LOOK_S)
        if server.is_running:
            return f"it is silent: {self._fault}; {await server.last_words()}"
        return f"it ended with exit code {await server.wait()}; {await server.last_words()}"

    async def down(self) -> None:
        """Stop it. Harmless if it is down."""
        server, self._server = self._server, None
        http, self._http = self._http, None
        try:
            if server is not None:
                await server.stop(grace_s=self._care.grace_s)
        finally:
            if http is not None:
                await http.close()

    def kill(self) -> None:
        """Kill it without waiting."""
        if self._server is not None:
            self._server.kill()

    async def _started(self) -> None:
        self._fault = None
        self._doubt.clear()
        self._http = Http(self.address.url)
        self._server = server = await self._place.start()
        answering = asyncio.create_task(self._until_ready(self._http, server))
        ended = asyncio.create_task(server.wait())
        try:
            done, _ = await asyncio.wait(
                {answering, ended}, timeout=self._care.start_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            await cancelled((answering, ended))
        if ended in done:
            said = f"exit code {ended.result()} at its start"
            raise EngineError("server_ended", f"{self._place.name}: {said}; {await server.last_words()}")
        if answering not in done:
            said = f"not ready in {self._care.start_s:g} s ({self._fault})"
            raise EngineError("server_slow", f"{self._place.name}: {said}; {await server.last_words()}")

    async def _until_ready(self, http: Http, server: StartedServer) -> None:
        """Wait until it answers. An answer from another server that has taken its port does not count."""

        def keep(fault: EngineError) -> None:
            self._fault = fault

        while True:
            await self._probe.until_ready(http, health_s=self._care.health_s, probe_s=self._care.probe_s, tell=keep)
            if await server.listens(self.address.port):
                return
            keep(EngineError("another_server", f"a server that is not ours answers at {http.base_url}"))
            await asyncio.sleep(POLL_S)

    async def _look(
        self, server: StartedServer, waits: Iterable[asyncio.Event], *, seconds: float | None = None
    ) -> None:
        """Wait until it has ended, one of `waits` is set, or the next check is due."""
        tasks = [asyncio.create_task(server.wait()), *(asyncio.create_task(event.wait()) for event in waits)]
        try:
            await asyncio.wait(tasks, timeout=seconds or self._care.every_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancelled(tasks)

    async def _asked(self, http: Http) -> None:
        await self._probe.is_there(http, deadline_s=self._care.health_s)
        if self._doubt.is_set():
            await self._probe.generates(http, deadline_s=self._care.probe_s)
            self._doubt.clear()


async def cancelled(tasks: Iterable["asyncio.Task[object]"]) -> None:
    """Cancel tasks and wait for them."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
