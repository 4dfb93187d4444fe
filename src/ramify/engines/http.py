"""HTTP: the one way to a server, of engines and of tools that live behind one.

Owns connections, the number of requests in flight, deadlines, and what each kind of failure is called. One call is one
try: trying again is `Retrying`'s for engines and the toolbox's for tools, so nothing is ever retried twice over. What
comes back is the whole body of a good answer or an `EngineError`; an answer that was cut anywhere is never taken for
one. A server's own limit (429, 503) halves what is in flight at once (`Places`). A cancelled call closes its
connection, at which servers abort the work behind it. Nothing of a request's headers ever appears in an error.
"""

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from ramify.core.errors import ConfigError, EngineError
from ramify.engines.places import Places

if TYPE_CHECKING:
    import aiohttp

INSTALL: Final = "pip install 'ramify[http]'"
RETRYABLE: Final = frozenset({408, 409, 425, 429, *range(500, 600)})
"""Statuses after which another try may help; 400, 401, 403, 404, 413 and 422 never get better."""
BUSY: Final = frozenset({429, 503})
"""The server's own limit: the request comes again when the server says so, and no try is spent."""
BUSY_S: Final = 1.0
"""Wait after such an answer that names no time."""
MAX_RETRY_AFTER_S: Final = 60.0
MAX_REFUSAL_BYTES: Final = 64 << 10
"""Of an answer that is no good one, read; the rest is given up with its connection."""
MAX_TOLD_CHARS: Final = 300
"""Of an error's body, in the message about it."""
MIN_SECRET_CHARS: Final = 8
"""Values of headers from this length on are struck out of what a server says; shorter ones are no secrets."""


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
        self._aiohttp = aiohttp
        self.base_url = _address(base_url)
        self.stats = HttpStats()
        self.places = Places(limits.max_in_flight)
        self._limits = limits
        self._headers = dict(headers or {})
        self._session: aiohttp.ClientSession | None = None
        self._is_closed = False

    async def post(
        self, path: str, body: bytes, *, deadline_s: float, headers: Mapping[str, str] | None = None
    ) -> bytes:
        """The body of a good answer to one POST of JSON. `deadline_s` counts from when the request has its place.

        Raises `EngineError`: `unreachable`, `disconnected`, `timeout`, `busy` (with `retry_after_s`), `body_too_long`,
        `tls_refused`, `closed`, or `http_STATUS`.
        """
        era = await self.places.acquire()
        try:
            answer = await self._exchange("POST", path, body, deadline_s=deadline_s, headers=headers)
        except EngineError as error:
            if error.reason == "busy":
                self.places.shrink(era)
            raise
        else:
            self.places.grow()
            return answer
        finally:
            self.places.release()

    async def post_now(self, path: str, body: bytes, *, deadline_s: float) -> bytes:
        """As `post`, but waits for no place: for aborts and other orders that must overtake work in flight."""
        return await self._exchange("POST", path, body, deadline_s=deadline_s, headers=None)

    async def get(self, path: str, *, deadline_s: float) -> bytes:
        """The body of a good answer to one GET, which waits for no place. Raises as `post` does."""
        return await self._exchange("GET", path, None, deadline_s=deadline_s, headers=None)

    async def delete(self, path: str, *, deadline_s: float) -> bytes:
        """The body of a good answer to one DELETE, which waits for no place. Raises as `post` does."""
        return await self._exchange("DELETE", path, None, deadline_s=deadline_s, headers=None)

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
            return await self._tried(method, path, body, deadline_s=deadline_s, headers=headers)
        except EngineError as error:
            self.stats.num_failed += 1
            self.stats.failures[error.reason] = self.stats.failures.get(error.reason, 0) + 1
            raise

    async def _tried(
        self, method: str, path: str, body: bytes | None, *, deadline_s: float, headers: Mapping[str, str] | None
    ) -> bytes:
        """One exchange, whole: what aiohttp raises becomes an `EngineError` that says what may be done about it.

        It is raised outside of the handlers, since aiohttp's errors hold the request with its headers.
        """
        where = f"{self.base_url}{path}"
        fault: EngineError
        try:
            async with (
                asyncio.timeout(deadline_s),
                self._opened().request(method, where, data=body, headers=headers, allow_redirects=False) as response,
            ):
                if 200 <= response.status < 300:
                    return await self._body(response, where)
                said = await _beginning(response, MAX_REFUSAL_BYTES)
                fault = self._refusal(response, said, where, headers or {})
        except self._aiohttp.ConnectionTimeoutError:
            fault = EngineError(
                "unreachable", f"{where}: no connection in {self._limits.connect_s:g} s", is_retryable=True
            )
        except TimeoutError:
            fault = EngineError("timeout", f"{where}: no answer in {deadline_s:.1f} s", is_retryable=True)
        except self._aiohttp.ClientSSLError as error:
            fault = EngineError("tls_refused", f"{where}: {error.strerror or type(error).__name__}")
        except self._aiohttp.ClientConnectorError as error:
            fault = EngineError("unreachable", f"{where}: {error.strerror or error}", is_retryable=True)
        except (self._aiohttp.ClientError, OSError) as error:
            fault = EngineError("disconnected", f"{where}: {type(error).__name__}", is_retryable=True)
        raise fault

    async def _body(self, response: "aiohttp.ClientResponse", where: str) -> bytes:
        """The whole body. aiohttp raises where it is shorter than its head says, or its last chunk is missing."""
        body = await _beginning(response, self._limits.max_body_bytes)
        if len(body) > self._limits.max_body_bytes:
            raise EngineError("body_too_long", f"{where}: more than {self._limits.max_body_bytes} bytes")
        return body

    def _refusal(
        self, response: "aiohttp.ClientResponse", body: bytes, where: str, headers: Mapping[str, str]
    ) -> EngineError:
        """What an answer that is no good one means."""
        status = response.status
        told = _without(_told(body), [*self._headers.values(), *headers.values()])[:MAX_TOLD_CHARS]
        hint = " (redirects are not followed)" if 300 <= status < 400 else ""
        said = f"{where} answered {status}{hint}: {told}"
        if status in BUSY:
            wait_s = _retry_after_s(response.headers.get("Retry-After"), response.headers.get("Date"))
            return EngineError("busy", said, is_retryable=True, retry_after_s=wait_s)
        return EngineError(f"http_{status}", said, is_retryable=status in RETRYABLE)

    def _opened(self) -> "aiohttp.ClientSession":
        if self._session is None:
            self._session = self._aiohttp.ClientSession(
                connector=self._aiohttp.TCPConnector(limit=0, keepalive_timeout=self._limits.keepalive_s),
                timeout=self._aiohttp.ClientTimeout(total=None, sock_connect=self._limits.connect_s),
                headers={"Content-Type": "application/json", "Accept-Encoding": "identity", **self._headers},
                cookie_jar=self._aiohttp.DummyCookieJar(),
                trust_env=False,
            )
        return self._session


