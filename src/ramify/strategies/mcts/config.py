"""Options of the tree search: when to widen, how to choose, how to value, how much is in flight.

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
"""A threshold above this number of visits counts as unreachable."""

Answer = Literal["visited", "best", "majority", "weighted"]
"""How the answer is chosen: the end of the most visited path, ties by q; or a vote of all ends with their values."""
Order = Literal["by_action", "round_robin"]


@dataclass(frozen=True, slots=True)
class Widening:
    """When a node that has children gets more."""

    kind: Literal["progressive", "once"] = "progressive"
    """`once`: a node gets `width` children of each action, and never more."""
    scale: float = 1.0
    """Scale of the number of children (see `exponent`); above 0."""
    exponent: float = 0.5
    """Maximum children of a node with N visits: scale N^exponent, rounded up, at least 1."""
    most: int = 1_000
    """Maximum number of children of any node."""

    def __post_init__(self) -> None:
        if not (0 < self.scale < math.inf and 0 <= self.exponent < math.inf and self.most >= 1):
            raise ConfigError(f"widening: scale and most must be positive and exponent at least 0, got {self!r}")

    def visits_needed(self, num_children: int) -> float:
        """Fewest visits N at which a node may have more than `num_children` children."""
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
    """The replacement for q of a child that has no value yet."""

    kind: Literal["parent", "value", "first"] = "parent"
    """`parent`: the parent's q minus reduction sqrt(sum of the visited priors); `value`: the number `value`; `first`:
    the child is chosen before all others."""
    value: float = 0.0
    """The number that `kind = "value"` uses."""
    reduction: float = 0.25
    """As in Leela Chess Zero."""
    tie: Literal["prior", "first"] = "prior"
    """Which of several children with equal scores is chosen: the one with the larger prior, or the first (published
    forms)."""


@dataclass(frozen=True, slots=True)
class MCTSConfig:
    """Defaults are the corrected ones."""

    n: int = 64
    """Segments grown, including failed ones, without probes."""
    width: int = 1
    """Children sampled at once."""
    segment_tokens: int | None = None
    """Tokens of a segment; None = a step of the format."""
    max_depth: int = 64
    """Maximum number of segments of a path; those of the last level grow to their end."""
    actions: tuple[str, ...] = ("policy",)
    """Kinds of growth; children of a node take turns."""
    order: Order = "round_robin"
    """Order of the actions among the children of one expansion, if there are several actions."""
    judge: str = "process"
    """Judge of segments whose path continues; may be empty if `value = "rollout"`."""
    outcome: str = "process"
    """Judge of ended paths. `reward` = the judge whose score is the reward; probes have no reward."""
    value: Literal["judge", "rollout"] = "judge"
    """Value of a segment whose path continues: the score of its judge, or the outcome of a probe grown to its end."""
    rollout_action: str = "rollout"
    """Action of the probes; its role is `probe`."""
    valued: Literal["at_birth", "when_selected"] = "at_birth"
    """When a segment gets its value: when it has grown, or when it is first selected (`first_play`)."""
    choice: Counting = Counting()  # noqa: RUF009 - frozen
    """How visits and values choose a child."""
    prior: Prior = Prior()  # noqa: RUF009 - frozen
    """How priors of children are computed."""
    widening: Widening = Widening()
    """When a node that has children gets more."""
    first_play: FirstPlay = FirstPlay()
    """What stands for the value of a child that has none yet."""
    value_range: tuple[float, float] | None = (0.0, 1.0)
    """The known range of values; None = q is normalised by the smallest and largest q of the tree (MuZero)."""
    endings: Literal["close", "revisit", "grow"] = "close"
    """A path that ended is never chosen again (`close`); or chosen, with the same value backed up again (`revisit`,
    published forms); or grown from (`grow`, for actions that quote)."""
    duplicates: Literal["merge", "keep"] = "merge"
    """`merge`: a child with the text of an earlier child is its twin and adds to the earlier child's prior. `keep`: it
    is a normal child."""
    in_flight: int = 16
    """Maximum number of segments in flight. The children of one expansion are still asked for together."""
    blocked: Literal["widen", "next_best", "wait"] = "next_best"
    """What happens if the search reaches a place whose segments are all in flight. `next_best`: take the next best
    place; if there is none, ask for nothing until an outcome arrives. `wait`: ask for nothing until an outcome arrives.
    `widen`: as `next_best`, but if there is none, the best possible place gets one child more than its visits allow
    (less waiting, more samples near the root)."""
    refill: Literal["at_once", "when_empty"] = "at_once"
    """When the search chooses again: after each outcome, or when nothing is in flight any more."""
    surplus: Literal["none", "discard", "adopt"] = "none"
    """What is asked for while an expansion is incomplete and more may be in flight. `none`: another place. `discard`:
    more children of the same expansion; those that arrive after it is complete are thrown away (treequest). `adopt`:
    the same, but they are kept."""
    finish: Literal["grow", "leave"] = "grow"
    """What happens if the samples are used up and no path has ended: grow one to its end, or leave it."""
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
        """Children of an expansion, with `widening.kind = "once"`."""
        return self.width * len(self.actions)

    def visits_needed(self, num_children: int) -> float:
        """Fewest visits, in flight included, at which a node with this many children may get one more."""
        if self.widening.kind == "once":
            return 0 if num_children < self.children_at_once else math.inf
        return self.widening.visits_needed(num_children)

    @property
    def planned_leaves(self) -> int:
        """Of the last path too, which `finish` grows."""
        return self.n + 1


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
