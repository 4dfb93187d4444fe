"""Served: what every engine behind a server of token ids does alike, whatever the server speaks.

Owns the exchange of one generation: asks, goes on from stops that are none of ours, watches the server's progress,
aborts, and holds answers to the policy version that the server confirmed. What differs from server to server is its
`Dialect`. One generate is one try; nothing is tried again here.
"""

import asyncio
import itertools
import math
import os
import re
import secrets
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Final, Protocol

from ramify.core.engine import Capabilities, Generation, Request
from ramify.core.errors import ConfigError, EngineError
from ramify.core.segment import Finish, Sampling
from ramify.engines.http import Http, HttpLimits
from ramify.engines.patience import Patience
from ramify.engines.progress import Flight, Progress
from ramify.engines.served_model import ServedModel
from ramify.engines.served_turn import Ask, Sampled, Turn

PATIENCE: Final = Patience()
CONTROL_S: Final = 30.0
"""Time for a question about the server, or an order to it that moves no weights."""
CONTROL_LIMITS: Final = HttpLimits(max_in_flight=16)
"""Questions and orders have places of their own, so that none waits behind generations."""
ABORT_S: Final = 5.0
"""Time an aborted request has to come back with what it had, before its connection is closed."""
RESTART_S: Final = 5.0
"""No server is back sooner behind its end: what it said of its weights this long ago is asked again."""
PROBE_TEXT: Final = "a"
REFUSALS: Final = frozenset({"http_400", "http_401", "http_403", "http_404", "http_405", "http_501"})
"""What a server answers on a route that it does not have, or was not started for."""


class Dialect(Protocol):
    """How one kind of server is asked for tokens."""

    @property
    def path(self) -> str: ...

    def body(self, ask: Ask) -> bytes: ...

    def sampled(self, answer: bytes, ask: Ask) -> Sampled:
        """What an answer says. Raises `EngineError` for one that says nothing."""
        ...


