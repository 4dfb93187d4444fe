"""Router: one address in front of several workers (sgl-project/sgl-router), kept up as they are.

Owns the router's process and tells it where the workers are. sglang-router 0.3.2 takes vLLM's servers as workers, but
reads `/v1/completions` by its own rules, in which a prompt is text. It refuses a prompt of token ids (422), so token
engines need it over SGLang's servers or not at all.
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
"""Ready once a worker is healthy. One whose workers are all down is no worse for that, and waits for them."""
CARE: Final = Care(start_s=60.0)
"""A router that finds its workers up was ready in 1.1 s (measured with 0.3.2 on two cores)."""
ORDER_S: Final = 10.0


class Router:
    """A router over `workers`, the addresses of servers that are ready. `ours` is our own environment."""

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
        """The workers that the router knows of."""
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
        """Worker `index` is at another address now: wait until the router has it, and let it forget the old one.

        Raises `EngineError` where the router does not do so; ask again then. Harmless where nothing changed.
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
    """Wait until the router at `url` has `worker`, then let it forget another one."""
    http = Http(url)
    try:
        async with asyncio.timeout(deadline_s):
            listed = await _listed(http)
            if worker not in listed:
                # The answer is an acceptance; the router looks at the worker afterwards.
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
