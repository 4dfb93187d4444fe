"""A real HTTP server on a loopback port that commits named faults, by plan or by seed.

It speaks HTTP/1.1 byte by byte, so that it can break every rule of it. What a good answer says is the caller's: a
function from what was received to a body. `FaultServer` counts what it saw, and what its clients gave up.
"""

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# -- faults -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Status:
    """Another status than 200."""

    status: int = 500
    body: bytes = b'{"error": {"message": "planned"}}'
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Late:
    """The good answer, its first byte `seconds` later."""

    seconds: float


@dataclass(frozen=True)
class Hang:
    """No byte, ever."""


@dataclass(frozen=True)
class Cut:
    """The first bytes of the good answer, head included; then the connection is closed."""

    num_bytes: int


@dataclass(frozen=True)
class Drip:
    """The good answer, a byte at a time."""

    interval_s: float


@dataclass(frozen=True)
class Chunked:
    """The good answer in chunks; without the last one it never ends."""

    size: int = 7
    has_last: bool = True


@dataclass(frozen=True)
class Twice:
    """The good answer, twice over."""


@dataclass(frozen=True)
class Garbage:
    """Bytes that are no HTTP."""

    sent: bytes = b"SSH-2.0-OpenSSH_9.2\r\n"


@dataclass(frozen=True)
class Hangup:
    """The good answer; then the connection is closed without a word about it."""


Fault = Status | Late | Hang | Cut | Drip | Chunked | Twice | Garbage | Hangup


async def until(is_so: Callable[[], bool], *, deadline_s: float = 5.0) -> None:
    """Return as soon as it is so."""
    async with asyncio.timeout(deadline_s):
        while not is_so():  # noqa: ASYNC110 - what a socket's other end sees has no event
            await asyncio.sleep(0.002)


# -- what was received, and plans -------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Received:
    """One request."""

    number: int
    """In order of arrival, from 0."""
    method: str
    path: str
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes
    at: float
    """By the loop's clock."""
    num_before: int
    """Requests with the same body that came before it."""

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Plan = Callable[[Received], Fault | None]
Answer = Callable[[Received], bytes | Awaitable[bytes]]


def on_calls(faults: Mapping[int, Fault]) -> Plan:
    """Faults by the number of the request."""
    return lambda received: faults.get(received.number)


def first(num_calls: int, fault: Fault) -> Plan:
    """The first requests fail, the others do not."""
    return lambda received: fault if received.number < num_calls else None


def always(fault: Fault) -> Plan:
    return lambda received: fault


def drawn(seed: int, faults: Sequence[Fault], *, share: float, max_times: int = 1) -> Plan:
    """A share of all requests fail, by their bodies: the same ones whatever order they come in. A request that comes
    again has failed at most `max_times`."""

    def plan(received: Received) -> Fault | None:
        digest = hashlib.blake2b(f"{seed}:".encode() + received.body, digest_size=16).digest()
        if received.num_before >= max_times or int.from_bytes(digest[:8], "little") >= share * 2**64:
            return None
        return faults[int.from_bytes(digest[8:], "little") % len(faults)]

    return plan


def echoed(received: Received) -> bytes:
    """What was sent comes back."""
    return received.body


# -- the server -------------------------------------------------------------------------------------------------------


