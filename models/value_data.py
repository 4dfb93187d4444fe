"""What the value model learns from: trees of training problems, and of each of their steps how paths through it ended.

A step's q value is the mean reward of the leaves below it. A leaf gives one sequence with the q of every step on its
way; a step that many leaves share counts once, in equal parts. Rewards may be those of a judge that knows the answer:
these are training problems, whose answers are there to be learnt from.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ramify.core.segment import Ids_T
from ramify.core.tree import ROOT, Tree
from ramify.rows.values import worths


@dataclass(frozen=True, slots=True)
class Path:
    """One leaf's tokens, and what each step on the way was worth."""

    uid: str
    ids: Ids_T
    """(T,)"""
    ends: npt.NDArray[np.intp]
    """(S,) index of the last token of each step."""
    q: npt.NDArray[np.float32]
    """(S,) mean reward of the leaves below it."""
    weights: npt.NDArray[np.float32]
    """(S,) its share of the step: 1 / leaves below."""
    reward: float


def paths_of(tree: Tree) -> Iterator[Path]:
    """The judged leaves of a tree."""
    found = worths(tree)
    for leaf in tree.leaves():
        reward = tree.reward(leaf)
        if reward is None:
            continue
        nodes = [node for node in tree.path(leaf) if node != ROOT]
        yield Path(
            uid=tree.problem.uid,
            ids=tree.branch(leaf).ids,
            ends=np.array([tree.length(node) - 1 for node in nodes], np.intp),
            q=np.array([found[node].q for node in nodes], np.float32),
            weights=np.array([1 / found[node].num_values for node in nodes], np.float32),
            reward=reward,
        )


def auc_within(groups: Iterable[list[tuple[float, float]]]) -> float | None:
    """Mean over problems of the probability that a path that ended well has the higher value; ties count half.

    A group holds (value, reward) of one problem's paths; one whose paths all ended alike says nothing. None = all do.
    """
    areas: list[float] = []
    for pairs in groups:
        good = np.array([value for value, reward in pairs if reward >= 1])
        bad = np.array([value for value, reward in pairs if reward < 1])
        if len(good) and len(bad):
            higher = (good[:, None] > bad).mean() + 0.5 * (good[:, None] == bad).mean()
            areas.append(float(higher))
    return float(np.mean(areas)) if areas else None
