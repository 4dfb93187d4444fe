"""HTTP: all requests to a server, from engines and from tools that use one.

Owns connections, the number of requests in flight, deadlines, and the name of each kind of failure. One call is one
try: `Retrying` retries for engines and the toolbox for tools, so nothing is retried at two levels. A call returns the
whole body of a good answer or raises `EngineError`; a truncated answer never counts as complete. A server's own limit
(429, 503) halves the number of requests in flight at once (`ConcurrencyLimit`). A cancelled call closes its connection,
so that servers abort its work. The secrets in request headers are removed from everything that comes back.
"""

import asyncio
import io
import json
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from ramify.core.errors import ConfigError, EngineError
from ramify.edge.body_budget import READING, HeldBody
from ramify.edge.concurrency import ConcurrencyLimit
from ramify.edge.exchange_watch import ExchangeWatch, watched, watching
from ramify.edge.open_files import WAIT_S, out_of_files
from ramify.edge.url_keys import without_url_keys

if TYPE_CHECKING:
    import aiohttp

INSTALL: Final = "pip install 'ramify[http]'"
RETRYABLE: Final = frozenset({408, 409, 425, 429, *range(500, 600)})
"""Statuses after which a retry may help; 400, 401, 403, 404, 413 and 422 never get better."""
BUSY: Final = frozenset({429, 503})
"""The server's own limit: the request is sent again when the server says so, and this costs no try."""
SPENT: Final = b'"insufficient_quota"'
"""Part of such an answer if waiting does not help: the account has no money left (OpenAI's error code)."""
BUSY_S: Final = 1.0
"""Wait after such an answer if it names no time."""
MAX_RETRY_AFTER_S: Final = 60.0
MAX_REFUSAL_BYTES: Final = 64 << 10
"""Most bytes read of an error answer; the rest is dropped with its connection."""
REFUSAL_S: Final = 1.0
"""Timeout for reading them: the status already says what the answer means."""
MAX_AT_ONCE_BYTES: Final = 1 << 20
"""Most bytes of a request body written at once. A longer body is written in pieces, and other tasks run in between
(aiohttp's own limit)."""
MAX_TOLD_CHARS: Final = 300
"""Most characters of an error's body in the error message."""
MIN_SECRET_CHARS: Final = 8
"""Header values of at least this length, without a scheme such as `Bearer`, are removed from what a server says;
shorter ones are not secrets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """Limits on the requests to one server."""

    max_in_flight: int = 256
    max_body_bytes: int = 64 << 20
    connect_s: float = 5.0
    keepalive_s: float = 4.0
    """How long an idle connection is kept: less than the 5 s after which uvicorn closes it."""

    def __post_init__(self) -> None:
        if self.max_in_flight < 1 or self.max_body_bytes < 1 or min(self.connect_s, self.keepalive_s) <= 0:
            raise ConfigError(f"impossible limits {self!r}: every value must be above 0")


@dataclass(slots=True)
class HttpStats:
    """Counts of the requests to a server; updated while they run."""

    num_requests: int = 0
    num_failed: int = 0
    failures: dict[str, int] = field(default_factory=dict[str, int])
    """Reason -> number of failures."""


class Http:
    """Requests to the server at `base_url`. Connections are opened in the event loop of a request and close with it.

    `headers` are sent with every request and never shown anywhere. Proxies of the environment are not used, and
    redirects are not followed. aiohttp sends a GET or DELETE once more if its connection ends before its answer begins.
    Raises `ConfigError` if the extra `http` is missing or the address or a header is invalid.
    """

    def __init__(
        self,
        base_url: str,
        *,
        limits: HttpLimits = HttpLimits(),
        headers: Mapping[str, str] | None = None,
        is_watched: bool = False,
    ) -> None:
        """`is_watched`: whether its exchanges may be timed by a watch."""
        try:
            import aiohttp
        except ImportError as error:
            raise ConfigError(f"requests over HTTP need aiohttp: {INSTALL} ({error})") from error
        self._aiohttp = aiohttp
        self.base_url = _address(base_url)
        self.stats = HttpStats()
        self.places = ConcurrencyLimit(limits.max_in_flight)
        self._limits = limits
        self._headers = dict(headers or {})
        self._watching = watching(aiohttp) if is_watched else {}
        self._secrets = _secrets(self._headers)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._session: aiohttp.ClientSession | None = None
        self._life: AsyncGenerator[aiohttp.ClientSession, None] | None = None
        self._is_closed = False

    async def post(
        self,
        path: str,
        body: bytes,
        *,
        deadline_s: float,
        headers: Mapping[str, str] | None = None,
        max_body_bytes: int | None = None,
        watch: ExchangeWatch | None = None,
    ) -> bytes:
        """The body of a good answer to one POST of JSON. `deadline_s` counts from when the request gets its place.
        `max_body_bytes` is a limit of this answer alone, below that of all. `watch` measures the exchange.

        Raises `EngineError`: `unreachable`, `disconnected`, `timeout`, `busy` (with `retry_after_s`), `body_too_long`,
        `tls_refused`, `unsendable`, `no_open_files`, `closed`, or `http_STATUS`.
        """
        era = await self.places.acquire()
        try:
            with nullcontext() if watch is None else watched(watch):
                answer = await self._exchange(
                    "POST", path, body, deadline_s=deadline_s, headers=headers, max_body_bytes=max_body_bytes
                )
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
        """Like `post`, but without waiting for a place: for aborts and other orders that must not wait behind running
        requests."""
        return await self._exchange("POST", path, body, deadline_s=deadline_s, headers=None)

    async def get(self, path: str, *, deadline_s: float) -> bytes:
        """The body of a good answer to one GET, which does not wait for a place. Raises as `post` does."""
        return await self._exchange("GET", path, None, deadline_s=deadline_s, headers=None)

    async def delete(self, path: str, *, deadline_s: float) -> bytes:
        """The body of a good answer to one DELETE, which does not wait for a place. Raises as `post` does."""
        return await self._exchange("DELETE", path, None, deadline_s=deadline_s, headers=None)

    async def close(self) -> None:
        """Close every connection; running requests fail. Calling it again does nothing."""
        self._is_closed = True
        life, self._life = self._life, None
        if life is not None:
            await life.aclose()

    async def _exchange(
        self,
        method: str,
        path: str,
        body: bytes | None,
        *,
        deadline_s: float,
        headers: Mapping[str, str] | None,
        max_body_bytes: int | None = None,
    ) -> bytes:
        if self._is_closed:
            raise EngineError("closed", f"the connection to {self.base_url} was closed")
        self.stats.num_requests += 1
        try:
            most = min(self._limits.max_body_bytes, max_body_bytes or self._limits.max_body_bytes)
            return await self._tried(method, path, body, deadline_s=deadline_s, headers=headers, max_body_bytes=most)
        except EngineError as error:
            self.stats.num_failed += 1
            self.stats.failures[error.reason] = self.stats.failures.get(error.reason, 0) + 1
            raise

    async def _tried(
        self,
        method: str,
        path: str,
        body: bytes | None,
        *,
        deadline_s: float,
        headers: Mapping[str, str] | None,
        max_body_bytes: int,
    ) -> bytes:
        """One complete exchange: what aiohttp raises becomes an `EngineError` that says whether a retry may help.

        The error is raised outside the handlers, because aiohttp's errors hold the request with its headers.
        """
        where = f"{self.base_url}{path}"
        data = io.BytesIO(body) if body is not None and len(body) > MAX_AT_ONCE_BYTES else body
        fault: EngineError
        try:
            session = await self._opened()
            async with (
                asyncio.timeout(deadline_s),
                session.request(method, where, data=data, headers=headers, allow_redirects=False) as response,
            ):
                if 200 <= response.status < 300:
                    return await self._body(response, where, max_bytes=max_body_bytes)
                fault = await self._refusal(response, where)
        except self._aiohttp.ConnectionTimeoutError:
            fault = EngineError(
                "unreachable", f"{where}: no connection in {self._limits.connect_s:g} s", is_retryable=True
            )
        except TimeoutError:
            fault = EngineError("timeout", f"{where}: no answer in {deadline_s:.1f} s", is_retryable=True)
        except self._aiohttp.ClientSSLError as error:
            fault = EngineError("tls_refused", f"{where}: {error.strerror or type(error).__name__}")
        except self._aiohttp.ClientConnectorError as error:
            fault = self._unfiled(where, error) or EngineError(
                "unreachable", f"{where}: {error.strerror or error}", is_retryable=True
            )
        except ValueError as error:
            fault = EngineError("unsendable", f"{where}: {error}")
        except (self._aiohttp.ClientError, OSError) as error:
            fault = self._unfiled(where, error) or EngineError(
                "disconnected", f"{where}: {type(error).__name__}", is_retryable=True
            )
        raise fault

    async def _body(self, response: "aiohttp.ClientResponse", where: str, *, max_bytes: int) -> bytes:
        """The whole body. aiohttp raises if it is shorter than its header says or its last chunk is missing."""
        body = bytearray()
        with READING.reading() as held:
            await _read(response, body, max_bytes=max_bytes, held=held)
            if len(body) > max_bytes:
                raise EngineError("body_too_long", f"{where}: more than {max_bytes} bytes")
            if held.is_over:
                raise EngineError(
                    "body_too_long",
                    f"{where}: {len(body)} bytes, while all answers being read have {READING.num_bytes}",
                )
            return self._struck(body)

    async def _refusal(self, response: "aiohttp.ClientResponse", where: str) -> EngineError:
        """The error for an answer whose status is no success, even if its body never ends."""
        body = bytearray()
        with suppress(self._aiohttp.ClientError, TimeoutError):
            async with asyncio.timeout(REFUSAL_S):
                with READING.reading() as held:
                    await _read(response, body, max_bytes=MAX_REFUSAL_BYTES, held=held)
        status = response.status
        hint = " (redirects are not followed)" if 300 <= status < 400 else ""
        said = f"{where} answered {status}{hint}: {_told(self._struck(body))[:MAX_TOLD_CHARS]}"
        if SPENT in body:
            return EngineError(f"http_{status}", said)
        if status in BUSY:
            wait_s = _retry_after_s(response.headers.get("Retry-After"), response.headers.get("Date"))
            return EngineError("busy", said, is_retryable=True, retry_after_s=wait_s)
        return EngineError(f"http_{status}", said, is_retryable=status in RETRYABLE)

    def _struck(self, body: bytearray) -> bytes:
        """What a server said, without the secrets that were sent to it."""
        return bytes(body) if self._secrets is None else self._secrets.sub(b"***", body)

    def _unfiled(self, where: str, error: Exception) -> EngineError | None:
        """The error for a request that found too many files open here; None = something else is wrong. It waits for
        others that are in flight, and fewer are sent at once. A request that is alone waits for nobody."""
        if (told := out_of_files(error)) is None:
            return None
        if self.places.num > 1:
            return EngineError("busy", f"{where}: {told}", is_retryable=True, retry_after_s=WAIT_S)
        return EngineError("no_open_files", f"{where}: {told}")

    async def _opened(self) -> "aiohttp.ClientSession":
        """The session of the running event loop. The session of an earlier loop has ended with that loop."""
        loop = asyncio.get_running_loop()
        if self._session is None or self._loop is not loop:
            self._loop, self._life = loop, self._living()
            self._session = await anext(self._life)
        return self._session

    async def _living(self) -> AsyncGenerator["aiohttp.ClientSession", None]:
        """One session. It closes when the generator closes; an event loop that ends closes the generators begun in
        it."""
        async with self._aiohttp.ClientSession(
            connector=self._aiohttp.TCPConnector(limit=0, keepalive_timeout=self._limits.keepalive_s),
            timeout=self._aiohttp.ClientTimeout(total=None, sock_connect=self._limits.connect_s),
            headers={"Content-Type": "application/json", "Accept-Encoding": "identity", **self._headers},
            cookie_jar=self._aiohttp.DummyCookieJar(),
            trust_env=False,
            **self._watching,
        ) as session:
            yield session


def _address(base_url: str) -> str:
    """The address of a server, without a slash at its end. The error does not repeat a part that may be a key."""
    if "@" in base_url:
        raise ConfigError("base_url names a user or a key (before an @); keys belong in the engine's own options")
    try:
        parts = urlsplit(base_url)
        has_host = parts.port != 0 and bool((parts.hostname or "").encode("idna"))
        is_address = has_host and re.fullmatch(r"https?://[^/\s?#]+(/[^\s?#]*)?", base_url)
    except ValueError:
        is_address = False
    if not is_address:
        raise ConfigError(
            f"base_url = {without_url_keys(base_url)!r}: an address such as http://127.0.0.1:8000 is needed"
        )
    return base_url.rstrip("/")


async def _read(response: "aiohttp.ClientResponse", body: bytearray, *, max_bytes: int, held: HeldBody) -> None:
    """Append an answer to `body`, up to its end, or until there is more than `max_bytes` or `held` is over."""
    async for chunk in response.content.iter_any():
        body += chunk
        held.grow(len(chunk))
        if len(body) > max_bytes or held.is_over:
            return


def _retry_after_s(retry_after: str | None, date: str | None) -> float:
    """Seconds that a Retry-After header asks for, within limits. The header is a number, or a date that is compared
    with the answer's own date."""
    text = (retry_after or "").strip()
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return min(float(text), MAX_RETRY_AFTER_S)
    try:
        wait_s = (parsedate_to_datetime(text) - parsedate_to_datetime(date or "")).total_seconds()
    except (TypeError, ValueError, ArithmeticError, LookupError):
        return BUSY_S
    return min(max(wait_s, 0.0), MAX_RETRY_AFTER_S)


