"""Choose: which nodes of a tree to expand next. A rule is a function, selected by name (requirement S0.10).

A rule gets the candidates in canonical order (breadth first, siblings in the order asked) and returns at most k of
them. Only a rule that documents it may return one twice. A rule reads the tree and draws from `rng`, nothing else, so
its choice never depends on timing. Ties go to the earlier candidate; a node without the measure comes last.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from ramify.core.errors import ConfigError, nearest
from ramify.core.tree import Tree
from ramify.strategies.parts.draws import Draws, with_replacement, without_replacement
from ramify.strategies.parts.entropy import STEP_ENTROPY, initial_entropy
from ramify.strategies.parts.resample import highest, origin, scores

Choose = Callable[[Tree, Sequence[int], int, Draws], list[int]]
"""(tree, candidates, k, rng) -> the chosen nodes, at most k."""


def uniform(tree: Tree, candidates: Sequence[int], k: int, rng: Draws) -> list[int]:
    """k different candidates, all equally likely."""
    return without_replacement(candidates, k, rng)


def uniform_with_replacement(tree: Tree, candidates: Sequence[int], k: int, rng: Draws) -> list[int]:
    """k candidates drawn independently, as Tree-GRPO does."""
    return with_replacement(candidates, k, rng)


def entropy(tree: Tree, candidates: Sequence[int], k: int, rng: Draws) -> list[int]:
    """The k candidates whose own step was the most uncertain."""
    return _top(candidates, k, lambda node: _or_last(tree.measure(node, STEP_ENTROPY)))


def entropy_delta(tree: Tree, candidates: Sequence[int], k: int, rng: Draws) -> list[int]:
    """The k candidates whose step was the most uncertain compared with the first step of their path."""
    return _top(candidates, k, lambda node: _or_last(_delta(tree, node)))


def at2po(tree: Tree, candidates: Sequence[int], k: int, rng: Draws) -> list[int]:
    """Parents of the k candidates with AT2PO's highest scores: expanding a parent resamples the step of its child.

    A parent may be returned twice, for two of its children.
    """
    return [origin(tree, node) for node in highest(scores(tree, candidates), k)]


BUILT_IN: Final[Mapping[str, Choose]] = {
    "at2po": at2po,
    "entropy": entropy,
    "entropy_delta": entropy_delta,
    "uniform": uniform,
    "uniform_with_replacement": uniform_with_replacement,
}
"""Rules by name. The plug-in loader finds user rules and hands them to the strategy."""
UNMEASURED = frozenset({"at2po", "uniform", "uniform_with_replacement"})
"""Rules that read no measure, only logprobs at most. Any other rule, plug-ins included, may read
`step_entropy_topk`."""


def rule(name: str) -> Choose:
    """The built-in rule called `name`. For an unknown name it raises a `ConfigError` that suggests the nearest one."""
    try:
        return BUILT_IN[name]
    except KeyError:
        raise ConfigError(f"unknown rule to choose nodes by: {name!r}; {nearest(name, BUILT_IN)}") from None


def _top(candidates: Sequence[int], k: int, score: Callable[[int], float]) -> list[int]:
    return sorted(candidates, key=score, reverse=True)[:k]


def _or_last(value: float | None) -> float:
    return -math.inf if value is None else value


def _delta(tree: Tree, node: int) -> float | None:
    """Entropy of a node's step minus that of the first step on its path; None if either is not computed."""
    own, first = tree.measure(node, STEP_ENTROPY), initial_entropy(tree, node)
    return None if own is None or first is None else own - first
