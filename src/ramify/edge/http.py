"""HTTP: the one way to a server, of engines and of tools that live behind one.

Owns connections, the number of requests in flight, deadlines, and what each kind of failure is called. One call is one
try: trying again is `Retrying`'s for engines and the toolbox's for tools, so nothing is ever retried twice over. What
comes back is the whole body of a good answer or an `EngineError`; an answer that was cut anywhere is never taken for
one. A server's own limit (429, 503) halves what is in flight at once (`ConcurrencyLimit`). A cancelled call closes its
connection, at which servers abort the work behind it. What goes along as headers is struck out of all that comes back.
"""

import asyncio
import io
import json
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from ramify.core.errors import ConfigError, EngineError
from ramify.edge.concurrency import ConcurrencyLimit

if TYPE_CHECKING:
    import aiohttp

INSTALL: Final = "pip install 'ramify[http]'"
RETRYABLE: Final = frozenset({408, 409, 425, 429, *range(500, 600)})
"""Statuses after which another try may help; 400, 401, 403, 404, 413 and 422 never get better."""
BUSY: Final = frozenset({429, 503})
"""The server's own limit: the request comes again when the server says so, and no try is spent."""
SPENT: Final = b'"insufficient_quota"'
"""In such an answer that no wait makes better: the account has no money left (OpenAI's error code)."""
BUSY_S: Final = 1.0
"""Wait after such an answer that names no time."""
MAX_RETRY_AFTER_S: Final = 60.0
MAX_REFUSAL_BYTES: Final = 64 << 10
"""Of an answer that is no good one, read; the rest is given up with its connection."""
REFUSAL_S: Final = 1.0
"""Time for that: what such an answer means, its status has said."""
MAX_AT_ONCE_BYTES: Final = 1 << 20
"""Of a request, written at once; what is longer goes in pieces, between which others get on (aiohttp's own bound)."""
MAX_TOLD_CHARS: Final = 300
"""Of an error's body, in the message about it."""
MIN_SECRET_CHARS: Final = 8
"""Values of headers from this length on, without a scheme such as `Bearer`, are struck out of what a server says;
shorter ones are no secrets."""


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
            raise ConfigError(f"impossible limits {self!r}: every value must be above 0")


@dataclass(slots=True)
class HttpStats:
    """What was asked of a server so far; live."""

    num_requests: int = 0
    num_failed: int = 0
    failures: dict[str, int] = field(default_factory=dict[str, int])
    """Reason -> how often."""


class Http:
    """Requests to the server at `base_url`. Connections are opened in the event loop of a request and end with it.

    `headers` go along with every request and are never told to anybody. Proxies of the environment are not used, and
    redirects are not followed. A GET or DELETE whose connection ends before its answer begins goes out once more, as
    aiohttp has it. Raises `ConfigError` where the extra `http` is missing, the address is none, or a header is no
    header.
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
        self.places = ConcurrencyLimit(limits.max_in_flight)
        self._limits = limits
        self._headers = dict(headers or {})
        self._secrets = _secrets(self._headers)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._session: aiohttp.ClientSession | None = None
        self._life: AsyncGenerator[aiohttp.ClientSession, None] | None = None
        self._is_closed = False

    async def post(
        self, path: str, body: bytes, *, deadline_s: float, headers: Mapping[str, str] | None = None
    ) -> bytes:
        """The body of a good answer to one POST of JSON. `deadline_s` counts from when the request has its place.

        Raises `EngineError`: `unreachable`, `disconnected`, `timeout`, `busy` (with `retry_after_s`), `body_too_long`,
        `tls_refused`, `unsendable`, `closed`, or `http_STATUS`.
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
        life, self._life = self._life, None
        if life is not None:
            await life.aclose()

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
        data = io.BytesIO(body) if body is not None and len(body) > MAX_AT_ONCE_BYTES else body
        fault: EngineError
        try:
            session = await self._opened()
            async with (
                asyncio.timeout(deadline_s),
                session.request(method, where, data=data, headers=headers, allow_redirects=False) as response,
            ):
                if 200 <= response.status < 300:
                    return await self._body(response, where)
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
            fault = EngineError("unreachable", f"{where}: {error.strerror or error}", is_retryable=True)
        except ValueError as error:
            fault = EngineError("unsendable", f"{where}: {error}")
        except (self._aiohttp.ClientError, OSError) as error:
            fault = EngineError("disconnected", f"{where}: {type(error).__name__}", is_retryable=True)
        raise fault

    async def _body(self, response: "aiohttp.ClientResponse", where: str) -> bytes:
        """The whole body. aiohttp raises where it is shorter than its head says, or its last chunk is missing."""
        body = bytearray()
        await _read(response, body, max_bytes=self._limits.max_body_bytes)
        if len(body) > self._limits.max_body_bytes:
            raise EngineError("body_too_long", f"{where}: more than {self._limits.max_body_bytes} bytes")
        return self._struck(body)

    async def _refusal(self, response: "aiohttp.ClientResponse", where: str) -> EngineError:
        """What an answer that is no good one means, also where its body does not come to an end."""
        body = bytearray()
        with suppress(self._aiohttp.ClientError, TimeoutError):
            async with asyncio.timeout(REFUSAL_S):
                await _read(response, body, max_bytes=MAX_REFUSAL_BYTES)
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
        """What a server said, without the secrets it was sent."""
        return bytes(body) if self._secrets is None else self._secrets.sub(b"***", body)

    async def _opened(self) -> "aiohttp.ClientSession":
        """The session of the running loop. That of a loop before it has ended with that loop."""
        loop = asyncio.get_running_loop()
        if self._session is None or self._loop is not loop:
            self._loop, self._life = loop, self._living()
            self._session = await anext(self._life)
        return self._session

    async def _living(self) -> AsyncGenerator["aiohttp.ClientSession", None]:
        """One session. It closes when the generator does, which a loop that ends sees to for those begun in it."""
        async with self._aiohttp.ClientSession(
            connector=self._aiohttp.TCPConnector(limit=0, keepalive_timeout=self._limits.keepalive_s),
            timeout=self._aiohttp.ClientTimeout(total=None, sock_connect=self._limits.connect_s),
            headers={"Content-Type": "application/json", "Accept-Encoding": "identity", **self._headers},
            cookie_jar=self._aiohttp.DummyCookieJar(),
            trust_env=False,
        ) as session:
            yield session


