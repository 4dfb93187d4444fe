"""The server of the viewer: who may ask, what is sent, and what happens when files or clients misbehave."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.view.followed import begun

from ramify.core.codec import ByteCodec
from ramify.core.problem import Problem
from ramify.store.recording import opened
from ramify.store.store import FolderStore
from ramify.view.documents import Documents
from ramify.view.loose_run import LooseRun
from ramify.view.server import ViewServer

TOKEN = "t" * 24


@asynccontextmanager
async def serving(*paths: Path) -> AsyncIterator[tuple[str, aiohttp.ClientSession]]:
    """A server of runs, and a client of it."""
    async with ViewServer(Documents.open(paths), token=TOKEN) as server, aiohttp.ClientSession() as client:
        yield server.url, client


async def asked(client: aiohttp.ClientSession, url: str, method: str = "GET", **headers: str) -> tuple[int, Any]:
    async with client.request(method, url, headers=headers) as answer:
        return answer.status, await answer.json()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    begun(tmp_path / "run").close()
    return tmp_path / "run"


async def test_the_page_and_its_documents_are_sent_with_headers_that_shut_others_out(run: Path):
    async with serving(run) as (url, client), client.get(url) as answer:
        assert answer.status == 200
        assert answer.content_type == "text/html"
        said = answer.headers
        assert "frame-ancestors 'none'" in said["Content-Security-Policy"]
        assert said["Cross-Origin-Resource-Policy"] == "same-origin"
        assert said["X-Content-Type-Options"] == "nosniff"
        assert said["Cache-Control"] == "no-store"
        assert "Access-Control-Allow-Origin" not in said
        status, index = await asked(client, f"{url}documents/index")
        assert (status, index["runs"]) == (200, [{"id": 0, "name": str(run)}])


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        ({"Host": "evil.example"}, "the request is for the host 'evil.example'"),
        ({"Host": "127.0.0.1"}, "the request is for the host '127.0.0.1'"),
        ({"Host": "127.0.0.1.evil.example:80"}, "the request is for the host"),
        ({"Origin": "http://evil.example"}, "the request comes from the page 'http://evil.example'"),
        ({"Origin": "null"}, "the request comes from the page 'null'"),
        ({"Origin": "http://localhost:1"}, "the request comes from the page 'http://localhost:1'"),
    ],
)
async def test_another_host_or_page_is_refused(run: Path, headers: dict[str, str], why: str):
    async with serving(run) as (url, client):
        for part in ("", "documents/index", "changes", "search?run=0&text=a"):
            status, said = await asked(client, f"{url}{part}", **headers)
            assert status == 403
            assert said["error"].startswith(why)


async def test_a_wrong_token_is_refused_and_never_told(run: Path):
    async with serving(run) as (url, client):
        for path in ("wrong/", "wrong/documents/index", f"{TOKEN}x/changes", f"{TOKEN[:-1]}/", "é/"):
            status, said = await asked(client, url.replace(f"{TOKEN}/", path))
            assert status == 403
            assert TOKEN not in json.dumps(said)
        status, said = await asked(client, url.replace(f"{TOKEN}/", ""))
        assert status == 404
        assert TOKEN not in json.dumps(said)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_nothing_can_be_changed(run: Path, method: str):
    async with serving(run) as (url, client):
        status, _ = await asked(client, f"{url}documents/index", method)
        assert status == 405


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("run/7", 404),
        ("run/0/tree/99", 404),
        ("run/0/tree/-1", 404),
        ("run/0/tree/0/tokens/5", 404),
        ("../../../etc/passwd", 404),
        ("run/0/../../header.copy", 404),
        ("run/" + "9" * 40, 404),
    ],
)
async def test_a_document_that_is_not_there_is_told(run: Path, name: str, status: int):
    async with serving(run) as (url, client):
        found, said = await asked(client, f"{url}documents/{name}")
        assert found == status
        assert said["error"]


@pytest.mark.parametrize("query", ["", "?run=0", "?text=a", "?run=x&text=a", "?run=0&text=/(/"])
async def test_a_search_that_cannot_be_done_says_why(run: Path, query: str):
    async with serving(run) as (url, client):
        status, said = await asked(client, f"{url}search{query}")
        assert status == 409
        assert said["error"]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FolderStore]:
    found = begun(tmp_path / "run")
    yield found
    found.close()


async def test_changes_come_behind_the_one_that_was_seen_last(store: FolderStore):
    async with serving(store.path) as (url, client):
        async with client.get(f"{url}changes") as stream:
            assert stream.content_type == "text/event-stream"
            grow(store)
            number, change = await next_event(stream)
            while not change["trees"]:  # the server found the run: it grows
                number, change = await next_event(stream)
            assert change == {"run": 0, "trees": [0]}
        async with client.get(f"{url}changes", headers={"Last-Event-ID": str(number - 1)}) as stream:
            assert await next_event(stream) == (number, change)
        for odd in ("x", "-1", "9" * 30):
            async with client.get(f"{url}changes", headers={"Last-Event-ID": odd}) as stream:
                assert stream.status == 200


class Broken(LooseRun):
    """A run at which nobody can look."""

    def look(self) -> set[int]:
        raise MemoryError("no room")


async def test_a_viewer_that_can_follow_no_longer_says_so():
    async with ViewServer(Documents([Broken("broken", {})])) as server, aiohttp.ClientSession() as client:
        async with asyncio.timeout(10):
            status, said = await asked(client, f"{server.url}documents/run/0")
            while status == 200:
                status, said = await asked(client, f"{server.url}documents/run/0")
    assert status == 409
    assert "the viewer follows its runs no longer" in said["error"]
    assert "no room" in said["error"]


def grow(store: FolderStore) -> None:
    """Open one tree."""
    store.append(opened(0, Problem("u", "q"), prompt=[], seed=1, codec=ByteCodec()))
    store.sync()


async def next_event(stream: aiohttp.ClientResponse) -> tuple[int, dict[str, Any]]:
    """Number and data of the next event."""
    number = -1
    async with asyncio.timeout(10):
        async for raw in stream.content:
            line = raw.decode().strip()
            if line.startswith("id: "):
                number = int(line[4:])
            if line.startswith("data: "):
                return number, json.loads(line[6:])
    raise AssertionError("the stream ended")
