"""Plans of worlds that are known: what they advise, and that what they predict comes true."""

from dataclasses import replace

import numpy as np
import pytest
from tests.planner.worlds import EARLY, LATE, World

from ramify.planner.coverage import MODEL_ERROR, Successes, coverage
from ramify.planner.levels import levels
from ramify.planner.pilot import Pilot
from ramify.planner.plan import NUM_AGAIN, Aim, Plan, plan
from ramify.planner.shape import Shape

PILOT = (4, 1.6, 1.6, 1.6)


def planned(
    world: World, *, aim: Aim = "gradient", num_problems: int = 200, budget: float = 200, seed: int = 0
) -> Plan:
    pilot = world.pilot(PILOT, num_problems, seed)
    return plan(pilot, budget=budget, aim=aim, rng=np.random.default_rng(0))


@pytest.mark.slow
@pytest.mark.parametrize("aim", ["gradient", "coverage"])
def test_where_the_first_steps_decide_nobody_forks_and_the_dead_are_pruned(aim: Aim):
    made = planned(EARLY, aim=aim)
    assert [depth.call for depth in made.depths] == ["go on"] * 3
    assert not made.shape.is_forked
    assert made.pruning is not None and made.pruning.pays
    assert made.shape.keep == 0
    assert made.pruning.gain.low > 0 and made.gain.value > 0


@pytest.mark.slow
@pytest.mark.parametrize("aim", ["gradient", "coverage"])
def test_where_the_last_step_decides_paths_fork_before_it(aim: Aim):
    made = planned(LATE, aim=aim)
    assert made.depths[2].call == "fork"
    assert made.shape.children[3] > 2
    assert made.shape.keep is None
    assert made.gain.low > 0


def test_a_small_pilot_says_that_it_cannot_tell_and_gives_chains():
    made = planned(World(shares=(0.3, 1.0), costs=(6, 6)), num_problems=20, seed=1)
    (depth,) = made.depths
    assert depth.call == "too close to call"
    assert depth.more_problems is not None and depth.more_problems > 20
    assert not made.shape.is_forked


@pytest.mark.slow
def test_a_larger_pilot_tells():
    assert planned(World(shares=(0.4, 1.0), costs=(6, 6)), num_problems=1500).depths[0].call == "fork"


@pytest.mark.slow
def test_where_two_steps_matter_alike_it_is_seldom_called():
    """The best number is 1, which one interval in twenty leaves out."""
    calls = [planned(World((0.5, 1.0), (6, 6)), num_problems=60, seed=seed).depths[0].call for seed in range(20)]
    assert calls.count("too close to call") >= 16


@pytest.mark.parametrize("aim", ["gradient", "coverage"])
def test_the_same_return_on_every_path_leaves_nothing_to_plan(aim: Aim):
    pilot = LATE.pilot(PILOT, 10, seed=0)
    same = Pilot(tuple(replace(t, reward=np.where(np.isnan(t.reward), np.nan, 1.0)) for t in pilot.trees), 4)
    made = plan(same, budget=200, aim=aim, rng=np.random.default_rng(0))
    assert not made.varies
    assert {depth.call for depth in made.depths} == {"nothing to see"}
    assert not made.shape.is_forked


@pytest.mark.slow
def test_a_shape_costs_what_the_budget_pays_for():
    for budget in (60, 100, 400):
        made = planned(LATE, budget=budget)
        cost = (np.array(LATE.costs) * made.shape.widths(4)).sum() * made.shape.children[0]
        assert cost == pytest.approx(budget, rel=0.1)
        assert made.shape.children[0] >= 2
    assert planned(LATE, budget=10).shape == Shape((2.0,))


