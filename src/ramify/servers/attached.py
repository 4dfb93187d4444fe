"""Attached: servers that are already running, given by address. They are asked whether they are ready and otherwise
left alone."""

import asyncio
from collections.abc import Sequence

from ramify.core.errors import ConfigError, EngineError
from ramify.edge.http import Http
from ramify.servers.member import CARE, Care
from ramify.servers.probe import Probe


async def attach(urls: Sequence[str], *, probe: Probe, care: Care = CARE) -> tuple[str, ...]:
    """Wait until the servers, or routers, at `urls` are ready; returns the addresses. Nothing is held open.

    Raises `ConfigError` for an invalid address, `EngineError` if a server is not ready in `care.start_s`.
    """
    if not urls:
        raise ConfigError("no servers to attach to: addresses are needed, such as http://127.0.0.1:8000")
    https = [Http(url) for url in urls]
    try:
        await asyncio.gather(*(_ready(http, probe, care) for http in https))
        return tuple(http.base_url for http in https)
    finally:
        await asyncio.gather(*(http.close() for http in https))


async def _ready(http: Http, probe: Probe, care: Care) -> None:
    faults: list[EngineError] = []
    try:
        async with asyncio.timeout(care.start_s):
            await probe.until_ready(http, health_s=care.health_s, probe_s=care.probe_s, tell=faults.append)
    except TimeoutError:
        said = f"not ready in {care.start_s:g} s ({faults[-1] if faults else 'no answer'})"
        raise EngineError("server_slow", f"{http.base_url}: {said}") from None
