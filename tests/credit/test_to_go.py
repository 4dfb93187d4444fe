"""Rewards of steps: exact credits stay exact, and count a reward only for the tokens before it."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
from tests.credit.enumeration import MDP, PROBLEMS, Draw, Gradient, expected_gradients, outcomes, rational
from tests.credit.samplers import Gardener, Rule, grown_step

from ramify.core.command import Score
from ramify.core.environment import EARNED, ENVIRONMENT
from ramify.core.growth import Done
from ramify.core.tree import ROOT, Tree
from ramify.credit import CREDITS, credit, forest_of
from ramify.credit.forest import STEM, Forest

EXACT = ["ancestor_loo", "sibling_loo", "split", "split_tree_loo", "subtree_loo"]
RULES: Mapping[str, tuple[int, Rule]] = {
    "chains": (2, lambda prefix, p: 1),
    "all fork": (2, lambda prefix, p: 2 if len(prefix) == 1 else 1),
    "one token forks": (2, lambda prefix, p: 3 if prefix == "0" else 1),
    "one stem": (1, lambda prefix, p: 2),
}


def earned(prefix: str) -> Fraction:
    """The reward of the step that ends at a prefix."""
    return Fraction(int(prefix[-1]) * 3 + len(prefix) - 2, 4)


class Stepper(Gardener):
    """Every token is a step of an environment that gives a reward."""

    judge = ENVIRONMENT

    def path(self, command: int, prefix: str, rule: Rule) -> None:
        law = self.mdp.probs[prefix]
        action = self.draw(law)
        path = prefix + str(action)
        step = grown_step(self.mdp, path, str(action))
        is_over = path in self.mdp.rewards
        scores = (Score(self.judge, float(self.total(path))),) if is_over else ()
        step = self.thrown(replace(step, scores=scores), path)
        self.growth.grow(command, replace(step, notes={EARNED: float(earned(path)), **step.notes}))
        node = self.growth.end(command, Done()).nodes[0]
        if step.stop is None:
            self.fork(node, number := rule(path, law[action]), path, [rule] * number)

    def total(self, path: str) -> Fraction:
        return self.mdp.rewards[path] + sum(earned(path[: i + 1]) for i in range(len(path)))


def grown(mdp: MDP, rule: str, *, judge: str = ENVIRONMENT, coin: str = "") -> Callable[[Draw], Tree]:
    number, forks = RULES[rule]

    def grow(draw: Draw) -> Tree:
        stepper = Stepper(mdp, draw)
        stepper.judge = judge
        stepper.coins = {coin: Fraction(1, 2)} if coin else {}
        stepper.fork(ROOT, number, "", [forks] * number)
        return stepper.tree

    return grow


def gradient(mdp: MDP) -> Gradient:
    """Of the expected sum of the steps' rewards and the final one, by its definition."""
    total: Gradient = {prefix: [Fraction(0)] * len(law) for prefix, law in mdp.probs.items()}
    for path in mdp.rewards:
        probability = Fraction(1)
        for i, action in enumerate(path):
            probability *= mdp.probs[path[:i]][int(action)]
        value = probability * (mdp.rewards[path] + sum(earned(path[: i + 1]) for i in range(len(path))))
        for i, action in enumerate(path):
            for other, p in enumerate(mdp.probs[path[:i]]):
                total[path[:i]][other] += value * ((other == int(action)) - p)
    return total


def coefficients(name: str, forest: Forest) -> Any:
    return credit(name, forest).coefficients


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_exact_credits_stay_exact_with_rewards_of_steps(problem: str, rule: str) -> None:
    mdp = MDP.of(problem)
    wanted = [name for name in EXACT if RULES[rule][0] >= CREDITS[name].min_stems]
    found = expected_gradients(
        grown(mdp, rule), {name: partial(coefficients, name) for name in wanted}, mdp, is_sorted=True
    )
    assert found == dict.fromkeys(wanted, gradient(mdp))


@pytest.mark.slow
@pytest.mark.parametrize("problem", PROBLEMS)
def test_exact_credits_stay_exact_where_a_coin_ends_paths(problem: str) -> None:
    mdp = MDP.of(problem)
    grow = grown(mdp, "one token forks", coin="1")
    found = expected_gradients(grow, {name: partial(coefficients, name) for name in EXACT}, mdp, is_sorted=True)
    assert found == dict.fromkeys(EXACT, gradient(mdp))


def test_a_reward_counts_for_no_token_after_it() -> None:
    forest = replace(
        Forest.of_arrays([STEM, 0, 0], [1.0, 0.5, 0.5], [None, 10.0, 12.0]), earned=np.array([10.0, np.nan, np.nan])
    )
    assert coefficients("split", forest).tolist() == [11.0, 0.0, 1.0]


def test_a_baseline_from_other_trees_counts_the_steps_that_are_left() -> None:
    """Two chains that earn 1 a step: the second token of each compares what is left, not the whole."""
    forest = replace(
        Forest.of_arrays([STEM, STEM, 0, 1], [0.5, 0.5, 1.0, 1.0], [None, None, 2.0, 3.0]),
        earned=np.array([1.0, 2.0, 1.0, 1.0]),
    )
    assert coefficients("split_tree_loo", forest).tolist() == [-0.5, 0.5, 0.0, 0.0]


@pytest.mark.parametrize("name", ["split", "subtree_loo"])
def test_rewards_to_go_have_less_variance_than_whole_returns(name: str) -> None:
    mdp = MDP.of("binary3")
    squares = {"to go": 0.0, "whole": 0.0}
    for probability, tree in outcomes(grown(mdp, "chains"), is_sorted=True):
        forest = forest_of(tree)
        for how, seen in (("to go", forest), ("whole", replace(forest, earned=None))):
            squares[how] += float(probability) * float(np.square(coefficients(name, seen)).sum())
    assert squares["to go"] < squares["whole"]


def test_rewards_of_steps_do_not_count_where_another_judge_gives_the_reward() -> None:
    mdp = MDP.of("binary3")
    assert forest_of(next(outcomes(grown(mdp, "chains")))[1]).earned is not None
    assert forest_of(next(outcomes(grown(mdp, "chains", judge="exact")))[1]).earned is None


def test_published_credits_take_whole_returns() -> None:
    mdp = MDP.of("binary3")
    _, tree = next(outcomes(grown(mdp, "all fork")))
    forest = rational(forest_of(tree))
    for name in ("leaf_grpo", "treepo", "leaf_loo"):
        whole = credit(name, replace(forest, earned=None))
        assert credit(name, forest).coefficients.tolist() == whole.coefficients.tolist()
