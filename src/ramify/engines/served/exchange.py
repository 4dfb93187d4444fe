"""Exchange: runs one generation on a server of any kind.

It sends requests, continues after stops that are not ours, and ends requests that are aborted, past their deadline, or
on a silent server. The `Dialect` holds what differs between servers. An answer counts only for the request that it
names. One `generate` is one try; nothing is retried here.
"""

import asyncio
import itertools
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Final, Protocol

from ramify.core.engine import Capabilities, Generation, Request, room_for
from ramify.core.errors import EngineError
from ramify.core.segment import Finish, Sampling
from ramify.edge.http import Http
from ramify.edge.patience import Patience
from ramify.engines.served.control import CONTROL_S, AbortRoute, ServedControl
from ramify.engines.served.model import ServedModel
from ramify.engines.served.progress import Progress, ServedFlight
from ramify.engines.served.turn import Ask, Sampled, ServedTurn
from ramify.engines.served.weights import Known, Naming, ServedWeights

ABORT_S: Final = 5.0
"""Time for an aborted request to return what it had, before its connection is closed."""
PROBE_TEXT: Final = "a"


class Dialect(Protocol):
    """How to ask one kind of server for tokens."""

    @property
    def path(self) -> str: ...

    def body(self, ask: Ask) -> bytes: ...

    def sampled(self, answer: bytes, ask: Ask) -> Sampled:
        """The content of an answer. Raises `EngineError` if it has none."""
        ...


@dataclass(frozen=True, slots=True)
class Terms:
    """How to ask a server, and what it can do."""

    dialect: Dialect
    capabilities: Capabilities
    abort_route: AbortRoute | None = None
    naming: Naming = "none"


@dataclass(slots=True, eq=False)
class _Pending:
    """A running request, and its current id at the server."""

    is_unwanted: bool = False
    """Whether it was aborted."""
    wire_id: str = ""
    flight: ServedFlight | None = None


class Exchange:
    """Runs generations of `model` over `http`. `terms` are replaced when the server has said what it is."""

    def __init__(
        self,
        terms: Terms,
        *,
        model: ServedModel,
        http: Http,
        control: ServedControl,
        weights: ServedWeights,
        progress: Progress,
        patience: Patience,
    ) -> None:
        self.terms = terms
        self._model = model
        self._http = http
        self._control = control
        self._weights = weights
        self._progress = progress
        self._patience = patience
        self._bytes = [model.codec.token_bytes(i) for i in range(model.codec.vocab_size)]
        self._names_requests = False
        """Whether answers name the request that they belong to: not behind a gateway that renames requests."""
        self._pending: dict[str, set[_Pending]] = {}
        self._nonce = secrets.token_hex(4)
        self._numbers = itertools.count()
        self._aborts: set[asyncio.Task[None]] = set()

    async def generate(self, request: Request) -> Generation:
        """Run one request, with one try. Raises `EngineError`."""
        turn = ServedTurn(
            request,
            token_bytes=self._bytes,
            end_ids=self._model.end_ids,
            room=self._room(request),
            has_logprobs=self.terms.capabilities.logprobs is not None,
        )
        finish: Finish | None = None
        with self._abortable(request) as pending:
            while finish is None:
                known = await self._weights.known()
                finish = Finish("abort") if pending.is_unwanted else await self._exchanged(turn, known, pending)
        return turn.generation(finish)

    async def _exchanged(self, turn: ServedTurn, known: Known, pending: _Pending) -> Finish | None:
        """One request to the server, and what `turn` makes of the answer."""
        ask, dialect = turn.ask(self._wire_id(turn.request.request_id)), self.terms.dialect
        try:
            async with self._progress.watched(len(ask.ids)) as flight:
                pending.wire_id, pending.flight = ask.request_id, flight
                answer = await self._http.post(
                    dialect.path, dialect.body(ask), deadline_s=self._patience.deadline_s(turn.request)
                )
        except EngineError:
            self._weights.forget()
            raise
        self._progress.beat()
        sampled = dialect.sampled(answer, ask)
        if self._names_requests and ask.request_id not in sampled.request_id:
            raise EngineError("other_request", f"the answer to {sampled.request_id!r} came for {ask.request_id!r}")
        spans = await self._weights.spans(sampled, known)
        return turn.hear(sampled if spans == sampled.versions else replace(sampled, versions=spans), ask)

    def _room(self, request: Request) -> int:
        """Maximum number of tokens of a request. Raises `EngineError` for a request that the server could not run."""
        given = self.terms.capabilities
        room = room_for(request, context_length=given.context_length, vocab_size=len(self._bytes))
        if request.measures - given.measures:
            raise EngineError("unknown_measure", f"{sorted(request.measures)}; this server gives none")
        if request.topk > given.max_topk:
            raise EngineError("too_many_topk", f"topk={request.topk}; at most {given.max_topk}")
        return room

    def _wire_id(self, request_id: str) -> str:
        """A new id for one ask. No other try has it, and no other id begins with it, because sglang aborts by prefix of
        the id."""
        return f"{re.sub('[^0-9A-Za-z_-]', '_', request_id)}:{self._nonce}:{next(self._numbers)}."

    async def probe(self, dialect: Dialect, *, topk: int = 0, deadline_s: float = CONTROL_S) -> Sampled:
        """Ask for one token. Raises `EngineError`."""
        ids = self._model.codec.encode(PROBE_TEXT)
        ask = Ask(ids, 1, 0, (), self._model.end_ids, Sampling(), topk, self._wire_id("probe"))
        sampled = dialect.sampled(await self._control.post(dialect.path, dialect.body(ask), deadline_s=deadline_s), ask)
        self._names_requests = ask.request_id in sampled.request_id
        return sampled

    # -- what it is ended by -----------------------------------------------------------------------------------------

    async def abort(self, request_id: str) -> None:
        """End every request with this id at the server; their answers return what they had."""
        await asyncio.gather(*(self._abort(pending) for pending in tuple(self._pending.get(request_id, ()))))

    async def _abort(self, pending: _Pending) -> None:
        pending.is_unwanted = True
        route, flight = self.terms.abort_route, pending.flight
        if flight is None or flight.is_over:
            return
        if route is None:
            flight.fail(EngineError("aborted", "the server has no route that gives back what a request had"))
            return
        lost = EngineError("abort_unanswered", f"no answer came within {ABORT_S:.0f} s of the abort", is_retryable=True)
        flight.fail(lost, after_s=ABORT_S)
        await self._control.abort(route, pending.wire_id, deadline_s=ABORT_S)

    @contextmanager
    def _abortable(self, request: Request) -> Iterator[_Pending]:
        """Register a request so that `abort` finds it, and abort it at its deadline if the server can abort."""
        pending = _Pending()
        group = self._pending.setdefault(request.request_id, set())
        group.add(pending)
        timer = None
        if request.deadline is not None and self.terms.abort_route is not None:
            timer = asyncio.get_running_loop().call_at(request.deadline, self._abort_at_deadline, pending)
        try:
            yield pending
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
        with suppress(EngineError):  # the request ends by itself in this case
            await self._abort(pending)

    async def close(self) -> None:
        await asyncio.gather(*self._aborts, return_exceptions=True)
        await self._http.close()
