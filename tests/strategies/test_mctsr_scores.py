"""MCTSr's arithmetic against its definitions."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.strategies.mctsr.scores import (
    Penalty,
    importance_weights,
    is_distribution,
    pairwise_weights,
    penalised,
    q_of,
    rescored,
    uct,
)

SCORES = st.lists(st.integers(-40, 40).map(lambda n: n / 4), min_size=1, max_size=9)


def over_all_pairs(scores: Sequence[float]) -> list[float]:
    """Weight of each as the better of every ordered pair, half of those that count it twice."""
    return [sum(max(0.0, own - other) for other in scores) for own in scores]


@given(SCORES)
def test_a_pairwise_weight_is_the_sum_over_all_pairs(scores: list[float]) -> None:
    assert pairwise_weights(np.array(scores)) == pytest.approx(over_all_pairs(scores), abs=1e-9)


@given(st.floats(-1e6, 1e6), st.integers(1, 20))
def test_equal_scores_leave_no_pair_to_draw(score: float, number: int) -> None:
    assert not is_distribution(pairwise_weights(np.full(number, score)))


@given(SCORES)
def test_clipped_weights_are_a_distribution_where_any_score_is_above_0(scores: list[float]) -> None:
    assert is_distribution(importance_weights(np.array(scores), "clipped")) == (max(scores) > 0)
    assert is_distribution(importance_weights(np.array(scores), "kept")) == (min(scores) >= 0 and sum(scores) > 0)


@pytest.mark.parametrize(
    ("penalty", "values"),
    [("excess", [95, 91, 95, -100]), ("clip95", [95, 95, 95, -100]), ("fifty", [50, 50, 50, -100])],
)
def test_what_lies_beyond_the_limit_counts_less(penalty: Penalty, values: list[float]) -> None:
    assert [penalised(v, penalty, limit=95, excess=5) for v in (95.0, 96.0, 100.0, -100.0)] == values


def test_q_is_half_the_lowest_and_half_the_mean() -> None:
    assert q_of(-20.0, 40.0, 4) == -5.0


def test_a_parent_never_visited_gives_no_bonus_in_either_form() -> None:
    assert uct(3.0, 0, 0, exploration=1.0, eps=1e-10, log_form="code") == 3.0
    assert uct(3.0, 0, 0, exploration=1.0, eps=1e-10, log_form="paper") == 3.0


def test_the_paper_adds_1_behind_the_logarithm() -> None:
    code, paper = (uct(0.0, 4, 9, exploration=2.0, eps=1e-10, log_form=form) for form in ("code", "paper"))
    assert code == pytest.approx(2 * math.sqrt(math.log(10) / 4))
    assert paper == pytest.approx(2 * math.sqrt((math.log(9) + 1) / 4))


def test_a_father_without_a_score_stays_without_and_passes_the_turn_on() -> None:
    """0 - 1 - 2: 2 is a leaf, 1 was never scored, 0 was."""
    scores = rescored([None, 0, 1], [10.0, 20.0, 60.0], [1, 1, 1], {0: 5.0}, exploration=0.0, eps=1e-5)
    assert scores == {0: 15.0, 2: 60.0}


def test_nobody_above_the_father_of_a_leaf_hears_of_it() -> None:
    before = {0: 1.0, 1: 2.0}
    scores = rescored([None, 0, 1], [10.0, 20.0, 60.0], [1, 1, 1], before, exploration=0.0, eps=1e-5)
    assert scores == {0: 1.0, 1: 40.0, 2: 60.0}
