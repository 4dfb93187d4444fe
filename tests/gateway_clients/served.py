"""A gateway in a thread of its own, for clients that know no event loop."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

from tests.gateway.gateways import gateway

from ramify.gateway.server import GatewayConfig


@contextmanager
def served(
    url: str | None, folder: Path, presets: Sequence[str] = (), config: GatewayConfig | None = None
) -> Iterator[str]:
    """The address of a gateway in front of `url`, with `/v1`."""
    started: Future[tuple[str, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def serve() -> None:
        stop = asyncio.Event()
        async with gateway(url, folder, presets, config) as asking:
            started.set_result((f"{asking.url}/v1", asyncio.get_running_loop(), stop))
            await stop.wait()

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    address, loop, stop = started.result(30)
    try:
        yield address
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)
