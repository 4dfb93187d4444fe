"""Probe: how a server is asked whether it is there, and whether it can still generate.

The two are different questions: servers are known to go on answering `/health` with 200 when what generates behind it
is dead (sgl-project/sglang #6624, vllm-project/vllm #16259). What answers is held to be the server only if it says what
the server would say: a page of HTML with status 200 is no answer.
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ramify.core.errors import ConfigError, EngineError
from ramify.edge.http import MAX_TOLD_CHARS, Http

POLL_S: Final = 0.25
"""How often a server that is starting is asked; they take seconds to minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What is asked."""

    health: str = "/health"
    """GET; any good answer means that it is there."""
    ready: str | None = None
    """GET, of one that starts; any good answer means that it has what it needs. None = as `health`."""
    path: str | None = None
    """POST; None = there is nothing to generate, as behind a router."""
    body: Mapping[str, Any] | None = None
    key: str = ""
    """Of the JSON object it answers."""

    def __post_init__(self) -> None:
        if (self.path is None) != (self.body is None):
            raise ConfigError(f"probe: path = {self.path!r} and body = {self.body!r} go together")

    async def is_there(self, http: Http, *, deadline_s: float) -> None:
        """Raises `EngineError` where nothing, or no good answer, comes back in time."""
        await http.get(self.health, deadline_s=deadline_s)

    async def generates(self, http: Http, *, deadline_s: float) -> None:
        """Raises `EngineError` where it does not generate. Returns at once where there is nothing to generate."""
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
        """Ask until it is there and has generated, each answer with its own deadline; `tell` is told every fault."""
        while True:
            try:
                await http.get(self.ready or self.health, deadline_s=health_s)
                return await self.generates(http, deadline_s=probe_s)
            except EngineError as error:
                tell(error)
            await asyncio.sleep(POLL_S)
