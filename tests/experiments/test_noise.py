"""Noise times tokens: values capped alike for all presets, ratios paired by problem, intervals over problems."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.experiments.noise import GradientSample, NoiseLine, cap_of, lines, sample

VECTORS = st.lists(st.lists(st.floats(-9, 9, width=32), min_size=3, max_size=3), min_size=2, max_size=5)


def samples_of(*values: float, tokens: float = 10.0) -> list[GradientSample]:
    return [GradientSample(second_moment=v, variance=v / 2, tokens=tokens, zero=float(v == 0)) for v in values]


def heavy(rng: np.random.Generator, number: int) -> list[GradientSample]:
    """Samples with a third of zeros and a log-normal tail."""
    values = np.where(rng.random(number) < 1 / 3, 0.0, rng.lognormal(0, 2, number))
    return samples_of(*values.tolist())


def second_of(line: NoiseLine) -> tuple[float, float, float]:
    assert line.second_moment.ratio is not None
    return (line.second_moment.ratio.value, line.second_moment.ratio.low, line.second_moment.ratio.high)


@given(VECTORS)
def test_the_variance_is_that_of_the_coordinates_summed(vectors: list[list[float]]) -> None:
    found = sample([np.array(v, np.float32) for v in vectors], [1] * len(vectors))
    assert found.variance == pytest.approx(np.var(vectors, axis=0, ddof=1).sum(), abs=1e-6)


def test_two_trees_give_the_second_moment_less_the_product_of_their_gradients() -> None:
    one, other = np.array([3.0, 4.0]), np.array([1.0, 0.0])
    found = sample([one, other], [10, 20])
    assert found == GradientSample(second_moment=13.0, variance=13.0 - 3.0, tokens=15.0, zero=0.0)


def test_one_tree_has_no_variance_and_then_no_line_has_one() -> None:
    alone = sample([np.zeros(2)], [5])
    assert alone.variance is None and alone.zero == 1.0
    assert all(line.variance is None for line in lines({"a": samples_of(1), "b": [alone]}, quantile=1.0))


def test_the_cap_is_a_quantile_of_what_is_not_zero() -> None:
    assert cap_of([0, 0, 0, 0, 1, 2, 3], 0.5) == 2.0
    assert cap_of([0, 0], 0.5) == 0.0


def test_values_are_capped_alike_and_multiplied_by_the_mean_tokens() -> None:
    a, b = lines({"a": samples_of(1, 2, 100), "b": samples_of(0, 2, 4, tokens=20.0)}, quantile=0.5)
    assert a.second_moment.cap == b.second_moment.cap == 2.0
    assert a.second_moment.raw == pytest.approx(103 / 3 * 10) and b.second_moment.raw == pytest.approx(40)
    assert a.second_moment.capped.value == pytest.approx(5 / 3 * 10)
    assert b.second_moment.capped.value == pytest.approx(4 / 3 * 20)
    assert second_of(b)[0] == pytest.approx(1.6)
    assert (a.second_moment.ratio, a.second_moment.word) == (None, "equal")


def test_a_quantile_of_one_caps_nothing() -> None:
    (line,) = lines({"a": samples_of(1, 2, 100)}, quantile=1.0)
    assert line.second_moment.capped.value == pytest.approx(line.second_moment.raw)


def test_ratios_are_paired_by_problem() -> None:
    values = np.random.default_rng(3).lognormal(0, 1, 40).tolist()
    _, same, half = lines(
        {"a": samples_of(*values), "b": samples_of(*values), "c": samples_of(*values, tokens=5.0)}, quantile=0.9
    )
    assert second_of(same) == pytest.approx((1, 1, 1)) and same.second_moment.word == "equal"
    assert second_of(half) == pytest.approx((0.5, 0.5, 0.5)) and half.second_moment.word == "less"
    assert half.variance is not None and half.variance.word == "less"


def test_one_problem_carries_the_raw_mean_and_not_the_capped_one() -> None:
    values = np.random.default_rng(4).lognormal(0, 1, 60).tolist()
    plain, tailed = lines({"a": samples_of(*values), "b": samples_of(*values[:-1], 1e6)}, quantile=0.95)
    assert tailed.second_moment.raw > 100 * plain.second_moment.raw
    assert tailed.second_moment.word == "equal"


@pytest.mark.slow
def test_draws_of_one_heavy_tailed_law_are_rarely_said_to_differ() -> None:
    rng = np.random.default_rng(5)
    pairs = [{"a": heavy(rng, 60), "b": heavy(rng, 60)} for _ in range(60)]
    words = [lines(pair, quantile=0.9)[1].second_moment.word for pair in pairs]
    assert words.count("equal") >= 54


def test_nothing_is_divided_by_a_first_preset_without_gradients() -> None:
    first, other = lines({"a": samples_of(0, 0), "b": samples_of(0, 1)}, quantile=0.95)
    assert first.second_moment.capped.value == 0.0
    assert other.second_moment.ratio is None and other.second_moment.word == "equal"


def test_a_ratio_has_no_upper_end_where_resamples_divide_by_nothing() -> None:
    _, other = lines({"a": samples_of(0, 0, 1), "b": samples_of(1, 1, 1)}, quantile=1.0)
    assert second_of(other)[2] == math.inf and other.second_moment.word == "equal"


def test_without_any_gradient_all_figures_are_zero() -> None:
    (line,) = lines({"a": samples_of(0, 0)}, quantile=0.95)
    assert (line.zero, line.second_moment.raw, line.second_moment.capped.high) == (1.0, 0.0, 0.0)
