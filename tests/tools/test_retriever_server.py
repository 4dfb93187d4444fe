"""The server of Search-R1's protocol, asked by plain HTTP."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from ramify.core.errors import ConfigError
from ramify.tools.passages import MAX_PARALLEL, Hit, Index, Passage
from ramify.tools.retriever_server import RetrieverServer, ServerLimits
from ramify.tools.search_index import build_index, open_index
from ramify.tools.sqlite_index import memory_index

PASSAGES = [Passage("one two", "A", "a"), Passage("two\ntwo three", "Two\nlines"), Passage("four", "", "c")]
LIMITS = ServerLimits(max_queries=3, max_top_k=4, max_body_bytes=1000)


@asynccontextmanager
async def serving(index: Index | None = None, **options: Any) -> AsyncIterator[tuple[RetrieverServer, Any]]:
    """A server, and a session to ask it with."""
    async with (
        RetrieverServer(index or memory_index(PASSAGES), **options) as server,
        aiohttp.ClientSession() as session,
    ):
        yield server, session


async def asked(body: object, **options: Any) -> tuple[int, Any]:
    """Status and JSON of the answer to one request."""
    data = {"data": body} if isinstance(body, bytes) else {"json": body}
    async with serving(**options) as (server, session), session.post(f"{server.url}/retrieve", **data) as response:
        assert response.content_type == "application/json"
        return response.status, await response.json()


async def test_every_query_gets_its_own_list_in_their_order() -> None:
    status, said = await asked({"queries": ["four", "nothing", "one"], "topk": 1, "return_scores": True})
    assert status == 200
    assert [[hit["document"] for hit in hits] for hits in said["result"]] == [
        [{"id": "c", "contents": "\nfour"}],
        [],
        [{"id": "a", "contents": "A\none two"}],
    ]
    assert all(hit["score"] > 0 for hits in said["result"] for hit in hits)


@pytest.mark.parametrize("queries", [["one"], ["one", "four"], ["one", "four", "two"]])
async def test_without_scores_documents_come_alone_whatever_the_number_of_queries(queries: list[str]) -> None:
    _, scored = await asked({"queries": queries, "topk": 1, "return_scores": True})
    for body in ({"queries": queries, "topk": 1, "return_scores": False}, {"queries": queries, "topk": 1}):
        status, said = await asked(body)
        assert status == 200
        assert said["result"] == [[hit["document"] for hit in hits] for hits in scored["result"]]


async def test_the_first_line_of_contents_is_the_title_whatever_it_holds() -> None:
    _, said = await asked({"queries": ["lines"]})
    assert said["result"] == [[{"contents": "Two lines\ntwo\ntwo three"}]]


async def test_as_many_passages_come_as_are_asked_for_or_as_the_server_was_told() -> None:
    index = memory_index([Passage("same", str(i)) for i in range(9)])
    for top_k, number in ((1, 1), (4, 4), (None, 2)):
        _, said = await asked({"queries": ["same"], "topk": top_k}, index=index, top_k=2)
        assert len(said["result"][0]) == number


async def test_no_query_is_no_list_and_any_text_is_a_query() -> None:
    assert await asked({"queries": []}) == (200, {"result": []})
    assert await asked({"queries": ["", '"; DROP', "\x00 東京"]}) == (200, {"result": [[], [], []]})


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "Input data was truncated; a request is"),
        (b"<html>", "JSON is malformed"),
        (b'{"queries": ["\xff"]}', 'a request is {"queries": [text'),
        (b"[]", "Expected `object`, got `array`"),
        ({}, "Object missing required field `queries`"),
        ({"queries": "one"}, "Expected `array`, got `str` - at `$.queries`"),
        ({"queries": [1]}, "Expected `str`, got `int` - at `$.queries[0]`"),
        ({"queries": ["one"], "topk": "3"}, "at `$.topk`"),
        ({"queries": ["one"], "topk": 0}, "topk = 0; 1 to 4 or null is allowed"),
        ({"queries": ["one"], "topk": 5}, "topk = 5; 1 to 4"),
        ({"queries": ["one"], "topk": True}, "at `$.topk`"),
        ({"queries": ["one"], "return_scores": 1}, "at `$.return_scores`"),
        ({"queries": ["one"] * 4}, "4 queries in one request; at most 3 are allowed"),
    ],
)
async def test_a_bad_request_is_told_what_is_wrong_with_it(body: object, why: str) -> None:
    status, said = await asked(body, limits=LIMITS)
    assert status == 400
    assert why in said["error"]


async def test_a_body_nested_beyond_all_measure_is_refused() -> None:
    status, said = await asked(b'{"queries": ["one"], "more": ' + b"[" * 99_999 + b"]" * 99_999 + b"}")
    assert status == 400
    assert 'a request is {"queries": [text' in said["error"]


async def test_a_body_beyond_the_limit_is_refused() -> None:
    status, said = await asked({"queries": ["x" * 1000]}, limits=LIMITS)
    assert (status, said) == (413, {"error": "the request is longer than 1000 bytes"})


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/retrieve", 405), ("POST", "/", 404)])
async def test_what_is_not_served_is_refused_in_json(method: str, path: str, status: int) -> None:
    async with serving() as (server, session), session.request(method, f"{server.url}{path}", json={}) as response:
        assert response.status == status
        assert "POST /retrieve and GET /health are served" in (await response.json())["error"]


async def test_health_says_how_many_passages_there_are() -> None:
    async with serving() as (server, session), session.get(f"{server.url}/health") as response:
        assert await response.json() == {"status": "ok", "passages": 3}


async def test_many_requests_at_once_get_the_answers_they_would_alone(tmp_path: Path) -> None:
    passages = [Passage(f"word{i % 7} word{i % 5} number{i}", str(i)) for i in range(500)]
    build_index(tmp_path / "index", passages)
    index = open_index(tmp_path / "index")
    queries = [f"word{i % 7} number{i}" for i in range(100)]
    alone = [[f"{h.passage.title}\n{h.passage.text}" for h in index.search(query, 3)] for query in queries]

    async def ask(session: aiohttp.ClientSession, url: str, some: Sequence[str]) -> list[list[str]]:
        async with session.post(f"{url}/retrieve", json={"queries": some, "topk": 3}) as response:
            return [[document["contents"] for document in hits] for hits in (await response.json())["result"]]

    async with serving(index) as (server, session):
        parts = [queries[start : start + 10] for start in range(0, 100, 10)]
        answers = await asyncio.gather(*(ask(session, server.url, part) for part in parts))
    index.close()
    assert [hits for part in answers for hits in part] == alone


async def test_clients_by_the_hundred_some_of_whom_go_away_or_talk_nonsense_are_answered() -> None:
    bodies: list[Any] = [{"json": {"queries": ["four", "two"]}}, {"data": b"{"}, {"json": {"queries": ["one"] * 9}}]

    async with serving(memory_index(PASSAGES)) as (server, session):

        async def ask(number: int) -> int:
            async with session.post(f"{server.url}/retrieve", **bodies[number % 3]) as response:
                return response.status

        async def leave() -> None:
            _, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
            writer.write(b"POST /retrieve HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{")
            await writer.drain()
            writer.close()
            await writer.wait_closed()

        *statuses, _, _ = await asyncio.gather(*map(ask, range(256)), leave(), leave())
    assert statuses == [(200, 400, 200)[number % 3] for number in range(256)]


async def test_a_fault_of_the_index_is_told_to_who_asked_and_to_nobody_else() -> None:
    class Spoilt(Held):
        def search(self, query: str, top_k: int) -> Sequence[Hit]:
            if query == "spoilt":
                raise OSError("the disk is gone")
            return super().search(query, top_k)

    async with serving(Spoilt()) as (server, session):
        for query, status in (("spoilt", 500), ("fine", 200)):
            async with session.post(f"{server.url}/retrieve", json={"queries": [query, "fine"]}) as response:
                assert response.status == status
                said = await response.json()
                if status == 500:
                    assert said == {"error": "the index could not be searched: OSError: the disk is gone"}


class Held:
    """An index that answers when it is told to."""

    num_passages = 1
    is_blocking = True

    def __init__(self) -> None:
        self.asked, self.go_on = threading.Event(), threading.Event()
        self.num_slow = 0

    def search(self, query: str, top_k: int) -> Sequence[Hit]:
        if query == "slow":
            self.num_slow += 1
            self.asked.set()
            assert self.go_on.wait(10)
        return [Hit(PASSAGES[0], 1.0)]

    def close(self) -> None: ...


async def test_a_server_that_stops_finishes_what_is_under_way_and_takes_no_more() -> None:
    held = Held()
    async with serving(held) as (server, session):
        url = server.url
        slow = asyncio.create_task(session.post(f"{url}/retrieve", json={"queries": ["slow"]}))
        await asyncio.to_thread(held.asked.wait, 10)
        stopping = asyncio.create_task(server.__aexit__(None, None, None))
        async with asyncio.timeout(10):
            while True:
                try:
                    (await session.get(f"{url}/health", headers={"Connection": "close"})).release()
                except aiohttp.ClientConnectorError:
                    break
        held.go_on.set()
        assert (await slow).status == 200
        await stopping
        slow.result().release()


async def test_a_query_nobody_waits_for_is_not_searched() -> None:
    held = Held()
    async with serving(held) as (server, session):
        gone = asyncio.create_task(session.post(f"{server.url}/retrieve", json={"queries": ["slow"] * 200}))
        await asyncio.to_thread(held.asked.wait, 10)
        gone.cancel()
        await asyncio.wait({gone})
        async with session.get(f"{server.url}/health") as response:
            assert response.status == 200
        held.go_on.set()
        async with session.post(f"{server.url}/retrieve", json={"queries": ["quick"]}) as response:
            assert response.status == 200
    assert held.num_slow <= MAX_PARALLEL


async def test_an_address_that_cannot_be_had_is_refused() -> None:
    async with serving() as (server, _):
        port = int(server.url.rpartition(":")[2])
        with pytest.raises(ConfigError, match=rf"127\.0\.0\.1:{port} cannot be served at: .*in use"):
            async with RetrieverServer(memory_index(PASSAGES), port=port):
                pass
    with pytest.raises(ConfigError, match="cannot be served at"):
        async with RetrieverServer(memory_index(PASSAGES), host="203.0.113.7"):
            pass


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top_k": 0}, "top_k = 0: a page shows 1 to 100 passages"),
        ({"top_k": 101}, "top_k = 101"),
        ({"port": 70_000}, "port = 70000: allowed are 0"),
    ],
)
def test_impossible_settings_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RetrieverServer(memory_index(PASSAGES), **options)
    with pytest.raises(ConfigError, match="impossible limits"):
        ServerLimits(max_queries=0)


# -- clients that are slow --------------------------------------------------------------------------------------------


SLOW = ServerLimits(header_s=0.5, body_s=0.5, max_connections=20, max_body_bytes=1000, max_held_bytes=2000)
HEADER = b"POST /retrieve HTTP/1.1\r\nHost: x\r\nContent-Length: 19\r\n\r\n"


async def dripped(server: RetrieverServer, said: bytes, *, begin: bytes = b"") -> bytes:
    """What the server answers to one that says a byte every 50 ms until the connection is closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
    answer = asyncio.ensure_future(_heard(reader))
    try:
        writer.write(begin)
        for byte in said:
            if answer.done():
                break
            writer.write(bytes([byte]))
            await asyncio.sleep(0.05)
        return await asyncio.wait_for(answer, 5)
    finally:
        answer.cancel()
        writer.close()


