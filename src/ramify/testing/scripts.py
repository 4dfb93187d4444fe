"""Scripts: what a scripted engine says, and with what probability.

A `Rule` writes the text of a whole turn of the model; its logprobs are a fixed function of token and position. A
`TokenLaw` gives the probability of every next token; its tokens are drawn from it and its logprobs are exact.

Invariant: the text depends only on the context's ids, the seed and the sampling parameters, never on how a run was
divided into requests. A law draws the token at position p of a context by a number hashed from (seed, p). A rule is
asked for the turn that began where the run began, and a request that continues inside that turn gets the rest of it. If
the rule would not have written the run (a fork with another seed), the rule is asked again with the run as part of the
context.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from ramify.core.codec import Codec
from ramify.core.engine import Request
from ramify.core.seeds import child_seed
from ramify.core.segment import Floats_T, Ids_T, Sampling, token_array

Probabilities_V = npt.NDArray[np.float64]

CHUNK = 8
"""Tokens drawn from a law before checking for a stop word; tokens after the stop word are discarded."""
TOKEN_DRAWS = 1 << 40
"""Index of token draws among the children of a seed. It is larger than the index of any child of a node."""


@dataclass(frozen=True, slots=True)
class ScriptedTurn:
    """What a rule has to continue."""

    context: str
    """Everything before the text that the rule writes."""
    seed: int
    """Seed of the request; 0 for a rule under greedy sampling, which does not depend on a seed."""
    sampling: Sampling
    request_id: str
    call: int
    """Number of the engine call in order of arrival. A rule that reads it is no longer deterministic."""


@dataclass(frozen=True, slots=True)
class Speech:
    """A turn of the model with planned uncertainty. Values of None are computed from token and position."""

    text: str
    """It may contain control tokens as text. The engine appends the end-of-sequence token."""
    logprob: float | None = None
    """Of each token, in nats."""
    entropy: float | None = None
    """Of each token, in nats."""
    topk: tuple[float, ...] | None = None
    """Top logprobs of each token, including that of the sampled one."""


Rule = Callable[[ScriptedTurn], str | Speech]
"""A script: what the model says in a turn."""


@runtime_checkable
class TokenLaw(Protocol):
    """The smallest possible language model."""

    def next(self, ids: Ids_T) -> Probabilities_V:
        """(V,) probabilities of the token after `ids`; they sum to 1."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class ScriptedDraft:
    """T tokens and what they were drawn from. A request takes as many as it has room for."""

    ids: Ids_T
    logprobs: Floats_T
    """(T,) float32, raw."""
    entropy: Floats_T
    """(T,) float32, in nats over the whole vocabulary."""
    topk: tuple[Floats_T, ...] = ()
    """Top logprobs of the first tokens, if requested."""


def spoken(rule: Rule, request: Request, codec: Codec, *, call: int) -> Iterator[ScriptedDraft]:
    """The rest of a rule's turn, as one draft that ends with the end of the sequence."""
    length, num_run = len(request.ids), request.num_run
    speech, ids = _asked(rule, request, codec, call=call, start=length - num_run)
    if num_run and (ids[:num_run] != request.ids[length - num_run :].tolist() or len(ids) == num_run):
        speech, ids = _asked(rule, request, codec, call=call, start=length)
    elif num_run:
        ids = ids[num_run:]
    yield _draft(token_array(ids), speech, request)


def _asked(rule: Rule, request: Request, codec: Codec, *, call: int, start: int) -> tuple[Speech, list[int]]:
    """What the rule says after the first `start` ids, and its ids including the end of the sequence."""
    context = codec.decode(request.ids[:start])
    seed = request.seed if request.sampling.temperature > 0 else 0
    said = rule(ScriptedTurn(context, seed, request.sampling, request.request_id, call))
    speech = Speech(said) if isinstance(said, str) else said
    ids = codec.encode(speech.text, allow_special=True)
    return speech, ids if codec.eos_id in ids else [*ids, codec.eos_id]


def _draft(ids: Ids_T, speech: Speech, request: Request) -> ScriptedDraft:
    """Logprobs, entropies and top logprobs of a text: planned ones, or fixed functions of token and position."""
    positions = np.arange(len(request.ids), len(request.ids) + len(ids))
    mixed = (ids.astype(np.int64) * 7919 + positions * 104_729) % 1000
    logprobs = (-(mixed + 1) / 500).astype(np.float32)
    if speech.logprob is not None:
        logprobs = np.full(len(ids), speech.logprob, np.float32)
    entropy = (mixed % 89 * 0.02).astype(np.float32)
    if speech.entropy is not None:
        entropy = np.full(len(ids), speech.entropy, np.float32)
    return ScriptedDraft(ids, logprobs, entropy, _made_up_topk(logprobs[: request.topk_tokens], speech, request.topk))