@dataclass(frozen=True, slots=True)
class AbortRoute:
    """How requests are ended by their ids."""

    path: str
    body: Callable[[str], bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerWatch:
    """What is watched of a server, and how long it may be silent."""

    count: Callable[[], Awaitable[float | None]]
    """Its count of sampled tokens; None = it has none."""
    is_paused: Callable[[], Awaitable[bool]]
    silent_s: float
    patience: Patience


@dataclass(slots=True, eq=False)
class _Pending:
    """A request in flight, and the id the server knows it by."""

    wire_id: str
    flight: Flight


class Served:
    """The exchange with a server, for the engine that knows its dialect."""

    def __init__(
        self,
        address: str,
        model: ServedModel,
        *,
        dialect: Dialect,
        capabilities: Capabilities,
        watch: ServerWatch,
        max_in_flight: int,
        api_key_env: str | None,
    ) -> None:
        """`api_key_env` names the environment variable that holds the server's key; None = it has none."""
        self.model = model
        self.dialect = dialect
        self.capabilities = capabilities
        self.abort_route: AbortRoute | None = None
        self.read_version: Callable[[], Awaitable[int]] | None = None
        """Asks for the server's version, where its answers name none; None = they do, or it has none."""
        self.acknowledged = 0
        """Version of the last update that the server confirmed; answers of a lower one are refused."""
        self.progress = Progress(
            silent_s=watch.silent_s, prefill_s=watch.patience.prefill_s, probe=self._prove_alive, count=watch.count
        )
        self._watch = watch
        key = os.environ.get(api_key_env, "") if api_key_env is not None else ""
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._http = Http(address, limits=HttpLimits(max_in_flight=max_in_flight), headers=headers)
        # A connection each: vLLM closes one behind a failed order, at which the next order on it would be lost.
        self._control = Http(address, limits=CONTROL_LIMITS, headers={**headers, "Connection": "close"})
        self._bytes = [model.codec.token_bytes(i) for i in range(model.codec.vocab_size)]
        self._pending: dict[str, set[_Pending]] = {}
        self._nonce = secrets.token_hex(4)
        self._numbers = itertools.count()
        self._version = 0
        self._is_version_known = False
        self._version_read_at = -math.inf
        self._version_lock = asyncio.Lock()
        self._aborts: set[asyncio.Task[None]] = set()
        self.is_connected = False
        self._connecting = asyncio.Lock()

    @property
    def address(self) -> str:
        return self._http.base_url

    def other_model(self, names: Iterable[str]) -> ConfigError:
        """The server runs what it calls `names`, and nothing else."""
        return ConfigError(
            f"the server at {self.address} runs {', '.join(map(repr, sorted(names))) or 'no model'}, not "
            f"{self.model.name!r}; where that is the same model: engine.options.served_name"
        )

    async def connected(self, connect: Callable[[], Awaitable[None]]) -> None:
        """Have `connect` ask the server what it is, unless that was done."""
        if self.is_connected:
            return
        async with self._connecting:
            if not self.is_connected:
                await connect()

    # -- one generation ----------------------------------------------------------------------------------------------

    async def generate(self, request: Request) -> Generation:
        """Carry one request out, one try. Raises `EngineError`."""
        turn = Turn(
            request,
            token_bytes=self._bytes,
            end_ids=self.model.end_ids,
            room=self._room(request),
            has_logprobs=self.capabilities.logprobs is not None,
        )
        while True:
            finish = await self._exchanged(turn)
            if finish is not None:
                return turn.generation(finish)

    async def _exchanged(self, turn: Turn) -> Finish | None:
        """One ask and what `turn` hears of its answer."""
        request = turn.request
        ask = turn.ask(self._wire_id(request.request_id))
        floor, version = self.acknowledged, await self._confirmed_version()
        try:
            async with self.progress.watched(len(ask.ids)) as flight:
                with self._abortable(request, _Pending(ask.request_id, flight)):
                    answer = await self._http.post(
                        self.dialect.path, self.dialect.body(ask), deadline_s=self._watch.patience.deadline_s(request)
                    )
        except EngineError:
            self._is_version_known = False
            raise
        self.progress.beat()
        sampled = self.dialect.sampled(answer, ask)
        if version is not None and not sampled.versions:
            if version != self._version:
                raise EngineError("mixed_versions", f"{version} became {self._version} meanwhile", is_retryable=True)
            sampled = replace(sampled, versions=((version, len(sampled.ids)),))
        self._refuse_stale(min((v for v, _ in sampled.versions), default=floor), floor)
        return turn.hear(sampled, ask)

    def _room(self, request: Request) -> int:
        """Most tokens of a request. Raises `EngineError` for one that no server could carry out."""
        num, most = len(request.ids), self.capabilities.context_length
        if num < 1 or request.max_tokens < 1:
            raise EngineError("empty_request", f"{num} context ids, max_tokens={request.max_tokens}; at least 1 each")
        if num >= most:
            raise EngineError("context_full", f"{num} tokens for a context of {most}")
        if request.ids.min() < 0 or request.ids.max() >= len(self._bytes):
            raise EngineError(
                "bad_token_ids", f"{request.ids.min()}..{request.ids.max()} for a vocabulary of {len(self._bytes)}"
            )
        if request.measures - self.capabilities.measures:
            raise EngineError("unknown_measure", f"{sorted(request.measures)}; this server gives none")
        if request.topk > self.capabilities.max_topk:
            raise EngineError("too_many_topk", f"topk={request.topk}; at most {self.capabilities.max_topk}")
        return min(request.max_tokens, most - num)

    def _wire_id(self, request_id: str) -> str:
        """A fresh id for one ask: of no other try, and the beginning of no other, since sglang aborts by beginnings."""
        return f"{re.sub('[^0-9A-Za-z_-]', '_', request_id)}:{self._nonce}:{next(self._numbers)}."

    # -- what it is ended by -----------------------------------------------------------------------------------------

    async def abort(self, request_id: str) -> None:
        """End every request of this id at the server; their answers come back with what they had."""
        await asyncio.gather(*(self._abort(pending) for pending in tuple(self._pending.get(request_id, ()))))

    async def _abort(self, pending: _Pending) -> None:
        route = self.abort_route
        if route is None:
            pending.flight.fail(EngineError("aborted", "the server has no route that gives back what a request had"))
            return
        lost = EngineError("abort_unanswered", f"nothing came back {ABORT_S:.0f} s behind an abort", is_retryable=True)
        pending.flight.fail(lost, after_s=ABORT_S)
        await self._control.post(route.path, route.body(pending.wire_id), deadline_s=CONTROL_S)

    @contextmanager
    def _abortable(self, request: Request, pending: _Pending) -> Iterator[None]:
        """Hold a request where `abort` finds it, and abort it at its deadline where the server can."""
        group = self._pending.setdefault(request.request_id, set())
        group.add(pending)
        timer = None
        if request.deadline is not None and self.abort_route is not None:
            timer = asyncio.get_running_loop().call_at(request.deadline, self._abort_at_deadline, pending)
        try:
            yield
        finally:
            if timer is not None:
                timer.cancel()
            group.discard(pending)
            if not group:
                self._pending.pop(request.request_id, None)

    def _abort_at_deadline(self, pending: _Pending) -> None:
        task = asyncio.get_running_loop().create_task(self._abort_in_time(pending), name="ramify abort at deadline")
        self._aborts.add(task)
        task.add_done_callback(self._aborts.discard)

    async def _abort_in_time(self, pending: _Pending) -> None:
        with suppress(EngineError):  # the request has its own end by now
            await self._abort(pending)

    # -- policy versions ---------------------------------------------------------------------------------------------

    def hold_version(self, version: int) -> None:
        """The server has `version` from now on, by its own word."""
        self._version, self._is_version_known = version, True
        self._version_read_at = asyncio.get_running_loop().time()

    def _is_version_fresh(self) -> bool:
        """Whether no restart can lie between now and what is known of the server's weights."""
        since_read_s = asyncio.get_running_loop().time() - self._version_read_at
        return self._is_version_known and min(self.progress.since_s, since_read_s) <= RESTART_S

    async def _confirmed_version(self) -> int | None:
        """The version that the server samples with, where its answers do not say; asked again where a restart could
        lie between."""
        if self.read_version is None:
            return None
        if not self._is_version_fresh():
            async with self._version_lock:
                if not self._is_version_fresh():
                    self.hold_version(await self.read_version())
        self._refuse_stale(self._version, self.acknowledged)
        return self._version

    def _refuse_stale(self, version: int, floor: int) -> None:
        if version < floor:
            self._is_version_known = False
            raise EngineError(
                "stale_weights", f"the server has version {version}; it had confirmed {floor}", is_retryable=True
            )

    # -- questions and orders ----------------------------------------------------------------------------------------

    async def get(self, path: str) -> bytes:
        return await self._control.get(path, deadline_s=CONTROL_S)

    async def post(self, path: str, body: bytes = b"{}", *, deadline_s: float = CONTROL_S) -> bytes:
        return await self._control.post(path, body, deadline_s=deadline_s)

    async def has_route(self, path: str, body: bytes | None = None) -> bool:
        """Whether the server has a route: a GET, or a POST of `body`, is not refused there."""
        try:
            await (self.get(path) if body is None else self.post(path, body))
        except EngineError as error:
            if error.reason not in REFUSALS:
                raise
            return False
        return True

    async def order(
        self,
        path: str,
        body: bytes = b"{}",
        *,
        needs: str,
        deadline_s: float = CONTROL_S,
        refusals: Collection[str] = REFUSALS,
    ) -> bytes:
        """Have the server do something. Raises `ConfigError` naming the route and what it `needs` where it refuses."""
        try:
            return await self.post(path, body, deadline_s=deadline_s)
        except EngineError as error:
            if error.reason not in refusals:
                raise
            raise ConfigError(
                f"the server refuses {path.split('?', maxsplit=1)[0]}: {error}; it needs {needs}"
            ) from error

    async def probe(self, dialect: Dialect, *, topk: int, deadline_s: float = CONTROL_S) -> Sampled:
        """Ask for one token. Raises `EngineError`."""
        ids = self.model.codec.encode(PROBE_TEXT)
        ask = Ask(ids, 1, 0, (), self.model.end_ids, Sampling(), topk, self._wire_id("probe"))
        return dialect.sampled(await self.post(dialect.path, dialect.body(ask), deadline_s=deadline_s), ask)

    async def is_healthy(self) -> bool:
        try:
            return await self.progress.is_working()
        except EngineError:
            return False

    async def close(self) -> None:
        await self.progress.close()
        await asyncio.gather(*self._aborts, return_exceptions=True)
        await asyncio.gather(self._http.close(), self._control.close())

    async def is_paused(self) -> bool:
        """Whether the server says that it was paused; False where it says nothing of that."""
        try:
            return await self._watch.is_paused()
        except EngineError:
            return False

    async def _prove_alive(self, deadline_s: float) -> None:
        """Return if the server gives one token, or was paused on purpose; else raise `EngineError`."""
        if not await self.is_paused():
            await self.probe(self.dialect, topk=0, deadline_s=deadline_s)
