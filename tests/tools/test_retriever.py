"""The client of Search-R1's retriever, against real servers on loopback."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from tests.tools.retrievers import Answer, Asked, answering, echoed, said

from ramify import plugins
from ramify.config.run_config import ToolsConfig
from ramify.core.branch import Branch, Piece
from ramify.core.codec import ByteCodec
from ramify.core.errors import ConfigError, ToolError
from ramify.core.format import ToolAction
from ramify.core.problem import Problem
from ramify.core.segment import Segment, ToolCall, token_array
from ramify.runner.toolbox import Toolbox
from ramify.tools.passages import Passage
from ramify.tools.retriever import Retriever
from ramify.tools.retriever_server import RetrieverServer
from ramify.tools.search import Search
from ramify.tools.sqlite_index import memory_index

PASSAGES = [Passage("one two", "A", "a"), Passage("two\ntwo three", "B", "b"), Passage("four", "", "c")]
PROBLEM = Problem("p", "what?")


@asynccontextmanager
async def asking(answer: Answer = lambda body: said(echoed(body)), **options: Any) -> AsyncIterator[tuple[Any, Asked]]:
    """A tool, and the server that it asks."""
    async with answering(answer) as asked:
        tool = Retriever(asked.url, **options)
        try:
            yield tool, asked
        finally:
            await tool.let_go()


async def test_a_request_is_search_r1s_and_always_wants_scores() -> None:
    async with asking(top_k=2) as (tool, asked):
        result = await tool.call(" who wrote it? ")
    assert asked.bodies == [{"queries": ["who wrote it?"], "topk": 2, "return_scores": True}]
    assert result.text == "Doc 1(Title: T) about who wrote it?\n"
    assert result.metadata == {"hits": [{"title": "T", "score": 1.5}]}


async def test_the_page_is_that_of_a_search_in_the_same_index() -> None:
    index = memory_index(PASSAGES)
    here = await Search(lambda problem: index, top_k=2).open(PROBLEM)
    async with RetrieverServer(index) as server:
        there = Retriever(server.url, top_k=2)
        for query in ("two", "four one", "nothing of it"):
            assert await there.call(query) == await here.call(query)
        await there.let_go()


async def test_calls_of_one_moment_are_one_request_and_each_gets_its_own_list() -> None:
    async with asking() as (tool, asked):
        results = await asyncio.gather(*(tool.call(f"q{i}") for i in range(64)))
    assert asked.queries == [[f"q{i}" for i in range(64)]]
    assert [result.text for result in results] == [f"Doc 1(Title: T) about q{i}\n" for i in range(64)]


async def test_calls_during_a_request_are_the_next_one() -> None:
    began, go_on = asyncio.Event(), asyncio.Event()

    async def slow(body: dict[str, Any]) -> web.Response:
        began.set()
        await go_on.wait()
        return said(echoed(body))

    async with asking(slow, max_queries=2) as (tool, asked):
        first = asyncio.create_task(tool.call("a"))
        await began.wait()
        others = [asyncio.create_task(tool.call(q)) for q in "bcd"]
        await asyncio.sleep(0)
        go_on.set()
        await asyncio.gather(first, *others)
    assert asked.queries == [["a"], ["b", "c"], ["d"]]


async def test_an_empty_query_finds_nothing_and_asks_nobody() -> None:
    async with asking() as (tool, asked):
        assert (await tool.call(" \n")).text == ""
    assert not asked.bodies


async def test_odd_text_is_asked_and_answered() -> None:
    async with asking() as (tool, asked):
        texts = await asyncio.gather(
            *(tool.call(q) for q in ("\x00", "\ud800 x", "東京", "</search>", "{}", "7" * 99_999))
        )
    assert asked.queries[0][:3] == ["\x00", "\ufffd x", "東京"]
    assert texts[2].text == "Doc 1(Title: T) about 東京\n"


@pytest.mark.parametrize(
    ("found", "page"),
    [
        ([], ""),
        ([{"document": {"contents": '"Title"\na\nb', "more": 1}, "score": 3}], 'Doc 1(Title: "Title") a\nb\n'),
        ([{"document": {"contents": "only a title"}}], "Doc 1(Title: only a title) \n"),
        ([{"document": {"contents": "T\nx"}, "score": 1}] * 5, "".join(f"Doc {i}(Title: T) x\n" for i in (1, 2, 3))),
        ([{"id": 7, "contents": "T\nunwrapped"}], "Doc 1(Title: T) unwrapped\n"),
    ],
)
async def test_documents_are_read_as_servers_of_that_protocol_send_them(found: list[Any], page: str) -> None:
    async with asking(lambda body: said([found], extra="ignored")) as (tool, _):
        assert (await tool.call("q")).text == page


# -- faults of the server ---------------------------------------------------------------------------------------------

PAGE = web.Response
BAD = {
    "a page of HTML": (lambda body: PAGE(text="<html>Welcome</html>", content_type="text/html"), "bad_answer"),
    "no JSON": (lambda body: PAGE(body=b"\xff\xfe"), "bad_answer"),
    "nothing": (lambda body: PAGE(body=b""), "bad_answer"),
    "no result": (lambda body: web.json_response({"error": "I am broken"}), "bad_answer"),
    "too few lists": (lambda body: said([]), "bad_answer"),
    "too many lists": (lambda body: said([[], []]), "bad_answer"),
    "no lists": (lambda body: said(["text"]), "bad_answer"),
    "no document": (lambda body: said([[{"score": 1.0}]]), "bad_answer"),
    "no contents": (lambda body: said([[{"document": {"text": "x"}, "score": 1.0}]]), "bad_answer"),
    "contents that are no text": (lambda body: said([[{"document": {"contents": 3}}]]), "bad_answer"),
    "a score that is no number": (lambda body: said([[{"document": {"contents": "x"}, "score": "1"}]]), "bad_answer"),
    "a score that is none": (
        lambda body: said([[{"document": {"contents": "x"}, "score": float("nan")}]]),
        "bad_answer",
    ),
    "its own fault": (lambda body: PAGE(status=500, text="Internal Server Error"), "http_500"),
    "a wrong address": (lambda body: PAGE(status=404, text="Not Found"), "http_404"),
    "a redirect": (lambda body: PAGE(status=302, headers={"Location": "http://127.0.0.1:9/"}), "http_302"),
    "too much to do": (lambda body: PAGE(status=503, headers={"Retry-After": "1"}), "busy"),
}


@pytest.mark.parametrize(("answer", "reason"), BAD.values(), ids=BAD.keys())
async def test_an_answer_that_is_none_is_a_fault_of_the_tool(answer: Answer, reason: str) -> None:
    async with asking(answer) as (tool, asked):
        with pytest.raises(ToolError) as caught:
            await tool.call("q")
    assert caught.value.reason == reason
    assert str(caught.value).startswith(f"{reason}: {asked.url}/retrieve")


async def test_a_server_that_is_not_there_or_hangs_is_a_fault_of_the_tool() -> None:
    async def hanging(body: dict[str, Any]) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    async with asking(hanging, deadline_s=0.05) as (tool, asked):
        with pytest.raises(ToolError, match="timeout: "):
            await tool.call("q")
    tool = Retriever(asked.url)
    with pytest.raises(ToolError, match="unreachable: "):
        await tool.call("q")
    await tool.let_go()


@pytest.mark.parametrize("status", [400, 413, 422, 500])
async def test_a_query_that_spoils_a_request_spoils_only_its_own_call(status: int) -> None:
    def picky(body: dict[str, Any]) -> web.Response:
        return PAGE(status=status) if "poison" in body["queries"] else said(echoed(body))

    async with asking(picky) as (tool, asked):
        queries = [f"q{i}" for i in range(15)]
        queries.insert(6, "poison")
        results = await asyncio.gather(*map(tool.call, queries), return_exceptions=True)
    assert [isinstance(result, ToolError) for result in results] == [query == "poison" for query in queries]
    assert len(asked.bodies) == 1 + 2 * 4


async def test_a_server_that_takes_fewer_queries_is_asked_for_fewer() -> None:
    def small(body: dict[str, Any]) -> web.Response:
        return said(echoed(body)) if len(body["queries"]) <= 3 else PAGE(status=413)

    async with asking(small) as (tool, _):
        results = await asyncio.gather(*(tool.call(f"q{i}") for i in range(10)))
    assert [result.text for result in results] == [f"Doc 1(Title: T) about q{i}\n" for i in range(10)]


async def test_a_dead_server_is_not_asked_about_halves() -> None:
    async with asking(lambda body: PAGE(status=404)) as (tool, asked):
        results = await asyncio.gather(*(tool.call(f"q{i}") for i in range(8)), return_exceptions=True)
    assert all(isinstance(result, ToolError) for result in results)
    assert len(asked.bodies) == 1


def branch() -> Branch:
    return Branch(ByteCodec(), 0, (Piece(0, Segment("prompt", token_array([1]))),))


async def called(tool: Retriever, query: str, **config: Any) -> ToolCall:
    """A call through the toolbox, which closes the tool's connection at its end."""
    box = Toolbox([tool], ToolsConfig(**config), problems={"t": PROBLEM})
    try:
        return await box.call("t", branch(), ToolAction("search", query))
    finally:
        await box.close()


