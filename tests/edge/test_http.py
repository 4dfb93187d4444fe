"""Requests to a real server that breaks every rule: what each failure is called, and that nothing leaks or hangs."""

import asyncio
import json
import socket
import sys
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.engines.fault_server import (
    Chunked,
    Cut,
    Drip,
    Fault,
    FaultServer,
    Garbage,
    Hang,
    Hangup,
    Late,
    Plan,
    Received,
    Status,
    Twice,
    always,
    first,
    message,
    on_calls,
    until,
)

from ramify.core.errors import ConfigError, EngineError
from ramify.edge.http import MAX_REFUSAL_BYTES, Http, HttpLimits

BODY = b'{"ids": [1, 2, 3]}'
KEY = "sk-very-secret-0123456789"
LIMITS = HttpLimits()


@asynccontextmanager
async def talking(
    plan: Plan = lambda received: None, *, limits: HttpLimits = LIMITS, **options: Any
) -> AsyncIterator[tuple[FaultServer, Http]]:
    """A server and a client of it."""
    async with FaultServer(plan=plan, **options) as server:
        http = Http(server.url, limits=limits, headers={"Authorization": f"Bearer {KEY}"})
        try:
            yield server, http
        finally:
            await http.close()


async def refused(http: Http, *, body: bytes = BODY, deadline_s: float = 5.0) -> EngineError:
    """The error that a request ends with."""
    with pytest.raises(EngineError) as caught:
        await http.post("/generate", body, deadline_s=deadline_s)
    return caught.value


# -- good answers -----------------------------------------------------------------------------------------------------


async def test_a_good_answer_is_its_whole_body_and_headers_go_along() -> None:
    async with talking() as (server, http):
        assert await http.post("/a/b?c=d", BODY, deadline_s=5, headers={"X-Key": "tree 7"}) == BODY
        (received,) = server.received
        assert (received.method, received.path, received.body) == ("POST", "/a/b?c=d", BODY)
        assert received.headers["authorization"] == f"Bearer {KEY}"
        assert received.headers["x-key"] == "tree 7"
        assert received.headers["content-type"] == "application/json"
        assert received.headers["accept-encoding"] == "identity"
        assert await http.get("/health", deadline_s=5) == b""
        assert server.received[1].method == "GET"


async def test_any_status_of_success_is_a_good_answer() -> None:
    async with talking(always(Status(202, b"queued"))) as (_, http):
        assert await http.post("/workers", BODY, deadline_s=5) == b"queued"


async def test_a_body_of_any_length_is_sent_without_a_warning() -> None:
    async with talking() as (server, http):
        body = b"x" * 3_000_000
        assert await http.post("/generate", body, deadline_s=5) == body
        assert server.received[0].headers["content-length"] == "3000000"
        assert server.received[0].headers["content-type"] == "application/json"


@pytest.mark.parametrize("fault", [Chunked(), Late(0.05), Drip(0.0001), Hangup()])
async def test_however_an_answer_comes_it_is_the_same(fault: Fault) -> None:
    async with talking(always(fault)) as (_, http):
        assert await http.post("/generate", BODY, deadline_s=5) == BODY


async def test_connections_are_used_again_while_they_are_young() -> None:
    async with talking(limits=HttpLimits(keepalive_s=0.1)) as (server, http):
        for _ in range(3):
            await http.post("/generate", BODY, deadline_s=5)
        assert server.num_connections == 1
        await until(lambda: server.num_open == 0)
        await http.post("/generate", BODY, deadline_s=5)
        assert server.num_connections == 2


async def test_an_answer_that_comes_twice_is_heard_once() -> None:
    async with talking(first(1, Twice())) as (_, http):
        bodies = [b'{"number": %d}' % number for number in range(4)]
        assert [await http.post("/generate", body, deadline_s=5) for body in bodies] == bodies


async def test_a_server_that_hangs_up_behind_each_answer_costs_at_most_a_try() -> None:
    async with talking(always(Hangup())) as (server, http):
        heard: list[bytes | EngineError] = []
        for number in range(40):
            try:
                heard.append(await http.post("/generate", b"%d" % number, deadline_s=5))
            except EngineError as error:
                heard.append(error)
        faults = [one for one in heard if isinstance(one, EngineError)]
        assert {(fault.reason, fault.is_retryable) for fault in faults} <= {("disconnected", True)}
        assert len(faults) <= 20
        assert all(one in (b"%d" % number, *faults) for number, one in enumerate(heard))
        assert len(server.received) <= 40


