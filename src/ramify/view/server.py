"""Server: the viewer on a loopback address, for whoever has its address.

A request must carry the token of the address, name this server as its host, and come from no other page. Nothing can be
changed: only GET is served. Changes of a run that grows are server-sent events; a tab that was away asks for what it
missed. The run never waits for the server, which only reads its files.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from ramify.core.errors import ConfigError, RamifyError, StoreError
from ramify.edge.error_text import error_text
from ramify.edge.web_server import Handler, WebLimits, WebServer
from ramify.view.documents import Documents
from ramify.view.page import live_page

if TYPE_CHECKING:
    from aiohttp import web

Found = TypeVar("Found")
LOOK_S: Final = 0.25
"""Time between two looks at the runs."""
FILL_S: Final = 0.25
"""How long rows of tables are computed between two looks. While some are left, nobody waits between looks."""
TELL_FILLED_S: Final = 2.0
"""Time between two changes that only say that rows were computed: each makes the page ask for the whole table."""
MAX_CHANGES: Final = 4096
"""Changes that are remembered for tabs that were away."""
ALIVE_S: Final = 15.0
"""Time between two comments of a stream in which nothing happens."""
HEADERS: Final = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
LIMITS: Final = WebLimits(max_body_bytes=1 << 16, max_held_bytes=1 << 20, max_connections=64, stop_s=1.0)


class ViewServer:
    """Serves `documents` while it is entered (`async with`), at `url`. Raises `ConfigError` if the extra is missing or
    the address cannot be used."""

    def __init__(self, documents: Documents, *, port: int = 0, token: str | None = None) -> None:
        try:
            import aiohttp  # noqa: F401 - whether it is there
        except ImportError as error:
            raise ConfigError(
                f"a live view needs aiohttp: pip install 'ramify[view]' ({error}); `ramify view RUN --html FILE` needs "
                "nothing"
            ) from error
        self._documents: Final = documents
        self._token: Final = token or secrets.token_urlsafe(18)
        self._page, self._policy = live_page()
        self._reading: Final = asyncio.Lock()
        self._changed: Final = asyncio.Condition()
        self._changes: list[tuple[int, int, list[int]]] = []
        """(number, run, trees) of each change."""
        self._num_changes = 0
        self._fault = ""
        """Why the runs are followed no longer."""
        self._following: asyncio.Task[None] | None = None
        routes: dict[tuple[str, str], Handler] = {
            ("GET", "/{token}/"): self._guarded(self._send_page),
            ("GET", "/{token}/documents/{name:.+}"): self._guarded(self._send_document),
            ("GET", "/{token}/search"): self._guarded(self._send_hits),
            ("GET", "/{token}/changes"): self._guarded(self._send_changes),
        }
        self._server: Final = WebServer(
            routes, host="127.0.0.1", port=port, limits=LIMITS, told=_told, failed="the viewer failed"
        )

    @property
    def url(self) -> str:
        """Its address, with the token. Only valid while it is entered."""
        return f"{self._server.url}/{self._token}/"

    async def __aenter__(self) -> "ViewServer":
        await self._server.__aenter__()
        self._following = asyncio.create_task(self._follow())
        return self

    async def __aexit__(self, *_: object) -> None:
        following, self._following = self._following, None
        if following is not None:
            following.cancel()
            await asyncio.wait([following])
        await self._server.__aexit__()

    # -- before a handler ---------------------------------------------------------------------------------------------

    def _guarded(self, handler: Handler) -> Handler:
        async def guarded(request: "web.Request") -> "web.StreamResponse":
            if why := self._refusal(request):
                return self._server.said(_told(403, why), 403, HEADERS)
            try:
                return await handler(request)
            except (KeyError, RamifyError) as error:
                status = 404 if isinstance(error, KeyError) else 409
                why = f"there is no {error.args[0]}" if isinstance(error, KeyError) else str(error)
                return self._server.said(_told(status, why), status, HEADERS)

        return guarded

    def _refusal(self, request: "web.Request") -> str:
        """Why a request is refused: another host, another page, or a wrong token. Empty = it is served."""
        if why := self._server.other_host(request):
            return why
        origin = request.headers.get("Origin")
        if origin is not None and origin != f"http://{request.host}":
            return f"the request comes from the page {origin!r:.200}; only the viewer's own page may ask"
        if not secrets.compare_digest(request.match_info["token"].encode(), self._token.encode()):
            return "the address has a wrong token; use the address that `ramify view` printed"
        return ""

    # -- handlers -----------------------------------------------------------------------------------------------------

    async def _send_page(self, request: "web.Request") -> "web.StreamResponse":
        from aiohttp import web

        headers = HEADERS | {"Content-Security-Policy": f"{self._policy}; frame-ancestors 'none'"}
        return web.Response(text=self._page, content_type="text/html", headers=headers)

    async def _send_document(self, request: "web.Request") -> "web.StreamResponse":
        if self._fault:
            raise StoreError(self._fault)
        name = request.match_info["name"]
        return self._sent(await self._read(lambda: self._documents.get(name)), request)

    async def _send_hits(self, request: "web.Request") -> "web.StreamResponse":
        run, text = request.query.get("run", ""), request.query.get("text", "")
        if not run.isdecimal() or not text:
            raise ConfigError("search needs run=NUMBER and text=WORDS")
        return self._sent(await self._read(lambda: self._documents.search(int(run[:6]), text[:500])), request)

    async def _send_changes(self, request: "web.Request") -> "web.StreamResponse":
        """Changes as they come, behind the one that the tab saw last."""
        from aiohttp import web

        headers = {**HEADERS, "Content-Type": "text/event-stream; charset=utf-8"}
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        last = request.headers.get("Last-Event-ID", "")
        seen = int(last[:18]) if last.isdecimal() else self._num_changes
        async for number, change in self._changes_behind(min(seen, self._num_changes)):
            said = b": alive\n\n" if change is None else b"id: %d\ndata: %s\n\n" % (number, msgspec.json.encode(change))
            await response.write(said)
        return response

    def _sent(self, document: Any, request: "web.Request") -> "web.Response":
        response = self._server.said(document, headers=HEADERS)
        response.enable_compression()
        return response

    async def _read(self, read: Callable[[], Found]) -> Found:
        """Read files in a thread, one reader at a time."""
        async with self._reading:
            return await asyncio.to_thread(read)

    # -- following ----------------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        """Look at the runs until the server is left. Boundary: no error is expected, so one is told to all pages."""
        try:
            await self._look_again_and_again()
        except Exception as error:  # noqa: BLE001
            self._fault = f"the viewer follows its runs no longer: {error_text(error)}; start `ramify view` again"
            await self._tell({run: set() for run in range(len(self._documents.runs))})

    async def _look_again_and_again(self) -> None:
        filled: dict[int, set[int]] = {}
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            changed = await self._read(lambda: dict(self._documents.look()))
            filled |= {run: set() for run in await self._read(lambda: self._documents.fill(FILL_S))}
            if filled and (loop.time() >= due or not self._documents.has_unfilled):
                changed = filled | changed
                filled, due = {}, loop.time() + TELL_FILLED_S
            await self._tell(changed)
            await asyncio.sleep(0.01 if self._documents.has_unfilled else LOOK_S)

    async def _tell(self, changed: dict[int, set[int]]) -> None:
        async with self._changed:
            for run, trees in changed.items():
                self._num_changes += 1
                self._changes.append((self._num_changes, run, sorted(trees)))
            del self._changes[:-MAX_CHANGES]
            if changed:
                self._changed.notify_all()

    async def _changes_behind(self, seen: int) -> AsyncIterator[tuple[int, dict[str, Any] | None]]:
        """Changes behind number `seen`, for ever; None = nothing happened for a while."""
        while True:
            for number, run, trees in [change for change in self._changes if change[0] > seen]:
                seen = number
                yield number, {"run": run, "trees": trees}
            try:
                async with asyncio.timeout(ALIVE_S), self._changed:
                    await self._changed.wait_for(lambda: self._num_changes > seen)  # noqa: B023 - called at once
            except TimeoutError:
                yield seen, None


def _told(status: int, why: str) -> dict[str, Any]:
    return {"error": why, "status": status}
