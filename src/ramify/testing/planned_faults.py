"""Planned faults and delays of a scripted engine. Call numbers and seeds decide which calls they affect."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ramify.core.engine import Generation
from ramify.core.errors import ContractError
from ramify.core.seeds import child_seed
from ramify.core.segment import Finish
from ramify.testing.scripts import ScriptedTurn

FaultKind = Literal["error", "hang", "abort", "nan_logprobs", "wrong_length", "bad_ids", "no_tokens", "too_many_tokens"]
FAULT_DRAW = (1 << 40) + 1


@dataclass(frozen=True, slots=True)
class Delay:
    """Time a call takes, in seconds of the loop's clock."""

    call_s: float = 0.0
    """Before the first token."""
    token_s: float = 0.0


DelayRule = Callable[[ScriptedTurn], Delay]


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of engine failure, and when it occurs: any of `calls`, `share` and `when` is enough."""

    kind: FaultKind
    calls: tuple[int, ...] = ()
    """Numbers of calls, from 0, in order of arrival."""
    share: float = 0.0
    """Probability, drawn from the request's seed: the same requests fail in every run."""
    when: Callable[[ScriptedTurn], bool] | None = None
    num_tries: int | None = None
    """How many tries of one request fail before one succeeds; None = all."""
    reason: str = "engine_500"
    """Reason of the `EngineError`."""
    is_retryable: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ContractError(f"a fault's share is a probability, got {self.share!r}")

    def strikes(self, turn: ScriptedTurn, num_tries: int) -> bool:
        """Whether it affects a call, if it already affected `num_tries` tries of its request."""
        if self.num_tries is not None and num_tries >= self.num_tries:
            return False
        is_drawn = child_seed(turn.seed, 0, FAULT_DRAW) < self.share * 2**64
        return turn.call in self.calls or is_drawn or (self.when is not None and self.when(turn))


def spoilt(generation: Generation, kind: FaultKind, vocab_size: int) -> Generation:
    """What a broken engine returns instead of `generation`."""
    ids, logprobs = generation.ids.copy(), generation.logprobs
    match kind:
        case "abort":
            return first_tokens(generation, len(ids) // 2, Finish("abort"))
        case "no_tokens":
            return first_tokens(generation, 0, generation.finish)
        case "nan_logprobs":
            return replace(generation, logprobs=np.full(len(ids), np.nan, np.float32))
        case "wrong_length":
            return replace(
                generation, logprobs=np.zeros(len(ids) + 1, np.float32) if logprobs is None else logprobs[1:]
            )
        case "bad_ids":
            ids[-1] = vocab_size
            return replace(generation, ids=ids)
        case "too_many_tokens":
            return replace(generation, ids=np.resize(ids, 1_000_000), logprobs=None, measures={}, versions=())
        case "error" | "hang":
            raise ContractError(f"a fault of kind {kind!r} returns nothing")


def first_tokens(generation: Generation, num_tokens: int, finish: Finish) -> Generation:
    """The first tokens of a generation, with another finish."""
    return replace(
        generation,
        ids=generation.ids[:num_tokens],
        logprobs=None if generation.logprobs is None else generation.logprobs[:num_tokens],
        measures={name: values[:num_tokens] for name, values in generation.measures.items()},
        topk=generation.topk[:num_tokens],
        versions=(),
        finish=finish,
    )