async def test_nothing_of_one_answer_is_kept_for_the_next_request() -> None:
    async with talking(first(1, Status(200, b"x", {"Set-Cookie": "session=1"}))) as (server, http):
        for _ in range(2):
            await http.post("/generate", BODY, deadline_s=5)
        assert "cookie" not in server.received[1].headers


# -- one call is one try ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "reason", "is_retryable"),
    [
        (Status(500), "http_500", True),
        (Status(502, b"<html><h1>Bad Gateway</h1></html>"), "http_502", True),
        (Status(408), "http_408", True),
        (Status(425), "http_425", True),
        (Status(400), "http_400", False),
        (Status(401), "http_401", False),
        (Status(404), "http_404", False),
        (Status(413), "http_413", False),
        (Status(422), "http_422", False),
        (Status(302, b"", {"Location": "/elsewhere"}), "http_302", False),
        (Status(307, b"", {"Location": "/elsewhere"}), "http_307", False),
        (Status(429), "busy", True),
        (Status(503), "busy", True),
        (Status(429, b'{"error": {"message": "no money", "code": "insufficient_quota"}}'), "http_429", False),
        (Garbage(), "disconnected", True),
        (Garbage(b"HTTP/1.1 banana\r\n\r\n"), "disconnected", True),
        (Chunked(has_last=False), "disconnected", True),
        (Hang(), "timeout", True),
        (Drip(0.02), "timeout", True),
    ],
    ids=str,
)
async def test_each_failure_has_its_name_and_is_asked_once(fault: Fault, reason: str, is_retryable: bool) -> None:
    async with talking(always(fault)) as (server, http):
        error = await refused(http, deadline_s=0.3)
        assert (error.reason, error.is_retryable) == (reason, is_retryable)
        assert len(server.received) == 1
        assert http.stats.failures == {reason: 1}
        assert (http.stats.num_requests, http.stats.num_failed, http.places.num) == (1, 1, 0)


async def test_a_get_that_nobody_began_to_answer_goes_out_once_more() -> None:
    async with talking(first(1, Cut(0))) as (server, http):
        await http.get("/health", deadline_s=5)
        assert len(server.received) == 2


async def test_an_answer_cut_at_any_byte_is_no_answer() -> None:
    whole = message(BODY)
    async with talking(lambda received: Cut(received.number)) as (server, http):
        for number in range(len(whole)):
            error = await refused(http)
            assert (error.reason, error.is_retryable) == ("disconnected", True), number
        assert await http.post("/generate", BODY, deadline_s=5) == BODY
        assert len(server.received) == len(whole) + 1


@pytest.mark.parametrize("size", [1, 5, 18, 100])
async def test_chunks_without_the_last_one_are_no_answer(size: int) -> None:
    async with talking(first(1, Chunked(size, has_last=False))) as (_, http):
        assert (await refused(http)).reason == "disconnected"
        assert await http.post("/generate", BODY, deadline_s=5) == BODY


async def test_a_server_that_is_not_there_is_unreachable() -> None:
    async with talking() as (server, http):
        await server.down()
        error = await refused(http)
        assert (error.reason, error.is_retryable) == ("unreachable", True)
        await server.up()
        assert await http.post("/generate", BODY, deadline_s=5) == BODY


async def test_a_server_that_takes_no_connection_is_unreachable_and_not_slow(
    unused_backlog: str,
) -> None:
    http = Http(unused_backlog, limits=HttpLimits(connect_s=0.2))
    error = await refused(http)
    assert (error.reason, str(error)) == (
        "unreachable",
        f"unreachable: {unused_backlog}/generate: no connection in 0.2 s",
    )
    await http.close()


