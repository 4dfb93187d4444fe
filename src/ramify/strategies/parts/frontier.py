"""Frontier: what DeepSearch stores for each segment, and the score of each segment that is not expanded yet.

Source: smiles724/DeepSearch deepsearch/utils/mcts.py (`select_global_best_node`).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, assert_never

DepthBonus = Literal["sqrt", "log", "constant"]
Divisor = Literal["all", "valued"]
"""What a stored value is divided by: all visits, including those without a value (published), or only visits with a
value."""


@dataclass(frozen=True, slots=True)
class FrontierWeights:
    """Weights of the parts of a frontier score. Defaults are the code's."""

    parent_quality: float = 0.4
    """Weight of tanh of the parent's q."""
    own_quality: float = 0.0
    """Weight of tanh of the segment's own q."""
    surprisal: float = 0.0
    """Weight of the mean surprisal of the segment's tokens. The code uses 0.4 where the term is on; it is off by
    default."""
    depth: float = 0.01
    """Weight of the depth bonus."""
    depth_bonus: DepthBonus = "sqrt"
    """The bonus of depth d of at most D: sqrt(d / D), ln(d + 1), or d itself (`constant`)."""


def frontier_score(
    weights: FrontierWeights, *, parent_q: float, q: float, surprisal: float, depth: int, max_depth: int
) -> float:
    """How much it is worth to expand a segment at `depth`; `surprisal` is the mean over its own tokens."""
    quality = weights.parent_quality * math.tanh(parent_q) + weights.own_quality * math.tanh(q)
    return quality + weights.surprisal * surprisal + weights.depth * _bonus(weights.depth_bonus, depth, max_depth)


def _bonus(kind: DepthBonus, depth: int, max_depth: int) -> float:
    match kind:
        case "sqrt":
            return math.sqrt(depth / max_depth)
        case "log":
            return math.log(depth + 1)
        case "constant":
            return float(depth)
        case _:
            assert_never(kind)


@dataclass(slots=True, eq=False)
class FrontierSegment:
    """One segment of a search. Only the search mutates it."""

    tip: int
    """Node of the tree where it ends."""
    parent: "FrontierSegment | None" = None
    depth: int = 0
    is_open: bool = True
    """Whether it may still be expanded."""
    value: float | None = None
    """Value of the path that ends here; None = no path ends here, or the path does not count."""
    path_surprisal: float = 0.0
    """Minus the sum of the logprobs of the sampled tokens from the prompt to the end of the segment."""
    path_tokens: int = 0
    children: list["FrontierSegment"] = field(default_factory=list["FrontierSegment"])
    stored: float = 0.0
    visits: int = 0
    num_valued: int = 0
    """Visits with a value."""

    def q(self, divisor: Divisor) -> float:
        """Stored value divided by visits; 0 without visits."""
        visits = self.visits if divisor == "all" else self.num_valued
        return self.stored / visits if visits else 0.0

    @property
    def surprisal(self) -> float:
        """Mean over its own sampled tokens; 0 without any."""
        above, num_above = (self.parent.path_surprisal, self.parent.path_tokens) if self.parent else (0.0, 0)
        return (self.path_surprisal - above) / max(1, self.path_tokens - num_above)

    def path(self) -> Iterator["FrontierSegment"]:
        """From this segment up to the root."""
        segment: FrontierSegment | None = self
        while segment is not None:
            yield segment
            segment = segment.parent

    def below(self) -> Iterator["FrontierSegment"]:
        """All segments below this one, depth first, siblings in the order asked."""
        stack = self.children[::-1]
        while stack:
            segment = stack.pop()
            yield segment
            stack += segment.children[::-1]
