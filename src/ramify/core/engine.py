"""Engine: tokens in, tokens out.

Requests are retried inside the engine and nowhere else. An engine lists what it can do in its `Capabilities`; if a run
needs more, an error is raised before it starts. `checked` checks every generation that an engine returns; nothing is
repaired silently.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np

from ramify.core.codec import Codec
from ramify.core.errors import EngineError
from ramify.core.quick_init import quick_init
from ramify.core.segment import Finish, Floats_T, Ids_T, LogprobKind, Sampling

MAX_COUNT: Final = 1 << 40
"""Largest number of tokens that an engine may count: one that is larger is a fault of its own."""
UNMETERED: Final = "usage"
"""Note on a generation whose tokens the server did not count: `num_billed` is the most that they can be."""
MAX_TOKEN_BYTES: Final = 64
"""Most bytes of a token on average, for messages whose tokens nobody sees. Text of natural languages has 2 to 5."""
MESSAGE_BYTES: Final = 4096
"""More bytes that a message may have: the frames of its tool calls."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an engine can do."""

    name: str
    context_length: int
    """Most tokens of prompt and completion together."""
    logprobs: LogprobKind | None = None
    """Meaning of its logprobs; None = it gives none."""
    measures: frozenset[str] = frozenset()
    """Measures per token that it can return (`entropy`, ...)."""
    max_topk: int = 0
    """Most top logprobs per token; 0 = it returns none."""
    has_token_ids: bool = True
    """Whether the ids in and out are the model's own. An engine without token ids takes chat messages:
    `Request.messages`."""
    keeps_deadlines: bool = False
    """Whether its calls end by themselves when nothing comes back. If so, nobody else sets a deadline for them."""
    has_seeds: bool = False
    """Whether a request's seed fixes its sample."""
    is_deterministic: bool = False
    """Whether the same request gives the same bits, whatever else is running."""
    can_continue_turn: bool = True
    """Whether it can continue inside an unfinished turn of the model."""
    max_samples: int = 1
    """Most samples per request (n)."""
    max_stops: int | None = None
    """Most stop words per request; None = any number."""
    has_abort: bool = False
    has_versions: bool = False


