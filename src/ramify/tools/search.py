"""Search: shows passages of an index to the model as text. It is stateless, so branches share a session.

Owns the text of a page of hits. A query without words or without hits gives an empty result and no error. An index on
disk is searched in a thread, so a slow query delays nobody.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, Literal

from ramify.core.errors import ConfigError, nearest
from ramify.core.problem import Problem
from ramify.core.tool import Branching, ToolResult, text_schema
from ramify.edge.daemon_threads import DaemonThreads
from ramify.edge.user_calls import ThreadWatch, returned
from ramify.tools.passages import MAX_PARALLEL, MAX_TOP_K, Hit, Index
from ramify.tools.search_index import open_index

PageStyle = Literal["numbered", "joined"]

_THREADS: Final = DaemonThreads(MAX_PARALLEL)


def numbered_page(hits: Sequence[Hit]) -> str:
    """One line per hit: `Doc 1(Title: …) text` (Search-R1, infer.py `_passages2string`)."""
    return "".join(f"Doc {i}(Title: {hit.passage.title}) {hit.passage.text}\n" for i, hit in enumerate(hits, 1))


def joined_page(hits: Sequence[Hit]) -> str:
    """Only the texts, with ` ; ` between them."""
    return " ; ".join(hit.passage.text for hit in hits)


PAGES: Final[Mapping[str, Callable[[Sequence[Hit]], str]]] = {"numbered": numbered_page, "joined": joined_page}
"""Style -> function that turns hits, best first, into the text for the model."""


def checked_page(page: str, *, top_k: int, name: str) -> Callable[[Sequence[Hit]], str]:
    """The function that shows hits with these options. Raises `ConfigError` for invalid options."""
    if not 1 <= top_k <= MAX_TOP_K:
        raise ConfigError(f"top_k = {top_k!r}: a page shows 1 to {MAX_TOP_K} passages")
    if page not in PAGES:
        raise ConfigError(f"page = {page!r}: no such style; {nearest(page, PAGES)}")
    if not name.isidentifier():
        raise ConfigError(f"a tool's name must be an identifier, so that a format can call it; got {name!r}")
    return PAGES[page]


def page_of(hits: Sequence[Hit], page: Callable[[Sequence[Hit]], str]) -> ToolResult:
    """Hits as the result of a call: the page as text, and the passages' titles, scores and ids as metadata."""
    found = [
        {"title": hit.passage.title, "score": hit.score, **({"id": hit.passage.uid} if hit.passage.uid else {})}
        for hit in hits
    ]
    return ToolResult(page(hits), metadata={"hits": found})


class Search:
    """Search one index for all problems, or an index of each problem's own."""

    branching: Branching = "share"

    def __init__(
        self,
        index: str | Path | Callable[[Problem], Index],
        *,
        top_k: int = 3,
        page: PageStyle = "numbered",
        name: str = "search",
    ) -> None:
        """An index on disk is opened here. Raises `ConfigError` if it cannot be used.

        - `index`: the path that `ramify index` or `build_index` wrote; in Python also a function from the problem to
          its index.
        - `top_k`: passages that a search shows (Search-R1: `retriever.topk`).
        - `page`: how passages are shown: numbered and with titles (Search-R1), or their texts alone with ` ; ` between.
        """
        self._page: Final = checked_page(page, top_k=top_k, name=name)
        self.name = name
        self.schema: Final = text_schema(name, "Find passages about some words.", parameter="query")
        self._index_of = index if callable(index) else _always(open_index(index))
        self._top_k: Final = top_k

    async def open(self, problem: Problem) -> "SearchSession":
        return SearchSession(self._index_of(problem), self._top_k, self._page)


@dataclass(frozen=True, slots=True)
class SearchSession:
    """A view of an index. It has nothing to close."""

    index: Index
    top_k: int
    page: Callable[[Sequence[Hit]], str]

    async def call(self, arguments: str) -> ToolResult:
        """Search for the words of `arguments`."""
        if self.index.is_blocking:
            watch = ThreadWatch()
            hits = await returned(partial(self.index.search, arguments, self.top_k), _THREADS, watch)
            return replace(page_of(hits, self.page), took_s=watch.took_s)
        return page_of(self.index.search(arguments, self.top_k), self.page)

    async def fork(self) -> "SearchSession":
        return self

    async def close(self) -> None:
        """The index outlives its sessions."""


def _always(index: Index) -> Callable[[Problem], Index]:
    return lambda problem: index
