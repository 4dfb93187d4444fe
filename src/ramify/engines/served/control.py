"""Control: questions to a server about itself, and orders to it.

They have places and connections of their own, so that none waits behind generations. A route that is not there is told
from one that fails; an order that a server was not started for is refused by the name of what it needs.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from ramify.core.errors import ConfigError, EngineError
from ramify.edge.http import Http, HttpLimits

CONTROL_S: Final = 30.0
"""Time for a question about the server, or an order to it that moves no weights."""
LOAD_S: Final = 1800.0
"""Time to load weights."""
LIMITS: Final = HttpLimits(max_in_flight=16)
REFUSALS: Final = frozenset({"http_400", "http_401", "http_403", "http_404", "http_405", "http_501"})
"""What a server answers on a route that it does not have, or was not started for."""
NOBODY: Final = "ramify-asks-whether-this-route-is-there"


@dataclass(frozen=True, slots=True)
class AbortRoute:
    """How requests are ended by their ids."""

    path: str
    body: Callable[[str], Mapping[str, Any]]


class ServedControl:
    """The server at `address`, asked and ordered. `headers` go along with everything."""

    def __init__(self, address: str, headers: Mapping[str, str]) -> None:
        # A connection each: vLLM closes one behind a failed order, at which the next order on it would be lost.
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
        """The first of some routes that the server has; None = it has none."""
        for route in routes:
            if await self.has_route(route.path, route.body(NOBODY)):
                return route
        return None

    async def abort(self, route: AbortRoute, wire_id: str, *, deadline_s: float) -> None:
        """End a request. Overtakes whatever waits for a place."""
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
        """Have the server do something. Raises `ConfigError` naming the route and what it `needs` where it refuses."""
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
