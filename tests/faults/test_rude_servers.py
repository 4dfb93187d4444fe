"""Servers that break HTTP on purpose, byte by byte: every answer has a name, in time, and nothing of them is kept."""

import asyncio
import gzip
import json
import random
import shutil
import socket
import ssl
import struct
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.engines.endpoint import Endpoint, said
from tests.engines.fault_server import Chunked, Fault, FaultServer, Garbage, Late, Status, always, message, until

from ramify.core.errors import EngineError
from ramify.edge.http import Http, HttpLimits

BODY = b'{"ids": [1, 2, 3]}'
SMALL = HttpLimits(max_body_bytes=100_000, connect_s=0.3)
OK = b"HTTP/1.1 200 Said\r\n"
PACKED = gzip.compress(BODY)
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n7\r\n%b\r\nb;a=b\r\n%b\r\n0\r\nX: y\r\n\r\n" % (BODY[:7], BODY[7:])

Peer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def rude(peer: Peer, *, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """The port of a server that lets `peer` do as it likes with each connection."""

    async def met(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(asyncio.current_task())
        try:
            await peer(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    connections: list[Any] = []
    async with await asyncio.start_server(met, host, 0, ssl=tls) as server:
        yield server.sockets[0].getsockname()[1]
        await asyncio.gather(*connections)


def sending(*parts: bytes, then: Callable[[asyncio.StreamWriter], None] = lambda writer: None) -> Peer:
    """Hear a request and answer it so; then hang until the client goes."""

    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(BODY)
        for part in parts:
            writer.write(part)
            await writer.drain()
        then(writer)
        await reader.read()

    return peer


def endless(begin: bytes, part: bytes) -> Peer:
    """`begin`, then `part` for as long as the client listens."""

    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(BODY)
        writer.write(begin)
        while True:
            writer.write(part * 10_000)
            await writer.drain()

    return peer


def reset(writer: asyncio.StreamWriter) -> None:
    """End the connection by a reset, as a server that was killed does."""
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def asked(peer: Peer, *, deadline_s: float = 5.0) -> bytes | EngineError:
    """What comes of one request."""
    async with rude(peer) as port:
        http = Http(f"http://127.0.0.1:{port}", limits=SMALL)
        try:
            return await http.post("/generate", BODY, deadline_s=deadline_s)
        except EngineError as error:
            return error
        finally:
            assert http.places.num == 0
            await http.close()


# -- answers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + message(BODY),
        b"HTTP/1.1 100 Continue\r\n\r\n" * 3 + message(BODY),
        message(BODY) + b"HTTP/1.1 200 Said\r\nContent-Length: 3\r\n\r\nbad",
        OK + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%b" % (len(PACKED), PACKED),
    ],
    ids=["hints", "continue", "second", "gzip"],
)
async def test_what_is_around_an_answer_does_not_change_it(answer: bytes) -> None:
    assert await asked(sending(answer)) == BODY


async def test_an_answer_without_a_body_is_an_empty_one() -> None:
    assert await asked(sending(b"HTTP/1.1 204 None\r\n\r\n")) == b""


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (b"Content-Length: -5\r\n", "disconnected"),
        (b"Content-Length: many\r\n", "disconnected"),
        (b"Content-Length: 18\r\nContent-Length: 17\r\n", "disconnected"),
        (b"Content-Length: 18\r\nTransfer-Encoding: chunked\r\n", "disconnected"),
        (b"Content-Length: 1000000\r\n", "timeout"),
        (b"Transfer-Encoding: chunked\r\n", "disconnected"),
        (b"Content-Encoding: gzip\r\nContent-Length: 18\r\n", "disconnected"),
        (b"Content-Encoding: br\r\nContent-Length: 18\r\n", "disconnected"),
        (b"X: %b\r\nContent-Length: 18\r\n" % (b"x" * 100_000), "disconnected"),
        (b"No colon\r\nContent-Length: 18\r\n", "disconnected"),
        (b"Content-Length: 5\r\n", "disconnected"),
    ],
    ids=lambda value: value[:40].decode() if isinstance(value, bytes) else None,
)
async def test_a_head_that_cannot_be_true_is_no_answer(head: bytes, reason: str) -> None:
    error = await asked(sending(OK + head + b"\r\n" + BODY), deadline_s=0.3)
    assert isinstance(error, EngineError) and (error.reason, error.is_retryable) == (reason, True)


