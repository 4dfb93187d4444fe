"""Branch: the read-only view of a path since its last fresh context.

Formats, engines, judges and exports see a tree as branches: pieces of tokens, each with the node that owns it. The ids
are exactly those that were fed and sampled; text is derived from them.

`said` is the model's own words: answers, votes and rewards read it. `transcript` also holds what tools wrote, which may
look like anything, an answer included.
"""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, takewhile
from typing import Any

import numpy as np
import numpy.typing as npt

from ramify.core.codec import Codec, joined_bytes
from ramify.core.command import Role
from ramify.core.quick_init import quick_init
from ramify.core.segment import Floats_T, Ids_T, Segment, ToolCall

BYTES_PER_TOKEN = 4
"""For text whose tokens nobody has counted: OpenAI's rule of thumb for English."""
MESSAGE_TOKENS = 16
"""Upper bound on tokens around a message: chat templates put a role and three or four markers there."""
TURN_BORDER = "\x1e"
"""Stands in `Branch.said` for whatever was between two turns: the ASCII record separator, which Python's `splitlines`
and `strip` take for white space."""
NOTHING = np.empty(0, np.int32)
NO_VALUES = np.empty(0, np.float32)


@quick_init
@dataclass(frozen=True, slots=True)
class Piece:
    """A segment on a branch, and the node that owns it."""

    node: int
    segment: Segment
    role: Role = "policy"
    """Who said the node's step."""


