import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.golden.abmcts import Answering
from tests.strategies.world import Journey, journey, shape

from ramify.core.command import Grow
from ramify.core.errors import ConfigError
from ramify.core.tree import ROOT, Tree
from ramify.runner.driver import Asked
from ramify.strategies.ab_mcts.hierarchy import LEAST_SIGMA_Y, ScoreGroup, draw_prior, fitted
from ramify.strategies.ab_mcts.m import ABMCTSM, ABMCTSMConfig, RepeatCounts
from ramify.strategies.parts.posteriors import RunningMean

BOUNDS = np.array([0.0, 0.2, 0.4, 0.5, 0.6, 0.8, 1.0])
TWO = ABMCTSMConfig(first_actions=("small", "large"), actions=("refine", "rewrite"), num_answers=40)


def groups_of(scores: Sequence[Sequence[float]]) -> list[ScoreGroup]:
    found: list[ScoreGroup] = []
    for of_group in scores:
        seen = RunningMean()
        for score in of_group:
            seen.observe(score)
        found.append(ScoreGroup.of(seen))
    return found


def shares_below(values: Any, weights: Any = None) -> Any:
    """Share of the values below each bound."""
    return np.array([np.average(values < bound, weights=weights) for bound in BOUNDS])


def sampled(scores: Sequence[Sequence[float]], mean: float, num: int) -> tuple[list[Any], Any]:
    """Next scores of each group and of a new one, drawn from the prior, and the likelihoods they weigh by: no grid."""
    rng = np.random.default_rng(1)
    mu, sigma_a = rng.normal(mean, 0.2, num), np.abs(rng.normal(0, 0.2, num))
    sigma_y = np.abs(rng.normal(0, 0.3, num))
    log_weight = np.where(sigma_y > LEAST_SIGMA_Y, 0.0, -np.inf)
    drawn: list[Any] = []
    for of_group in [*scores, []]:
        alpha = mu + sigma_a * rng.normal(size=num)
        for score in of_group:
            log_weight = log_weight - np.log(sigma_y) - 0.5 * ((score - alpha) / sigma_y) ** 2
        drawn.append(alpha + sigma_y * rng.normal(size=num))
    return drawn, np.exp(log_weight - log_weight.max())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scores", "mean"),
    [
        ([[0.7]], 0.5),
        ([[0.2, 0.5], [0.9]], 0.5),
        ([[0.1, 0.2, 0.1], [0.8, 0.7]], 0.3),
        ([[1.0], [0.0], [0.4]], 0.5),
    ],
)
def test_draws_follow_the_distribution_that_weighed_samples_of_the_prior_follow(
    scores: list[list[float]], mean: float
) -> None:
    groups = groups_of(scores)
    fit = fitted(groups, mean=mean)
    rng = np.random.default_rng(2)
    found = [[fit.draw_group(group, rng) for _ in range(20_000)] for group in groups]
    found.append([fit.draw_new(rng) for _ in range(20_000)])
    expected, weights = sampled(scores, mean, 1_000_000)
    num_effective = weights.sum() ** 2 / (weights**2).sum()
    assert num_effective > 1_000
    error = 4.5 * np.sqrt(0.25 / num_effective + 0.25 / 20_000)
    for values, reference in zip(found, expected, strict=True):
        assert np.abs(shares_below(np.array(values)) - shares_below(reference, weights)).max() < error


@pytest.mark.parametrize("num", [40, 4_000])
def test_many_scores_of_many_groups_give_the_sigmas_they_were_drawn_with(num: int) -> None:
    """The grid closes in on a posterior far narrower than its first step."""
    rng = np.random.default_rng(0)
    alphas = 0.5 + 0.15 * rng.normal(size=num)
    fit = fitted(groups_of([(alpha + 0.05 * rng.normal(size=20)).tolist() for alpha in alphas]), mean=0.5)
    weights = np.diff(fit.cumulative, prepend=0.0)
    assert weights @ fit.sigma_y == pytest.approx(0.05, rel=0.1)
    assert weights @ fit.sigma_a == pytest.approx(0.15, rel=0.25)
    assert (weights > weights.max() / 100).sum() > 20


def test_a_group_that_scored_the_same_every_time_has_a_finite_posterior() -> None:
    fit = fitted(groups_of([[0.5] * 50, [1.0] * 3]), mean=0.5)
    rng = np.random.default_rng(0)
    assert np.mean([fit.draw_group(ScoreGroup(50, 0.5, 0.0), rng) for _ in range(500)]) == pytest.approx(0.5, abs=0.01)


def test_a_score_of_nothing_known_is_drawn_from_the_prior() -> None:
    rng = np.random.default_rng(0)
    drawn = [draw_prior(0.3, rng) for _ in range(40_000)]
    assert np.mean(drawn) == pytest.approx(0.3, abs=0.01)
    assert np.var(drawn) == pytest.approx(0.04 + 0.04 + 0.09, rel=0.04)


def test_the_same_scores_in_other_groups_sizes_cost_the_same_grid() -> None:
    one = fitted(groups_of([[0.2, 0.4]] * 3), mean=0.5)
    other = fitted(groups_of([[0.4, 0.2]] * 3), mean=0.5)
    assert one.cumulative == pytest.approx(other.cumulative)


