"""Strategies that decide before they sample give the exact policy gradient: proved by enumeration, in fractions.

Every random choice (tokens of a small decision process, coins and depths of the strategy) goes through `Choices`, which
is replayed until all of its lists of choices have been seen. The estimator is sum of w R S over leaves, with w the
product of the planned shares (`docs/concepts/exactness.md`, lemma 1).
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache
from typing import Literal

import numpy as np
import pytest
from tests.golden.files import load
from tests.strategies.world import CODEC, journey, sampled_step

from ramify.core.segment import token_array
from ramify.core.strategy import Strategy
from ramify.core.tree import Step, Tree
from ramify.runner.driver import Start
from ramify.strategies.offline import Offline, OfflineConfig
from ramify.strategies.online import Online, OnlineConfig
from ramify.strategies.parts.draws import Draws
from ramify.strategies.treepo import TreePO, TreePOConfig
from ramify.strategies.treerl import TreeRL, TreeRLConfig

Gradient = dict[tuple[str, int], Fraction]


class Choices:
    """One list of choices with its probability; beyond its end the first option is taken."""

    def __init__(self, taken: Sequence[int], grid: int) -> None:
        self.taken = list(taken)
        self.options: list[int] = []
        self.probability = Fraction(1)
        self._grid = grid

    def pick(self, probs: Sequence[Fraction]) -> int:
        at = len(self.options)
        self.options.append(len(probs))
        if at == len(self.taken):
            self.taken.append(0)
        self.probability *= probs[self.taken[at]]
        return self.taken[at]

    def integers(self, low: int, /) -> int:
        return self.pick([Fraction(1, low)] * low)

    def random(self) -> float:
        """Midpoints of a grid on which every probability the strategy compares with is a border."""
        return (self.integers(self._grid) + 0.5) / self._grid


def every_choice(grid: int) -> Iterator[Choices]:
    """All lists of choices, depth first; the caller makes them by running to the end."""
    taken: list[int] = []
    while True:
        choices = Choices(taken, grid)
        yield choices
        taken = choices.taken
        while taken and taken[-1] + 1 == choices.options[len(taken) - 1]:
            taken.pop()
        if not taken:
            return
        taken[-1] += 1


class Decisions:
    """A small decision process from the goldens: one token a step, a reward at the end."""

    def __init__(self, name: str) -> None:
        content = load(name)
        self.probs = {at: [Fraction(p) for p in probs] for at, probs in content["mdp"]["probs"].items()}
        self.rewards = {at: Fraction(r) for at, r in content["mdp"]["rewards"].items()}
        self.gradient = {(at, b): Fraction(g) for at, gs in content["gradient_exact"].items() for b, g in enumerate(gs)}

    def prefix(self, tree: Tree, node: int) -> str:
        return tree.branch(node).transcript

    def score(self, prefix: str) -> Gradient:
        """Gradient of the log-probability of a whole path: 1 - p for the token taken, - p for the others."""
        score: Gradient = defaultdict(Fraction)
        for t, token in enumerate(prefix):
            for b, p in enumerate(self.probs[prefix[:t]]):
                score[prefix[:t], b] += int(int(token) == b) - p
        return score


class DecisionsWorld:
    """Grows paths of a decision process; a step's entropy is its prefix's number of ones."""

    def __init__(self, process: Decisions, choices: Choices) -> None:
        self._process = process
        self._choices = choices

    def steps(self, tree: Tree, start: Start) -> list[Step]:
        assert start.place is not None
        prefix = self._process.prefix(tree, start.place.parent)
        steps: list[Step] = []
        while not steps or (start.command.until == "end" and steps[-1].stop is None):  # type: ignore[union-attr]
            law = self._process.probs[prefix]
            token = self._choices.pick(law)
            prefix += str(token)
            steps.append(token_step(prefix, is_end=prefix in self._process.rewards, logprob=math.log(law[token])))
        return steps


@cache
def token_step(prefix: str, *, is_end: bool, logprob: float) -> Step:
    """One sampled token and nothing behind it."""
    step = sampled_step(1, entropy=prefix.count("1"), stop="answer" if is_end else None)
    ids, logprobs = token_array(CODEC.encode(prefix[-1])), np.array([logprob], np.float32)
    segment = replace(step.segments[0], ids=ids, logprobs=logprobs)
    return replace(step, segments=(segment,))


def weight(tree: Tree, leaf: int) -> Fraction:
    """Product of the planned shares of the decisions above a leaf."""
    product = Fraction(1)
    for node in tree.path(leaf)[1:]:
        if fork := tree.fork(node):
            assert len(set(fork.shares)) == 1
            product *= _fraction(fork.shares[0])
    return product


@cache
def _fraction(share: float) -> Fraction:
    return Fraction(share).limit_denominator(100)


def equal_weight(tree: Tree, leaf: int) -> Fraction:
    return Fraction(1, tree.num_leaves)


def expected_gradient(
    process: Decisions,
    make: Callable[[Draws], Strategy],
    *,
    grid: int = 1,
    weigh: Callable[[Tree, int], Fraction] = weight,
) -> Gradient:
    """E of sum of w R S over leaves, over every choice of the world and the strategy."""
    factors: dict[str, Fraction] = defaultdict(Fraction)
    """Path -> what its score is multiplied by, over all trees that hold it."""
    mass = Fraction(0)
    for choices in every_choice(grid):
        tree = journey(make(choices), DecisionsWorld(process, choices)).tree
        mass += choices.probability
        for leaf in tree.leaves():
            if tree.stop(leaf) == "roulette":
                continue
            prefix = process.prefix(tree, leaf)
            factors[prefix] += choices.probability * weigh(tree, leaf) * process.rewards[prefix]
    assert mass == 1
    total: Gradient = defaultdict(Fraction)
    for prefix, factor in factors.items():
        for at, value in process.score(prefix).items():
            total[at] += factor * value
    return dict(total)


PROCESSES = ("gradients_ragged", "gradients_binary3")


@pytest.mark.slow
@pytest.mark.parametrize("name", PROCESSES)
@pytest.mark.parametrize(("m", "forks", "beam"), [(1, 1, 3), (2, 1, 2), (1, 2, 2)])
def test_depths_drawn_before_the_chains_give_the_exact_gradient(name: str, m: int, forks: int, beam: int) -> None:
    process = Decisions(name)
    config = OfflineConfig(commit="before", initial_rollouts=m, expansion_iterations=forks, beam_size=beam, max_depth=2)
    assert expected_gradient(process, lambda draws: Offline(config, draws)) == process.gradient


@pytest.mark.parametrize("name", PROCESSES)
@pytest.mark.parametrize("rounds", ["lockstep", "free"])
def test_forks_by_entropy_without_restarts_give_the_exact_gradient(name: str, rounds: str) -> None:
    """At w = 1/4 and whole entropies every probability is a multiple of 1/4: a grid of four is exact."""
    process = Decisions(name)
    config = OnlineConfig(n=2, initial_rollouts=1, entropy_weight=0.25, rounds=rounds, restart="none")  # type: ignore[arg-type]
    assert expected_gradient(process, lambda draws: Online(config, draws), grid=4) == process.gradient


@pytest.mark.slow
def test_a_slot_two_paths_compete_for_keeps_the_gradient_exact() -> None:
    process = Decisions("gradients_ragged")
    config = OnlineConfig(n=3, initial_rollouts=2, entropy_weight=0.0, restart="none")
    assert expected_gradient(process, lambda draws: Online(config, draws), grid=2) == process.gradient


@pytest.mark.slow
@pytest.mark.parametrize("name", PROCESSES)
@pytest.mark.parametrize("allotment", ["even", "sum"])
def test_segments_that_share_a_width_give_the_exact_gradient(name: str, allotment: Literal["even", "sum"]) -> None:
    """One stem or two, a token a segment, three paths at most; what finishes early passes its width on."""
    process = Decisions(name)
    config = TreePOConfig(
        width=3, segment_tokens=1, first_divergence=(1, 2), fallback="none", allotment=allotment, temperature=0.5
    )
    assert expected_gradient(process, lambda draws: TreePO(config, draws)) == process.gradient


@pytest.mark.parametrize("name", PROCESSES)
@pytest.mark.parametrize(("forks", "continuations"), [(1, 2), (2, 1)])
def test_forks_after_a_surprise_give_the_exact_gradient(name: str, forks: int, continuations: int) -> None:
    process = Decisions(name)
    config = TreeRLConfig(stems=1, fork="after", threshold=0.5, forks=forks, continuations=continuations)
    assert expected_gradient(process, lambda draws: TreeRL(config, draws)) == process.gradient


def test_forks_before_a_surprise_and_falling_back_are_not_exact_at_equal_leaf_weights() -> None:
    process = Decisions("gradients_ragged")
    surprise = TreeRLConfig(stems=1, forks=1, continuations=1)
    fallback = TreePOConfig(width=2, segment_tokens=1, first_divergence=(1, 1), divergence=1)
    before = expected_gradient(process, lambda draws: TreeRL(surprise, draws), weigh=equal_weight)
    cut = expected_gradient(process, lambda draws: TreePO(fallback, draws), weigh=equal_weight)
    assert process.gradient not in (before, cut)


def test_equal_leaf_weights_are_not_exact_for_restarts_or_forks_chosen_after_the_chains() -> None:
    process = Decisions("gradients_ragged")
    online = OnlineConfig(n=2, initial_rollouts=1, entropy_weight=0.25)
    offline = OfflineConfig(initial_rollouts=1, expansion_iterations=1)
    restarted = expected_gradient(process, lambda draws: Online(online, draws), grid=4, weigh=equal_weight)
    chosen = expected_gradient(process, lambda draws: Offline(offline, draws), weigh=equal_weight)
    assert process.gradient not in (restarted, chosen)
