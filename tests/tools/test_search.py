import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify import plugins
from ramify.core.errors import ConfigError
from ramify.core.problem import Problem
from ramify.core.tool import ToolResult
from ramify.testing.clock import run_virtual
from ramify.tools.output import made_safe
from ramify.tools.passages import Hit, Index, Passage
from ramify.tools.search import PAGES, Search, joined_page, numbered_page
from ramify.tools.search_index import build_index
from ramify.tools.sqlite_index import memory_index

PASSAGES = [Passage("one two", "A"), Passage("two two three", "B"), Passage("four", "C"), Passage("four two two")]
INDEX = memory_index(PASSAGES)
HITS = [Hit(Passage("one two", "A"), 2.0), Hit(Passage("four\nfive"), 1.0)]
PROBLEM = Problem("p", "what?")


def found(tool: Search, query: str, problem: Problem = PROBLEM) -> ToolResult:
    async def main() -> ToolResult:
        session = await tool.open(problem)
        return await session.call(query)

    return run_virtual(main())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    build_index(tmp_path / "index", PASSAGES)
    return tmp_path / "index"


def test_a_numbered_page_is_that_of_search_r1() -> None:
    assert numbered_page(HITS) == "Doc 1(Title: A) one two\nDoc 2(Title: ) four\nfive\n"
    assert joined_page(HITS) == "one two ; four\nfive"
    assert {page([]) for page in PAGES.values()} == {""}


def test_a_result_is_the_page_and_says_what_was_found() -> None:
    result = found(Search(lambda problem: INDEX), "three two")
    assert result.text == "Doc 1(Title: B) two two three\nDoc 2(Title: ) four two two\nDoc 3(Title: A) one two\n"
    assert result.status == "ok"
    assert [hit["title"] for hit in result.metadata["hits"]] == ["B", "", "A"]
    assert made_safe(result, max_bytes=4096) == result


@pytest.mark.parametrize("query", ["", "?!", "nothing of it", "\x00"])
def test_a_query_that_finds_nothing_is_no_error(query: str) -> None:
    assert found(Search(lambda problem: INDEX), query) == ToolResult("", metadata={"hits": []})


def test_every_problem_may_have_an_index_of_its_own() -> None:
    indexes = {name: memory_index([Passage(f"about {name}")]) for name in "ab"}
    tool = Search(lambda problem: indexes[problem.public["world"]], page="joined")
    for name in "ab":
        assert found(tool, "about", Problem(name, "what?", {"world": name})).text == f"about {name}"


def test_a_configuration_names_the_tool_by_plain_values(path: Path) -> None:
    tool = plugins.build("tool", "search", index=str(path), top_k=1, page="joined", name="look_up")
    assert (tool.name, tool.branching) == ("look_up", "share")
    assert found(tool, "four").text == "four"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top_k": 0}, "top_k = 0: a page shows 1 to 100 passages"),
        ({"top_k": 1 << 70}, "a page shows 1 to 100 passages"),
        ({"page": "numberd"}, "page = 'numberd': no such style; did you mean 'numbered'"),
        ({"name": "my search"}, "got 'my search'"),
        ({"index": "nowhere"}, "there is no search index 'nowhere'"),
        ({"topk": 3}, "unknown key 'topk'; did you mean 'top_k'"),
    ],
)
def test_wrong_options_are_refused_before_anything_starts(path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plugins.build("tool", "search", **{"index": str(path), **options})
    assert message in str(caught.value)


class Slow:
    """An index on a slow disk."""

    num_passages = 1
    is_blocking = True

    def search(self, query: str, top_k: int) -> Sequence[Hit]:
        time.sleep(0.2)
        return HITS

    def close(self) -> None: ...


def test_a_slow_index_delays_nobody_else() -> None:
    slow: Index = Slow()

    async def main() -> list[str]:
        order: list[str] = []
        session = await Search(lambda problem: slow).open(PROBLEM)

        async def search() -> None:
            await session.call("x")
            order.append("search")

        async def other() -> None:
            for _ in range(100):
                await asyncio.sleep(0)
            order.append("other")

        await asyncio.gather(search(), other())
        return order

    assert asyncio.run(main()) == ["other", "search"]


def test_an_index_on_disk_is_asked_by_many_branches_at_once(path: Path) -> None:
    async def main() -> set[str]:
        session = await Search(str(path)).open(PROBLEM)
        assert await session.fork() is session
        results = await asyncio.gather(*(session.call("two four") for _ in range(100)))
        await session.close()
        return {result.text for result in results}

    (text,) = asyncio.run(main())
    assert text.startswith("Doc 1(Title: ) four two two\n")


@given(st.text(st.characters()))
def test_any_text_is_answered(query: str) -> None:
    result = found(Search(lambda problem: INDEX), query)
    assert result.status == "ok"
    result.text.encode()
