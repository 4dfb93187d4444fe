"""Gateway: the HTTP side: `POST /v1/chat/completions`, `GET /v1/models` and `GET /health`.

The life of a request: the host and the key are checked, the body is read and checked, the client is admitted, a tree is
begun, and its answer is written. A stream has comments while the search goes on. A client that disconnects stops its
tree. Errors are OpenAI's JSON. A loopback address needs no keys, but answers only requests that name it as their host;
any other address needs keys.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ramify.core.errors import ConfigError
from ramify.edge.error_text import error_text
from ramify.edge.web_server import Handler, WebLimits, WebServer, is_loopback
from ramify.gateway.api_error import ApiError, error_body
from ramify.gateway.chat_request import ChatRequest, chat_request
from ramify.gateway.clients import KEYS_ENV, Client, ClientLimits, Clients
from ramify.gateway.completion import Completion, completion
from ramify.gateway.offers import Offer
from ramify.gateway.request_run import Growing, RequestRun
from ramify.gateway.tailored import RequestLimits, planting

if TYPE_CHECKING:
    from aiohttp import web

JSON: Final = "application/json"
STREAM_HEADERS: Final[Mapping[str, str]] = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """Where a gateway listens, for whom, and within which limits."""

    host: str = "127.0.0.1"
    port: int = 0
    """0 = any free port."""
    keys: Sequence[str] = field(default=(), repr=False)
    """Keys of clients; empty = whoever reaches the loopback address may ask."""
    clients: ClientLimits = field(default_factory=ClientLimits)
    requests: RequestLimits = field(default_factory=RequestLimits)
    web: WebLimits = field(default_factory=lambda: WebLimits(max_connections=2048))
    progress_s: float = 2.0
    """Time between two comments of a stream. A request that fails before the first gets the status of its error."""

    tree_link: Callable[[str, int], str] | None = None
    """Folder of an offer, number of a tree -> the address that shows it; for the header `x-ramify-view`."""

    def __post_init__(self) -> None:
        if not self.keys and not is_loopback(self.host):
            raise ConfigError(
                f"--host {self.host}: only a loopback address is served without keys; give keys by --keys FILE or the "
                f"environment variable {KEYS_ENV}"
            )
        if self.progress_s <= 0:
            raise ConfigError(f"progress_s = {self.progress_s!r}: it must be above 0")


class Gateway:
    """Serves the offers of `run` while it is entered (`async with`), at `url`. The run stays open afterwards."""

    def __init__(self, run: RequestRun, config: GatewayConfig | None = None) -> None:
        self._run: Final = run
        self._offers: Final = run.offers
        config = config or GatewayConfig()
        self._config: Final = config
        self._clients: Final = Clients(config.clients, config.keys)
        routes: dict[tuple[str, str], Handler] = {
            ("POST", "/v1/chat/completions"): self._guarded(self._chat),
            ("GET", "/v1/models"): self._guarded(self._models),
            ("GET", "/v1/models/{model:.+}"): self._guarded(self._model),
            ("GET", "/health"): self._guarded(self._health),
        }
        self._server: Final = WebServer(
            routes,
            host=config.host,
            port=config.port,
            limits=config.web,
            told=error_body,
            failed="the gateway failed",
        )

    @property
    def url(self) -> str:
        """Its address, without `/v1`. Only valid while it is entered."""
        return self._server.url

    async def __aenter__(self) -> "Gateway":
        await self._server.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Accept no more requests, finish the running ones, and close every connection."""
        await self._server.__aexit__()

    # -- before a handler ---------------------------------------------------------------------------------------------

    def _guarded(self, handler: Handler) -> Handler:
        async def guarded(request: "web.Request") -> "web.StreamResponse":
            try:
                self._check_host(request)
                return await handler(request)
            except ApiError as error:
                return self._server.said(error.as_dict(), error.status, error.headers)

        return guarded

    def _check_host(self, request: "web.Request") -> None:
        """Refuse a request that a web page sent to a name of its own that leads here (DNS rebinding)."""
        if why := self._server.other_host(request):
            raise ApiError(403, why, code="host")

    def _client(self, request: "web.Request") -> Client:
        return self._clients.of(request.headers.get("Authorization"))

    # -- models -------------------------------------------------------------------------------------------------------

    async def _health(self, request: "web.Request") -> "web.Response":
        status = 503 if self._run.over.is_set() else 200
        said = {"status": "over" if status == 503 else "ok", "in_flight": self._clients.num_in_flight}
        return self._server.said(said, status)

    async def _models(self, request: "web.Request") -> "web.Response":
        self._client(request)
        return self._server.said({"object": "list", "data": [_listed(offer) for offer in self._offers]})

    async def _model(self, request: "web.Request") -> "web.Response":
        self._client(request)
        return self._server.said(_listed(self._offers.find(request.match_info["model"])))

    # -- chat completions ---------------------------------------------------------------------------------------------

    async def _chat(self, request: "web.Request") -> "web.StreamResponse":
        client = self._client(request)
        if request.content_type != JSON:
            raise ApiError(415, f"Content-Type = {request.content_type!r:.80}; {JSON} is needed")
        asked = chat_request(await self._server.body(request))
        offer = self._offers.find(asked.model)
        with self._clients.admitted(client):
            async with self._growing(offer, asked, client) as growing:
                if asked.is_stream:
                    return await self._streamed(request, offer, asked, growing)
                # Waited for and not awaited: whoever is cancelled must not cancel the tree's own result.
                await asyncio.wait([growing.done])
                await self._run.recorded(growing)
                found = _completed(growing, offer, asked)
                return self._server.said(found.as_dict(), headers=self._headers(growing))

    @asynccontextmanager
    async def _growing(self, offer: Offer, asked: ChatRequest, client: Client) -> AsyncIterator[Growing]:
        """The tree of a request. It is stopped where nobody waits for it any more, and charged in any case."""
        limits = self._config.requests
        growing = self._run.begin(offer, lambda uid: planting(offer, asked, limits, uid=uid))
        try:
            yield growing
        finally:
            if not growing.done.done():
                self._run.stop(growing)
            self._clients.charge(client, _num_sampled(growing))

    async def _streamed(
        self, request: "web.Request", offer: Offer, asked: ChatRequest, growing: Growing
    ) -> "web.StreamResponse":
        """The answer as server-sent events. An error behind the first comment is an event too. A client that is gone
        is written to no more."""
        from aiohttp import web

        response = web.StreamResponse(headers={**STREAM_HEADERS, **self._headers(growing)})
        while not (await asyncio.wait({growing.done}, timeout=self._config.progress_s))[0]:
            if not response.prepared:
                await response.prepare(request)
            said = f": progress {growing.num_steps} steps, {growing.num_tokens} tokens\n\n"
            await response.write(said.encode())
        await self._run.recorded(growing)
        events = _events(growing, offer, asked, may_raise=not response.prepared)
        if not response.prepared:
            await response.prepare(request)
        for event in events:
            await response.write(event)
        await response.write_eof()
        return response

    def _headers(self, growing: Growing) -> dict[str, str]:
        """Where the tree of an answer is."""
        named = {"x-ramify-run": str(growing.offer.path), "x-ramify-tree": str(growing.index)}
        link = self._config.tree_link
        return named if link is None else named | {"x-ramify-view": link(growing.offer.path.name, growing.index)}


