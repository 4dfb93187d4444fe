"""Frontier: what DeepSearch knows of each segment, and its score for every one that is not expanded yet.

Source: smiles724/DeepSearch deepsearch/utils/mcts.py (`select_global_best_node`).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, assert_never

DepthBonus = Literal["sqrt", "log", "constant"]
Divisor = Literal["all", "valued"]
"""What a stored value is divided by: all visits, those too that brought no value (published), or the others only."""


@dataclass(frozen=True, slots=True)
class FrontierWeights:
    """What the parts of a frontier score count. Defaults are the code's."""

    parent_quality: float = 0.4
    own_quality: float = 0.0
    surprisal: float = 0.0
    """0.4 where the term is switched on, which it is not by default."""
    depth: float = 0.01
    depth_bonus: DepthBonus = "sqrt"


def frontier_score(
    weights: FrontierWeights, *, parent_q: float, q: float, surprisal: float, depth: int, max_depth: int
) -> float:
    """How much a segment at `depth` is worth expanding; `surprisal` is the mean of its own tokens."""
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
    """One segment of a search. Mutated by the search alone."""

    tip: int
    """Node of the tree it ends at."""
    parent: "FrontierSegment | None" = None
    depth: int = 0
    is_open: bool = True
    """Whether it may still be expanded."""
    value: float | None = None
    """Of the path that ends here; None = none does, or it counts for nothing."""
    path_surprisal: float = 0.0
    """Minus the sum of the logprobs of the sampled tokens from the prompt to its end."""
    path_tokens: int = 0
    children: list["FrontierSegment"] = field(default_factory=list["FrontierSegment"])
    stored: float = 0.0
    visits: int = 0
    num_valued: int = 0
    """Visits that brought a value."""

    def q(self, divisor: Divisor) -> float:
        """What it stores over its visits; 0 without any."""
        visits = self.visits if divisor == "all" else self.num_valued
        return self.stored / visits if visits else 0.0

    @property
    def surprisal(self) -> float:
        """Mean of its own sampled tokens; 0 without any."""
        above, num_above = (self.parent.path_surprisal, self.parent.path_tokens) if self.parent else (0.0, 0)
        return (self.path_surprisal - above) / max(1, self.path_tokens - num_above)

    def path(self) -> Iterator["FrontierSegment"]:
        """From here up to the root."""
        segment: FrontierSegment | None = self
        while segment is not None:
            yield segment
            segment = segment.parent

    def below(self) -> Iterator["FrontierSegment"]:
        """Depth first, siblings in order of request; itself left out."""
        stack = self.children[::-1]
        while stack:
            segment = stack.pop()
            yield segment
            stack += segment.children[::-1]