async def test_the_toolbox_tries_again_until_the_server_answers_well() -> None:
    answers = iter([PAGE(status=500), PAGE(text="<html>")])
    async with answering(lambda body: next(answers, None) or said(echoed(body))) as asked:
        call = await called(Retriever(asked.url), "q")
    assert (call.status, call.num_retries, call.result) == ("ok", 2, "Doc 1(Title: T) about q\n")


async def test_a_fault_that_stays_is_told_to_the_model() -> None:
    async with answering(lambda body: PAGE(status=500, text="no memory")) as asked:
        call = await called(Retriever(asked.url), "q", max_retries=1)
    assert (call.status, call.num_retries) == ("crashed", 1)
    assert "answered 500: no memory" in call.result
    assert len(asked.bodies) == 2


async def test_a_call_that_is_cut_off_ends_its_request() -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def hanging(body: dict[str, Any]) -> web.Response:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError

    async with asking(hanging) as (tool, _):
        call = asyncio.create_task(tool.call("q"))
        await began.wait()
        call.cancel()
        async with asyncio.timeout(5):
            await ended.wait()


# -- as a plug-in -----------------------------------------------------------------------------------------------------


async def test_it_may_be_used_again_after_it_was_let_go_of() -> None:
    async with asking() as (tool, asked):
        for _ in range(2):
            assert (await tool.call("q")).status == "ok"
            await tool.let_go()
            await tool.let_go()
    assert len(asked.bodies) == 2