async def _heard(reader: asyncio.StreamReader) -> bytes:
    """All that comes, also before a reset: the server closes while the client still writes."""
    heard = b""
    with suppress(ConnectionError):
        while chunk := await reader.read(65536):
            heard += chunk
    return heard


async def test_a_header_that_comes_byte_by_byte_is_cut_at_its_deadline() -> None:
    async with serving(limits=SLOW) as (server, _):
        began = asyncio.get_running_loop().time()
        assert await dripped(server, HEADER) == b""
        assert asyncio.get_running_loop().time() - began < 2


async def test_a_second_header_on_a_connection_has_the_same_deadline() -> None:
    async with serving(limits=SLOW) as (server, _):
        began = asyncio.get_running_loop().time()
        answer = await dripped(server, HEADER, begin=HEADER + b'{"queries":["one"]}')
        assert answer.startswith(b"HTTP/1.1 200 OK") and answer.count(b"HTTP/1.1") == 1
        assert asyncio.get_running_loop().time() - began < 2


@pytest.mark.slow
async def test_a_body_that_comes_byte_by_byte_is_refused_at_its_deadline() -> None:
    async with serving(limits=SLOW) as (server, _):
        began = asyncio.get_running_loop().time()
        answer = await dripped(server, b" " * 200, begin=HEADER.replace(b"19", b"900"))
        assert answer.startswith(b"HTTP/1.1 408") and b"the body did not come within 0.5 s" in answer
        assert asyncio.get_running_loop().time() - began < 3


