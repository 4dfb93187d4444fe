"""Scripted: a deterministic engine without a model; the test double of the whole project.

It is public, because everybody who writes a strategy, task or tool needs one. It samples what its script says
(`scripts.py`; ready-made scripts in `policies.py`) and keeps every promise of an engine: token limits, stop words that
began in an earlier request, the end of the sequence, logprobs, measures, top logprobs, policy versions, prefix-cache
counts, cancellation. Faults and delays are planned, and exact in virtual time.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Final

import numpy as np

from ramify.core.codec import ByteCodec, Codec, joined_bytes
from ramify.core.cut import first_stop
from ramify.core.engine import Capabilities, Generation, Request
from ramify.core.errors import EngineError
from ramify.core.segment import Finish, Ids_T, token_array
from ramify.testing.planned_faults import Delay, DelayRule, Fault, first_tokens, spoilt
from ramify.testing.policies import RandomAgent
from ramify.testing.prefixes import KnownPrefixes
from ramify.testing.scripts import Rule, ScriptedDraft, ScriptedTurn, TokenLaw, drawn, spoken

SCRIPTED: Final = Capabilities(
    name="scripted",
    context_length=32_768,
    logprobs="raw",
    measures=frozenset({"entropy"}),
    max_topk=20,
    has_seeds=True,
    is_deterministic=True,
    has_abort=True,
)
"""What the scripted engine can do, unless a test says otherwise."""


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One answered request, for tests that check what was sent."""

    request_id: str
    fed: Ids_T
    sampled: Ids_T


