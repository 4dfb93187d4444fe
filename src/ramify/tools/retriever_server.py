"""Retriever server: serves a search index with Search-R1's protocol, for this library, Search-R1's trainer or others.

`POST /retrieve {"queries": [text, …], "topk": k or null, "return_scores": bool}` is answered by `{"result": [[…], …]}`
with one list per query, in the same order. With scores, a list holds `{"document": {…}, "score": s}`. Without scores it
holds the documents alone; the published server fails in this case. A document has `contents` (title, newline, text),
and `id` if the corpus has ids. `GET /health` gives the number of passages. A bad request gets a 400 with the body
`{"error": …}`. Searches run in threads, so a slow query delays no other. The server reads only the index. It binds to
loopback unless told otherwise, and has no authentication; `edge/web_server.py` holds what every server keeps to.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ramify.core.errors import ConfigError
from ramify.edge.daemon_threads import DaemonThreads
from ramify.edge.web_server import WebLimits, WebServer
from ramify.tools.output import valid
from ramify.tools.passages import MAX_PARALLEL, MAX_TOP_K, Hit, Index, Passage

if TYPE_CHECKING:
    from aiohttp import web

USAGE: Final = 'a request is {"queries": [text, …], "topk": k or null, "return_scores": true or false}'


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits(WebLimits):
    """Limits of one request, and of the time to stop the server."""

    max_queries: int = 8192
    """Most queries in a request. Search-R1's trainer sends one request for all rows of a step: 2,560 in its script."""
    max_top_k: int = MAX_TOP_K

    def __post_init__(self) -> None:
        WebLimits.__post_init__(self)
        if min(self.max_queries, self.max_top_k) < 1:
            raise ConfigError(f"impossible limits {self!r}: 1 or more of each")


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
        if not 1 <= top_k <= limits.max_top_k:
            raise ConfigError(f"top_k = {top_k!r}: a page shows 1 to {limits.max_top_k} passages")
        self._index: Final = index
        self._top_k: Final = top_k
        self._limits: Final = limits
        self._threads: Final = DaemonThreads(MAX_PARALLEL)
        self._server: Final = WebServer(
            {("POST", "/retrieve"): self._retrieve, ("GET", "/health"): self._health},
            host=host,
            port=port,
            limits=limits,
            told=lambda _, why: {"error": valid(why)},
            failed="the index could not be searched",
        )

    @property
    def url(self) -> str:
        """Its address. Only valid while it is entered."""
        return self._server.url

    async def __aenter__(self) -> "RetrieverServer":
        await self._server.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Accept no more requests, finish the running ones, and close every connection."""
        await self._server.__aexit__()

    async def _health(self, request: "web.Request") -> "web.Response":
        return self._server.said({"status": "ok", "passages": self._index.num_passages})

    async def _retrieve(self, request: "web.Request") -> "web.Response":
        body = await self._server.body(request)
        try:
            asked = self._checked(msgspec.json.decode(body, type=_Asked))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return self._server.refused(400, f"{error}; {USAGE}")
        top_k = self._top_k if asked.topk is None else asked.topk
        found = await asyncio.gather(*(self._found(query, top_k) for query in asked.queries))
        documents = _scored if asked.return_scores else _unscored
        return self._server.said({"result": [documents(hits) for hits in found]})

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


def _scored(hits: Sequence[Hit]) -> list[dict[str, Any]]:
    return [{"document": _document(hit.passage), "score": hit.score} for hit in hits]


def _unscored(hits: Sequence[Hit]) -> list[dict[str, Any]]:
    return [_document(hit.passage) for hit in hits]


def _document(passage: Passage) -> dict[str, Any]:
    """A passage in Search-R1's format: clients read the first line of `contents` as the title."""
    title = " ".join(passage.title.splitlines())
    contents = {"contents": f"{title}\n{passage.text}"}
    return {"id": passage.uid, **contents} if passage.uid else contents
