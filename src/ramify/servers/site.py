"""Site: the servers of one model and, if there is one, the router in front of them.

Starts the servers first and then the router; stops them in the opposite order. Tells the router the new address of a
restarted server. Observers get a sentence for each event; they must not raise.
"""

import asyncio
from collections.abc import Callable, Sequence

from ramify.core.errors import RamifyError
from ramify.servers.member import cancelled
from ramify.servers.router import Router
from ramify.servers.server_pool import Down, Event, GivenUp, ServerPool, Up

Say = Callable[[str], None]


class Site:
    """`pool` makes the servers and gets the function to call with each event. `router` makes the router; it also gets
    the servers' addresses."""

    def __init__(
        self,
        pool: Callable[[Callable[[Event], None]], ServerPool],
        router: Callable[[Sequence[str], Callable[[Event], None]], Router] | None = None,
        *,
        say: Say = lambda text: None,
    ) -> None:
        self.over = asyncio.Event()
        """Set when nothing can be reached any more: the router, or every server, was given up."""
        self._pool = pool(self._observe_server)
        self._make_router = router
        self._router: Router | None = None
        self._say = say
        self._ready: dict[int, str] = {}
        """Index of a server -> its address when it was ready last."""
        self._has_changed = asyncio.Event()
        self._following: asyncio.Task[None] | None = None
        self._num_given_up = 0

    @property
    def urls(self) -> tuple[str, ...]:
        """Where the servers are."""
        return self._pool.urls

    @property
    def pids(self) -> tuple[int | None, ...]:
        """Process ids of the servers; None = it is down."""
        return self._pool.pids

    @property
    def router_url(self) -> str | None:
        return None if self._router is None else self._router.url

    @property
    def base_url(self) -> str:
        """The address for clients: the router's, or all servers' separated by commas."""
        return self.router_url or ",".join(self.urls)

    async def start(self) -> None:
        """Start everything and wait until it is ready. Raises as `ServerPool.start` does; nothing is left then."""
        try:
            urls = await self._pool.start()
            if self._make_router is not None:
                self._router = self._make_router(urls, self._observe_router)
                await self._router.start()
                self._following = asyncio.create_task(self._follow(self._router))
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop the router, then the servers. If cancelled, it kills the servers. Calling it again is harmless."""
        following, self._following = self._following, None
        router, self._router = self._router, None
        try:
            await cancelled([following] if following else [])
            if router is not None:
                await router.stop()
        except asyncio.CancelledError:
            self._pool.kill()
            raise
        finally:
            await self._pool.stop()

    def _observe_server(self, event: Event) -> None:
        self._say(words(event, "server"))
        match event:
            case Up():
                self._ready[event.index] = event.url
                self._has_changed.set()
            case Down():
                pass
            case GivenUp():
                self._num_given_up += 1
                if self._num_given_up == len(self.urls):
                    self.over.set()

    def _observe_router(self, event: Event) -> None:
        self._say(words(event, "router"))
        match event:
            case Up():
                self._has_changed.set()
            case Down():
                pass
            case GivenUp():
                self.over.set()

    async def _follow(self, router: Router) -> None:
        """Tell the router where the servers are. An address it did not take is tried again when the router or any
        server comes up."""
        while True:
            await self._has_changed.wait()
            self._has_changed.clear()
            for index, url in list(self._ready.items()):
                try:
                    await router.replace(index, url)
                except RamifyError as error:
                    self._say(f"the router was not told of {url}: {error}")


def words(event: Event, what: str) -> str:
    """An event as a line for people."""
    match event:
        case Up():
            return f"{what} {event.index} is ready at {event.url} ({event.seconds:.1f} s)"
        case Down():
            return f"{what} {event.index} at {event.url} is down and will be started again: {event.reason}"
        case GivenUp():
            return f"{what} {event.index} at {event.url} is down for good, it went down too often: {event.reason}"
