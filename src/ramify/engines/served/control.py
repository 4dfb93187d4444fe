"""Control: questions to a server about itself, and orders to it.

They have their own connections and their own limit, so that none waits behind generations. A missing route is told
apart from a failing one. If the server was not started for an order, the error names what the order needs.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from ramify.core.errors import ConfigError, EngineError
from ramify.edge.http import Http, HttpLimits

CONTROL_S: Final = 30.0
"""Timeout for a question about the server, or for an order that moves no weights."""
LOAD_S: Final = 1800.0
"""Timeout for loading weights."""
LIMITS: Final = HttpLimits(max_in_flight=16)
REFUSALS: Final = frozenset({"http_400", "http_401", "http_403", "http_404", "http_405", "http_501"})
"""Answers of a server on a route that it does not have or was not started for."""
NOBODY: Final = "ramify-asks-whether-this-route-is-there"


@dataclass(frozen=True, slots=True)
class AbortRoute:
    """How to end requests by their ids."""

    path: str
    body: Callable[[str], Mapping[str, Any]]


class ServedControl:
    """Questions and orders to the server at `address`. `headers` are sent with each of them."""

    def __init__(self, address: str, headers: Mapping[str, str]) -> None:
        # One connection per call: vLLM closes it after a failed order, and the next order on it would be lost.
        self._http = Http(address, limits=LIMITS, headers={**headers, "Connection": "close"})

    @property
    def address(self) -> str:
        return self._http.base_url

    async def get(self, path: str) -> bytes:
        return await self._http.get(path, deadline_s=CONTROL_S)

    async def post(self, path: str, body: bytes, *, deadline_s: float = CONTROL_S) -> bytes:
        return await self._http.post(path, body, deadline_s=deadline_s)

    async def has_route(self, path: str, body: Mapping[str, Any] | None = None) -> bool:
        """Whether the server has a route: a GET, or a POST of `body`, is not refused there."""
        try:
            await (self.get(path) if body is None else self.post(path, msgspec.json.encode(body)))
        except EngineError as error:
            if error.reason not in REFUSALS:
                raise
            return False
        return True

    async def first_of(self, *routes: AbortRoute) -> AbortRoute | None:
        """The first of these routes that the server has; None = it has none."""
        for route in routes:
            if await self.has_route(route.path, route.body(NOBODY)):
                return route
        return None

    async def abort(self, route: AbortRoute, wire_id: str, *, deadline_s: float) -> None:
        """End a request. It does not wait for a place."""
        await self._http.post_now(route.path, msgspec.json.encode(route.body(wire_id)), deadline_s=deadline_s)

    async def order(
        self,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        needs: str,
        deadline_s: float = CONTROL_S,
        refusals: Collection[str] = REFUSALS,
    ) -> bytes:
        """Have the server do something. If it refuses, raises `ConfigError`, which names the route and what it
        `needs`."""
        try:
            return await self.post(path, msgspec.json.encode(body or {}), deadline_s=deadline_s)
        except EngineError as error:
            if error.reason not in refusals:
                raise
            raise ConfigError(
                f"the server refuses {path.split('?', maxsplit=1)[0]}: {error}; it needs {needs}"
            ) from error

    async def close(self) -> None:
        await self._http.close()
