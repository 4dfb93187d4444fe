"""SPO-tree: a segment's value is the mean of its children's values. Its credit is its value minus its parent's.

Biased: the parent's value includes the segment itself, and every segment counts the same at any depth. As published,
segments without a signal are no samples, and every other segment is one sample: (parent's text, segment). Rows with
policy `once` train the same tokens with the same numbers. Sources: arXiv 2505.23564; AIFrameResearch/SPO
tree_episode_generator.py (`extract_edges_from_tree`); `docs/concepts/credit.md`.
"""

from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from ramify.credit.forest import Array_N, Forest
from ramify.credit.segments import against_siblings

Method = Literal["rloo", "grpo"]
"""rloo: V - V(parent), the code's default. grpo: the same, divided by the population standard deviation of the group +
1e-8."""
EPSILON: Final = 1e-8
NUM_TRIES: Final = 4


def spo(forest: Forest) -> Array_N:
    """(N,) (V - mean V of the siblings, including its own) / number of stems (root branches). No square root, so exact
    in rationals."""
    return against_siblings(forest, lambda values: values - values.sum() / len(values)) / max(1, len(forest.stems))


def spo_as_published(forest: Forest, *, method: Method = "rloo") -> Array_N:
    """(N,) the advantages of the published samples, divided by the number of leaves; 0 for segments that are
    dropped."""
    kept = is_kept(forest, method)
    return np.where(kept, advantages(forest, method), 0.0) / max(1, forest.num_leaves)


def advantages(forest: Forest, method: Method) -> Array_N:
    """(N,) published advantage of each segment."""
    return against_siblings(forest, lambda values: _relative(values, method))


def is_kept(forest: Forest, method: Method) -> npt.NDArray[np.bool_]:
    """(N,) whether a segment is a sample: its advantage and its change of `solved` do not cancel out.

    This drops segments with advantage 0, and a few others if values exceed 1.
    """
    return against_siblings(forest, lambda values: _relative(values, method) + _progress(values)) != 0


def solved(value: Array_N) -> Array_N:
    """Probability that at least one of four tries is right, if each is right with probability `value`."""
    return 1 - (1 - value) ** NUM_TRIES


def _relative(values: Array_N, method: Method) -> Array_N:
    advantages = values - values.sum() / len(values)
    return advantages if method == "rloo" else advantages / (np.std(values.astype(np.float64)) + EPSILON)


def _progress(values: Array_N) -> Array_N:
    return solved(values) - solved(values.sum() / len(values))
