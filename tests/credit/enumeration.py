"""Enumeration: the exact expectation of a gradient estimator on a small problem, by replaying every list of draws.

`grow(draw)` grows a tree and takes *all* its randomness, tokens and coins, from `draw(probabilities) -> index`. Its
sampled tokens are digits: the actions. Probabilities, shares and rewards are rationals, so a verdict is an equality.

Children of one fork that grow by one law are exchangeable: trees that differ in their order alone have one probability
and, for a credit that does not read the order, one gradient. `is_sorted=True` grows one tree of each such set and
counts it as often as it has orders. `test_exact_gradients.py` shows for every credit that no expectation changes.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from functools import cache
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from tests.golden.files import load

from ramify.core.tree import Tree
from ramify.credit import Forest, forest_of
from ramify.credit.forest import STEM, Array_N


class Draw(Protocol):
    """Takes one draw by a law; `forked` says which draws belong to children of one fork."""

    def __call__(self, law: Sequence[Fraction], /) -> int: ...

    def forked(self, children: Sequence[Callable[[], None]]) -> None:
        """Grow these children, which draw by one law, each for itself."""
        ...


Grow = Callable[[Draw], Tree]
Credit = Callable[[Forest], Any]
Gradient = dict[str, list[Any]]
"""Prefix -> component of each action's logit there."""
PROBLEMS = ("binary3", "ragged", "ternary2")


@dataclass(frozen=True)
class MDP:
    """A softmax table over prefixes; a prefix with a reward ends the path."""

    probs: Mapping[str, Sequence[Fraction]]
    rewards: Mapping[str, Fraction]
    gradient: Gradient
    """Of the expected reward, exact."""

    @classmethod
    def of(cls, name: str) -> "MDP":
        content = load(f"gradients_{name}")
        mdp = content["mdp"]
        return cls(
            probs={prefix: [Fraction(p) for p in law] for prefix, law in mdp["probs"].items()},
            rewards={prefix: Fraction(reward) for prefix, reward in mdp["rewards"].items()},
            gradient={prefix: [Fraction(g) for g in law] for prefix, law in content["gradient_exact"].items()},
        )


class Replay:
    """One list of draws: replayed as far as it goes, then continued with the first possible choices."""

    def __init__(self, chosen: Sequence[int], *, is_sorted: bool = False) -> None:
        self.chosen = list(chosen)
        self.laws: list[Sequence[Fraction]] = []
        self.num_orders = 1
        """Of the children of all forks: how many trees this one stands for."""
        self._is_sorted = is_sorted
        self._elders: list[tuple[int, int]] = []
        """Of each child that is growing: where the draws of the child before it begin, and where its own do."""

    def __call__(self, law: Sequence[Fraction], /) -> int:
        place = len(self.laws)
        self.laws.append(law)
        if place == len(self.chosen):
            self.chosen.append(_possible(law, self._least(place)))
        return self.chosen[place]

    def forked(self, children: Sequence[Callable[[], None]]) -> None:
        starts: list[int] = []
        for grow in children:
            starts.append(len(self.laws))
            if self._is_sorted and len(starts) > 1:
                self._elders.append((starts[-2], starts[-1]))
                grow()
                self._elders.pop()
            else:
                grow()
        if self._is_sorted:
            drawn = Counter(tuple(self.chosen[a:b]) for a, b in pairwise([*starts, len(self.laws)]))
            self.num_orders *= math.factorial(len(starts)) // math.prod(map(math.factorial, drawn.values()))

    def _least(self, place: int) -> int:
        """The first choice by which no child's draws stand before those of the child before it."""
        ties = ((elder, own) for elder, own in self._elders if self._is_tied(elder, own, place - own))
        return max((self.chosen[elder + place - own] for elder, own in ties), default=0)

    def _is_tied(self, elder: int, own: int, number: int) -> bool:
        return self.chosen[elder : elder + number] == self.chosen[own : own + number]

    @property
    def probability(self) -> Fraction:
        """Of this tree in any of its orders."""
        return math.prod(
            (law[i] for i, law in zip(self.chosen, self.laws, strict=True)), start=Fraction(self.num_orders)
        )

    def following(self) -> list[int] | None:
        """The next list of draws, depth first; None = this was the last."""
        chosen = list(self.chosen)
        while chosen:
            law = self.laws[len(chosen) - 1]
            chosen[-1] = _possible(law, chosen[-1] + 1)
            if chosen[-1] < len(law):
                return chosen
            chosen.pop()
        return None


def outcomes(grow: Grow, *, is_sorted: bool = False) -> Iterator[tuple[Fraction, Tree]]:
    """Every tree that `grow` can make, with its probability; `is_sorted`: one for all orders of siblings."""
    chosen: list[int] | None = []
    while chosen is not None:
        replay = Replay(chosen, is_sorted=is_sorted)
        tree = grow(replay)
        yield replay.probability, tree
        chosen = replay.following()