@pytest.mark.parametrize("end", ["", "/", "/retrieve", "/retrieve/"])
async def test_an_address_may_be_that_of_search_r1s_script(end: str) -> None:
    async with answering(lambda body: said(echoed(body))) as asked:
        tool = plugins.build("tool", "retriever", base_url=f"{asked.url}{end}", name="look_up")
        assert (tool.name, tool.branching) == ("look_up", "share")
        assert (await tool.call("q")).status == "ok"
        await tool.let_go()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top_k": 0}, "top_k = 0: a page shows 1 to 100 passages"),
        ({"max_queries": 0}, "max_queries = 0"),
        ({"deadline_s": 0}, "deadline_s = 0"),
        ({"deadline_s": float("nan")}, "deadline_s = nan"),
        ({"window_s": -1}, "window_s = -1"),
        ({"page": "numberd"}, "page = 'numberd': no such style; did you mean 'numbered'"),
        ({"name": "my search"}, "got 'my search'"),
        ({"base_url": "127.0.0.1:8000"}, "base_url = '127.0.0.1:8000': an address such as"),
        ({"topk": 3}, "unknown key 'topk'; did you mean 'top_k'"),
    ],
)
def test_wrong_options_are_refused_before_anything_starts(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plugins.build("tool", "retriever", **{"base_url": "http://127.0.0.1:1", **options})
    assert message in str(caught.value)
