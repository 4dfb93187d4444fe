"""Probe: checks whether a server is up, and whether it can still generate.

These are two checks: servers may answer `/health` with 200 although their generating process is dead
(sgl-project/sglang #6624, vllm-project/vllm #16259). The generate check accepts only an answer with the expected JSON
key: an HTML page with status 200 does not count.
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ramify.core.errors import ConfigError, EngineError
from ramify.edge.http import MAX_TOLD_CHARS, Http

POLL_S: Final = 0.25
"""Time between two checks of a starting server; a start takes seconds to minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """The requests of the checks."""

    health: str = "/health"
    """GET; any success status means that the server is up."""
    ready: str | None = None
    """GET while it starts; any success status means that it has what it needs. None = use `health`."""
    path: str | None = None
    """POST that generates; None = no generate check, for example for a router."""
    body: Mapping[str, Any] | None = None
    key: str = ""
    """Key that the answer, a JSON object, must have."""

    def __post_init__(self) -> None:
        if (self.path is None) != (self.body is None):
            raise ConfigError(f"probe: path = {self.path!r} and body = {self.body!r} go together")

    async def is_there(self, http: Http, *, deadline_s: float) -> None:
        """Raises `EngineError` if no success status comes back in time."""
        await http.get(self.health, deadline_s=deadline_s)

    async def generates(self, http: Http, *, deadline_s: float) -> None:
        """Raises `EngineError` if it does not generate. Returns at once if there is no generate check."""
        if self.path is None:
            return
        answer = await http.post(self.path, json.dumps(self.body).encode(), deadline_s=deadline_s)
        try:
            said: Any = json.loads(answer)
        except (ValueError, RecursionError):
            said = None
        if not isinstance(said, dict) or self.key not in said:
            told = answer[:MAX_TOLD_CHARS].decode("utf-8", "replace")
            raise EngineError("not_a_server", f"{http.base_url}{self.path} answered without {self.key!r}: {told}")

    async def until_ready(
        self, http: Http, *, health_s: float, probe_s: float, tell: Callable[[EngineError], None]
    ) -> None:
        """Ask until it is up and has generated. Each request has its own timeout; `tell` gets every error."""
        while True:
            try:
                await http.get(self.ready or self.health, deadline_s=health_s)
                return await self.generates(http, deadline_s=probe_s)
            except EngineError as error:
                tell(error)
            await asyncio.sleep(POLL_S)
