"""HTTP: the one way to a server, of engines and of tools that live behind one.

Owns connections, the number of requests in flight, deadlines, and what each kind of failure is called. One call is one
try: trying again is `Retrying`'s for engines and the toolbox's for tools, so nothing is ever retried twice over. A
server's own limit (429, 503) halves what is in flight at once; every good answer lets it grow again, up to
`max_in_flight` (additive increase, multiplicative decrease). A cancelled call closes its connection, at which servers
abort the work behind it. Nothing of a request's headers ever appears in an error.
"""

import asyncio
import json
import re
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ramify.core.errors import ConfigError, EngineError

if TYPE_CHECKING:
    import aiohttp

INSTALL: Final = "pip install 'ramify[http]'"
RETRYABLE: Final = frozenset({408, 409, 425, 429, *range(500, 600)})
"""Statuses after which another try may help; 400, 401, 403, 404, 413 and 422 never get better."""
BUSY: Final = frozenset({429, 503})
"""The server's own limit: the request comes again when the server says so, and no try is spent."""
MAX_RETRY_AFTER_S: Final = 60.0
MAX_TOLD_CHARS: Final = 300
"""Of an error's body, in the message about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """What one server is asked for at most."""

    max_in_flight: int = 256
    max_body_bytes: int = 64 << 20
    connect_s: float = 5.0
    keepalive_s: float = 4.0
    """How long an idle connection is kept: below the 5 s after which uvicorn closes it."""

    def __post_init__(self) -> None:
        if self.max_in_flight < 1 or self.max_body_bytes < 1 or min(self.connect_s, self.keepalive_s) <= 0:
            raise ConfigError(f"impossible limits {self!r}: everything must be above 0")


class InFlight:
    """At most so many at once, first come, first served; the limit follows what the server says."""

    def __init__(self, max_in_flight: int) -> None:
        self._max = max_in_flight
        self._waiting: deque[asyncio.Future[None]] = deque()
        self.limit = float(max_in_flight)
        self.num = 0

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Wait for a place and hold it."""
        await self._acquire()
        try:
            yield
        finally:
            self.num -= 1
            self._wake()

    def shrink(self) -> None:
        """The server is busy: half as many from now on, one at least."""
        self.limit = max(1.0, min(self.limit, self.num) / 2)

    def grow(self) -> None:
        """The server answered: one more for every round of answers."""
        self.limit = min(float(self._max), self.limit + 1 / self.limit)
        self._wake()

    async def _acquire(self) -> None:
        if self.num < int(self.limit) and not self._waiting:
            self.num += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.num -= 1
                self._wake()
            else:
                self._waiting.remove(turn)
            raise

    def _wake(self) -> None:
        while self._waiting and self.num < int(self.limit):
            turn = self._waiting.popleft()
            if not turn.done():
                self.num += 1
                turn.set_result(None)


@dataclass(slots=True)
class HttpStats:
    """What was asked of a server so far; live."""

    num_requests: int = 0
    num_failed: int = 0
    failures: dict[str, int] = field(default_factory=dict[str, int])
    """Reason -> how often."""


