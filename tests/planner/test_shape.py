"""How many children where, by variance and cost; against brute force and by hand."""

import itertools
import math

import numpy as np
import pytest

from ramify.core.errors import ContractError
from ramify.planner.shape import Shape, best_children, best_ratio, noise_times_cost


def noise(variance: tuple[float, ...], cost: tuple[float, ...], children: tuple[float, ...]) -> float:
    widths = Shape((1.0, *children)).widths(len(cost))
    return float(noise_times_cost(np.array(variance), np.array(cost), widths))


def test_one_fork_has_the_best_number_of_the_rule():
    np.testing.assert_allclose(best_ratio(np.array([1.0, 1.0]), np.array([9.0, 1.0])), [3.0])
    assert best_children((1, 1), (9, 1), (True,)) == (3.0,)
    assert 2 * 10 / noise((1, 1), (9, 1), (3,)) == 1.25


def test_a_ratio_pools_what_lies_on_either_side():
    found = best_ratio(np.array([1.0, 2.0, 3.0]), np.array([4.0, 4.0, 2.0]))
    np.testing.assert_allclose(found, [math.sqrt(5 / 1 * 4 / 6), math.sqrt(3 / 3 * 8 / 2)])


def test_ratios_where_nothing_varies_or_nothing_costs():
    assert best_ratio(np.array([0.0, 1.0]), np.array([1.0, 1.0])).tolist() == [math.inf]
    assert np.isnan(best_ratio(np.array([0.0, 0.0]), np.array([1.0, 1.0]))).all()
    assert np.isnan(best_ratio(np.array([1.0, 1.0]), np.array([1.0, 0.0]))).all()


@pytest.mark.parametrize("seed", range(8))
def test_children_of_several_depths_are_the_best_there_are(seed: int):
    rng = np.random.default_rng(seed)
    variance, cost = tuple(rng.uniform(0.02, 1, 3)), tuple(rng.uniform(0.5, 4, 3))
    children = best_children(variance, cost, (True, True))
    grid = np.arange(1, 16, 0.1)
    best = min(noise(variance, cost, pair) for pair in itertools.product(grid, grid))
    assert noise(variance, cost, children) <= best * 1.001


def test_nobody_forks_where_it_is_not_allowed():
    assert best_children((0.01, 0.01, 1), (5, 5, 1), (False, True))[0] == 1
    assert best_children((0.01, 0.01, 1), (5, 5, 1), (False, False)) == (1, 1)


def test_a_shape_is_narrowed_towards_chains():
    shape = Shape((3.0, 4.0, 1.0, 9.0))
    assert shape.narrowed(0.5).children == (3.0, 2.0, 1.0, 3.0)
    assert not shape.narrowed(0).is_forked
    assert shape.widths(6).tolist() == [1, 4, 4, 36, 36, 36]


@pytest.mark.parametrize("children", [(), (0.5,), (2.0, math.inf)])
def test_a_shape_without_children_is_refused(children: tuple[float, ...]):
    with pytest.raises(ContractError, match="a finite number of children, at least 1"):
        Shape(children)


@pytest.mark.parametrize("keep", [-0.1, 1.0])
def test_a_coin_that_is_none_is_refused(keep: float):
    with pytest.raises(ContractError, match="kept where the rule fires is at least 0 and below 1"):
        Shape((2.0,), keep)
