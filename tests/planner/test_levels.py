"""What each step adds to the variance of the return, against worlds in which that is known."""

import numpy as np
import pytest
from tests.planner.worlds import EARLY, LATE, World

from ramify.core.errors import ContractError
from ramify.planner.levels import levels, resampled
from ramify.planner.pilot import Pilot, PilotTree


def tree(parent: list[int], level: list[int], reward: list[float], given_up: list[int] | None = None) -> PilotTree:
    marks = np.zeros(len(parent), bool)
    marks[given_up or []] = True
    return PilotTree(
        np.array(parent, np.int32), np.array(level, np.int32), np.array(reward), np.ones(len(parent)), marks
    )


@pytest.mark.slow
@pytest.mark.parametrize("world", [EARLY, LATE])
@pytest.mark.parametrize("children", [(4, 2, 2, 2), (4, 1.5, 1.5, 1.5), (2, 3, 1, 2.5)])
def test_variances_and_costs_of_levels_are_unbiased(world: World, children: tuple[float, ...]):
    found = levels(world.pilot(children, 600, seed=1), resampled(600, np.random.default_rng(0), num_resamples=200))
    error = found.variance.std(axis=0)
    blind = [d for d, k in enumerate(children) if k == 1]
    """Where nothing forked, what the level adds is counted a level before."""
    wanted = world.variances()
    for level in blind:
        wanted[level - 1] += wanted[level]
        wanted[level] = 0
    np.testing.assert_array_less(np.abs(found.variance[0] - wanted), 4 * error + 1e-12)
    np.testing.assert_allclose(found.cost[0], world.costs, atol=1e-9)
    np.testing.assert_allclose(found.mean[0], 0.5, atol=0.05)
    np.testing.assert_allclose(found.between[0], 0.05, atol=0.02)


def test_two_levels_by_hand():
    """Stems with children 1 0 and 1 1: means 1/2 and 1, spread 1/8, of which chance below owes (1/4 + 0) / 2."""
    two = tree([-1, -1, 0, 0, 1, 1], [0, 0, 1, 1, 1, 1], [np.nan, np.nan, 1, 0, 1, 1])
    found = levels(Pilot((two, two), 2))
    np.testing.assert_allclose(found.variance[0], [1 / 8 - 1 / 8, 1 / 4])
    np.testing.assert_allclose(found.cost[0], [1, 1])


def test_paths_that_ended_add_nothing_to_later_levels():
    """One stem ends at once with 0, the other forks into 1 and 0: the second level is of half the paths."""
    ragged = tree([-1, -1, 1, 1], [0, 0, 1, 1], [0, np.nan, 1, 0])
    found = levels(Pilot((ragged, ragged), 2))
    np.testing.assert_allclose(found.variance[0], [1 / 8 - 1 / 8, 1 / 4])
    np.testing.assert_allclose(found.cost[0], [1, 1 / 2])


def test_settled_variances_never_fall_below_nothing():
    found = levels(LATE.pilot((2, 2, 2, 2), 10, seed=3), resampled(10, np.random.default_rng(0), num_resamples=500))
    assert (found.variance < 0).any()
    settled = found.settled().variance
    assert (settled >= 0).all()
    np.testing.assert_allclose(settled.sum(axis=1), np.maximum(found.variance.sum(axis=1), 0))


def test_a_path_that_is_given_up_is_a_leaf_of_return_0():
    whole = tree([-1, -1, 1, 2, 2], [0, 0, 1, 1, 1], [1, np.nan, np.nan, 1, 1], given_up=[2])
    cut = whole.truncated()
    assert cut.parent.tolist() == [-1, -1, 1]
    assert cut.reward.tolist()[2] == 0
    assert whole.is_behind.tolist() == [False, False, False, True, True]


@pytest.mark.parametrize(
    ("trees", "message"),
    [((tree([-1, -1], [0, 0], [1, 0]),), "1 problem"), ((tree([-1, -1], [0, 3], [1, 0]),) * 2, "more levels")],
)
def test_a_pilot_that_says_nothing_is_refused(trees: tuple[PilotTree, ...], message: str):
    with pytest.raises(ContractError, match=message):
        Pilot(trees, 2)


def test_a_leaf_without_a_reward_is_refused():
    with pytest.raises(ContractError, match="no reward"):
        tree([-1, -1], [0, 0], [1, np.nan])
