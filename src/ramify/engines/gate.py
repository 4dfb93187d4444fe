"""Gate: holds requests to an engine back while its weights or memory change.

While held, it lets no request through. The rule of `hold` says what happens to running requests. `finish` waits for
them. `keep` ends them with the tokens they have; when the gate opens they continue after these tokens with the weights
of that time, and each part has its version. `abort` discards those tokens (counted in `num_wasted`) and samples the
turn again. The caller of `generate` notices only the time it takes. Invariants: when `hold` returns, no request is
running; every token that comes back carries the version of the weights that sampled it (the gate's own version if the
engine has none); a request that continues sends all of its tokens again, so that no key or value of older weights is
used.
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
    """One running request."""

    request: Request
    cut: OnHold | None = None
    """The rule by which a hold ended it; None = no hold ended it."""


class Gate(InFront):
    """Wraps an engine and adds `hold` and `release`. Mutable; open when made."""

    def __init__(self, engine: Engine, *, version: int = 0) -> None:
        super().__init__(engine)
        self.version = version
        """Version of the weights that sample now."""
        self.num_wasted = 0
        """Tokens sampled in turns that were discarded."""
        self.num_resumed = 0
        """Turns that continued after tokens from before a hold."""
        self._open = asyncio.Event()
        self._open.set()
        self._holders: set[str] = set()
        self._calls: set[_Call] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def holders(self) -> frozenset[str]:
        """Names of the callers that hold it."""
        return frozenset(self._holders)

    @property
    def is_open(self) -> bool:
        return self._open.is_set()

    @property
    def num_in_flight(self) -> int:
        """Requests that the engine is running."""
        return len(self._calls)

    def check(self, on_hold: OnHold) -> None:
        """Raise `ConfigError` if the engine cannot end running requests by this rule."""
        capabilities = self.capabilities
        if on_hold == "finish":
            return
        if not capabilities.has_abort or not capabilities.has_token_ids:
            lacks = "no aborts" if not capabilities.has_abort else "no token ids to go on from"
            raise ConfigError(f"on_update = {on_hold!r}: engine {capabilities.name!r} has {lacks}; use 'finish'")

    async def generate(self, request: Request) -> Generation:
        """Run one request, in as many parts as holds divide it into. Raises `EngineError`."""
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
        """Let nothing through, end running requests by the rule, and return when none is left. The gate stays held
        until every holder, identified by its name, has released it."""
        self.check(on_hold)
        self._holders.add(by)
        self._open.clear()
        if on_hold != "finish":
            for call in list(self._calls):
                call.cut = on_hold
            await asyncio.gather(*(super(Gate, self).abort(call.request.request_id) for call in list(self._calls)))
        await self._idle.wait()

    def release(self, *, by: str = "") -> None:
        """Let requests through, unless another holder is left. Does nothing for a caller that does not hold the
        gate."""
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
        """The generation with its versions; the gate's own version if the engine gave none."""
        if generation.versions or not len(generation.ids):
            return generation
        return replace(generation, versions=((self.version, len(generation.ids)),))


def _rest(request: Request, parts: Sequence[Generation]) -> Request:
    """The rest of a request after the parts it has."""
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
    """The parts of one request as one generation; its usage is the sum of theirs."""
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
