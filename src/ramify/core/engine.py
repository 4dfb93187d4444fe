"""Engine: tokens in, tokens out.

Retries happen at this edge and nowhere else. What an engine can do is in its `Capabilities`; a run that needs more is
refused before it starts. What it returned is checked at the door by `checked`: nothing is repaired in silence.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ramify.core.codec import Codec
from ramify.core.errors import EngineError
from ramify.core.segment import Finish, Floats_T, Ids_T, LogprobKind, Sampling


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an engine gives."""

    name: str
    context_length: int
    """Most tokens of prompt and completion together."""
    logprobs: LogprobKind | None = None
    """Meaning of its logprobs; None = it gives none."""
    measures: frozenset[str] = frozenset()
    """Per-token measures it can return (`entropy`, …)."""
    max_topk: int = 0
    """Most top logprobs a token; 0 = it returns none."""
    has_token_ids: bool = True
    """Whether ids in and out are the model's own. An engine without takes chat messages: `Request.messages`."""
    keeps_deadlines: bool = False
    """Whether its calls end by themselves when nothing comes back: nobody else puts a deadline around them."""
    has_seeds: bool = False
    """Whether a request's seed fixes its sample."""
    is_deterministic: bool = False
    """Whether the same request gives the same bits whatever else is running."""
    can_continue_turn: bool = True
    """Whether it can go on inside an unfinished turn of the model."""
    max_samples: int = 1
    """Most samples of one request (n)."""
    max_stops: int | None = None
    """Most stop words of a request; None = any number."""
    has_abort: bool = False
    has_versions: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """Continue `ids` by at most `max_tokens` tokens."""

    ids: Ids_T
    """(T,) int32 context."""
    max_tokens: int
    seed: int
    stops: tuple[str, ...] = ()
    """Stop words; the ids of the word that ended the generation are kept."""
    num_run: int = 0
    """Length of the context's tail that was sampled in the same run: a stop word may begin in it."""
    sampling: Sampling = Sampling()
    topk: int = 0
    """Number of top logprobs wanted for each of the first `topk_tokens` tokens; 0 = none."""
    topk_tokens: int = 20
    measures: frozenset[str] = frozenset()
    """Per-token measures wanted."""
    request_id: str = ""
    deadline: float | None = None
    """By the running loop's clock: an engine that can be aborted returns then what it has. None = there is none."""
    affinity: int = 0
    """Equal for the requests of one tree, which share what other trees do not; for placement."""
    messages: tuple[Mapping[str, Any], ...] = ()
    """The context as chat messages, exactly as they were said; for engines without token ids."""
    tools: tuple[Mapping[str, Any], ...] = ()
    """Schemas of the tools that the model may call natively (`core.tool.Described`); for such engines too."""


@dataclass(frozen=True, slots=True, eq=False)
class Generation:
    """What a request became: T sampled tokens."""

    ids: Ids_T
    """(T,) int32, the stop word's included; the end-of-sequence token included where it was sampled."""
    finish: Finish
    logprobs: Floats_T | None = None
    """(T,) float32; None = the engine gives none."""
    measures: Mapping[str, Floats_T] = field(default_factory=dict[str, Floats_T])
    """(T,) float32 each."""
    topk: tuple[Floats_T, ...] = ()
    """For each of the first tokens: the returned logprobs, the sampled token's among them."""
    versions: tuple[tuple[int, int], ...] = ()
    """(policy version, number of tokens) in order; empty = the engine has no versions."""
    num_billed: int = 0
    """Tokens sampled, including those cut off behind a stop word."""
    num_cached: int = 0
    num_prefilled: int = 0
    message: Mapping[str, Any] | None = None
    """The exact chat message that `ids` render, from an engine without token ids; how many tokens it took is in
    `num_billed` alone."""
    notes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What else is worth keeping with the step: plain data."""


class Engine(Protocol):
    """Generate tokens. `close` frees what it holds; a cancelled `generate` stops the work behind it."""

    @property
    def codec(self) -> Codec: ...

    @property
    def capabilities(self) -> Capabilities: ...

    async def generate(self, request: Request) -> Generation:
        """Carry one request out. Raises `EngineError` when its attempts are used up."""
        ...

    async def close(self) -> None: ...


@runtime_checkable
class Remote(Protocol):
    """An engine behind a server. Making one asks nobody anything, so that runs can be read when the server is gone."""

    async def connect(self) -> None:
        """Ask the server what it is, before a run begins; `capabilities` are those of the server from then on.

        Raises `ConfigError` where it is another model or lacks what is needed, `EngineError` where none answers.
        Harmless when repeated.
        """
        ...


@runtime_checkable
class Abortable(Protocol):
    """An engine whose requests can be ended early without losing what they had."""

    async def abort(self, request_id: str) -> None:
        """End every request of this id: its `generate` returns the tokens it had, finished by `abort`. Harmless for an
        id that nothing runs under."""
        ...


@runtime_checkable
class EngineControl(Protocol):
    """The control side that some engines have."""

    async def pause(self) -> None: ...

    async def resume(self) -> None: ...

    async def update_weights(self, source: str, version: int) -> None: ...

    async def offload(self, tags: tuple[str, ...] = ()) -> None: ...

    async def onload(self, tags: tuple[str, ...] = ()) -> None: ...

    async def is_healthy(self) -> bool: ...


def room_for(request: Request, *, context_length: int, vocab_size: int) -> int:
    """Most tokens that `request` can be continued by. Raises `EngineError` for one that nobody could carry out."""
    num, ids = len(request.ids), request.ids
    if num < 1 or request.max_tokens < 1:
        raise EngineError("empty_request", f"{num} context ids, max_tokens={request.max_tokens}; at least 1 each")
    if num >= context_length:
        raise EngineError("context_full", f"{num} tokens for a context of {context_length}")
    if ids.min() < 0 or ids.max() >= vocab_size:
        raise EngineError("bad_token_ids", f"{ids.min()}..{ids.max()} for a vocabulary of {vocab_size}")
    return min(request.max_tokens, context_length - num)


def checked(generation: Generation, request: Request, vocab_size: int) -> Generation:
    """Return `generation` if every field is sound; else raise `EngineError` naming what is not."""
    ids, logprobs = generation.ids, generation.logprobs
    num_tokens = len(ids) if generation.message is None else generation.num_billed
    if num_tokens > request.max_tokens:
        raise EngineError("too_many_tokens", f"{num_tokens} for max_tokens={request.max_tokens}")
    if not num_tokens and generation.finish.kind != "abort":
        raise EngineError("no_tokens", f"an empty generation that finished by {generation.finish.kind!r}")
    if len(ids) and (ids.min() < 0 or ids.max() >= vocab_size):
        raise EngineError("bad_token_ids", f"ids {ids.min()}..{ids.max()} for a vocabulary of {vocab_size}")
    for name, values in (("logprobs", logprobs), *generation.measures.items()):
        if values is None:
            continue
        if values.shape != ids.shape:
            raise EngineError(f"bad_{name}", f"{len(values)} values for {len(ids)} tokens")
        if not np.isfinite(values).all():
            raise EngineError(f"bad_{name}", "not finite")
    if logprobs is not None and len(logprobs) and (logprobs.max() > 1e-3 or logprobs.min() < -1e4):
        raise EngineError("bad_logprobs", f"range {logprobs.min():.3g}..{logprobs.max():.3g}; expected -1e4..0")
    if generation.versions and sum(n for _, n in generation.versions) != len(ids):
        raise EngineError("bad_versions", f"spans {generation.versions} for {len(ids)} tokens")
    return generation