class Scripted:
    """An engine that follows a script. It counts its calls and tokens; `calls` is kept only if `keeps_calls`."""

    def __init__(
        self,
        script: Rule | TokenLaw | None = None,
        *,
        codec: Codec | None = None,
        capabilities: Capabilities = SCRIPTED,
        delay: Delay | DelayRule = Delay(),  # noqa: B008 - frozen
        faults: Iterable[Fault] = (),
        version: int | None = None,
        block_size: int = 16,
        keeps_calls: bool = False,
    ) -> None:
        """`script` defaults to a random agent, `codec` to exact bytes. `version` may be changed at any time.

        - `version`: policy version of the tokens; None = the engine has no versions.
        - `block_size`: tokens per block of the prefix cache that it counts with; 0 = it counts none.
        - `keeps_calls`: whether `calls` keeps every request, for tests.
        """
        script = RandomAgent() if script is None else script
        self._script = partial(drawn, script) if isinstance(script, TokenLaw) else partial(spoken, script)
        self._codec = ByteCodec(is_exact=True) if codec is None else codec
        self._capabilities = replace(capabilities, has_versions=version is not None)
        self._delay = delay
        self._faults = tuple(faults)
        self._tries: Counter[tuple[str, int, int]] = Counter()
        self._prefixes = KnownPrefixes(block_size)
        self._naps: dict[str, list[asyncio.Future[bool]]] = {}
        """Request id -> calls that wait. The result is true when their time is over, false when they are aborted."""
        self._is_closed = False
        self._awake = asyncio.Event()
        self._awake.set()
        self.version = version
        """Policy version of the tokens drawn now; None = the engine has no versions."""
        self.num_calls = 0
        self.num_active = 0
        self.num_sampled = 0
        self.calls: list[Call] | None = [] if keeps_calls else None

    @property
    def codec(self) -> Codec:
        return self._codec

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    async def generate(self, request: Request) -> Generation:
        """Answer one request. Raises `EngineError` if a fault is planned or the context is full."""
        if self._is_closed:
            raise EngineError("engine_closed", "generate after close")
        call, self.num_calls = self.num_calls, self.num_calls + 1
        self.num_active += 1
        try:
            await self._awake.wait()
            return await self._answered(request, call)
        finally:
            self.num_active -= 1

    async def abort(self, request_id: str) -> None:
        """End every call with this id; it returns the tokens that it had time for. Calls that hang go on hanging."""
        for nap in self._naps.get(request_id, ()):
            _wake(nap, is_over=False)

    async def close(self) -> None:
        """Refuse further requests."""
        self._is_closed = True

    async def pause(self) -> None:
        """Start no further calls; calls in flight go on."""
        self._awake.clear()

    async def resume(self) -> None:
        self._awake.set()

    async def update_weights(self, source: str, version: int) -> None:
        """Tokens drawn from now on carry `version`, and the cache is cleared. `source` has no effect: a script has no
        weights."""
        self.version = version
        self._capabilities = replace(self._capabilities, has_versions=True)
        self._prefixes.clear()

    async def offload(self, tags: tuple[str, ...] = ()) -> None:
        """Pause and clear the cache."""
        self._prefixes.clear()
        await self.pause()

    async def onload(self, tags: tuple[str, ...] = ()) -> None:
        await self.resume()

    async def is_healthy(self) -> bool:
        return not self._is_closed

    async def _answered(self, request: Request, call: int) -> Generation:
        delay = self._delay if isinstance(self._delay, Delay) else self._delay(self._turn(request, call))
        fault = self._fault(self._turn(request, call), request) if self._faults else None
        if await self._passed_s(request, delay.call_s) < delay.call_s:
            return self._nothing()
        if fault is not None and fault.kind == "hang":
            await asyncio.Event().wait()
        if fault is not None and fault.kind == "error":
            raise EngineError(fault.reason, f"planned for call {call}", is_retryable=fault.is_retryable)
        generation = await self._timed(self._generation(request, call), delay.token_s, request)
        self._prefixes.add(np.concatenate([request.ids, generation.ids[:-1]]))
        self.num_sampled += len(generation.ids)
        if self.calls is not None:
            self.calls.append(Call(request.request_id, request.ids.copy(), generation.ids))
        return generation if fault is None else spoilt(generation, fault.kind, self._codec.vocab_size)

    def _turn(self, request: Request, call: int) -> ScriptedTurn:
        context = self._codec.decode(request.ids)
        return ScriptedTurn(context, request.seed, request.sampling, request.request_id, call)

    def _fault(self, turn: ScriptedTurn, request: Request) -> Fault | None:
        key = (request.request_id, request.seed, len(request.ids))
        fault = next((f for f in self._faults if f.strikes(turn, self._tries[key])), None)
        if fault is not None:
            self._tries[key] += 1
        return fault

    async def _timed(self, generation: Generation, token_s: float, request: Request) -> Generation:
        """Wait as long as the tokens take. A version that changes meanwhile applies to the later tokens; an abort ends
        them."""
        num_tokens = len(generation.ids)
        if self.version is None:
            passed_s = await self._passed_s(request, token_s * num_tokens)
            return generation if passed_s >= token_s * num_tokens else aborted(generation, int(passed_s / token_s))
        versions: list[int] = []
        while len(versions) < num_tokens and await self._passed_s(request, token_s) >= token_s:
            versions.append(self.version)
        spans = tuple((v, len(list(same))) for v, same in groupby(versions))
        whole = len(versions) == num_tokens
        return replace(generation if whole else aborted(generation, len(versions)), versions=spans)

    async def _passed_s(self, request: Request, seconds: float) -> float:
        """Let `seconds` pass. Returns them, or fewer if the request was aborted meanwhile."""
        if not seconds:
            return seconds
        loop = asyncio.get_running_loop()
        nap: asyncio.Future[bool] = loop.create_future()
        began, timer = loop.time(), loop.call_later(seconds, partial(_wake, nap, is_over=True))
        naps = self._naps.setdefault(request.request_id, [])
        naps.append(nap)
        try:
            is_over = await nap
        finally:
            timer.cancel()
            naps.remove(nap)
            if not naps:
                self._naps.pop(request.request_id, None)
        return seconds if is_over else min(loop.time() - began, math.nextafter(seconds, 0))

    def _nothing(self) -> Generation:
        """The result of a call that was aborted before its first token."""
        has_logprobs = self._capabilities.logprobs is not None
        return Generation(token_array(()), Finish("abort"), logprobs=np.empty(0, np.float32) if has_logprobs else None)

    def _generation(self, request: Request, call: int) -> Generation:
        length = len(request.ids)
        room = min(request.max_tokens, self._capabilities.context_length - length)
        if room < 1:
            raise EngineError("context_full", f"{length} tokens for a context of {self._capabilities.context_length}")
        request = replace(request, topk=min(request.topk, self._capabilities.max_topk))
        draft, finish = self._taken(request, room, call)
        num_cached = self._prefixes.num_known(request.ids)
        wanted = request.measures & self._capabilities.measures
        return Generation(
            ids=draft.ids,
            finish=finish,
            logprobs=draft.logprobs if self._capabilities.logprobs is not None else None,
            measures={"entropy": draft.entropy} if "entropy" in wanted else {},
            topk=draft.topk,
            num_billed=len(draft.ids),
            num_cached=num_cached,
            num_prefilled=length - num_cached,
        )

    def _taken(self, request: Request, room: int, call: int) -> tuple[ScriptedDraft, Finish]:
        """What the script says, up to the first stop word, the end of the sequence or the token limit."""
        drafts = self._script(request, self._codec, call=call)
        run = joined_bytes(self._codec, request.ids[len(request.ids) - request.num_run :].tolist())
        draft = next(drafts)
        while (end := self._end(draft.ids, run, request.stops, room)) is None:
            draft = _joined(draft, next(drafts))
        num_tokens, finish = end
        taken = ScriptedDraft(
            draft.ids[:num_tokens],
            draft.logprobs[:num_tokens],
            draft.entropy[:num_tokens],
            draft.topk[: min(num_tokens, request.topk_tokens)],
        )
        return taken, finish

    def _end(self, ids: Ids_T, run: bytes, stops: tuple[str, ...], room: int) -> tuple[int, Finish] | None:
        """Number of tokens to take, and why it ends there; None = the draft ends before any reason to stop."""
        tokens = [self._codec.token_bytes(i) for i in ids.tolist()]
        ends: list[tuple[int, Finish]] = []
        stop = first_stop(run + b"".join(tokens), stops, after=len(run))
        if stop is not None:
            word, end = stop
            borders = np.cumsum([len(run), *map(len, tokens)])
            ends.append((int(np.searchsorted(borders, end)), Finish("stop", word)))
        eos = np.flatnonzero(ids == self._codec.eos_id)
        if len(eos):
            ends.append((int(eos[0]) + 1, Finish("end_of_sequence")))
        if len(ids) >= room:
            ends.append((room, Finish("length")))
        return min(ends, key=lambda e: e[0], default=None)


def _wake(nap: asyncio.Future[bool], *, is_over: bool) -> None:
    if not nap.done():
        nap.set_result(is_over)


def aborted(generation: Generation, num_tokens: int) -> Generation:
    """The part of a generation that exists when it is aborted."""
    return replace(first_tokens(generation, num_tokens, Finish("abort")), num_billed=num_tokens)


def _joined(one: ScriptedDraft, other: ScriptedDraft) -> ScriptedDraft:
    return ScriptedDraft(
        np.concatenate([one.ids, other.ids]),
        np.concatenate([one.logprobs, other.logprobs]),
        np.concatenate([one.entropy, other.entropy]),
        (*one.topk, *other.topk),
    )