def _completed(growing: Growing, offer: Offer, asked: ChatRequest) -> Completion:
    """The answer of a tree that has ended. Raises `ApiError` if there is none. Boundary to the format that reads it."""
    answering = growing.planting.prepared.answering
    try:
        return completion(growing.done.result(), answering, model=asked.model, n=asked.n, is_sample=offer.is_sample)
    except ApiError:
        raise
    except Exception as error:
        raise ApiError(500, f"the answer cannot be read: {error_text(error)}", code="unreadable") from error


def _events(growing: Growing, offer: Offer, asked: ChatRequest, *, may_raise: bool) -> list[bytes]:
    """The events of a finished tree: its answer, or why there is none, which may be raised instead."""
    try:
        chunks = list(_completed(growing, offer, asked).chunks(with_usage=asked.wants_usage))
    except ApiError as error:
        if may_raise:
            raise
        chunks = [error.as_dict()]
    return [*map(_event, chunks), b"data: [DONE]\n\n"]


def _num_sampled(growing: Growing) -> int:
    """Tokens sampled for a request: of a finished tree all, otherwise those of its finished steps."""
    if growing.done.done() and growing.done.exception() is None:
        return sum(spend.decode for spend in growing.done.result().spent.values())
    return growing.num_tokens


def _listed(offer: Offer) -> dict[str, Any]:
    return {"id": offer.name, "object": "model", "created": 0, "owned_by": "ramify", "description": offer.title}


def _event(values: Mapping[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(values) + b"\n\n"
