"""Retriever: search through a server with Search-R1's protocol. Queries of many branches share a request.

Owns the wire format: `POST /retrieve {"queries": [...], "topk": k, "return_scores": true}`, answered by `{"result":
[...]}` with one list per query, in the same order. Requests always ask for scores: without them the published server
fails, or gives wrong answers to two queries. Calls are batched (`Together`) and each gets its own list. Any other
answer, or none, is a `ToolError`: the toolbox retries, then tells the model. The tool is stateless, so branches share
the connection, which is closed at the end of a run. The seconds of a call are those of the request that its query was
in (`edge/exchange_watch.py`), without the wait for other requests.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from ramify.core.errors import ConfigError, EngineError, ToolError
from ramify.core.problem import Problem
from ramify.core.tool import Branching, ToolResult, text_schema
from ramify.edge.exchange_watch import ExchangeWatch
from ramify.edge.http import Http, HttpLimits
from ramify.tools.output import valid
from ramify.tools.passages import Hit, Passage
from ramify.tools.search import PageStyle, checked_page, page_of
from ramify.tools.together import Together

PATH: Final = "/retrieve"
SPOILT: Final = frozenset({"http_400", "http_413", "http_422", "http_500"})
"""If a request fails with one of these, one query may be bad or there may be too many: each half is then asked
separately. No query is sent again in the same batch."""


class _Document(msgspec.Struct):
    contents: str
    id: str | int | None = None


class _Found(msgspec.Struct):
    """A document and its score, or the document itself from servers without scores."""

    document: _Document | None = None
    score: float | None = None
    contents: str | None = None
    id: str | int | None = None


class _Answer(msgspec.Struct):
    result: list[list[_Found]]


@dataclass(frozen=True, slots=True)
class _Listed:
    """The hits of a query, and the seconds that the server took for the request it was in."""

    hits: Sequence[Hit]
    took_s: float | None


class Retriever:
    """Search through the server at `base_url`. The tool is its own session."""

    branching: Branching = "share"

    def __init__(
        self,
        base_url: str,
        *,
        top_k: int = 3,
        page: PageStyle = "numbered",
        name: str = "search",
        deadline_s: float = 60.0,
        window_s: float = 0.005,
        max_queries: int = 512,
    ) -> None:
        """Raises `ConfigError`. The server is not contacted before the first call.

        - `base_url`: address of the server; it may end in `/retrieve`, as Search-R1's `retriever.url` does.
        - `top_k`: passages that a search shows (Search-R1: `retriever.topk`).
        - `page`: how passages are shown: numbered and with titles (Search-R1), or their texts alone with ` ; ` between.
        - `deadline_s`: timeout of one request: half of `tools.deadline_s`, so that a call that waited for a hanging
          request still has time for its own.
        - `window_s`: how long the first query of a request waits for others.
        - `max_queries`: most queries in one request (the published server: `retrieval_batch_size`).
        """
        self._page: Final = checked_page(page, top_k=top_k, name=name)
        if max_queries < 1:
            raise ConfigError(f"max_queries = {max_queries!r}: it must be 1 or more")
        if not deadline_s > 0 or not window_s >= 0:
            raise ConfigError(f"deadline_s = {deadline_s!r}, window_s = {window_s!r}: above 0, and 0 or more")
        self.name = name
        self.schema: Final = text_schema(name, "Find passages about some words.", parameter="query")
        self._base_url: Final = base_url.rstrip("/").removesuffix(PATH)
        self._top_k: Final = top_k
        self._deadline_s: Final = deadline_s
        self._http = self._connection()
        self._together = Together[str, _Listed](self._lists, window_s=window_s, max_questions=max_queries)

    async def open(self, problem: Problem) -> "Retriever":
        return self

    async def call(self, arguments: str) -> ToolResult:
        """Passages about `arguments`; blank text finds nothing. Raises `ToolError` if the server fails."""
        query = valid(arguments).strip()
        if not query:
            return page_of((), self._page)
        listed = await self._together.answer(query)
        return replace(page_of(listed.hits, self._page), took_s=listed.took_s)

    async def fork(self) -> "Retriever":
        return self

    async def close(self) -> None:
        """The connection outlives its sessions."""

    async def let_go(self) -> None:
        """Close the connection; a later call opens another."""
        await self._together.close()
        http, self._http = self._http, self._connection()
        await http.close()

    def _connection(self) -> Http:
        return Http(self._base_url, limits=HttpLimits(max_in_flight=1), is_watched=True)

    async def _lists(self, queries: Sequence[str]) -> Sequence[_Listed | Exception]:
        """The hits of each query, or the error instead."""
        try:
            return await self._asked(queries)
        except EngineError as error:
            if error.reason in SPOILT and len(queries) > 1:
                half = len(queries) // 2
                return [*await self._lists(queries[:half]), *await self._lists(queries[half:])]
            return [ToolError(error.reason, str(error).removeprefix(f"{error.reason}: "))] * len(queries)

    async def _asked(self, queries: Sequence[str]) -> Sequence[_Listed]:
        """Send one request. Raises `EngineError`, or `ToolError` for an invalid answer."""
        asked = {"queries": queries, "topk": self._top_k, "return_scores": True}
        watch = ExchangeWatch()
        body = await self._http.post(PATH, msgspec.json.encode(asked), deadline_s=self._deadline_s, watch=watch)
        try:
            result = msgspec.json.decode(body, type=_Answer).result
            if len(result) != len(queries):
                raise msgspec.ValidationError(f"{len(result)} lists for {len(queries)} queries")
            return [_Listed([_hit(found) for found in each[: self._top_k]], watch.took_s) for each in result]
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            began = body[:60].decode("utf-8", errors="replace")
            raise ToolError("bad_answer", f"{self._base_url}{PATH} answered {began!r}: {error}") from None


def _hit(found: _Found) -> Hit:
    """The hit of a found document. The first line of `contents` is the title and the rest is the text, as in
    Search-R1."""
    document = found.document
    if document is None and found.contents is not None:
        document = _Document(found.contents, found.id)
    if document is None:
        raise msgspec.ValidationError("a document without `contents`")
    title, _, text = document.contents.partition("\n")
    return Hit(Passage(text, title, "" if document.id is None else str(document.id)), found.score)
