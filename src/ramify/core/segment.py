"""Segment: a run of tokens of one origin. A tree is made of segments only.

Only `sampled` tokens carry a policy-gradient weight, and only `written` tokens a cross-entropy weight. `prompt` and
`given` tokens are context. A segment is never re-tokenised. A tree hands out segments as views into its arena: their
arrays are read-only.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from ramify.core.errors import ContractError
from ramify.core.quick_init import quick_init

Origin = Literal["prompt", "sampled", "given", "written"]
ORIGINS: tuple[Origin, ...] = ("prompt", "sampled", "given", "written")

FinishKind = Literal["stop", "end_of_sequence", "length", "abort"]

Ids_T = npt.NDArray[np.int32]
Floats_T = npt.NDArray[np.float32]


@quick_init
@dataclass(frozen=True, slots=True)
class Finish:
    """How a generation ended: the kind, and the stop word or stop id that matched."""

    kind: FinishKind
    matched: str | None = None


@quick_init
@dataclass(frozen=True, slots=True)
class Usage:
    """What a generation cost. A node's usage is billed once, even if its tokens are dropped later."""

    num_calls: int = 0
    """Engine requests: 1 for the first segment of a generation, 0 for its other segments."""
    num_billed: int = 0
    """Tokens that the engine sampled, including those cut off later."""
    num_cached: int = 0
    """Context tokens whose keys and values were still in the engine's cache."""
    num_prefilled: int = 0
    """Context tokens that the engine had to compute."""
    picodollars: int = 0
    """Price of the whole call, if the engine has prices."""


FREE = Usage()


@dataclass(frozen=True, slots=True)
class Sampling:
    """The distribution that tokens are drawn from; it fixes what the stored logprobs mean."""

    temperature: float = 1.0
    """Temperature of sampling, 0 or more; 0 = the likeliest token."""
    top_p: float = 1.0
    """Share of the probability that the likeliest tokens drawn from hold together; above 0, at most 1."""
    top_k: int = 0
    """Number of likeliest tokens drawn from; 0 = no limit."""

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf or not 0 < self.top_p <= 1 or self.top_k < 0:
            raise ContractError(f"impossible sampling {self!r}: temperature >= 0, 0 < top_p <= 1, top_k >= 0")


LogprobKind = Literal["raw", "scaled"]
"""raw: log softmax of the logits. scaled: after temperature and truncation, the distribution the token was drawn
from."""


@quick_init
@dataclass(frozen=True, slots=True)
class Origination:
    """Which engine sampled a segment, from which distribution, and what its logprobs mean."""

    engine: str
    sampling: Sampling = Sampling()
    logprobs: LogprobKind | None = None
    """None = the engine gives no logprobs."""


ToolStatus = Literal["ok", "empty", "error", "timeout", "crashed", "refused", "invalid"]
PathEnd = Literal["done", "truncated"]
"""How a world ends a path: by its own rules, or at a limit of its own."""


@quick_init
@dataclass(frozen=True, slots=True)
class ToolCall:
    """One action of the model and its result. It is kept with the observation that it led to."""

    tool: str
    """Name of the tool; empty when the action named none."""
    arguments: str
    status: ToolStatus = "ok"
    result: str = ""
    """Text the tool returned, before the format wrapped it. A replay is compared with it."""
    duration_s: float = 0.0
    num_retries: int = 0
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    attachments: tuple[str, ...] = ()
    """Hashes or names of files the tool returned."""
    seed: int | None = None
    """Seed of an environment's step; None = the tool draws nothing."""
    reward: float | None = None
    """Reward of the step; None = none was given, which is not 0."""
    end: PathEnd | None = None
    parts: Mapping[str, float] = field(default_factory=dict[str, float])
    """Named parts of the reward."""

    @property
    def is_executed(self) -> bool:
        """Whether a tool ran. Refused and invalid actions are answered without running one."""
        return self.status not in ("refused", "invalid")

    @property
    def is_turn(self) -> bool:
        """Whether an environment answered a whole turn, which held no call."""
        return not self.tool and self.status in ("ok", "empty", "error")


@quick_init
@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """A run of T tokens of one origin.

    `logprobs` and `measures` exist for `sampled` segments only; None = not computed.
    """

    origin: Origin
    ids: Ids_T
    """(T,) int32."""
    logprobs: Floats_T | None = None
    """(T,) float32, of the sampled token, in nats. `source` says what they mean."""
    measures: Mapping[str, Floats_T] = field(default_factory=dict[str, Floats_T])
    """Named values per token, (T,) float32 each: `entropy` in nats over the whole vocabulary, and others."""
    source: Origination | None = None
    version: int | None = None
    """Policy version that sampled it. A generation during which the version changes has one segment per version."""
    finish: Finish | None = None
    """How the generation ended; set on its last segment only, None on the others."""
    seed: int | None = None
    usage: Usage = FREE
    message: Mapping[str, Any] | None = None
    """The exact chat message that this segment renders, if there is one."""
    tool_call: ToolCall | None = None
    """On a `given` segment: the call that it answers."""
    attachments: tuple[str, ...] = ()
    """Hashes of files that belong to this segment; never part of the ids."""

    def __post_init__(self) -> None:
        if self.ids.dtype != np.int32 or self.ids.ndim != 1:
            raise ContractError(f"segment ids must be (T,) int32, got {self.ids.dtype} of shape {self.ids.shape}")
        if self.origin != "sampled" and (self.logprobs is not None or self.measures or self.finish is not None):
            raise ContractError(f"a {self.origin!r} segment has no logprobs, measures or finish: only sampled ones do")
        if self.logprobs is not None:
            self._refuse_other_shape("logprobs", self.logprobs)
        for name, values in self.measures.items():
            self._refuse_other_shape(name, values)

    def _refuse_other_shape(self, name: str, values: Floats_T) -> None:
        if values.shape != self.ids.shape:
            raise ContractError(f"{name} has shape {values.shape} for {len(self.ids)} ids")

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def is_sampled(self) -> bool:
        return self.origin == "sampled"


class SegmentLabel(NamedTuple):
    """What a segment is, without its tokens: cheap to read for a whole tree."""

    num_tokens: int
    origin: Origin
    version: int | None
    source: Origination | None
    tool_call: ToolCall | None


def token_array(ids: object) -> Ids_T:
    """Return `ids` (any sequence of integers) as a fresh (T,) int32 array."""
    return np.array(ids, dtype=np.int32).reshape(-1)