def expected_gradients(
    grow: Grow,
    credits: Mapping[str, Credit],
    mdp: MDP,
    *,
    number: type[Fraction] | type[float] = Fraction,
    is_sorted: bool = False,
    forest_of: Callable[[Tree], Forest] = forest_of,
) -> dict[str, Gradient]:
    """For each credit: the expectation of sum over sampled tokens of coefficient * grad log pi.

    In rationals, where the credit needs no square root, or several times faster in floats. A credit is a function of
    the forest alone, so trees of other tokens but an equal forest share its coefficients.
    """
    laws = {prefix: [number(p) for p in law] for prefix, law in mdp.probs.items()}
    found: dict[tuple[object, ...], Alike] = {}
    total = Fraction(0)
    for probability, tree in outcomes(grow, is_sorted=is_sorted):
        total += probability
        forest = forest_of(tree)
        alike = found.setdefault(_content(forest), Alike(forest))
        for weights, text in zip(alike.weights, actions_of(tree, forest), strict=True):
            weights[text].append(probability)
    assert total == 1, f"the probabilities of all outcomes sum to {total}, not 1"
    totals: dict[str, Gradient] = {name: {prefix: [0] * len(law) for prefix, law in laws.items()} for name in credits}
    sums: dict[str, dict[tuple[str, str], Any]] = {name: defaultdict(number) for name in credits}
    for alike in found.values():
        numbers = rational(alike.forest) if number is Fraction else alike.forest
        coefficients = {name: credit(numbers).tolist() for name, credit in credits.items()}
        for node, weights in enumerate(alike.weights):
            for text, probabilities in weights.items():
                weight = number(_sum(probabilities))
                for name, of_node in coefficients.items():
                    if coefficient := of_node[node]:
                        sums[name][text] += weight * coefficient
    for name, of_credit in sums.items():
        add_scores(totals[name], laws, [*of_credit], [*of_credit.values()])
    return totals


class Alike:
    """Trees of other tokens but an equal forest: every credit gives them the same coefficients."""

    def __init__(self, forest: Forest) -> None:
        self.forest = forest
        self.weights: list[dict[tuple[str, str], list[Fraction]]] = [defaultdict(list) for _ in forest.nodes]
        """For each node: its actions -> the probabilities of the trees that have them there."""


def _sum(values: Sequence[Fraction]) -> Fraction:
    """The sum by one common denominator: cheaper than a sum of two after another."""
    denominator = math.lcm(*(value.denominator for value in values))
    return Fraction(sum(value.numerator * (denominator // value.denominator) for value in values), denominator)


def expected_gradient(grow: Grow, credit: Credit, mdp: MDP) -> Gradient:
    """The expectation of one credit's estimator, in rationals."""
    return expected_gradients(grow, {"credit": credit}, mdp)["credit"]


def _content(forest: Forest) -> tuple[object, ...]:
    """All fields of a forest: equal for forests of which every credit says the same."""
    values = (getattr(forest, field.name) for field in fields(forest))
    return tuple(value.tobytes() if isinstance(value, np.ndarray) else repr(value) for value in values)


def rational(forest: Forest) -> Forest:
    """The forest with shares and rewards as the small fractions they stand for."""
    return replace(
        forest,
        share=_fractions(forest.share),
        reward=_fractions(forest.reward),
        balanced=None if forest.balanced is None else _fractions(forest.balanced),
        earned=None if forest.earned is None else _fractions(forest.earned),
    )


def _fractions(values: Array_N) -> Array_N:
    return np.array([x if x != x else _fraction(x) for x in values.tolist()], object)


@cache
def _fraction(value: float) -> Fraction:
    return Fraction(value).limit_denominator(10_000)


def actions_of(tree: Tree, forest: Forest) -> list[tuple[str, str]]:
    """For each node of the forest: the actions sampled before it on its path, and its own."""
    found: list[tuple[str, str]] = []
    for node, parent in zip(forest.nodes.tolist(), forest.parent.tolist(), strict=True):
        own = [tree.codec.decode(s.ids.tolist()) for s in tree.segments(node) if s.is_sampled]
        found.append(("".join(found[parent]) if parent != STEM else "", "".join(own)))
    return found


def add_scores(
    total: Gradient, laws: Mapping[str, Sequence[Any]], texts: Sequence[tuple[str, str]], coefficients: Sequence[Any]
) -> None:
    """Add coefficient * d log pi / d logit of every sampled token: one for the action taken, less the law."""
    for (before, own), coefficient in zip(texts, coefficients, strict=True):
        for i, action in enumerate(own):
            prefix = before + own[:i]
            component = total[prefix]
            component[int(action)] += coefficient
            for other, p in enumerate(laws[prefix]):
                component[other] -= coefficient * p


def _possible(law: Sequence[Fraction], index: int) -> int:
    """The first index from `index` on with a probability above 0; the law's length if there is none."""
    while index < len(law) and not law[index]:
        index += 1
    return index
