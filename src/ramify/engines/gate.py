"""Gate: holds the requests to an engine back while its weights or its memory change.

Held, it lets no request through; what is on its way then ends by the rule of `hold`: `finish` waits for it; `keep` ends
it with the tokens it had, and goes on behind them when the gate opens, under the weights of that time, each part with
its version; `abort` throws those tokens away, counted in `num_wasted`, and samples the turn anew. Nobody behind the
gate notices but by the time it takes. Invariants: when `hold` returns nothing is on its way; every token that comes
back carries the version of the weights that sampled it, the gate's own where the engine has no versions; a request
that goes on is fed all of its tokens again, so that no key or value of older weights is used.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ramify.core.engine import Engine, Generation, Request
from ramify.core.errors import ConfigError
from ramify.core.segment import Finish
from ramify.engines.in_front import InFront

OnHold = Literal["finish", "keep", "abort"]


@dataclass(slots=True, eq=False)
class _Call:
    """One request on its way."""

    request: Request
    cut: OnHold | None = None
    """The rule by which a hold ended it; None = none did."""


class Gate(InFront):
    """An engine in front of another one, the same but for being held. Mutable; open when made."""

    def __init__(self, engine: Engine, *, version: int = 0) -> None:
        super().__init__(engine)
        self.version = version
        """Of the weights that sample now."""
        self.num_wasted = 0
        """Tokens sampled in turns that were thrown away."""
        self.num_resumed = 0
        """Turns that went on behind tokens of before a hold."""
        self._open = asyncio.Event()
        self._open.set()
        self._holders: set[str] = set()
        self._calls: set[_Call] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def holders(self) -> frozenset[str]:
        """Names of those who hold it."""
        return frozenset(self._holders)

    @property
    def is_open(self) -> bool:
        return self._open.is_set()

    @property
    def num_in_flight(self) -> int:
        """Requests that the engine has."""
        return len(self._calls)

    def check(self, on_hold: OnHold) -> None:
        """Raise `ConfigError` where requests on their way cannot be ended by this rule."""
        capabilities = self.capabilities
        if on_hold == "finish":
            return
        if not capabilities.has_abort or not capabilities.has_token_ids:
            lacks = "no aborts" if not capabilities.has_abort else "no token ids to go on from"
            raise ConfigError(f"on_update = {on_hold!r}: engine {capabilities.name!r} has {lacks}; use 'finish'")

    async def generate(self, request: Request) -> Generation:
        """Carry one request out, in as many parts as holds divide it into. Raises `EngineError`."""
        parts: list[Generation] = []
        while True:
            await self._open.wait()
            call = _Call(_rest(request, parts))
            generation = await self._passed(call)
            is_cut = call.cut is not None and generation.finish.kind == "abort"
            if is_cut and call.cut == "abort":
                self.num_wasted += generation.num_billed
                continue
            if len(generation.ids) or not is_cut:
                parts.append(self._stamped(generation))
            if is_cut and sum(len(part.ids) for part in parts) == request.max_tokens:
                parts[-1] = replace(parts[-1], finish=Finish("length"))
            elif is_cut:
                self.num_resumed += bool(parts)
                continue
            return parts[0] if len(parts) == 1 else _joined(parts)

    async def hold(self, on_hold: OnHold, *, by: str = "") -> None:
        """Let nothing through, end what is on its way by the rule, and return when nothing is. It stays so until all
        who hold it, by their names, have released it."""
        self.check(on_hold)
        self._holders.add(by)
        self._open.clear()
        if on_hold != "finish":
            for call in list(self._calls):
                call.cut = on_hold
            await asyncio.gather(*(super(Gate, self).abort(call.request.request_id) for call in list(self._calls)))
        await self._idle.wait()

    def release(self, *, by: str = "") -> None:
        """Let requests through, unless somebody else holds the gate. Harmless for one who does not."""
        self._holders.discard(by)
        if not self._holders:
            self._open.set()

    async def _passed(self, call: _Call) -> Generation:
        self._calls.add(call)
        self._idle.clear()
        try:
            return await self.engine.generate(call.request)
        finally:
            self._calls.remove(call)
            if not self._calls:
                self._idle.set()

    def _stamped(self, generation: Generation) -> Generation:
        """The generation with its versions, the gate's own where the engine gave none."""
        if generation.versions or not len(generation.ids):
            return generation
        return replace(generation, versions=((self.version, len(generation.ids)),))


def _rest(request: Request, parts: Sequence[Generation]) -> Request:
    """What is left of a request behind the parts it has."""
    if not parts:
        return request
    ids = np.concatenate([part.ids for part in parts])
    return replace(
        request,
        ids=np.concatenate([request.ids, ids]),
        max_tokens=request.max_tokens - len(ids),
        num_run=request.num_run + len(ids),
        topk_tokens=max(0, request.topk_tokens - len(ids)),
        topk=request.topk if len(ids) < request.topk_tokens else 0,
    )


def _joined(parts: Sequence[Generation]) -> Generation:
    """The parts of one request as one generation, which used what all of them did."""
    last = parts[-1]
    logprobs = [part.logprobs for part in parts if part.logprobs is not None]
    return replace(
        last,
        ids=np.concatenate([part.ids for part in parts]),
        logprobs=np.concatenate(logprobs) if len(logprobs) == len(parts) else None,
        measures={name: np.concatenate([part.measures[name] for part in parts]) for name in last.measures},
        topk=tuple(top for part in parts for top in part.topk),
        versions=tuple(span for part in parts for span in part.versions),
        num_billed=sum(part.num_billed for part in parts),
        num_cached=sum(part.num_cached for part in parts),
        num_prefilled=sum(part.num_prefilled for part in parts),
    )
