"""Self-consistency that stops early, by windows (ESC) and by a Beta posterior (Adaptive-Consistency)."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies.world import ListDraws, SeededWorld, journey

from ramify.core.command import Judge
from ramify.core.errors import ConfigError
from ramify.core.tree import Tree
from ramify.strategies.self_consistency import (
    UNREAD,
    SelfConsistency,
    SelfConsistencyConfig,
    is_unanimous,
    leads,
)


def consistency(**config: object) -> SelfConsistency:
    return SelfConsistency(SelfConsistencyConfig(**config), ListDraws())  # type: ignore[arg-type]


class Saying:
    """Answers as the judge `agreement` compares them: the k-th answer of a tree says the k-th word; '' = nothing."""

    def __init__(self, words: str) -> None:
        self.words = list(words)
        self._said: dict[int, str] = {}

    def __call__(self, tree: Tree, command: Judge) -> Sequence[float | None]:
        for node in command.nodes:
            if node not in self._said:
                self._said[node] = self.words[len(self._said)]
        said = [self._said[node] for node in command.nodes]
        return [None if word == "-" else float(said.index(word)) for word in said]


def num_sampled(words: str, **config: object) -> int:
    """How many answers are sampled that say these words in turn."""
    return journey(consistency(**config), SeededWorld(), judge=Saying(words + "z" * 99)).tree.num_leaves


# -- the posterior ----------------------------------------------------------------------------------------------------

GOLDEN = [
    (1, 0, 0.75),
    (2, 0, 0.875),
    (3, 0, 0.9375),
    (4, 0, 0.96875),
    (1, 1, 0.5),
    (5, 1, 0.9375),
    (6, 1, 0.96484375),
    (8, 2, 0.9672851562),
    (20, 10, 0.964622227),
    (20, 19, 0.5626853438),
]
"""Counts of the two most frequent answers -> mass above 1/2 of Beta(first + 1, second + 1), integrated numerically."""


@pytest.mark.parametrize(("first", "second", "expected"), GOLDEN)
def test_the_lead_is_the_mass_of_the_beta_posterior_above_a_half(first: int, second: int, expected: float) -> None:
    assert leads(first, second) == pytest.approx(expected, abs=1e-9)


@given(st.integers(1, 30), st.integers(0, 30))
def test_the_lead_equals_the_integral(first: int, second: int) -> None:
    first = max(first, second)
    x = np.linspace(0, 1, 20_001)
    density = x**first * (1 - x) ** second
    assert leads(first, second) == pytest.approx(np.trapezoid(density[10_000:]) / np.trapezoid(density), abs=1e-6)


def test_nothing_leads_before_there_is_an_answer() -> None:
    assert leads(0, 0) == 0.0


# -- when it stops ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "num"),
    [
        ("aaaa", 4),  # 0.96875
        ("abaaaaa", 7),  # six to one: 0.9648
        ("aa-aa", 5),  # what cannot be read settles nothing
        ("abab" * 10, 40),  # never settled
    ],
)
def test_adaptive_consistency_stops_when_the_majority_is_settled(words: str, num: int) -> None:
    assert num_sampled(words) == num


def test_a_lower_confidence_stops_earlier() -> None:
    assert num_sampled("aaaa", confidence=0.9) == 3
    assert num_sampled("aaaa", confidence=0.75) == 1


def test_answers_in_flight_when_it_stops_are_used_too() -> None:
    assert num_sampled("a" * 40, in_flight=3) == 6


@pytest.mark.parametrize(
    ("words", "num"),
    [
        ("aaaaa", 5),
        ("aabaabbbbb", 10),  # the second window agrees
        ("aaaa-aaaaa", 10),  # a window with an answer that cannot be read does not agree
        ("aaaabaaaab" * 9, 40),
        ("baaaaabbbb", 40),  # five in a row over two windows are no window
    ],
)
def test_early_stopping_looks_at_whole_windows(words: str, num: int) -> None:
    assert num_sampled(words.ljust(40, "-") if num == 40 else words, stop="window") == num


def test_the_last_window_is_cut_at_n() -> None:
    assert num_sampled("ab" * 6, stop="window", n=12) == 12


def test_one_decision_a_window_and_one_an_answer() -> None:
    window = journey(consistency(stop="window"), SeededWorld(), judge=Saying("aabaabbbbb")).tree
    assert [fork.num_siblings for fork in window.forks] == [5, 5]
    one_by_one = journey(consistency(), SeededWorld(), judge=Saying("aaaa")).tree
    assert [fork.num_siblings for fork in one_by_one.forks] == [1, 1, 1, 1]


def test_every_answer_is_a_candidate_of_a_majority() -> None:
    strategy = consistency(stop="window")
    tree = journey(strategy, SeededWorld(), judge=Saying("aabaabbbbb")).tree
    assert {candidate.node for candidate in strategy.candidates(tree)} == set(tree.leaves())
    assert strategy.vote == "majority"


def test_a_failed_answer_is_not_replaced_and_has_no_vote() -> None:
    trip = journey(
        consistency(n=3), SeededWorld(), judge=Saying("ab"), fails=lambda i: "engine_error" if i == 0 else None
    )
    assert trip.driver.growth.num_asked == 5
    assert len(trip.driver.strategy.candidates(trip.tree)) == 2  # type: ignore[attr-defined]


def test_only_whole_windows_agree() -> None:
    assert is_unanimous(dict.fromkeys(range(5), 0), 5)
    assert not is_unanimous(dict.fromkeys(range(4), 0), 5)
    assert not is_unanimous(dict.fromkeys(range(5), UNREAD), 5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 0}, "n = 0"),
        ({"window": 1}, "window = 1"),
        ({"confidence": 1.0}, "confidence"),
        ({"in_flight": 0}, "in_f"),
    ],
)
def test_impossible_numbers_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        consistency(**options)
