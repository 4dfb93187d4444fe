"""What a tree search may be told: when it widens, what it chooses by, how it values, how much is in flight.

Defaults are the corrected ones; `TREEQUEST` is SakanaAI/treequest's StandardMCTS as it runs.
"""

import math
from bisect import bisect_right
from dataclasses import dataclass
from typing import Final, Literal

from ramify.core.errors import ConfigError
from ramify.strategies.mcts.node import Counting
from ramify.strategies.mcts.priors import Prior
from ramify.strategies.parts.steering import REWARD, Oracle
from ramify.strategies.parts.ucb import max_children

MOST_VISITS: Final = 1 << 60
"""Beyond it a number of visits is never."""

Answer = Literal["visited", "best", "majority", "weighted"]
"""What is answered: the end of the most visited path, ties by q; or by a vote of all ends with their values."""
Order = Literal["by_action", "round_robin"]


@dataclass(frozen=True, slots=True)
class Widening:
    """When a node that has children is given more."""

    kind: Literal["progressive", "once"] = "progressive"
    """`once`: a node is given `width` children of each action, and never more."""
    scale: float = 1.0
    exponent: float = 0.5
    """Most children of a node of N visits: scale N^exponent, rounded up, at least 1."""
    most: int = 1_000
    """Children that no node has more of."""

    def __post_init__(self) -> None:
        if not (0 < self.scale < math.inf and 0 <= self.exponent < math.inf and self.most >= 1):
            raise ConfigError(f"widening: scale and most must be positive and exponent at least 0, got {self!r}")

    def visits_needed(self, num_children: int) -> float:
        """Fewest visits N for which a node may have more children than so many."""
        if num_children >= self.most or (not self.exponent and self._may_have(0) <= num_children):
            return math.inf
        high = 1
        while self._may_have(high) <= num_children:
            if high > MOST_VISITS:
                return math.inf
            high *= 2
        return bisect_right(range(high), num_children, key=self._may_have)

    def _may_have(self, visits: int) -> int:
        return max_children(visits, scale=self.scale, exponent=self.exponent)


@dataclass(frozen=True, slots=True)
class FirstPlay:
    """What stands for q of a child that has no value yet."""

    kind: Literal["parent", "value", "first"] = "parent"
    """`parent`: its parent's q less reduction sqrt(sum of the priors visited); `first`: it is chosen before others."""
    value: float = 0.0
    reduction: float = 0.25
    """As in Leela Chess Zero."""
    tie: Literal["prior", "first"] = "prior"
    """Which of several is chosen that score alike: that of the larger prior, or the first (published forms)."""


@dataclass(frozen=True, slots=True)
class MCTSConfig:
    """Defaults are the corrected ones."""

    n: int = 64
    """Segments grown, those included that failed; probes are not."""
    width: int = 1
    """Children sampled at once."""
    segment_tokens: int | None = None
    """Tokens of a segment; None = a step of the format."""
    max_depth: int = 64
    actions: tuple[str, ...] = ("policy",)
    """Kinds of growth; children of a node take turns."""
    order: Order = "round_robin"
    """Of the children of one expansion that several actions grow."""
    judge: str = "process"
    """Judge of segments whose path goes on; may be empty with rollouts."""
    outcome: str = "process"
    """Judge of paths that have ended; `reward` = the one whose score is their reward, which probes have none of."""
    value: Literal["judge", "rollout"] = "judge"
    """What a segment is worth whose path goes on: what its judge says, or the outcome of a probe grown to its end."""
    rollout_action: str = "rollout"
    """Action of the probes; its role is `probe`."""
    valued: Literal["at_birth", "when_selected"] = "at_birth"
    """When a segment is given its value: when it was grown, or when it is first gone to (`first_play`)."""
    choice: Counting = Counting()  # noqa: RUF009 - frozen
    prior: Prior = Prior()  # noqa: RUF009 - frozen
    widening: Widening = Widening()
    first_play: FirstPlay = FirstPlay()
    value_range: tuple[float, float] | None = (0.0, 1.0)
    """What values are known to lie in; None = q is normalised by the smallest and largest of the tree (MuZero)."""
    endings: Literal["close", "revisit", "grow"] = "close"
    """A path that ended is never chosen again, or chosen and worth the same again (published forms), or grown from:
    the last where actions quote."""
    duplicates: Literal["merge", "keep"] = "merge"
    """A child that says what another said is its twin, whose prior grows; or a child like others."""
    in_flight: int = 16
    """Most segments on their way; the children of one expansion are asked for together all the same."""
    blocked: Literal["widen", "next_best", "wait"] = "next_best"
    """Where a choice leads to a place of which all is on its way: the next best place is taken; where there is none,
    nothing is asked for until something comes back, or a place is given a child more than its visits allow, the best
    first (`widen`: less waiting, and more spent near the root)."""
    refill: Literal["at_once", "when_empty"] = "at_once"
    """When the search chooses again: as soon as something came back, or when everything did."""
    surplus: Literal["none", "discard", "adopt"] = "none"
    """What is asked for while an expansion is not complete and more may be in flight: another place; or the same again,
    to be thrown away when the expansion is complete before it came (treequest), or kept."""
    finish: Literal["grow", "leave"] = "grow"
    """What is done when the samples are used up and no path has ended."""
    answer: Answer = "visited"
    oracle: Oracle = "refused"

    def __post_init__(self) -> None:
        if min(self.n, self.width, self.max_depth, self.in_flight, self.segment_tokens or 1) < 1 or not self.actions:
            raise ConfigError(f"mcts: numbers must be at least 1 and actions not empty, got {self!r}")
        if self.value_range is not None and not self.value_range[0] < self.value_range[1]:
            raise ConfigError(f"mcts: value_range = {self.value_range!r} must be (lowest, highest)")
        if self.value == "rollout" and self.outcome == REWARD:
            raise ConfigError("mcts: a probe has no reward; say by outcome which judge is asked what its end is worth")
        if self.value == "judge" and not self.judge:
            raise ConfigError("mcts: judge = '': segments have no value then; name one, or set value = 'rollout'")
        if self.surplus != "none" and self.widening.kind != "once":
            raise ConfigError(f"mcts: surplus = {self.surplus!r} needs widening.kind = 'once'")

    @property
    def children_at_once(self) -> int:
        """Children of an expansion where a node is expanded once."""
        return self.width * len(self.actions)

    def visits_needed(self, num_children: int) -> float:
        """Fewest visits of a node of so many children, those on their way included, that may be given one more."""
        if self.widening.kind == "once":
            return 0 if num_children < self.children_at_once else math.inf
        return self.widening.visits_needed(num_children)


TREEQUEST: Final = MCTSConfig(
    width=2,
    order="by_action",
    choice=Counting(rule="uct", exploration=math.sqrt(2), pending="ignored"),
    prior=Prior(evidence="score"),
    widening=Widening(kind="once"),
    endings="grow",
    duplicates="keep",
    in_flight=1,
    blocked="wait",
    surplus="discard",
    finish="leave",
    answer="best",
)