class FaultServer:
    """`async with FaultServer(answer, plan) as server`: `server.url` is where it listens."""

    def __init__(self, answer: Answer = echoed, plan: Plan = lambda received: None) -> None:
        self.answer = answer
        self.plan = plan
        self.received: list[Received] = []
        self.num_connections = 0
        self.num_active = 0
        self.most_active = 0
        self.num_given_up = 0
        """Requests whose client closed the connection before they were answered."""
        self._open: set[Connection] = set()
        self._is_empty = asyncio.Event()
        self._is_empty.set()
        self._bodies: Counter[bytes] = Counter()
        self._port = 0
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def num_open(self) -> int:
        """Connections that are open now."""
        return len(self._open)

    async def __aenter__(self) -> "FaultServer":
        await self.up()
        return self

    async def __aexit__(self, *fault: object) -> None:
        await self.down()

    async def up(self) -> None:
        """Listen, at the same port as before."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Connection(self), "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def down(self) -> None:
        """Die: connections are refused from now on, and those that are open are closed."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in tuple(self._open):
            connection.close()
        await self._is_empty.wait()

    def enter(self, connection: "Connection") -> None:
        """A client has connected."""
        self.num_connections += 1
        self._open.add(connection)
        self._is_empty.clear()

    def leave(self, connection: "Connection") -> None:
        """A connection is closed and nothing is answered on it any more."""
        self._open.discard(connection)
        if not self._open:
            self._is_empty.set()

    def hear(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Received:
        """A request has come."""
        now = asyncio.get_running_loop().time()
        received = Received(len(self.received), method, path, headers, body, now, self._bodies[body])
        self._bodies[body] += 1
        self.received.append(received)
        return received

    async def serve(self, received: Received, write: Callable[[bytes], None]) -> bool:
        """Answer one request or commit the fault that is planned; whether the connection stays."""
        self.num_active += 1
        self.most_active = max(self.most_active, self.num_active)
        try:
            return await self._served(received, write)
        finally:
            self.num_active -= 1

    async def _served(self, received: Received, write: Callable[[bytes], None]) -> bool:
        fault = self.plan(received)
        match fault:
            case Hang():
                await asyncio.Event().wait()
            case Garbage(sent):
                write(sent)
                return False
            case Status(status, body, headers):
                write(message(body, status=status, headers=headers))
                return True
            case _:
                pass
        answered = self.answer(received)
        body = answered if isinstance(answered, bytes) else await answered
        match fault:
            case Late(seconds):
                await asyncio.sleep(seconds)
            case Drip(interval_s):
                for byte in message(body):
                    write(bytes([byte]))
                    await asyncio.sleep(interval_s)
                return True
            case _:
                pass
        write(_spoilt(message(body), body, fault))
        return not isinstance(fault, Cut | Hangup) and not (isinstance(fault, Chunked) and not fault.has_last)


class Connection(asyncio.Protocol):
    """One client; its requests are answered one after the other."""

    def __init__(self, server: FaultServer) -> None:
        self._server = server
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[bool] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._server.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._task is not None:
            self._server.num_given_up += 1
            self._task.cancel()
        self._end()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._go_on()

    def close(self) -> None:
        """The server dies."""
        if self._task is not None:
            self._task.cancel()
        assert self._transport is not None
        self._transport.abort()

    def _go_on(self) -> None:
        """Begin with the next request, if it is there and none is being answered."""
        received = None if self._task is not None else self._next()
        if received is not None:
            assert self._transport is not None
            serving = self._server.serve(received, self._transport.write)
            self._task = asyncio.get_running_loop().create_task(serving)
            self._task.add_done_callback(self._answered)

    def _next(self) -> Received | None:
        head, found, rest = bytes(self._buffer).partition(b"\r\n\r\n")
        if not found:
            return None
        start, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", 0))
        if len(rest) < length:
            return None
        method, path, _ = start.split(" ", 2)
        self._buffer = bytearray(rest[length:])
        return self._server.hear(method, path, headers, rest[:length])

    def _answered(self, task: asyncio.Task[bool]) -> None:
        """An answer has ended, also one that was cancelled before it began."""
        assert self._transport is not None
        self._task = None
        self._end()
        if task.cancelled():
            return
        if task.result():
            self._go_on()
        else:
            self._transport.close()

    def _end(self) -> None:
        """Forget the connection when it is closed and nothing is being answered."""
        assert self._transport is not None
        if self._task is None and self._transport.is_closing():
            self._server.leave(self)


def _spoilt(whole: bytes, body: bytes, fault: Fault | None) -> bytes:
    """A good answer as the fault leaves it."""
    match fault:
        case Cut(num_bytes):
            return whole[:num_bytes]
        case Chunked(size, has_last):
            return _chunks(body, size, has_last=has_last)
        case Twice():
            return 2 * whole
        case _:
            return whole


def message(body: bytes, *, status: int = 200, headers: Mapping[str, str] | None = None) -> bytes:
    """An answer as it goes over the wire: what `Cut` counts."""
    fields = {"Content-Type": "application/json", "Content-Length": str(len(body)), **(headers or {})}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {status} Said\r\n{head}\r\n".encode() + body


def _chunks(body: bytes, size: int, *, has_last: bool) -> bytes:
    parts = [body[start : start + size] for start in range(0, len(body), size)]
    encoded = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    return b"HTTP/1.1 200 Said\r\nTransfer-Encoding: chunked\r\n\r\n" + encoded + (b"0\r\n\r\n" if has_last else b"")
