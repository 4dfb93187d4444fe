"""Retriever server: serves a search index with Search-R1's protocol, for this library, Search-R1's trainer or others.

`POST /retrieve {"queries": [text, …], "topk": k or null, "return_scores": bool}` is answered by `{"result": [[…], …]}`
with one list per query, in the same order. With scores, a list holds `{"document": {…}, "score": s}`. Without scores it
holds the documents alone; the published server fails in this case. A document has `contents` (title, newline, text),
and `id` if the corpus has ids. `GET /health` gives the number of passages. A bad request gets a 400 with the body
`{"error": …}`. Headers and bodies have deadlines, so slow clients hold nothing for ever. Searches run in threads, so a
slow query delays no other. The server reads only the index. It binds to loopback unless told otherwise, and has no
authentication.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ramify.core.errors import ConfigError
from ramify.edge.body_budget import BodyBudget
from ramify.edge.daemon_threads import DaemonThreads
from ramify.edge.error_text import error_text
from ramify.edge.http import INSTALL
from ramify.tools.output import valid
from ramify.tools.passages import MAX_PARALLEL, MAX_TOP_K, Hit, Index, Passage

if TYPE_CHECKING:
    from aiohttp import web

USAGE: Final = 'a request is {"queries": [text, …], "topk": k or null, "return_scores": true or false}'
LOOK_S: Final = 0.25
"""Time between two looks for connections that are late."""

Handler = Callable[["web.Request"], Awaitable["web.StreamResponse"]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """Limits of one request, and of the time to stop the server."""

    max_queries: int = 8192
    """Most queries in a request. Search-R1's trainer sends one request for all rows of a step: 2,560 in its script."""
    max_top_k: int = MAX_TOP_K
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
        numbers = (self.max_queries, self.max_top_k, self.max_body_bytes, self.max_held_bytes, self.max_connections)
        if min(numbers) < 1 or self.stop_s < 0 or min(self.header_s, self.body_s) <= 0:
            raise ConfigError(f"impossible limits {self!r}: 1 or more of each, a time above 0, and stop_s 0 or more")


class _Asked(msgspec.Struct):
    queries: list[str]
    topk: int | None = None
    return_scores: bool = False


