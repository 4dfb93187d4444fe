"""Turn: one generation of a server, from the request sent to the tokens that count.

A `StopWatch` over the ids finds the stop words, as in every other engine. A server does not know the run that the
context ends with; it reads only its own text, so its stop says only where it returned. Tokens after a stop are cut off
and billed. If the server stopped at a text that completes none of our stop words, another request continues from there.
An answer raises a named error and is never repaired if it has the wrong number of tokens, another prompt, or logprobs
that are missing or not numbers.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from ramify.core.engine import Generation, Request
from ramify.core.errors import EngineError
from ramify.core.quick_init import quick_init
from ramify.core.seeds import child_seed
from ramify.core.segment import Finish, Floats_T, Sampling, token_array
from ramify.engines.stop_watch import StopWatch

WIRE_SEED_MASK: Final = (1 << 63) - 1
"""Servers store a seed in a signed 64-bit integer."""
CONTINUED_DRAW: Final = (1 << 40) + 3
"""Index for the seed of a continued generation, because the first ask has used the random numbers of its own seed."""
CLAMPED_LOGPROB: Final = -9999.0
"""What servers send for minus infinity and for NaN (vllm: `max(logprob, -9999.0)`)."""
MAX_LOGPROB: Final = 1e-3
"""Slightly above 0, because of rounding."""


@quick_init
@dataclass(frozen=True, slots=True)
class Ask:
    """One request to a server: continue `ids`."""

    ids: list[int]
    max_tokens: int
    seed: int
    """A number of 63 bits."""
    stops: tuple[str, ...]
    """Texts at which the server may stop."""
    end_ids: tuple[int, ...]
    """Tokens at which the server must stop."""
    sampling: Sampling
    topk: int
    """Top logprobs per token; 0 = only the sampled token's."""
    request_id: str


@quick_init
@dataclass(frozen=True, slots=True)
class Sampled:
    """A server's answer, as it was sent."""

    ids: list[int]
    finish: str
    """`stop`, `length` or `abort`."""
    matched: str | None = None
    """The text it stopped at; None = it stopped at a token, or for another reason."""
    logprobs: Sequence[float | None] | None = None
    topk: Sequence[Sequence[float]] = ()
    """For each token: the top logprobs, in any order."""
    num_prompt: int | None = None
    """Context tokens that it counted; None = it was aborted before it counted any."""
    num_told: int | None = None
    """Tokens that it says it sampled; None = it does not say."""
    num_cached: int | None = None
    """Context tokens whose keys and values it had; None = it does not say."""
    versions: tuple[tuple[int, int], ...] = ()
    """(policy version, number of tokens) in order; empty = it does not say."""
    version: int | None = None
    """Its policy version when it answered; None = it does not say."""
    request_id: str = ""
    """The id of the request that it answers; '' = it does not say."""


