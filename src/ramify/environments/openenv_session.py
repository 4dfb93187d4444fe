"""OpenEnv session: a WebSocket session of a server of OpenEnv, and the server's schema of actions.

The protocol is JSON messages: `reset`, `step`, `state` and `close`, each with its data. This client speaks it itself:
the package `openenv` cannot be installed beside `mcp` 2. Checked against the server of openenv 0.10.0.
"""

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from ramify.core.errors import ToolError
from ramify.environments.text_games import IllegalMove

if TYPE_CHECKING:
    import aiohttp

FULL: Final = (
    "Each open branch is a session, parked ones too: start the server with a larger max_concurrent_envs (its "
    "environment must set SUPPORTS_CONCURRENT_SESSIONS), or lower tools.max_parked"
)
ILLEGAL: Final = frozenset({"VALIDATION_ERROR", "EXECUTION_ERROR"})
"""Errors that answer an action: the model reads them."""
MAX_MESSAGE_BYTES: Final = 64 << 20


class OpenEnvSession:
    """A WebSocket session of a server."""

    def __init__(self, url: str, client: "aiohttp.ClientSession", socket: "aiohttp.ClientWebSocketResponse") -> None:
        self._url = url
        self._client = client
        self._socket = socket

    @classmethod
    async def opened(cls, url: str) -> "OpenEnvSession":
        """Raises `ToolError` if the server cannot be reached."""
        import aiohttp

        client = aiohttp.ClientSession()
        try:
            at = f"{url.rstrip('/').replace('http', 'ws', 1) if url.startswith('http') else url.rstrip('/')}/ws"
            return cls(url, client, await client.ws_connect(at, max_msg_size=MAX_MESSAGE_BYTES))
        except BaseException as error:
            await client.close()
            if isinstance(error, aiohttp.ClientError | OSError):
                raise ToolError("server_gone", f"the server {url} cannot be reached: {error}") from error
            raise

    async def ask(self, kind: str, data: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """The data of the server's answer. Raises `IllegalMove` with its words about an action, else `ToolError`."""
        import aiohttp

        with suppress(aiohttp.ClientError, OSError):  # A server that refuses a session says so and hangs up.
            await self._socket.send_json({"type": kind} if data is None else {"type": kind, "data": data})
        try:
            answer = await self._socket.receive_json()
        except (aiohttp.ClientError, OSError, TypeError, ValueError) as error:
            raise ToolError("server_gone", f"the server {self._url} does not answer: {error}") from error
        told: Mapping[str, Any] = answer.get("data") or {}
        if answer.get("type") != "error":
            return told
        code, words = told.get("code"), f"{told.get('message')} {told.get('errors', '')}".strip()
        if kind == "step" and code in ILLEGAL:
            raise IllegalMove(words)
        remedy = f". {FULL}" if code == "CAPACITY_REACHED" else ""
        raise ToolError("server_refused", f"the server {self._url} says: {code}: {words}{remedy}")

    async def digest(self) -> str:
        """A hash of the server's state, without the id of the episode."""
        state = {key: value for key, value in (await self.ask("state")).items() if key != "episode_id"}
        return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()

    async def close(self) -> None:
        import aiohttp

        with suppress(aiohttp.ClientError, OSError):
            await self._socket.send_json({"type": "close"})
        await self._socket.close()
        await self._client.close()


async def action_schema(url: str) -> str:
    """The legal actions in words. Raises `ToolError`."""
    import aiohttp

    at = f"{url.replace('ws', 'http', 1) if url.startswith('ws') else url}".rstrip("/") + "/schema"
    try:
        async with aiohttp.ClientSession() as client, client.get(at) as answer:
            schema = (await answer.json()).get("action") or {}
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise ToolError("server_gone", f"{at} cannot be read: {error}") from error
    fields = {key: value for key, value in (schema.get("properties") or {}).items() if key != "metadata"}
    return f"Fields of an action: {json.dumps(fields)}"
