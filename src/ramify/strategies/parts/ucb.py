"""Upper confidence bounds: the scores by which searches choose among children. Numbers only.

Terms: a child has `visits` completed visits and `in_flight` requests below it; q is its mean value; `prior` is its
share among its siblings before any visit. An infinite score means: choose it first. The caller breaks ties.

`puct` and `wu_uct` are the definitions. A search with many children computes them in two parts, one of the parent and
one of the child (`mcts/node.py`, `Counting`); a test checks that these parts agree with the definitions.
"""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

C_BASE: Final = 19_652
"""MuZero's value (arXiv 1911.08265, appendix B)."""


def uct(q: float, visits: int, parent_visits: int, *, exploration: float, unvisited: float = 0.0) -> float:
    """q + exploration sqrt(ln(parent's visits) / visits); only q if the parent was never visited.

    `unvisited` is the bonus of a child without visits: rStar's code and DeepSearch's give none, UCB1 gives infinity.
    """
    if not visits:
        return q + unvisited
    return q + exploration * math.sqrt(math.log(parent_visits) / visits) if parent_visits else q


def wu_uct(q: float, visits: int, in_flight: int, *, parent_visits: int, parent_in_flight: int, beta: float) -> float:
    """q + beta sqrt(2 ln(N + O) / (n + o)): requests in flight count as visits but do not change q (arXiv
    1810.11755)."""
    if not visits + in_flight:
        return math.inf
    return q + beta * math.sqrt(2 * math.log(parent_visits + parent_in_flight) / (visits + in_flight))


def puct(q: float, prior: float, visits: float, sum_visits: float, *, exploration: float) -> float:
    """q + exploration prior sqrt(sum of the siblings' visits) / (1 + visits) (AlphaZero, arXiv 1712.01815)."""
    return q + exploration * prior * math.sqrt(sum_visits) / (1 + visits)


def growing_exploration(c: float, sum_visits: float, *, c_base: float = C_BASE) -> float:
    """MuZero's exploration, which grows slowly with the visits of all children."""
    return c + math.log((sum_visits + c_base + 1) / c_base)


def reduced_first_play(parent_q: float, visited_priors: float, *, reduction: float) -> float:
    """Replaces q of an unvisited child: the parent's q, reduced more the larger the priors of the visited children."""
    return parent_q - reduction * math.sqrt(visited_priors)


def with_virtual_loss(value_sum: float, visits: int, in_flight: int, *, loss: float, weight: int) -> tuple[float, int]:
    """Sum of values and visits, counting each request in flight as `weight` visits that subtract `loss` from the
    sum."""
    return value_sum - loss * in_flight, visits + weight * in_flight


def max_children(visits: int, *, scale: float, exponent: float) -> int:
    """How many children a node with this many visits may have: progressive widening, at least one."""
    return max(1, math.ceil(scale * visits**exponent))


def inverse_cdf(weights: Sequence[float] | npt.NDArray[np.float64], u: float) -> int:
    """The first index whose cumulative weight exceeds `u` (0 <= u < 1) times the total weight. Weights must be at least
    0."""
    sums = np.cumsum(np.asarray(weights, np.float64))
    return min(int(np.count_nonzero(sums <= u * sums[-1])), len(weights) - 1)