def _address(base_url: str) -> str:
    """The address of a server, without a slash at its end. What may be a key in it is not repeated in the error."""
    if "@" in base_url:
        raise ConfigError("base_url names a user or a key (before an @); keys belong in the engine's own options")
    try:
        is_address = re.fullmatch(r"https?://[^/\s?#]+(/[^\s?#]*)?", base_url) and urlsplit(base_url).port != 0
    except ValueError:
        is_address = False
    if not is_address:
        raise ConfigError(f"base_url = {base_url!r}: an address such as http://127.0.0.1:8000 is needed")
    return base_url.rstrip("/")


async def _beginning(response: "aiohttp.ClientResponse", max_bytes: int) -> bytes:
    """The body, or, if it is longer than `max_bytes`, a beginning of it that is longer too."""
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > max_bytes:
            break
    return bytes(body)


def _retry_after_s(retry_after: str | None, date: str | None) -> float:
    """Seconds a Retry-After header asks for, within bounds: a number, or a date behind that of the answer itself."""
    text = (retry_after or "").strip()
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return min(float(text), MAX_RETRY_AFTER_S)
    try:
        wait_s = (parsedate_to_datetime(text) - parsedate_to_datetime(date or "")).total_seconds()
    except (TypeError, ValueError):
        return BUSY_S
    return min(max(wait_s, 0.0), MAX_RETRY_AFTER_S)


def _told(body: bytes) -> str:
    """The message in an error's body: of JSON its text, of a page its words, of anything else its beginning."""
    text = body.decode("utf-8", errors="replace")
    try:
        said: Any = json.loads(text)
    except (ValueError, RecursionError):
        words = re.sub(r"(?is)<(script|style)\b.*?</\1>|<[^>]*>", " ", text)
        return " ".join(words.split())
    for key in ("error", "message", "detail"):
        said = said[key] if isinstance(said, dict) and key in said else said
    return " ".join((said if isinstance(said, str) else json.dumps(said)).split())


def _without(text: str, values: list[str]) -> str:
    """`text` without what stands in headers: a server may say back whatever it was sent."""
    words = {word for value in values for word in (value, value.rpartition(" ")[2]) if len(word) >= MIN_SECRET_CHARS}
    for word in sorted(words, key=len, reverse=True):
        text = text.replace(word, "***")
    return text