@pytest.fixture
async def unused_backlog() -> AsyncIterator[str]:
    """The address of a port whose queue of connections is full."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(listening.getsockname())
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        for one in waiting:
            one.close()


async def test_an_encrypted_connection_to_a_server_that_has_none_is_not_waited_for() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        http = Http(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        error = await refused(http)
        assert (error.reason, error.is_retryable) == ("tls_refused", False)
        await http.close()


# -- deadlines --------------------------------------------------------------------------------------------------------


async def test_bytes_that_drip_do_not_hold_the_total_deadline_off() -> None:
    async with talking(always(Drip(0.01))) as (server, http):
        began = asyncio.get_running_loop().time()
        error = await refused(http, body=b"x" * 2000, deadline_s=0.3)
        assert str(error) == f"timeout: {server.url}/generate: no answer in 0.3 s"
        assert asyncio.get_running_loop().time() - began < 2
        await until(lambda: server.num_given_up == 1)


@pytest.mark.slow
async def test_a_deadline_counts_from_when_the_request_has_its_place() -> None:
    async with talking(always(Late(0.25)), limits=HttpLimits(max_in_flight=1)) as (_, http):
        posts = [http.post("/generate", BODY, deadline_s=0.7) for _ in range(4)]
        assert await asyncio.gather(*posts) == [BODY] * 4


# -- how many at once -------------------------------------------------------------------------------------------------


async def test_no_more_requests_are_in_flight_than_allowed_and_all_are_answered() -> None:
    async with talking(always(Late(0.005)), limits=HttpLimits(max_in_flight=5)) as (server, http):
        bodies = [b"%d" % number for number in range(60)]
        answers = await asyncio.gather(*(http.post("/generate", body, deadline_s=5) for body in bodies))
        assert answers == bodies
        assert server.most_active == 5


async def test_orders_overtake_the_work_in_flight() -> None:
    def plan(received: Received) -> Fault | None:
        return Hang() if received.path == "/generate" else None

    async with talking(plan, limits=HttpLimits(max_in_flight=1)) as (server, http):
        working = [asyncio.create_task(http.post("/generate", BODY, deadline_s=60)) for _ in range(3)]
        await until(lambda: server.num_active == 1)
        assert await http.post_now("/abort", b"{}", deadline_s=1) == b"{}"
        assert await http.get("/health", deadline_s=1) == b""
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)


async def test_a_busy_server_halves_what_is_in_flight_and_good_answers_open_it_again() -> None:
    async with talking(first(8, Status(429)), limits=HttpLimits(max_in_flight=8)) as (_, http):
        crowd = await asyncio.gather(*(http.post("/g", BODY, deadline_s=5) for _ in range(8)), return_exceptions=True)
        assert {type(one) for one in crowd} == {EngineError}
        assert http.places.limit == 4
        for _ in range(40):
            await http.post("/g", BODY, deadline_s=5)
        assert http.places.limit == 8


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7"}, 7.0),
        ({"Retry-After": "0"}, 0.0),
        ({"Retry-After": " 2.5 "}, 2.5),
        ({"Retry-After": "100000"}, 60.0),
        ({"Retry-After": "9" * 400}, 60.0),
        ({"Retry-After": "1e3"}, 1.0),
        ({"Retry-After": ""}, 1.0),
        ({"Retry-After": "-3"}, 1.0),
        ({"Retry-After": "nan"}, 1.0),
        ({"Retry-After": "soon"}, 1.0),
        ({}, 1.0),
        ({"Retry-After": "Sun, 06 Nov 1994 08:49:57 GMT", "Date": "Sun, 06 Nov 1994 08:49:37 GMT"}, 20.0),
        ({"Retry-After": "Sun, 06 Nov 1994 08:49:37 GMT", "Date": "Sun, 06 Nov 1994 08:50:00 GMT"}, 0.0),
        ({"Retry-After": "Sun, 06 Nov 1994 08:49:37 GMT"}, 1.0),
        ({"Retry-After": f"Sun, 06 Nov {10**30} 08:49:37 GMT", "Date": "Sun, 06 Nov 1994 08:49:37 GMT"}, 1.0),
        ({"Retry-After": "Sun, 06 Nov 1994 08:49:37 -0000", "Date": "Sun, 06 Nov 1994 08:49:37 GMT"}, 1.0),
        ({"Retry-After": f"Sun, 06 Nov 1994 08:49:37 +{10**30}", "Date": "Sun, 06 Nov 1994 08:49:37 GMT"}, 1.0),
    ],
)
@pytest.mark.parametrize("status", [429, 503])
async def test_a_busy_server_says_when_to_come_again(status: int, headers: dict[str, str], seconds: float) -> None:
    async with talking(always(Status(status, b"", headers))) as (_, http):
        assert (await refused(http)).retry_after_s == seconds


# -- giving up --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [Hang(), Drip(0.05)])
async def test_a_cancelled_call_closes_its_connection_and_gives_its_place_back(fault: Fault) -> None:
    async with talking(on_calls({0: fault}), limits=HttpLimits(max_in_flight=1)) as (server, http):
        call = asyncio.create_task(http.post("/generate", BODY, deadline_s=60))
        waiting = asyncio.create_task(http.post("/generate", BODY, deadline_s=60))
        await until(lambda: server.num_active == http.places.num_waiting == 1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until(lambda: server.num_given_up == 1)
        assert await waiting == BODY
        assert http.places.num == 0


async def test_a_request_that_waits_for_a_place_can_be_cancelled() -> None:
    async with talking(always(Late(0.1)), limits=HttpLimits(max_in_flight=1)) as (server, http):
        calls = [asyncio.create_task(http.post("/generate", b"%d" % n, deadline_s=5)) for n in range(3)]
        await until(lambda: server.num_active == 1)
        calls[1].cancel()
        assert await asyncio.gather(calls[0], calls[2]) == [b"0", b"2"]
        assert [received.body for received in server.received] == [b"0", b"2"]


async def test_a_call_cancelled_at_any_step_leaves_nothing_behind() -> None:
    async with talking() as (server, http):
        for num_steps in range(30):
            call = asyncio.create_task(http.post("/generate", BODY, deadline_s=5))
            for _ in range(num_steps):
                await asyncio.sleep(0)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            assert http.places.num == 0
        assert await http.post("/generate", BODY, deadline_s=5) == BODY
        await until(lambda: server.num_active == 0)


async def test_nothing_is_asked_after_close_and_what_is_on_its_way_fails() -> None:
    async with talking(always(Hang())) as (server, http):
        call = asyncio.create_task(http.post("/generate", BODY, deadline_s=60))
        await until(lambda: server.num_active == 1)
        await http.close()
        with pytest.raises(EngineError, match="disconnected"):
            await call
        with pytest.raises(EngineError, match="closed") as caught:
            await http.post("/generate", BODY, deadline_s=5)
        assert not caught.value.is_retryable
        await http.close()


# -- bodies -----------------------------------------------------------------------------------------------------------


async def test_a_body_beyond_the_cap_is_given_up() -> None:
    async with talking(limits=HttpLimits(max_body_bytes=100_000)) as (server, http):
        assert len(await http.post("/generate", b"x" * 100_000, deadline_s=5)) == 100_000
        error = await refused(http, body=b"x" * 1_000_000)
        assert (str(error), error.is_retryable) == (
            f"body_too_long: {server.url}/generate: more than 100000 bytes",
            False,
        )
        assert await http.post("/generate", BODY, deadline_s=5) == BODY


async def test_an_error_page_of_any_length_is_told_by_its_beginning() -> None:
    async with talking(always(Status(500, b"x" * 5_000_000)), limits=HttpLimits(max_body_bytes=1000)) as (_, http):
        error = await refused(http)
        assert error.reason == "http_500"
        assert len(str(error)) < 400


@pytest.mark.parametrize("page", [b"<", b"<script ", b"<script>", b'{"a":'])
async def test_an_error_page_of_tags_that_never_end_holds_nobody_up(page: bytes) -> None:
    async with talking(always(Status(500, page * (MAX_REFUSAL_BYTES // len(page))))) as (_, http):
        began = asyncio.get_running_loop().time()
        assert (await refused(http)).reason == "http_500"
        assert asyncio.get_running_loop().time() - began < 2


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b'{"error": {"message": "no such model", "type": "NotFound"}}', "no such model"),
        (b'{"object": "error", "message": "too\\nlong"}', "too long"),
        (b'{"detail": [{"loc": ["body", "n"], "msg": "bad"}]}', '[{"loc": ["body", "n"], "msg": "bad"}]'),
        (b'{"error": "plain"}', "plain"),
        (
            b"<html><head><title>502</title><style>a{b:c}</style></head><body><h1>Bad&Gate</h1></body></html>",
            "502 Bad&Gate",
        ),
        (b"Internal Server Error", "Internal Server Error"),
        (b"\xff\xfe\x00", "��\x00"),
        (b"[" * 60_000, "[" * 300),
        (b"[" * 900 + b"]" * 900, "[" * 300),
        (b"a < b <i>or</i>", "a < b or"),
        (b'{"message": "\\ud800 odd"}', "? odd"),
        (b"", ""),
    ],
)
async def test_what_a_server_says_is_told_in_a_line(body: bytes, told: str) -> None:
    async with talking(always(Status(500, body))) as (server, http):
        assert str(await refused(http)) == f"http_500: {server.url}/generate answered 500: {told}"


# -- what nobody is told, and where nobody is sent --------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault", [Status(401), Status(429), Garbage(), Cut(3), Cut(40), Chunked(has_last=False), Hang(), None], ids=str
)
async def test_no_key_is_in_any_error(fault: Fault | None) -> None:
    def said(received: Received) -> Fault:
        return fault or Status(500, repr(dict(received.headers)).encode())

    async with talking(said) as (_, http):
        error = await refused(http, deadline_s=0.3)
        whole = "".join(traceback.format_exception(error))
        chain = [error.__context__, error.__cause__]
        assert chain == [None, None]
        assert KEY not in whole + repr(error) + repr(error.__dict__)


SPELLED_KEY = 'sk-a/b+c"d\\e_0123456789'
SPELLINGS = [
    json.dumps(SPELLED_KEY),
    json.dumps(SPELLED_KEY).replace("/", "\\/"),
    json.dumps(SPELLED_KEY).replace("+", "\\u002b").replace("/", "\\u002F").replace('\\"', "\\u0022"),
]


@pytest.mark.parametrize("spelling", SPELLINGS)
async def test_a_key_is_struck_out_of_what_a_server_says_however_it_spells_it(spelling: str) -> None:
    body = f'{{"message": {spelling}, "header": "Bearer {spelling[1:]}}}'.encode()
    async with FaultServer(plan=first(1, Status(200, body, {}))) as server:
        http = Http(server.url, headers={"Authorization": f"Bearer {SPELLED_KEY}"})
        told = await http.post("/generate", BODY, deadline_s=5)
        assert json.loads(told) == {"message": "***", "header": "Bearer ***"}
        server.plan = always(Status(400, body))
        assert str(await refused(http)).endswith("answered 400: ***")
        await http.close()


async def test_what_goes_along_with_one_request_is_no_secret() -> None:
    async with talking(always(Status(400, b"request 0/0123456789 is none"))) as (_, http):
        with pytest.raises(EngineError, match="request 0/0123456789 is none"):
            await http.post("/generate", BODY, deadline_s=5, headers={"X-Request-Id": "0/0123456789"})


async def test_a_header_that_cannot_be_sent_is_no_fault_of_the_server() -> None:
    async with talking() as (server, http):
        with pytest.raises(EngineError) as caught:
            await http.post("/generate", BODY, deadline_s=5, headers={"X-Request-Id": "two\r\nlines"})
        assert (caught.value.reason, caught.value.is_retryable) == ("unsendable", False)
        assert (server.received, http.places.num) == ([], 0)


@pytest.mark.parametrize("value", [f"Bearer {KEY}\n", f"{KEY}\0", f"é{KEY}"])
def test_a_header_that_can_never_be_sent_is_refused_and_not_repeated(value: str) -> None:
    with pytest.raises(ConfigError, match="header 'Authorization' cannot be sent") as caught:
        Http("http://127.0.0.1:1", headers={"Authorization": value})
    assert KEY not in str(caught.value)


async def test_no_key_is_in_the_error_of_a_server_that_is_not_there() -> None:
    async with talking() as (server, http):
        await server.down()
        error = await refused(http)
        assert error.__context__ is None
        assert KEY not in "".join(traceback.format_exception(error))


async def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with FaultServer() as proxy, talking() as (server, http):
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        monkeypatch.delenv("no_proxy", raising=False)
        assert await http.post("/generate", BODY, deadline_s=5) == BODY
        assert (len(server.received), len(proxy.received)) == (1, 0)


async def test_redirects_are_not_followed() -> None:
    async with FaultServer() as other, talking(always(Status(307, b"", {"Location": other.url}))) as (server, http):
        error = await refused(http)
        assert str(error) == f"http_307: {server.url}/generate answered 307 (redirects are not followed): "
        assert (len(server.received), len(other.received)) == (1, 0)


# -- before the start -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    [
        *("", "localhost:8000", "ftp://a", "http://", "http://a b", "http://a:99999", "http://a?b", "http://a#b"),
        *("http://:8000", "http://a..b", "http://[::1", f"http://{'a' * 64}.com"),
    ],
)
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="an address such as"):
        Http(address)


def test_a_key_in_an_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigError, match="names a user or a key") as caught:
        Http(f"http://user:{KEY}@127.0.0.1:8000")
    assert KEY not in str(caught.value)


def test_a_slash_at_the_end_of_an_address_is_not_doubled() -> None:
    assert Http("http://127.0.0.1:1/v1/").base_url == "http://127.0.0.1:1/v1"


@pytest.mark.parametrize("field", ["max_in_flight", "max_body_bytes", "connect_s", "keepalive_s"])
def test_impossible_limits_are_refused(field: str) -> None:
    with pytest.raises(ConfigError, match="every value must be above 0"):
        HttpLimits(**{field: 0})


def test_without_aiohttp_the_install_line_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    with pytest.raises(ConfigError, match=r"pip install 'ramify\[http\]'"):
        Http("http://127.0.0.1:1")