class Http:
    """Requests to the server at `base_url`. Opens its connections at the first request, in that request's event loop.

    `headers` go along with every request and are never told to anybody. Proxies of the environment are not used, and
    redirects are not followed. Raises `ConfigError` where the extra `http` is missing or the address is none.
    """

    def __init__(
        self, base_url: str, *, limits: HttpLimits = HttpLimits(), headers: Mapping[str, str] | None = None
    ) -> None:
        try:
            import aiohttp
        except ImportError as error:
            raise ConfigError(f"requests over HTTP need aiohttp: {INSTALL} ({error})") from error
        if not re.fullmatch(r"https?://[^/\s?#@]+(/[^\s?#]*)?", base_url):
            raise ConfigError(f"base_url = {base_url!r}: an address such as http://127.0.0.1:8000 is needed")
        self._aiohttp = aiohttp
        self.base_url = base_url.rstrip("/")
        self.stats = HttpStats()
        self.in_flight = InFlight(limits.max_in_flight)
        self._limits = limits
        self._headers = dict(headers or {})
        self._session: aiohttp.ClientSession | None = None
        self._is_closed = False

    async def post(
        self, path: str, body: bytes, *, deadline_s: float, headers: Mapping[str, str] | None = None
    ) -> bytes:
        """The body of a good answer to one POST of JSON. `deadline_s` counts from when the request has its place.

        Raises `EngineError`: `unreachable`, `disconnected`, `timeout`, `busy` (with `retry_after_s`), `body_too_long`,
        `closed`, or `http_STATUS`.
        """
        return await self._exchange("POST", path, body, deadline_s=deadline_s, headers=headers)

    async def get(self, path: str, *, deadline_s: float) -> bytes:
        """The body of a good answer to one GET. Raises as `post` does."""
        return await self._exchange("GET", path, None, deadline_s=deadline_s, headers=None)

    async def close(self) -> None:
        """Close every connection; what is on its way fails. Harmless when repeated."""
        self._is_closed = True
        if self._session is not None:
            await self._session.close()

    async def _exchange(
        self, method: str, path: str, body: bytes | None, *, deadline_s: float, headers: Mapping[str, str] | None
    ) -> bytes:
        if self._is_closed:
            raise EngineError("closed", f"the connection to {self.base_url} was closed")
        self.stats.num_requests += 1
        try:
            async with self.in_flight.place():
                answer = await self._tried(method, path, body, deadline_s=deadline_s, headers=headers)
                self.in_flight.grow()
                return answer
        except EngineError as error:
            if error.reason == "busy":
                self.in_flight.shrink()
            self.stats.num_failed += 1
            self.stats.failures[error.reason] = self.stats.failures.get(error.reason, 0) + 1
            raise

    async def _tried(
        self, method: str, path: str, body: bytes | None, *, deadline_s: float, headers: Mapping[str, str] | None
    ) -> bytes:
        """One exchange, whole: what aiohttp raises becomes an `EngineError` that says what may be done about it."""
        where = f"{self.base_url}{path}"
        try:
            async with (
                asyncio.timeout(deadline_s),
                self._opened().request(method, where, data=body, headers=headers, allow_redirects=False) as response,
            ):
                read = await self._body(response, where)
                if response.status != 200:
                    raise _refusal(response.status, response.headers.get("Retry-After"), read, where)
                return read
        except TimeoutError:
            raise EngineError("timeout", f"{where}: no answer in {deadline_s:.1f} s", is_retryable=True) from None
        except self._aiohttp.ClientConnectorError as error:
            raise EngineError("unreachable", f"{where}: {error.strerror or error}", is_retryable=True) from None
        except (self._aiohttp.ClientError, OSError) as error:
            raise EngineError("disconnected", f"{where}: {type(error).__name__}", is_retryable=True) from None

    async def _body(self, response: "aiohttp.ClientResponse", where: str) -> bytes:
        body = bytearray()
        async for chunk in response.content.iter_any():
            body += chunk
            if len(body) > self._limits.max_body_bytes:
                raise EngineError("body_too_long", f"{where}: more than {self._limits.max_body_bytes} bytes")
        return bytes(body)

    def _opened(self) -> "aiohttp.ClientSession":
        if self._session is None:
            self._session = self._aiohttp.ClientSession(
                connector=self._aiohttp.TCPConnector(limit=0, keepalive_timeout=self._limits.keepalive_s),
                timeout=self._aiohttp.ClientTimeout(total=None, sock_connect=self._limits.connect_s),
                headers={"Content-Type": "application/json", **self._headers},
                trust_env=False,
            )
        return self._session


def _refusal(status: int, retry_after: str | None, body: bytes, where: str) -> EngineError:
    """What an answer that is not 200 means."""
    said = f"{where} answered {status}: {_told(body)}"
    if status in BUSY:
        return EngineError("busy", said, is_retryable=True, retry_after_s=_seconds(retry_after))
    return EngineError(f"http_{status}", said, is_retryable=status in RETRYABLE)


def _seconds(retry_after: str | None) -> float:
    """What a Retry-After header asks for, within bounds; 1 s where it says nothing that can be read."""
    try:
        seconds = float(retry_after or "")
    except ValueError:
        return 1.0
    return min(max(seconds, 0.0), MAX_RETRY_AFTER_S) if seconds == seconds else 1.0


def _told(body: bytes) -> str:
    """The message in an error's body, or its beginning."""
    text = body[: 16 * MAX_TOLD_CHARS].decode("utf-8", errors="replace")
    try:
        said: Any = json.loads(text)
        for key in ("error", "message", "detail"):
            said = said[key] if isinstance(said, dict) and key in said else said
        text = said if isinstance(said, str) else json.dumps(said)
    except ValueError:
        pass
    return " ".join(text.split())[:MAX_TOLD_CHARS]