def _address(base_url: str) -> str:
    """The address of a server, without a slash at its end. What may be a key in it is not repeated in the error."""
    if "@" in base_url:
        raise ConfigError("base_url names a user or a key (before an @); keys belong in the engine's own options")
    try:
        parts = urlsplit(base_url)
        has_host = parts.port != 0 and bool((parts.hostname or "").encode("idna"))
        is_address = has_host and re.fullmatch(r"https?://[^/\s?#]+(/[^\s?#]*)?", base_url)
    except ValueError:
        is_address = False
    if not is_address:
        raise ConfigError(f"base_url = {base_url!r}: an address such as http://127.0.0.1:8000 is needed")
    return base_url.rstrip("/")


async def _read(response: "aiohttp.ClientResponse", body: bytearray, *, max_bytes: int) -> None:
    """Add what comes of an answer to `body`, up to its end or until there is more than `max_bytes`."""
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > max_bytes:
            return


def _retry_after_s(retry_after: str | None, date: str | None) -> float:
    """Seconds a Retry-After header asks for, within bounds: a number, or a date behind that of the answer itself."""
    text = (retry_after or "").strip()
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return min(float(text), MAX_RETRY_AFTER_S)
    try:
        wait_s = (parsedate_to_datetime(text) - parsedate_to_datetime(date or "")).total_seconds()
    except (TypeError, ValueError, ArithmeticError, LookupError):
        return BUSY_S
    return min(max(wait_s, 0.0), MAX_RETRY_AFTER_S)


def _told(body: bytes) -> str:
    """The message in an error's body: of JSON its text, of a page its words, of anything else its beginning."""
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
    """What finds the secrets among headers in what a server says; None = there are none. Raises `ConfigError` for a
    header that cannot be sent, without its value."""
    for name, value in headers.items():
        if not (value.isascii() and value.isprintable()):
            raise ConfigError(f"header {name!r} cannot be sent: its value must be printable ASCII")
    words = {value.split(" ", 1)[-1] for value in headers.values()}
    found = sorted((word for word in words if len(word) >= MIN_SECRET_CHARS), key=len, reverse=True)
    return re.compile("|".join("".join(map(_spelled, word)) for word in found).encode()) if found else None


def _spelled(char: str) -> str:
    """A pattern of a character in all the ways in which servers write it in JSON: none spells letters and digits."""
    return char if char.isalnum() else rf"(?:\\?{re.escape(char)}|\\u00(?i:{ord(char):02x}))"