# -- the search -----------------------------------------------------------------------------------------------------


def search(config: ABMCTSMConfig, seed: int = 0) -> ABMCTSM:
    return ABMCTSM(config, np.random.default_rng(seed))


def played(config: ABMCTSMConfig, judge: Callable[[Tree, int], float | None], **options: Any) -> Journey:
    return journey(search(config), Answering(), judge=lambda tree, c: [judge(tree, n) for n in c.nodes], **options)


def actions(trip: Journey) -> list[tuple[int, str]]:
    asked = (command for event in trip.events if isinstance(event, Asked) for command in event.commands)
    return [(c.node, c.action) for c in asked if isinstance(c, Grow)]


@pytest.mark.parametrize("rule", ["multiarm_bandit_thompson", "multiarm_bandit_ucb", "stack"])
def test_the_better_way_of_answering_is_taken_more_often(rule: Any) -> None:
    """In a stack, of those at the bare prompt: where nothing is below, both ways go by their priors."""
    good = {"large", "rewrite"}
    trip = played(
        replace(TWO, model_selection=rule, num_answers=60),
        lambda tree, node: (0.8 if tree.action(node) in good else 0.2) + node % 9 / 50,
    )
    taken = Counter(action in good for node, action in actions(trip) if rule != "stack" or node == ROOT)
    assert taken[True] > 1.5 * taken[False]


def test_answers_are_derived_below_the_first_one_that_leads_to_good_ones() -> None:
    config = ABMCTSMConfig(num_answers=60, prune_share=None)
    trip = played(config, lambda tree, node: (0.8 if 1 in tree.path(node) else 0.1) + node % 9 / 50)
    below = Counter(trip.tree.path(node)[1] for node, _ in actions(trip) if node != ROOT)
    assert below[1] > 2 * max(number for node, number in below.items() if node != 1)


def test_an_answer_below_which_all_scores_are_the_same_is_not_entered_any_more() -> None:
    trip = played(ABMCTSMConfig(num_answers=60, max_in_flight=1), lambda tree, node: 1.0)
    below = Counter(trip.tree.path(node)[1] for node, _ in actions(trip) if node != ROOT)
    assert max(below.values()) == 3
    free = played(ABMCTSMConfig(num_answers=60, max_in_flight=1, prune_share=None), lambda tree, node: 1.0)
    assert max(Counter(free.tree.path(node)[1] for node, _ in actions(free) if node != ROOT).values()) > 3


def test_scores_are_the_same_when_they_round_to_the_same_hundredth() -> None:
    repeats = RepeatCounts()
    for score in (0.501, 0.499, 0.5, 0.9):
        repeats.observe(score)
    assert repeats.is_prunable(4, 0.75) and not repeats.is_prunable(5, 0.75) and not repeats.is_prunable(4, 0.76)
    assert not RepeatCounts().is_prunable(1, 0.5)


@pytest.mark.parametrize("rule", ["multiarm_bandit_thompson", "stack"])
def test_what_fails_leaves_nothing_pending(rule: Any) -> None:
    config = replace(TWO, model_selection=rule, max_in_flight=9)
    trip = journey(search(config), Answering(), fails=lambda command_id: "timeout" if command_id % 2 else None)
    strategy = trip.driver.strategy
    assert isinstance(strategy, ABMCTSM)
    assert not any(sum(place.pending) or place.gens for place in strategy._places.values())
    assert strategy._way_pending == [0, 0] and len(actions(trip)) == 40


def test_siblings_in_flight_are_capped() -> None:
    trip = Journey(search(ABMCTSMConfig(num_answers=40, max_in_flight=9)), Answering())
    trip.step()
    assert actions(trip) == [(ROOT, "policy")] * 3


@pytest.mark.parametrize("overlap", ["largest", "last"])
def test_one_in_flight_is_the_same_tree_in_any_order(overlap: Any) -> None:
    config = replace(TWO, max_in_flight=1, num_answers=15, model_selection="stack", overlap=overlap)
    expected = shape(journey(search(config)).tree)
    assert shape(journey(search(config), order=random.Random(1), delivery="eager").tree) == expected


def test_prior_means_are_of_all_scores_or_of_the_ways_of_a_stack() -> None:
    assert ABMCTSMConfig().prior_mean(0) == 0.5
    assert replace(TWO, reward_average_priors=(0.3,)).prior_mean(0) == 0.3
    assert replace(TWO, reward_average_priors=(0.3, 0.7)).prior_mean(0) == 0.5
    assert replace(TWO, reward_average_priors=(0.3, 0.7), model_selection="stack").prior_mean(1) == 0.7


@pytest.mark.parametrize(
    "wrong",
    [
        {"prune_size": 0},
        {"prune_share": 0.0},
        {"prune_share": 1.5},
        {"max_in_flight": 0},
        {"reward_average_priors": (float("inf"),)},
        {"reward_average_priors": (0.1, 0.2, 0.3)},
    ],
)
def test_an_impossible_configuration_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        ABMCTSMConfig(**wrong)