def _made_up_topk(logprobs: Floats_T, speech: Speech, k: int) -> tuple[Floats_T, ...]:
    """The sampled token's logprob, then `k - 1` others, each with half of the remaining probability."""
    if not k:
        return ()
    if speech.topk is not None:
        return (np.array(speech.topk, np.float32),) * len(logprobs)
    left = np.maximum(1 - np.exp(logprobs.astype(np.float64)), 1e-12)
    others = np.log(left[:, None] * 0.5 ** np.arange(1, k))
    return tuple(np.concatenate([logprobs[:, None], others], axis=1).astype(np.float32))


def drawn(law: TokenLaw, request: Request, codec: Codec, *, call: int) -> Iterator[ScriptedDraft]:
    """Tokens drawn from a law, a chunk at a time, up to the end of the sequence. A law does not use `call`."""
    ids = np.concatenate([request.ids, np.zeros(CHUNK, np.int32)])
    length = len(request.ids)
    while True:
        rows = [_draw(law, ids, n, request) for n in range(length, length + CHUNK)]
        chosen, logprobs, entropy = (np.array(column) for column in list(zip(*rows, strict=True))[:3])
        num_topk = max(0, request.topk_tokens - (length - len(request.ids))) if request.topk else 0
        topk = tuple(_top(row[3], row[0], request.topk) for row in itertools.islice(rows, num_topk))
        yield ScriptedDraft(chosen.astype(np.int32), logprobs.astype(np.float32), entropy.astype(np.float32), topk)
        if codec.eos_id in chosen:
            return
        length += CHUNK
        ids = np.concatenate([ids, np.zeros(CHUNK, np.int32)])


def _draw(law: TokenLaw, ids: Ids_T, length: int, request: Request) -> tuple[int, float, float, Probabilities_V]:
    """Draw the token at position `length` and write it into `ids`. Returns token, logprob, entropy, law."""
    raw = law.next(ids[:length])
    is_fixed = raw.flags.owndata and not raw.flags.writeable
    summed, entropy = (_weighed_once if is_fixed else _weighed)(_Same(raw), request.sampling)
    u = child_seed(request.seed, length, TOKEN_DRAWS) / 2**64
    token = int(summed.searchsorted(u * summed[-1], side="right"))
    ids[length] = token
    return token, float(np.log(raw[token])), entropy, raw


class _Same:
    """Probabilities that equal themselves alone: the key of a cache."""

    __slots__ = ("law",)

    def __init__(self, law: Probabilities_V) -> None:
        self.law = law

    def __hash__(self) -> int:
        return id(self.law)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.law is self.law


def _weighed(same: _Same, sampling: Sampling) -> tuple[Probabilities_V, float]:
    """Running sums of the law that tokens are drawn from, and the entropy of the law itself in nats."""
    positive = same.law[same.law > 0]
    return np.cumsum(tempered(same.law, sampling)), float(-(positive * np.log(positive)).sum())


_weighed_once = lru_cache(maxsize=4096)(_weighed)
"""For laws that are read-only: a law that returns one array again and again has it weighed once."""


def tempered(law: Probabilities_V, sampling: Sampling) -> Probabilities_V:
    """The law after temperature, then top-k, then top-p. Not normalised. Ties go to the lowest id."""
    if sampling == Sampling():
        return law
    if sampling.temperature == 0:
        return np.eye(1, len(law), int(law.argmax()))[0]
    scaled = (law / law.max()) ** (1 / sampling.temperature)
    order = np.argsort(-scaled, kind="stable")
    kept = order[: sampling.top_k or len(law)]
    before = np.cumsum(scaled[kept]) - scaled[kept]
    kept = kept[before < sampling.top_p * scaled[kept].sum()]
    truncated = np.zeros_like(scaled)
    truncated[kept] = scaled[kept]
    return truncated


def _top(law: Probabilities_V, token: int, k: int) -> Floats_T:
    """The `k` top logprobs, followed by the token's own if it is not among them."""
    order = np.argsort(-law, kind="stable")[:k].tolist()
    chosen = order if token in order else [*order, token]
    with np.errstate(divide="ignore"):
        return np.maximum(np.log(law[chosen]), -9999.0).astype(np.float32)
