"""ExchangeWatch: the seconds that a server takes for one answer, however late the event loop reads it.

They begin when the last byte of the request is handed to the connection, and end when the last byte of the answer came
at it (`arrivals.py`). So they hold neither the wait for a place nor the connecting, and are at least the server's own.
Where the kernel does not count the bytes of a connection, they end when the event loop has read the answer.
"""

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ramify.edge.arrivals import Arrival, num_received

if TYPE_CHECKING:
    import asyncio

    import aiohttp


class ExchangeWatch:
    """Measures one exchange. `took_s` is None until its answer is whole."""

    def __init__(self) -> None:
        self.took_s: float | None = None
        self._sent_at: float | None = None
        self._arrival: Arrival | None = None
        self._connection: socket.socket | None = None

    def sent(self) -> None:
        """More of the request was handed to the connection just now."""
        self._sent_at = time.monotonic()

    def opened(self, transport: "asyncio.BaseTransport | None") -> None:
        """The answer will come over this connection. Holds it open until the end, whoever closes it."""
        used = None if transport is None else transport.get_extra_info("socket")
        if used is None or self._connection is not None:
            return
        with suppress(OSError):
            self._connection = socket.socket(fileno=os.dup(used.fileno()))
            self._arrival = Arrival(self._connection.fileno(), partial(num_received, self._connection))

    def ended(self) -> None:
        """The answer was read whole just now."""
        now = time.monotonic()
        if self._sent_at is not None:
            self.took_s = max(0.0, min(now, self._arrived() or now) - self._sent_at)

    def close(self) -> None:
        """Let go of the connection. Calling it again does nothing."""
        if self._arrival is not None:
            self._arrival.close()
        if self._connection is not None:
            self._connection.close()

    def _arrived(self) -> float | None:
        if self._arrival is None or self._connection is None:
            return None
        try:
            return self._arrival.at(num_received(self._connection))
        except OSError:
            return None


WATCH: Final[ContextVar[ExchangeWatch | None]] = ContextVar("WATCH", default=None)
"""The watch of the exchange that runs in this context."""


@contextmanager
def watched(watch: ExchangeWatch) -> Iterator[None]:
    """Measure the exchange of this block, if it is not raised out of it."""
    token = WATCH.set(watch)
    try:
        yield
        watch.ended()
    finally:
        WATCH.reset(token)
        watch.close()


def watching(aiohttp: Any) -> dict[str, Any]:
    """Arguments of an aiohttp session whose exchanges are watched by the watch of their context."""

    class Watched(aiohttp.ClientResponse):
        async def start(self, connection: "aiohttp.connector.Connection") -> "aiohttp.ClientResponse":
            if (watch := WATCH.get()) is not None:
                watch.opened(connection.transport)
            return await super().start(connection)

    async def sent(*_: object) -> None:
        if (watch := WATCH.get()) is not None:
            watch.sent()

    trace = aiohttp.TraceConfig()
    trace.on_request_headers_sent.append(sent)
    trace.on_request_chunk_sent.append(sent)
    return {"response_class": Watched, "trace_configs": [trace]}
