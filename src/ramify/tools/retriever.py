"""Retriever: search through a server with Search-R1's protocol; queries of many branches share a request.

Owns the wire format: `POST /retrieve {"queries": [...], "topk": k, "return_scores": true}`, answered by `{"result":
[...]}` with a list a query in their order. Requests always ask for scores: without
them the published server fails, or answers two queries wrongly. Calls are batched (`Together`) and each gets its own
list. Any other answer, or none, is a `ToolError`: the toolbox retries, then tells the model. The tool is stateless, so
branches share the connection, which is closed at the end of a run.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from ramify.core.errors import ConfigError, EngineError, ToolError
from ramify.core.problem import Problem
from ramify.core.tool import Branching, ToolResult, text_schema
from ramify.edge.http import Http, HttpLimits
from ramify.tools.output import valid
from ramify.tools.passages import Hit, Passage
from ramify.tools.search import PageStyle, checked_page, page_of
from ramify.tools.together import Together

PATH: Final = "/retrieve"
SPOILT: Final = frozenset({"http_400", "http_413", "http_422", "http_500"})
"""A request refused so may hold one query that spoils it for the others, or too many: its halves are asked by
themselves. No query is sent again in the company it had."""


class _Document(msgspec.Struct):
    contents: str
    id: str | int | None = None


class _Found(msgspec.Struct):
    """A document and its score, or, from servers that know no scores, the document itself."""

    document: _Document | None = None
    score: float | None = None
    contents: str | None = None
    id: str | int | None = None


class _Answer(msgspec.Struct):
    result: list[list[_Found]]


class Retriever:
    """Search by the server at `base_url`. The tool is its own session."""

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
        """`base_url` may end in `/retrieve`, as Search-R1's `retriever.url` does; `top_k` is its `retriever.topk`.

        `deadline_s` is of one request: half of `tools.deadline_s`, so that a call which waited behind one that hangs
        still has its own. `window_s`: how long the first query waits for others. `max_queries` of one request: the
        published server's `retrieval_batch_size`. Raises `ConfigError`; the server is not asked before the first call.
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
        self._together = Together[str, Sequence[Hit]](self._lists, window_s=window_s, max_questions=max_queries)

    async def open(self, problem: Problem) -> "Retriever":
        return self

    async def call(self, arguments: str) -> ToolResult:
        """Passages about `arguments`; blank text finds nothing. Raises `ToolError` where the server is at fault."""
        query = valid(arguments).strip()
        return page_of(await self._together.answer(query) if query else (), self._page)

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
        return Http(self._base_url, limits=HttpLimits(max_in_flight=1))

    async def _lists(self, queries: Sequence[str]) -> Sequence[Sequence[Hit] | Exception]:
        """What was found for each query, or why it is not known."""
        try:
            return await self._asked(queries)
        except EngineError as error:
            if error.reason in SPOILT and len(queries) > 1:
                half = len(queries) // 2
                return [*await self._lists(queries[:half]), *await self._lists(queries[half:])]
            return [ToolError(error.reason, str(error).removeprefix(f"{error.reason}: "))] * len(queries)

    async def _asked(self, queries: Sequence[str]) -> Sequence[Sequence[Hit]]:
        """One request. Raises `EngineError`, or `ToolError` for an answer that cannot be used."""
        asked = {"queries": queries, "topk": self._top_k, "return_scores": True}
        body = await self._http.post(PATH, msgspec.json.encode(asked), deadline_s=self._deadline_s)
        try:
            result = msgspec.json.decode(body, type=_Answer).result
            if len(result) != len(queries):
                raise msgspec.ValidationError(f"{len(result)} lists for {len(queries)} queries")
            return [[_hit(found) for found in each[: self._top_k]] for each in result]
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            began = body[:60].decode("utf-8", errors="replace")
            raise ToolError("bad_answer", f"{self._base_url}{PATH} answered {began!r}: {error}") from None


def _hit(found: _Found) -> Hit:
    """What was found. Its first line is the title, the others are the text, as Search-R1 reads it."""
    document = found.document
    if document is None and found.contents is not None:
        document = _Document(found.contents, found.id)
    if document is None:
        raise msgspec.ValidationError("a document without `contents`")
    title, _, text = document.contents.partition("\n")
    return Hit(Passage(text, title, "" if document.id is None else str(document.id)), found.score)
