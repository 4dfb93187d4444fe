"""Verdicts over the same problems: rarely wrong where nothing differs, and none where the problems cannot carry one."""

import numpy as np
import pytest
from bench.false_verdicts import TARGET, Cell

from ramify.experiments.paired import can_show, paired_difference

REPEATS = 300
NOISE = 3 * (TARGET * (1 - TARGET) / REPEATS) ** 0.5


@pytest.mark.parametrize("num_chains", [1, 5, 40])
@pytest.mark.parametrize("rate", [0.05, 0.5, 0.9, 0.98])
@pytest.mark.parametrize("num_problems", [4, 10, 30, 100, 300])
def test_chains_hardly_ever_differ_from_chains(num_problems: int, rate: float, num_chains: int) -> None:
    for num_seeds, spread in ((1, float("inf")), (3, 2.0)):
        cell = Cell(num_problems, rate, num_chains, num_seeds, spread)
        assert cell.false_verdicts(REPEATS, np.random.default_rng(7)) <= TARGET + NOISE


def test_a_paired_difference_is_as_wide_as_its_problems_differ() -> None:
    more = paired_difference([1.0] * 20, [0.0] * 19 + [1.0])
    assert more.value == pytest.approx(0.95)
    assert 0 < more.low < 0.95 < more.high <= 1
    assert more.word == "more"
    assert paired_difference([0.0] * 20, [1.0] * 20).word == "fewer"
    steady, mixed = ([0.6] * 50, [0.1, 1.0] * 25)
    assert paired_difference(mixed, [0.5] * 50).high > paired_difference(steady, [0.5] * 50).high


def test_bonett_and_price_figures_are_met() -> None:
    """50 pairs, 10 solved by one side alone and 2 by the other: (11 - 3) / 52, with Student's quantile 2.0076."""
    own, other = [1.0] * 10 + [0.0] * 2 + [1.0] * 38, [0.0] * 10 + [1.0] * 2 + [1.0] * 38
    found = paired_difference(own, other)
    error = ((14 / 52 - (8 / 52) ** 2) / 52) ** 0.5
    assert (found.low, found.high) == pytest.approx((8 / 52 - 2.0076 * error, 8 / 52 + 2.0076 * error), abs=1e-4)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_where_all_problems_agree_the_interval_still_has_a_width(share: float) -> None:
    """Ten problems that agree say of the next one no more than that it agrees in most cases."""
    found = paired_difference([share] * 10, [share] * 10)
    assert found.value == 0.0 and found.low < -0.1 and found.high > 0.1


@pytest.mark.parametrize("number", range(5))
def test_four_problems_or_fewer_carry_no_verdict(number: int) -> None:
    assert paired_difference([1.0] * number, [0.0] * number).word == "equal"
    assert not can_show([0.0] * number) and not can_show([1.0] * number)


def test_what_problems_can_show_depends_on_what_chains_leave_open() -> None:
    assert can_show([0.5] * 30) == {"more", "fewer"}
    assert can_show([0.99] * 30) == {"fewer"}
    assert can_show([0.01] * 30) == {"more"}


def test_several_comparisons_are_each_wider() -> None:
    own, other = [1.0] * 12 + [0.0] * 38, [0.0] * 2 + [1.0] * 4 + [0.0] * 44
    one, four = (paired_difference(own, other, num_comparisons=n) for n in (1, 4))
    assert four.low < one.low < one.high < four.high
    assert one.value == four.value