@quick_init
@dataclass(frozen=True, slots=True)
class Request:
    """Continue `ids` by at most `max_tokens` tokens."""

    ids: Ids_T
    """(T,) int32 context."""
    max_tokens: int
    seed: int
    stops: tuple[str, ...] = ()
    """Stop words. The ids of the word that ended the generation are kept."""
    num_run: int = 0
    """Length of the context's tail that was sampled in the same run. A stop word may begin in it."""
    sampling: Sampling = Sampling()
    topk: int = 0
    """Number of top logprobs wanted for each of the first `topk_tokens` tokens; 0 = none."""
    topk_tokens: int = 20
    measures: frozenset[str] = frozenset()
    """Measures per token that are wanted."""
    request_id: str = ""
    deadline: float | None = None
    """On the clock of the running loop. At the deadline, an engine that can be aborted returns what it has. None = no
    deadline."""
    affinity: int = 0
    """Equal for the requests of one tree, which share a prefix; used for placement."""
    messages: tuple[Mapping[str, Any], ...] = ()
    """The context as chat messages, exactly as they were said; for engines without token ids."""
    tools: tuple[Mapping[str, Any], ...] = ()
    """Schemas of the tools that the model may call natively (`core.tool.Described`); also for engines without token
    ids."""
    fields: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Further fields of the request as it is sent; also for engines without token ids."""


@quick_init
@dataclass(frozen=True, slots=True, eq=False)
class Generation:
    """The result of a request: T sampled tokens."""

    ids: Ids_T
    """(T,) int32, with the stop word's ids, and the end-of-sequence token if it was sampled."""
    finish: Finish
    logprobs: Floats_T | None = None
    """(T,) float32; None = the engine gives none."""
    measures: Mapping[str, Floats_T] = field(default_factory=dict[str, Floats_T])
    """(T,) float32 each."""
    topk: tuple[Floats_T, ...] = ()
    """For each of the first tokens: the returned logprobs, including the sampled token's."""
    versions: tuple[tuple[int, int], ...] = ()
    """(policy version, number of tokens) in order; empty = the engine has no versions."""
    num_billed: int = 0
    """Tokens sampled, including those cut off after a stop word."""
    num_cached: int = 0
    num_prefilled: int = 0
    picodollars: int | None = None
    """What the call cost, if the engine knows it; None = what its prices say."""
    message: Mapping[str, Any] | None = None
    """The exact chat message that `ids` render, from an engine without token ids. Only `num_billed` then says how many
    tokens it took."""
    notes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Other plain data to keep with the step."""


class Engine(Protocol):
    """Generates tokens. `close` frees what it holds. Cancelling `generate` stops the work behind it."""

    @property
    def codec(self) -> Codec: ...

    @property
    def capabilities(self) -> Capabilities: ...

    async def generate(self, request: Request) -> Generation:
        """Carry out one request. Raises `EngineError` when its attempts are used up."""
        ...

    async def close(self) -> None: ...


@runtime_checkable
class Remote(Protocol):
    """An engine behind a server. Making one contacts no server, so runs can be read after the server is gone."""

    async def connect(self) -> None:
        """Ask the server what it is, before a run begins. From then on, `capabilities` are the server's.

        Raises `ConfigError` if the server has another model or lacks what is needed, `EngineError` if it does not
        answer. May be called repeatedly.
        """
        ...


@runtime_checkable
class Abortable(Protocol):
    """An engine whose requests can be ended early without losing their tokens."""

    async def abort(self, request_id: str) -> None:
        """End every request with this id. Its `generate` returns the tokens so far, with finish `abort`. An id without
        a running request is ignored."""
        ...


@runtime_checkable
class EngineControl(Protocol):
    """Control functions that some engines have."""

    async def pause(self) -> None: ...

    async def resume(self) -> None: ...

    async def update_weights(self, source: str, version: int) -> None: ...

    async def offload(self, tags: tuple[str, ...] = ()) -> None: ...

    async def onload(self, tags: tuple[str, ...] = ()) -> None: ...

    async def is_healthy(self) -> bool: ...


def room_for(request: Request, *, context_length: int, vocab_size: int) -> int:
    """Most tokens by which `request` can be continued. Raises `EngineError` for a request that no engine could carry
    out."""
    num, ids = len(request.ids), request.ids
    if num < 1 or request.max_tokens < 1:
        raise EngineError("empty_request", f"{num} context ids, max_tokens={request.max_tokens}; at least 1 each")
    if num >= context_length:
        raise EngineError("context_full", f"{num} tokens for a context of {context_length}")
    if ids.min() < 0 or ids.max() >= vocab_size:
        raise EngineError("bad_token_ids", f"{ids.min()}..{ids.max()} for a vocabulary of {vocab_size}")
    return min(request.max_tokens, context_length - num)


def checked(
    generation: Generation, request: Request, vocab_size: int, capabilities: Capabilities | None = None
) -> Generation:
    """Return `generation` if every field is valid; otherwise raise `EngineError` that names the engine, the field and
    its value. With `capabilities`, what the engine owes by them is checked too."""
    name = "the engine" if capabilities is None else f"engine {capabilities.name!r}"
    try:
        _check_tokens(generation, request, vocab_size)
        _check_counts(generation)
        _check_values(generation)
        if capabilities is not None and generation.message is None:
            _check_promises(generation, capabilities)
    except EngineError as error:
        raise EngineError(error.reason, f"{name}: {error.detail}") from None
    except (AttributeError, TypeError, ValueError) as error:
        raise EngineError("bad_generation", f"{name} returned {generation!r:.200}: {error}") from error
    return generation


def _check_tokens(generation: Generation, request: Request, vocab_size: int) -> None:
    ids, is_spoken = generation.ids, generation.message is not None
    num_tokens = generation.num_billed if is_spoken else len(ids)
    if num_tokens > request.max_tokens:
        raise EngineError("too_many_tokens", f"{num_tokens} for max_tokens={request.max_tokens}")
    most_bytes = MESSAGE_BYTES + MAX_TOKEN_BYTES * request.max_tokens
    if is_spoken and len(ids) > most_bytes:
        raise EngineError(
            "too_many_tokens",
            f"{len(ids)} bytes of text for max_tokens={request.max_tokens}; at most {most_bytes}",
        )
    if not num_tokens and generation.finish.kind != "abort":
        raise EngineError("no_tokens", f"an empty generation that finished by {generation.finish.kind!r}")
    if len(ids) and (ids.min() < 0 or ids.max() >= vocab_size):
        raise EngineError("bad_token_ids", f"ids {ids.min()}..{ids.max()} for a vocabulary of {vocab_size}")


def _check_counts(generation: Generation) -> None:
    for name in ("num_billed", "num_cached", "num_prefilled", "picodollars"):
        value = getattr(generation, name)
        if value is None and name == "picodollars":
            continue
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 0 <= value <= MAX_COUNT:
            raise EngineError(f"bad_{name}", f"{name} = {value!r}; expected a whole number from 0 to {MAX_COUNT}")
    ids, spans = generation.ids, generation.versions
    if spans and (sum(n for _, n in spans) != len(ids) or min(map(min, spans)) < 0):
        raise EngineError("bad_versions", f"spans {spans} for {len(ids)} tokens")


def _check_promises(generation: Generation, capabilities: Capabilities) -> None:
    """What an engine of token ids owes: a price for each token, and the logprobs that it declares."""
    num_ids, num_billed = len(generation.ids), generation.num_billed
    if num_billed < num_ids:
        raise EngineError("bad_num_billed", f"num_billed = {num_billed} for {num_ids} tokens; at least as many")
    if num_ids and generation.logprobs is None and capabilities.logprobs is not None:
        raise EngineError("no_logprobs", f"logprobs = None for {num_ids} tokens; it declares {capabilities.logprobs!r}")


def _check_values(generation: Generation) -> None:
    ids, logprobs = generation.ids, generation.logprobs
    for name, values in (("logprobs", logprobs), *generation.measures.items()):
        if values is None:
            continue
        if values.shape != ids.shape:
            raise EngineError(f"bad_{name}", f"{name}: {len(values)} values for {len(ids)} tokens")
        if not len(values):
            continue
        low, high = float(values.min()), float(values.max())
        _refuse_infinite(name, values, low, high)
        if name == "logprobs" and (high > 1e-3 or low < -1e4):
            raise EngineError("bad_logprobs", f"range {low:.3g}..{high:.3g}; expected -1e4..0")
    if generation.topk and len(tops := np.concatenate(generation.topk)):
        _refuse_infinite("topk", tops, float(tops.min()), float(tops.max()))


def _refuse_infinite(name: str, values: Floats_T, low: float, high: float) -> None:
    """Raise `EngineError` unless all values are finite; `low` and `high` are the extremes, NaN if any value is."""
    if not (-math.inf < low and high < math.inf):
        odd = values[~np.isfinite(values)][0]
        raise EngineError(f"bad_{name}", f"{name} holds {odd!r}: not finite")