def _told(body: bytes) -> str:
    """The message in an error's body: from JSON its text, from an HTML page its words, from anything else its
    beginning."""
    text = body.decode("utf-8", errors="replace")
    try:
        said: Any = json.loads(text)
        for key in ("error", "message", "detail"):
            said = said[key] if isinstance(said, dict) and key in said else said
        text = said if isinstance(said, str) else json.dumps(said)
    except (ValueError, RecursionError):
        seen = " ".join(re.split(r"(?i)</?(?:script|style)\b[^<>]*>", text)[::2])
        text = re.sub(r"<[^<>]*>", " ", seen)
    return " ".join(text.encode("utf-8", errors="replace").decode().split())


def _secrets(headers: Mapping[str, str]) -> re.Pattern[bytes] | None:
    """A pattern that finds the secrets of the headers in what a server says; None = there are none. Raises
    `ConfigError`, without the value, for a header that cannot be sent."""
    for name, value in headers.items():
        if not (value.isascii() and value.isprintable()):
            raise ConfigError(f"header {name!r} cannot be sent: its value must be printable ASCII")
    words = {value.split(" ", 1)[-1] for value in headers.values()}
    found = sorted((word for word in words if len(word) >= MIN_SECRET_CHARS), key=len, reverse=True)
    return re.compile("|".join("".join(map(_spelled, word)) for word in found).encode()) if found else None


def _spelled(char: str) -> str:
    """A pattern for a character in all the ways in which servers write it in JSON. They never escape letters and
    digits."""
    return char if char.isalnum() else rf"(?:\\?{re.escape(char)}|\\u00(?i:{ord(char):02x}))"