@pytest.mark.slow
@pytest.mark.parametrize("world", [EARLY, LATE])
def test_the_interval_of_a_plans_cost_holds_what_its_trees_cost(world: World):
    uneven = replace(world, chances=(0.6, 0.6))
    known = levels(uneven.pilot(PILOT, 3000, seed=99).truncated()).cost[0]
    missed = 0
    for seed in range(6):
        made = planned(uneven, num_problems=60, seed=seed)
        costs = known if made.shape.keep == 0 else np.array(uneven.costs)
        spent = made.shape.children[0] * float((costs * made.shape.widths(4)).sum())
        assert made.cost.low <= made.cost.value <= made.cost.high
        assert made.cost.value == pytest.approx(made.budget, rel=0.03)
        missed += not made.cost.low - 1e-6 <= spent <= made.cost.high + 1e-6
    assert missed <= 1


@pytest.mark.slow
def test_the_same_pilot_gives_the_same_plan():
    assert planned(EARLY, aim="coverage") == planned(EARLY, aim="coverage")


@pytest.mark.slow
@pytest.mark.parametrize("world", [EARLY, LATE])
@pytest.mark.parametrize("children", [(6,), (2, 1, 1, 4), (2.5, 1, 2)])
def test_coverage_is_predicted_from_the_levels(world: World, children: tuple[float, ...]):
    """The world is the prediction's own model, so that what is checked is its arithmetic."""
    found = levels(world.pilot(PILOT, 1000, seed=5)).settled()
    shape = Shape(tuple(map(float, children)))
    budget = children[0] * float((np.array(world.costs) * shape.widths(4)).sum())
    assert coverage(Successes.of(found), shape, budget) == pytest.approx(world.solved(children, 2000, seed=9), abs=0.05)


@pytest.mark.slow
def test_the_interval_of_a_gain_holds_the_error_of_the_model():
    made = planned(LATE, aim="coverage", num_problems=600)
    assert made.shape.is_forked
    assert made.gain.high - made.gain.low >= 2 * 1.9 * MODEL_ERROR


@pytest.mark.slow
def test_a_large_pilot_gives_the_same_advice_again_and_a_small_one_does_not():
    assert planned(EARLY, num_problems=400).num_agreeing == NUM_AGAIN
    small = [planned(LATE, num_problems=6, seed=seed).num_agreeing for seed in range(6)]
    assert min(small) < NUM_AGAIN


@pytest.mark.slow
def test_pruning_pays_for_tokens_that_only_add_noise():
    """By tokens: a token's squared coefficient, of chains against the mean of their problem."""
    made = planned(EARLY, num_problems=400)
    assert made.pruning is not None and made.pruning.keep == 0
    squares: dict[bool, float] = {True: 0.0, False: 0.0}
    spent: dict[bool, float] = {True: 0.0, False: 0.0}
    for tree in EARLY.pilot((8,), 1000, seed=11).trees:
        mean = tree.reward[tree.is_leaf].mean()
        for leaf in np.flatnonzero(tree.is_leaf):
            node = int(leaf)
            while node >= 0:
                squares[bool(tree.is_behind[node])] += tree.cost[node] * (tree.reward[leaf] - mean) ** 2
                spent[bool(tree.is_behind[node])] += tree.cost[node]
                node = int(tree.parent[node])
    whole = (squares[True] + squares[False]) * (spent[True] + spent[False])
    assert made.pruning.gain.value == pytest.approx(whole / (squares[False] * spent[False]) - 1, rel=0.15)


def test_a_rule_that_loses_something_throws_a_coin_or_none():
    """Where a quarter of what the rule sees would have succeeded, giving up for good is not offered."""
    rng = np.random.default_rng(0)
    pilot = EARLY.pilot(PILOT, 200, seed=0)
    trees = []
    for tree in pilot.trees:
        lucky = tree.is_behind & tree.is_leaf & (rng.random(len(tree.parent)) < 0.25)
        trees.append(replace(tree, reward=np.where(lucky, 1.0, tree.reward)))
    made = plan(Pilot(tuple(trees), 4), budget=200, rng=np.random.default_rng(0))
    assert made.pruning is not None and made.pruning.loses.value > 0.05
    assert made.pruning.keep > 0.3