@dataclass(frozen=True)
class Branch:
    """A path of T tokens that ends at `node`. `pieces` begin with the context's prompt."""

    codec: Codec
    node: int
    pieces: tuple[Piece, ...]
    role: Role = "policy"
    """Who said the last step, if the branch belongs to a tree. It tells an answer from a critique."""

    @cached_property
    def ids(self) -> Ids_T:
        """(T,) int32: what an engine continues."""
        return np.concatenate([p.segment.ids for p in self.pieces]) if self.pieces else NOTHING

    @cached_property
    def is_sampled(self) -> npt.NDArray[np.bool_]:
        """(T,) bool: true where a model wrote the token (the result mask)."""
        return np.repeat(
            np.array([p.segment.is_sampled for p in self.pieces], bool), [len(p.segment) for p in self.pieces]
        )

    @cached_property
    def logprobs(self) -> Floats_T:
        """(T,) float32: logprobs of the sampled tokens; NaN where nothing was sampled or the engine gave none."""
        return np.concatenate([NO_VALUES, *(_logprobs_or_nan(p.segment) for p in self.pieces)])

    def __len__(self) -> int:
        return self._length

    @cached_property
    def _length(self) -> int:
        return sum(len(p.segment.ids) for p in self.pieces)

    @property
    def num_tokens(self) -> int:
        """Length in the model's own tokens. If the ids are bytes: the tokens that engines reported for their calls,
        plus an estimate for what they did not report."""
        return len(self) if self.codec.is_exact else self._counted[1]

    @property
    def most_tokens(self) -> int:
        """Like `num_tokens`, but with an upper bound for what nobody has counted: one token per byte, plus what a
        template puts around each message."""
        return len(self) if self.codec.is_exact else self._count(_most_tokens)[1]

    @property
    def num_response_tokens(self) -> int:
        """The part of `num_tokens` after the opening context."""
        if self.codec.is_exact:
            return len(self) - self.num_prompt
        opening, whole = self._counted
        return max(0, whole - opening)

    @cached_property
    def _counted(self) -> tuple[int, int]:
        return self._count(estimated_tokens)

    def _count(self, uncounted: Callable[[int], int]) -> tuple[int, int]:
        """Tokens of the opening and of the whole branch. A call that reported what it read gives the count up to there;
        `uncounted` estimates the rest from its bytes."""
        opening = whole = 0
        is_open = True
        for piece in self.pieces:
            usage = piece.segment.usage
            read = usage.num_cached + usage.num_prefilled
            is_opening = is_open and piece.segment.origin == "prompt"
            if is_open and not is_opening:
                is_open, opening = False, read or opening
            whole = read + usage.num_billed if read else whole + uncounted(len(piece.segment))
            opening = whole if is_opening else opening
        return opening, whole

    @cached_property
    def text(self) -> str:
        """The whole branch as text, prompt included."""
        return self.codec.decode(self.ids)

    @cached_property
    def num_prompt(self) -> int:
        """Length of the opening context."""
        opening = takewhile(lambda p: p.segment.origin == "prompt", self.pieces)
        return sum(len(p.segment.ids) for p in opening)

    @cached_property
    def prompt_text(self) -> str:
        """The opening context as text."""
        return self.codec.decode(self.ids[: self.num_prompt])

    @cached_property
    def said(self) -> str:
        """What the policy itself sampled, as text, with `TURN_BORDER` in place of observations and of anything else
        that it did not sample: `turns_of` gives the turns. No tool, question or quoted text has a word in it."""
        turns: list[list[int]] = [[]]
        for piece in self.pieces:
            if piece.segment.is_sampled and piece.role == "policy":
                turns[-1] += piece.segment.ids.tolist()
            elif len(piece.segment) and turns[-1]:
                turns.append([])
        return TURN_BORDER.join(map(self.codec.decode, turns))

    @cached_property
    def transcript(self) -> str:
        """Everything after the opening context as text: actions and observations. Never read an answer from it: a tool
        can print one. `tool_calls` has what tools returned."""
        return self.codec.decode(self.ids[self.num_prompt :])

    @property
    def response_text(self) -> str:
        """The transcript, under its earlier name, for one version."""
        warnings.warn(
            "Branch.response_text holds what tools wrote: read answers from Branch.said, results from "
            "Branch.tool_calls, and the whole text from Branch.transcript",
            DeprecationWarning,
            stacklevel=2,
        )
        return self.transcript

    @cached_property
    def run(self) -> Ids_T:
        """Ids sampled since the last token that was not sampled: a stop word or an action may still be growing
        there."""
        parts: list[Ids_T] = []
        for piece in reversed(self.pieces):
            if not piece.segment.is_sampled and len(piece.segment):
                break
            parts.append(piece.segment.ids)
        return np.concatenate(parts[::-1]) if parts else NOTHING

    @cached_property
    def run_bytes(self) -> bytes:
        return joined_bytes(self.codec, self.run.tolist())

    @property
    def run_text(self) -> str:
        """The run as text. Formats read actions from it."""
        return self.run_bytes.decode("utf-8", errors="replace")

    @cached_property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """Every call answered on this branch, in order."""
        return tuple(p.segment.tool_call for p in self.pieces if p.segment.tool_call is not None)

    @property
    def num_turns(self) -> int:
        """Number of runs of sampled tokens: what the model said between observations, however forks divide it."""
        return sum(is_sampled for is_sampled, _ in groupby(self.pieces, lambda p: p.segment.is_sampled))

    @cached_property
    def messages(self) -> tuple[Mapping[str, Any], ...]:
        """The chat messages of the branch, if its format keeps them."""
        return tuple(p.segment.message for p in self.pieces if p.segment.message is not None)


def turns_of(said: str) -> list[str]:
    """The turns in `Branch.said`: what was sampled between two observations. The last is '' if an observation came
    last."""
    return said.split(TURN_BORDER)


def estimated_tokens(num_bytes: int) -> int:
    """Estimated tokens of a text that nobody has counted."""
    return -(-num_bytes // BYTES_PER_TOKEN)


def _most_tokens(num_bytes: int) -> int:
    """Upper bound on the tokens of a message."""
    return num_bytes + MESSAGE_TOKENS


def _logprobs_or_nan(segment: Segment) -> Floats_T:
    if segment.logprobs is None:
        return np.full(len(segment), np.nan, np.float32)
    return segment.logprobs