@dataclass(slots=True)
class ServedTurn:
    """One running generation. It takes answers in until one ends it."""

    request: Request
    token_bytes: Sequence[bytes]
    end_ids: tuple[int, ...]
    room: int
    """Maximum number of tokens: the request's limit, or fewer where the context has less room."""
    has_logprobs: bool = True
    """Whether the server gives any; if so, an answer without them is refused."""
    ids: list[int] = field(default_factory=list[int])
    num_billed: int = 0
    num_cached: int = 0
    _logprobs: list[float] = field(default_factory=list[float])
    _topk: list[Floats_T] = field(default_factory=list[Floats_T])
    _versions: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    _watch: StopWatch = field(init=False)

    def __post_init__(self) -> None:
        latest_first = self.request.ids[::-1][: self.request.num_run].tolist()
        self._watch = StopWatch(self.request.stops, (self.token_bytes[token] for token in latest_first))

    def ask(self, request_id: str) -> Ask:
        """The next request to the server."""
        request, num = self.request, len(self.ids)
        seed = request.seed if not num else child_seed(request.seed, num, CONTINUED_DRAW)
        return Ask(
            ids=[*request.ids.tolist(), *self.ids],
            max_tokens=self.room - num,
            seed=seed & WIRE_SEED_MASK,
            stops=tuple(dict.fromkeys([*request.stops, *completions(self._watch.tail, request.stops)])),
            end_ids=self.end_ids,
            sampling=request.sampling,
            topk=request.topk if len(self._topk) < request.topk_tokens else 0,
            request_id=request_id,
        )

    def hear(self, sampled: Sampled, ask: Ask) -> Finish | None:
        """Take an answer in; returns how the generation ends with it. None = the server stopped at none of our stop
        words.

        Raises `EngineError` for an invalid answer.
        """
        self._refuse(sampled, ask)
        num, finish = self._heard(sampled)
        if not self.ids:
            self.num_cached = sampled.num_cached or 0
        self.num_billed += len(sampled.ids)
        self._keep(sampled, num, ask)
        if finish is None and sampled.finish == "abort":
            return Finish("abort")
        if finish is None and len(self.ids) == self.room:
            return Finish("length")
        if finish is None and sampled.finish != "stop":
            raise EngineError("wrong_length", f"{len(sampled.ids)} of {ask.max_tokens} tokens, ended by 'length'")
        if finish is None and sampled.matched is None:
            raise EngineError(
                "unknown_end",
                f"the server ends a sequence at token {sampled.ids[-1]}, the tokenizer's folder at {self.end_ids}; "
                "name it there: eos_token_id in generation_config.json",
            )
        return finish

    def generation(self, finish: Finish) -> Generation:
        """The generation from all answers."""
        return Generation(
            ids=token_array(self.ids),
            finish=finish,
            logprobs=np.array(self._logprobs, np.float32) if self.has_logprobs else None,
            topk=tuple(self._topk),
            versions=tuple(self._versions),
            num_billed=self.num_billed,
            num_cached=self.num_cached,
            num_prefilled=len(self.request.ids) - self.num_cached,
        )

    def _heard(self, sampled: Sampled) -> tuple[int, Finish | None]:
        """How many of the tokens count, and the end that they contain."""
        ids = sampled.ids
        num_before_end = len(ids)
        if not set(self.end_ids).isdisjoint(ids):
            num_before_end = next(i for i, token in enumerate(ids) if token in self.end_ids)
        found = self._watch.hear(*(self.token_bytes[token] for token in ids[:num_before_end]))
        if found is not None:
            return found[1], Finish("stop", found[0])
        if num_before_end < len(ids):
            return num_before_end + 1, Finish("end_of_sequence")
        return len(ids), None

    def _refuse(self, sampled: Sampled, ask: Ask) -> None:
        """Raise `EngineError` for an answer that cannot belong to `ask`."""
        num = len(sampled.ids)
        if sampled.finish not in ("stop", "length", "abort"):
            raise EngineError("unknown_finish", f"{sampled.finish!r}; expected 'stop', 'length' or 'abort'")
        if num > ask.max_tokens:
            raise EngineError("too_many_tokens", f"{num} for max_tokens={ask.max_tokens}")
        if not num and sampled.finish != "abort":
            raise EngineError("no_tokens", f"an empty answer that finished by {sampled.finish!r}")
        if sampled.num_told is not None and sampled.num_told != num:
            raise EngineError("wrong_count", f"{num} token ids, but the usage counts {sampled.num_told}")
        if sampled.num_prompt is not None and sampled.num_prompt != len(ask.ids):
            raise EngineError("other_prompt", f"{len(ask.ids)} context tokens were sent, {sampled.num_prompt} counted")
        if not 0 <= (sampled.num_cached or 0) <= len(ask.ids):
            raise EngineError("bad_usage", f"{sampled.num_cached} cached of {len(ask.ids)} context tokens")
        if num and not 0 <= min(sampled.ids) <= max(sampled.ids) < len(self.token_bytes):
            raise EngineError(
                "bad_token_ids",
                f"{min(sampled.ids)}..{max(sampled.ids)} for a vocabulary of {len(self.token_bytes)}",
            )
        if sampled.versions and sum(n for _, n in sampled.versions) != num:
            raise EngineError("bad_versions", f"spans {sampled.versions} for {num} tokens")

    def _keep(self, sampled: Sampled, num: int, ask: Ask) -> None:
        """Keep the first `num` tokens of an answer. Mutates."""
        self.ids += sampled.ids[:num]
        if self.has_logprobs and sampled.ids:
            self._logprobs += _sound(sampled.logprobs, len(sampled.ids))[:num]
        if ask.topk and sampled.ids:
            if len(sampled.topk) != len(sampled.ids):
                raise EngineError(
                    "bad_topk", f"{len(sampled.topk)} lists of top logprobs for {len(sampled.ids)} tokens"
                )
            wanted = min(num, self.request.topk_tokens - len(self._topk))
            self._topk += _descending(sampled.topk)[:wanted]
        if sampled.versions:
            self._versions = merged([*self._versions, *first_of(sampled.versions, num)])


def completions(tail: bytes, words: Iterable[str]) -> list[str]:
    """The rests of words that may have begun at the end of `tail`, as texts that a server can look for."""
    found: list[str] = []
    for word in words:
        needle = word.encode()
        for n in range(min(len(needle) - 1, len(tail)), 0, -1):
            if tail.endswith(needle[:n]):
                rest = needle[n:].decode(errors="ignore")
                found += [rest] if rest.encode() == needle[n:] else []
    return found


def _descending(lists: Sequence[Sequence[float]]) -> Sequence[Floats_T]:
    """Each list as an array, the largest value first. Raises `EngineError` if one is empty or has a value above 0."""
    if len(set(map(len, lists))) == 1:
        values = np.sort(np.array(lists, np.float32))[:, ::-1]
        is_sound = values.size > 0 and values.max() <= MAX_LOGPROB
        arrays = list(values)
    else:
        arrays = [np.array(sorted(each, reverse=True), np.float32) for each in lists]
        is_sound = all(each.size and each[0] <= MAX_LOGPROB for each in arrays)
    if not is_sound:
        raise EngineError("bad_topk", "a token without top logprobs, or with one above 0")
    return arrays


def first_of(spans: Iterable[tuple[int, int]], num: int) -> list[tuple[int, int]]:
    """The spans (version, number of tokens) of the first `num` tokens."""
    kept: list[tuple[int, int]] = []
    for version, length in spans:
        kept += [(version, min(length, num))] if num > 0 else []
        num -= length
    return kept


def merged(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same spans, with neighbours of one version joined and empty spans left out."""
    joined: list[tuple[int, int]] = []
    for version, length in spans:
        if joined and joined[-1][0] == version:
            joined[-1] = (version, joined[-1][1] + length)
        elif length:
            joined.append((version, length))
    return joined


def _sound(logprobs: Sequence[float | None] | None, num: int) -> list[float]:
    """The logprobs of `num` sampled tokens. Raises `EngineError` if one is missing or is no number."""
    if logprobs is None or len(logprobs) != num:
        raise EngineError("bad_logprobs", f"{0 if logprobs is None else len(logprobs)} logprobs for {num} tokens")
    values = [value for value in logprobs if value is not None and CLAMPED_LOGPROB < value <= MAX_LOGPROB]
    if len(values) != num:
        odd = next(value for value in logprobs if value is None or not CLAMPED_LOGPROB < value <= MAX_LOGPROB)
        raise EngineError("bad_logprobs", f"{odd!r}; a sampled token has one above {CLAMPED_LOGPROB:g} and at most 0")
    return values