@pytest.mark.slow
async def test_clients_without_end_that_are_slow_keep_nobody_else_out() -> None:
    async with serving(limits=SLOW) as (server, session):
        slow = [asyncio.ensure_future(dripped(server, HEADER)) for _ in range(200)]
        await asyncio.sleep(0.1)
        for _ in range(10):
            # A connection of its own: the server may close one that waits in the moment in which it is used again.
            one = {"json": {"queries": ["one"]}, "headers": {"Connection": "close"}}
            async with session.post(f"{server.url}/retrieve", **one) as response:
                assert response.status == 200
        await asyncio.gather(*slow)


@pytest.mark.slow
async def test_bodies_that_are_too_much_together_are_refused() -> None:
    async with serving(limits=replace(SLOW, body_s=3.0)) as (server, session):
        body = b" " * 900
        head = HEADER.replace(b"19", b"990")
        slow = [asyncio.ensure_future(dripped(server, b" " * 20, begin=head + body)) for _ in range(4)]
        answers = await asyncio.gather(*slow)
        assert any(answer.startswith(b"HTTP/1.1 503") and b"ask again" in answer for answer in answers)
        async with session.post(f"{server.url}/retrieve", json={"queries": ["one"]}) as response:
            assert response.status == 200


@pytest.mark.slow
async def test_a_search_takes_as_long_as_it_needs() -> None:
    held = Held()
    async with serving(held, limits=SLOW) as (server, session):
        asking = asyncio.ensure_future(session.post(f"{server.url}/retrieve", json={"queries": ["slow"]}))
        await asyncio.sleep(1.5)
        held.go_on.set()
        assert (await asking).status == 200