class RetrieverServer:
    """Serves `index` while it is entered (`async with`), at `url`.

    `port` 0 = any free port. `top_k` is the default of requests without one. Raises `ConfigError` if the extra `http`
    is missing, and on entering if the address cannot be used. The index stays open afterwards.
    """

    def __init__(
        self,
        index: Index,
        *,
        top_k: int = 3,
        host: str = "127.0.0.1",
        port: int = 0,
        limits: ServerLimits = ServerLimits(),
    ) -> None:
        try:
            from aiohttp import web
        except ImportError as error:
            raise ConfigError(f"a server needs aiohttp: {INSTALL} ({error})") from error
        if not 1 <= top_k <= limits.max_top_k:
            raise ConfigError(f"top_k = {top_k!r}: a page shows 1 to {limits.max_top_k} passages")
        if not 0 <= port < 1 << 16:
            raise ConfigError(f"port = {port!r}: allowed are 0 (any free port) to 65535")
        self._web = web
        self._index: Final = index
        self._top_k: Final = top_k
        self._address: Final = (host, port)
        self._limits: Final = limits
        self._threads: Final = DaemonThreads(MAX_PARALLEL)
        self._bodies: Final = BodyBudget(limits.max_held_bytes)
        self._runner: web.AppRunner | None = None
        self._closing: asyncio.Task[None] | None = None
        self._deadlines: dict[asyncio.BaseTransport, float] = {}
        """Connections that wait for a request -> when they are closed."""
        self._busy: set[asyncio.BaseTransport] = set()
        """Connections whose request is being answered."""

    @property
    def url(self) -> str:
        """Its address. Only valid while it is entered."""
        assert self._runner is not None, "the server is not entered"
        host, port, *_ = self._runner.addresses[0]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def __aenter__(self) -> "RetrieverServer":
        @self._web.middleware
        async def refusing(request: "web.Request", handler: Handler) -> "web.StreamResponse":
            return await self._refusing(request, handler)

        app = self._web.Application(client_max_size=self._limits.max_body_bytes, middlewares=[refusing])
        app.router.add_post("/retrieve", self._retrieve)
        app.router.add_get("/health", self._health)
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

    async def _refusing(self, request: "web.Request", handler: Handler) -> "web.StreamResponse":
        """Answer every refused request with JSON and the original error message."""
        transport = request.transport
        if transport is not None:
            self._busy.add(transport)
            self._deadlines.pop(transport, None)
        try:
            return await handler(request)
        except self._web.HTTPRequestEntityTooLarge:
            return self._refused(413, f"the request is longer than {self._limits.max_body_bytes} bytes")
        except self._web.HTTPException as error:
            known = "POST /retrieve and GET /health are served"
            return self._refused(error.status, f"{request.method} {request.path}: {error.reason}; {known}")
        except Exception as error:  # noqa: BLE001 - boundary to the index: what it raises is the answer to one request
            return self._refused(500, f"the index could not be searched: {error_text(error)}")
        finally:
            if transport is not None:
                self._busy.discard(transport)

    async def _health(self, request: "web.Request") -> "web.Response":
        return self._said({"status": "ok", "passages": self._index.num_passages})

    async def _retrieve(self, request: "web.Request") -> "web.Response":
        try:
            async with asyncio.timeout(self._limits.body_s):
                body = await self._body(request)
        except TimeoutError:
            return self._left(408, f"the body did not come within {self._limits.body_s:g} s")
        if body is None:
            return self._left(503, "other requests have too long bodies at the moment; ask again")
        try:
            asked = self._checked(msgspec.json.decode(body, type=_Asked))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return self._refused(400, f"{error}; {USAGE}")
        top_k = self._top_k if asked.topk is None else asked.topk
        found = await asyncio.gather(*(self._found(query, top_k) for query in asked.queries))
        documents = _scored if asked.return_scores else _unscored
        return self._said({"result": [documents(hits) for hits in found]})

    async def _body(self, request: "web.Request") -> bytearray | None:
        """The body of a request; None = all bodies together are too long. Raises `HTTPRequestEntityTooLarge`."""
        body = bytearray()
        with self._bodies.reading() as held:
            async for chunk in request.content.iter_any():
                body += chunk
                held.grow(len(chunk))
                if len(body) > self._limits.max_body_bytes:
                    raise self._web.HTTPRequestEntityTooLarge(self._limits.max_body_bytes, len(body))
                if held.is_over:
                    return None
        return body

    def _checked(self, asked: _Asked) -> _Asked:
        if len(asked.queries) > self._limits.max_queries:
            raise msgspec.ValidationError(
                f"{len(asked.queries)} queries in one request; at most {self._limits.max_queries} are allowed"
            )
        if asked.topk is not None and not 1 <= asked.topk <= self._limits.max_top_k:
            raise msgspec.ValidationError(f"topk = {asked.topk}; 1 to {self._limits.max_top_k} or null is allowed")
        return asked

    async def _found(self, query: str, top_k: int) -> Sequence[Hit]:
        if not self._index.is_blocking:
            return self._index.search(query, top_k)
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._index.search, query, top_k)

    def _said(self, values: dict[str, Any], status: int = HTTPStatus.OK) -> "web.Response":
        return self._web.Response(body=msgspec.json.encode(values), status=status, content_type="application/json")

    def _refused(self, status: int, why: str) -> "web.Response":
        return self._said({"error": valid(why)}, status)

    def _left(self, status: int, why: str) -> "web.Response":
        """A refusal behind which the connection is closed: the rest of the body is not read."""
        response = self._refused(status, why)
        response.force_close()
        return response


def _scored(hits: Sequence[Hit]) -> list[dict[str, Any]]:
    return [{"document": _document(hit.passage), "score": hit.score} for hit in hits]


def _unscored(hits: Sequence[Hit]) -> list[dict[str, Any]]:
    return [_document(hit.passage) for hit in hits]


def _document(passage: Passage) -> dict[str, Any]:
    """A passage in Search-R1's format: clients read the first line of `contents` as the title."""
    title = " ".join(passage.title.splitlines())
    contents = {"contents": f"{title}\n{passage.text}"}
    return {"id": passage.uid, **contents} if passage.uid else contents
