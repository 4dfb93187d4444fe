"""Web server: what every HTTP server of the package keeps to: bounded bodies, deadlines, JSON refusals, a clean stop.

Headers and bodies have deadlines, so slow clients hold nothing for ever. All bodies that are being read are bounded
together. Every refused request is answered by JSON with the original error message. A client that closes its connection
cancels its handler. It binds to the address it is given, and says nothing of other origins (no CORS).
"""

import asyncio
import ipaddress
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ramify.core.errors import ConfigError
from ramify.edge.body_budget import BodyBudget
from ramify.edge.error_text import error_text
from ramify.edge.http import INSTALL

if TYPE_CHECKING:
    from aiohttp import web

LOOK_S: Final = 0.25
"""Time between two looks for connections that are late."""

Handler = Callable[["web.Request"], Awaitable["web.StreamResponse"]]
Route = tuple[str, str]
"""Method and path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebLimits:
    """Limits of one request, and of the time to stop the server."""

    max_body_bytes: int = 16 << 20
    max_held_bytes: int = 256 << 20
    """Most bytes of all bodies that are being read. Beyond it, a body longer than an equal share is refused."""
    max_connections: int = 512
    """Beyond it, those are closed that have waited longest for a request. Half of the usual limit of open files."""
    header_s: float = 30.0
    """How long a connection may take for a header, from its beginning or from the last answer on. An idle connection is
    kept as long."""
    body_s: float = 60.0
    """How long a body may take."""
    stop_s: float = 10.0
    """How long the server waits for running requests when it stops."""

    def __post_init__(self) -> None:
        numbers = (self.max_body_bytes, self.max_held_bytes, self.max_connections)
        if min(numbers) < 1 or self.stop_s < 0 or min(self.header_s, self.body_s) <= 0:
            raise ConfigError(f"impossible limits {self!r}: 1 or more of each, a time above 0, and stop_s 0 or more")


class RefusedBody(Exception):
    """A body that was not read to its end. `response` is the answer, behind which the connection is closed."""

    def __init__(self, response: "web.Response") -> None:
        super().__init__(response.reason)
        self.response = response


class WebServer:
    """Serves `routes` while it is entered (`async with`), at `url`.

    `port` 0 = any free port. `told` makes the body of a refusal from its status and words. `failed` says what the
    server could not do when a handler raises. Raises `ConfigError` if the extra `http` is missing, and on entering if
    the address cannot be used.
    """

    def __init__(
        self,
        routes: Mapping[Route, Handler],
        *,
        host: str,
        port: int,
        limits: WebLimits,
        told: Callable[[int, str], Mapping[str, Any]],
        failed: str,
    ) -> None:
        try:
            from aiohttp import web
        except ImportError as error:
            raise ConfigError(f"a server needs aiohttp: {INSTALL} ({error})") from error
        if not 0 <= port < 1 << 16:
            raise ConfigError(f"port = {port!r}: allowed are 0 (any free port) to 65535")
        self._web = web
        self._routes: Final = dict(routes)
        self._address: Final = (host, port)
        self._limits: Final = limits
        self._told: Final = told
        self._failed: Final = failed
        self._bodies: Final = BodyBudget(limits.max_held_bytes)
        self._runner: web.AppRunner | None = None
        self._closing: asyncio.Task[None] | None = None
        self._deadlines: dict[asyncio.BaseTransport, float] = {}
        """Connections that wait for a request -> when they are closed."""
        self._busy: set[asyncio.BaseTransport] = set()
        """Connections whose request is being answered."""

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that it listens at. Only valid while it is entered."""
        assert self._runner is not None, "the server is not entered"
        host, port, *_ = self._runner.addresses[0]
        return str(host), int(port)

    @property
    def url(self) -> str:
        """Its address. Only valid while it is entered."""
        host, port = self.address
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def other_host(self, request: "web.Request") -> str:
        """Why a request is not for this server: its host is a name that somebody made to lead here (DNS rebinding).
        Empty = it is, or the address is no loopback address, which may have any name."""
        host, port = self.address
        if not is_loopback(host):
            return ""
        names = {f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]", f"[{host}]" if ":" in host else host)}
        return (
            "" if request.host in names else f"the request is for the host {request.host!r:.200}; this is {host}:{port}"
        )

    async def __aenter__(self) -> "WebServer":
        @self._web.middleware
        async def refusing(request: "web.Request", handler: Handler) -> "web.StreamResponse":
            return await self._refusing(request, handler)

        app = self._web.Application(client_max_size=self._limits.max_body_bytes, middlewares=[refusing])
        for (method, path), handler in self._routes.items():
            app.router.add_route(method, path, handler)
        runner = self._web.AppRunner(
            app, access_log=None, handle_signals=False, shutdown_timeout=self._limits.stop_s, handler_cancellation=True
        )
        await runner.setup()
        host, port = self._address
        try:
            await self._web.TCPSite(runner, host, port).start()
        except (OSError, UnicodeError) as error:
            await runner.cleanup()
            raise ConfigError(f"{host}:{port} cannot be served at: {error}") from error
        self._runner = runner
        self._closing = asyncio.create_task(self._close_slow(runner))
        return self

    async def __aexit__(self, *_: object) -> None:
        """Accept no more requests, finish the running ones, and close every connection."""
        runner, self._runner = self._runner, None
        closing, self._closing = self._closing, None
        if closing is not None:
            closing.cancel()
            await asyncio.wait([closing])
        if runner is not None:
            await runner.cleanup()

    async def body(self, request: "web.Request") -> bytearray:
        """The whole body of a request. Raises `RefusedBody`, and aiohttp's own error for a body that is too long."""
        try:
            async with asyncio.timeout(self._limits.body_s):
                return await self._read(request)
        except TimeoutError:
            raise RefusedBody(self._left(408, f"the body did not come within {self._limits.body_s:g} s")) from None

    def said(
        self, values: Mapping[str, Any], status: int = HTTPStatus.OK, headers: Mapping[str, str] | None = None
    ) -> "web.Response":
        """An answer in JSON."""
        body = msgspec.json.encode(values)
        return self._web.Response(body=body, status=status, headers=headers, content_type="application/json")

    def refused(self, status: int, why: str) -> "web.Response":
        return self.said(self._told(status, why), status)

    def _left(self, status: int, why: str) -> "web.Response":
        """A refusal behind which the connection is closed: the rest of the body is not read."""
        response = self.refused(status, why)
        response.force_close()
        return response

    async def _read(self, request: "web.Request") -> bytearray:
        body = bytearray()
        with self._bodies.reading() as held:
            async for chunk in request.content.iter_any():
                body += chunk
                held.grow(len(chunk))
                if len(body) > self._limits.max_body_bytes:
                    raise self._web.HTTPRequestEntityTooLarge(self._limits.max_body_bytes, len(body))
                if held.is_over:
                    why = "other requests have too long bodies at the moment; ask again"
                    raise RefusedBody(self._left(503, why))
        return body

    async def _refusing(self, request: "web.Request", handler: Handler) -> "web.StreamResponse":
        """Answer every refused request with JSON and the original error message. Boundary to the handlers."""
        transport = request.transport
        if transport is not None:
            self._busy.add(transport)
            self._deadlines.pop(transport, None)
        try:
            return await handler(request)
        except RefusedBody as refused:
            return refused.response
        except self._web.HTTPRequestEntityTooLarge:
            return self.refused(413, f"the request is longer than {self._limits.max_body_bytes} bytes")
        except self._web.HTTPException as error:
            known = " and ".join(f"{method} {path.replace(':.+', '')}" for method, path in self._routes)
            return self.refused(error.status, f"{request.method} {request.path}: {error.reason}; {known} are served")
        except ConnectionError:
            raise  # The client is gone: there is nobody to tell.
        except Exception as error:  # noqa: BLE001 - the boundary: what a handler raises is the answer to one request
            return self.refused(500, f"{self._failed}: {error_text(error)}")
        finally:
            if transport is not None:
                self._busy.discard(transport)

    async def _close_slow(self, runner: "web.AppRunner") -> None:
        """Close connections whose header is late, and the oldest that wait where there are too many."""
        loop = asyncio.get_running_loop()
        while True:
            there = [found.transport for found in runner.server.connections] if runner.server is not None else []
            open_now = [transport for transport in there if transport is not None]
            waiting = [transport for transport in open_now if transport not in self._busy]
            known, now = self._deadlines, loop.time()
            self._deadlines = {transport: known.get(transport, now + self._limits.header_s) for transport in waiting}
            oldest = sorted(waiting, key=self._deadlines.__getitem__)
            for place, transport in enumerate(oldest):
                if place < len(open_now) - self._limits.max_connections or self._deadlines[transport] <= now:
                    transport.abort()
            await asyncio.sleep(min(LOOK_S, self._limits.header_s / 4))


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
