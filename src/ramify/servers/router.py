"""Router: one address in front of several workers (sgl-project/sgl-router), kept running like the servers.

Owns the router's process and tells it where the workers are. sglang-router 0.3.2 accepts vLLM servers as workers, but
it requires the prompt of `/v1/completions` to be text and refuses token ids (422). So engines that send token ids can
use it only over SGLang servers.
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from ramify.core.errors import EngineError
from ramify.edge.http import Http
from ramify.servers.home import Here, Home
from ramify.servers.launch import RouterLaunch, router_command
from ramify.servers.member import Care
from ramify.servers.ports import Address
from ramify.servers.probe import POLL_S, Probe
from ramify.servers.process import Command
from ramify.servers.server_pool import Event, ServerPool

PROBE: Final = Probe(health="/liveness", ready="/readiness")
"""Ready when one worker is healthy. A router stays up when all its workers are down, and waits for them."""
CARE: Final = Care(start_s=60.0)
"""A router with ready workers was ready in 1.1 s (measured with 0.3.2 on two cores)."""
ORDER_S: Final = 10.0


class Router:
    """A router over `workers`, the addresses of ready servers. `ours` is our own environment."""

    def __init__(
        self,
        launch: RouterLaunch,
        workers: Sequence[str],
        *,
        home: Home,
        ours: Mapping[str, str],
        care: Care = CARE,
        observe: Callable[[Event], None] = lambda event: None,
    ) -> None:
        self._launch = launch
        self._workers = list(workers)
        self._told = list(workers)
        """The workers that the router knows."""
        self._care = care
        self._ours = ours
        self._pool = ServerPool(
            Here(self._command, home=home, name="router"),
            count=1,
            probe=PROBE,
            care=care,
            observe=observe,
        )

    @property
    def url(self) -> str:
        return self._pool.urls[0]

    async def start(self) -> str:
        """Start it and wait until it has a healthy worker; returns its address. Raises as `ServerPool.start` does."""
        return (await self._pool.start())[0]

    async def replace(self, index: int, worker: str) -> None:
        """Change the address of worker `index`: wait until the router has the new one, then remove the old one.

        Raises `EngineError` if the router does not do so; the caller may try again. Harmless if nothing changed.
        """
        self._workers[index] = worker
        old = self._told[index]
        if old == worker:
            return
        forget = None if old in self._workers else old
        await _tell(self.url, worker, forget=forget, deadline_s=self._care.start_s)
        self._told[index] = worker

    async def stop(self) -> None:
        await self._pool.stop()

    def _command(self, address: Address) -> Command:
        self._told = list(self._workers)
        return router_command(self._launch, address, workers=self._workers, ours=self._ours)


async def _tell(url: str, worker: str, *, forget: str | None, deadline_s: float) -> None:
    """Wait until the router at `url` has `worker`, then remove `forget`."""
    http = Http(url)
    try:
        async with asyncio.timeout(deadline_s):
            listed = await _listed(http)
            if worker not in listed:
                # The router only accepts the request here; it checks the worker afterwards.
                await http.post("/workers", json.dumps({"url": worker}).encode(), deadline_s=ORDER_S)
            while worker not in listed:
                await asyncio.sleep(POLL_S)
                listed = await _listed(http)
            if forget in listed:
                await http.delete(f"/workers/{listed[forget]}", deadline_s=ORDER_S)
    except TimeoutError:
        raise EngineError("router_slow", f"{url} did not take {worker} in {deadline_s:g} s") from None
    finally:
        await http.close()


async def _listed(http: Http) -> dict[str, str]:
    """Address -> id of every worker the router has."""
    answer = await http.get("/workers", deadline_s=ORDER_S)
    try:
        said: Any = json.loads(answer)
        return {worker["url"]: worker["id"] for worker in said["workers"]}
    except (ValueError, KeyError, TypeError):
        raise EngineError("not_a_router", f"{http.base_url}/workers answered without a list of workers") from None