@pytest.mark.parametrize(
    ("peer", "reason"),
    [
        (endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n"), "timeout"),
        (endless(OK, b"X-Header: 1\r\n"), "disconnected"),
        (endless(OK + b"X: ", b"x"), "disconnected"),
        (endless(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"5\r\nabcde\r\n"), "body_too_long"),
        (endless(OK + b"Transfer-Encoding: chunked\r\n\r\n5;", b"x"), "timeout"),
        (endless(OK + b"\r\n", b"abcde"), "body_too_long"),
    ],
    ids=["continue", "headers", "header", "chunks", "extension", "body"],
)
async def test_an_answer_without_end_ends_here(peer: Peer, reason: str) -> None:
    error = await asked(peer, deadline_s=1.0)
    assert isinstance(error, EngineError) and error.reason == reason


async def test_an_answer_that_unpacks_to_more_than_it_may_is_given_up_on_the_way() -> None:
    bomb = gzip.compress(bytes(200 << 20), 1)
    head = OK + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(bomb)
    error = await asked(sending(head, bomb))
    assert isinstance(error, EngineError) and error.reason == "body_too_long"


@pytest.mark.parametrize("num_bytes", [0, 10, 60, len(message(BODY)) - 1])
async def test_a_connection_that_is_reset_is_a_fault_that_may_pass(num_bytes: int) -> None:
    error = await asked(sending(message(BODY)[:num_bytes], then=reset))
    assert isinstance(error, EngineError) and (error.reason, error.is_retryable) == ("disconnected", True)


async def test_a_connection_reset_before_the_request_is_heard_is_one_too() -> None:
    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reset(writer)

    error = await asked(peer)
    assert isinstance(error, EngineError) and (error.reason, error.is_retryable) == ("disconnected", True)


@pytest.mark.parametrize(
    ("status", "reason", "is_retryable"),
    [(101, "http_101", False), (401, "http_401", False), (429, "busy", True), (503, "busy", True)],
)
@pytest.mark.parametrize("then", [reset, lambda writer: None])
async def test_a_refusal_whose_body_never_comes_is_known_by_its_status(
    status: int, reason: str, is_retryable: bool, then: Any
) -> None:
    head = message(b"x" * 50, status=status, headers={"Retry-After": "7"})
    error = await asked(sending(head[:-40], then=then))
    assert isinstance(error, EngineError)
    assert (error.reason, error.is_retryable, error.retry_after_s) == (
        reason,
        is_retryable,
        7.0 if reason == "busy" else None,
    )


def spoilt(answer: bytes, draw: random.Random) -> bytes:
    """`answer` with some of its bytes changed, taken out or put in."""
    spoilt = bytearray(answer)
    for _ in range(draw.randint(1, 4)):
        at, length = draw.randrange(len(spoilt)), draw.randint(0, 5)
        spoilt[at : at + length] = draw.choice([b"", b"\r\n", b"9" * 300, b": ", draw.randbytes(length)])
    return bytes(spoilt)


@pytest.mark.parametrize("answer", [message(BODY), message(b"<p>", status=429, headers={"Retry-After": "7"}), CHUNKED])
async def test_bytes_spoilt_anywhere_end_in_an_answer_or_in_an_error_of_ours(answer: bytes) -> None:
    draw, ends = random.Random(7), list[bytes | EngineError]()
    async with FaultServer(plan=lambda received: Garbage(spoilt(answer, draw))) as server:
        http = Http(server.url)
        for _ in range(300):
            try:
                ends.append(await http.post("/generate", BODY, deadline_s=5))
            except EngineError as error:
                ends.append(error)
        assert {end.reason for end in ends if isinstance(end, EngineError)} >= {"disconnected"}
        assert http.places.num == 0
        await http.close()


# -- connections ------------------------------------------------------------------------------------------------------


async def test_a_server_that_takes_a_connection_and_says_nothing_to_encrypt_it_is_unreachable() -> None:
    async with rude(lambda reader, writer: reader.read()) as port:  # type: ignore[arg-type, return-value]
        http = Http(f"https://127.0.0.1:{port}", limits=SMALL)
        with pytest.raises(EngineError, match=r"no connection in 0\.3 s") as caught:
            await http.post("/generate", BODY, deadline_s=5)
        assert (caught.value.reason, caught.value.is_retryable) == ("unreachable", True)
        await http.close()


@pytest.fixture
def unknown(tmp_path: Path) -> ssl.SSLContext:
    """The server's side of TLS, with a certificate that it has signed itself."""
    making = "openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=localhost -keyout key.pem -out cert.pem"
    subprocess.run(making.split(), cwd=tmp_path, check=True, capture_output=True)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    return tls


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes a certificate by openssl")
async def test_a_certificate_that_nobody_knows_is_refused_by_name(unknown: ssl.SSLContext) -> None:
    async with rude(sending(message(BODY)), tls=unknown) as port:
        http = Http(f"https://127.0.0.1:{port}")
        with pytest.raises(EngineError, match="self-signed certificate") as caught:
            await http.post("/generate", BODY, deadline_s=5)
        assert (caught.value.reason, caught.value.is_retryable) == ("tls_refused", False)
        await http.close()


@pytest.mark.skipif(not socket.has_ipv6, reason="this Python has no IPv6")
async def test_a_server_has_an_address_of_either_kind() -> None:
    try:
        async with rude(sending(message(BODY)), host="::1") as port:
            http = Http(f"http://[::1]:{port}")
            assert await http.post("/generate", BODY, deadline_s=5) == BODY
            await http.close()
    except OSError as error:
        pytest.skip(f"no address ::1 here: {error}")


def test_each_event_loop_has_its_own_connections_and_takes_them_along() -> None:
    asked = json.dumps({"model": "m"}).encode()
    with Endpoint(lambda _: said("hm")) as endpoint:
        http = Http(endpoint.url)
        for _ in range(3):
            assert json.loads(asyncio.run(http.post("/chat/completions", asked, deadline_s=5)))["model"] == "m"
        asyncio.run(http.close())
        with pytest.raises(EngineError, match="closed"):
            asyncio.run(http.post("/chat/completions", asked, deadline_s=5))


# -- giving up --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "size"),
    [(Status(500), 20), (Status(429), 20), (Chunked(), 3000), (Late(0.002), 20), (None, 3_000_000)],
    ids=str,
)
async def test_a_call_cancelled_at_any_step_leaves_no_connection_and_no_place(fault: Fault | None, size: int) -> None:
    async with FaultServer(plan=always(fault) if fault else lambda received: None) as server:
        for num_steps in range(40):
            http = Http(server.url, limits=HttpLimits(max_in_flight=2))
            calls = [asyncio.create_task(http.post("/generate", b"x" * size, deadline_s=5)) for _ in range(3)]
            for _ in range(num_steps):
                await asyncio.sleep(0)
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
            assert (http.places.num, http.places.num_waiting) == (0, 0)
            await http.close()
        await until(lambda: not server.num_open)
