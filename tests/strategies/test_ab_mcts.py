import pickle
import random
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.golden.abmcts import Answering
from tests.strategies.world import QUOTING, Journey, SeededWorld, bare_tree, journey, shape, text_step

from ramify.core.command import Fork, Grow, Judge, Score
from ramify.core.errors import ConfigError, ContractError
from ramify.core.growth import GrowthRules
from ramify.core.limits import Limits
from ramify.core.tree import ROOT, Step, Tree
from ramify.runner.driver import Asked, Start
from ramify.strategies.ab_mcts import ABMCTS
from ramify.strategies.ab_mcts.a import AS_PUBLISHED, ABMCTSConfig
from ramify.strategies.parts.posteriors import BetaPrior

DEFAULT = ABMCTSConfig()
TWO = ABMCTSConfig(first_actions=("small", "large"), actions=("refine", "rewrite"), num_answers=40)


def search(config: ABMCTSConfig = DEFAULT, seed: int = 0) -> ABMCTS:
    return ABMCTS(config, np.random.default_rng(seed))


def played(config: ABMCTSConfig, judge: Callable[[Tree, int], float | None], **options: Any) -> Journey:
    """A search among answers whose score follows from the node."""
    return journey(search(config), Answering(), judge=lambda tree, c: [judge(tree, n) for n in c.nodes], **options)


def actions(trip: Journey) -> list[tuple[int, str]]:
    asked = (command for event in trip.events if isinstance(event, Asked) for command in event.commands)
    return [(c.node, c.action) for c in asked if isinstance(c, Grow)]


def by_action(good: str) -> Callable[[Tree, int], float]:
    """Answers of one action are good."""
    return lambda tree, node: 0.9 if tree.action(node) in good.split() else 0.1


def test_first_answers_grow_from_the_bare_prompt_and_others_quote_one_that_was_scored() -> None:
    trip = played(ABMCTSConfig(num_answers=30), lambda tree, node: 0.5 + 0.01 * (node % 7))
    assert {action for node, action in actions(trip) if node == ROOT} == {"policy"}
    assert {action for node, action in actions(trip) if node != ROOT} == {"refine"}
    assert len(actions(trip)) == 30
    assert all((trip.tree.edge(n) == "quotes") == (trip.tree.parent(n) != ROOT) for n in range(1, 31))


@pytest.mark.parametrize("rule", ["multiarm_bandit_thompson", "multiarm_bandit_ucb", "stack"])
@pytest.mark.parametrize("family", ["gaussian", "beta"])
def test_the_better_way_of_answering_is_taken_more_often(rule: Any, family: Any) -> None:
    config = replace(TWO, model_selection=rule, family=family, num_answers=80)
    taken = Counter(action for _, action in actions(played(config, by_action("large rewrite"))))
    assert taken["large"] + taken["rewrite"] > 2 * (taken["small"] + taken["refine"])


def test_the_search_is_wide_or_deep_by_where_good_answers_are() -> None:
    """Answers get better, or worse, by being derived from others."""
    config = ABMCTSConfig(num_answers=80)
    deep = actions(played(config, lambda tree, node: 0.9 if tree.depth(node) > 1 else 0.1))
    wide = actions(played(config, lambda tree, node: 0.9 if tree.depth(node) == 1 else 0.1))
    num_first = [sum(node == ROOT for node, _ in asked) for asked in (deep, wide)]
    assert 2 * num_first[0] < num_first[1]


def test_prior_means_are_of_ways_alone_and_steer_the_first_choice() -> None:
    config = replace(TWO, family="beta", reward_average_priors=(0.01, 0.99), num_answers=1, max_in_flight=1)
    firsts = Counter(actions(journey(search(config, seed), Answering()))[0][1] for seed in range(60))
    assert firsts["large"] > 50


def test_one_prior_mean_is_for_every_way() -> None:
    posteriors = replace(TWO, family="beta", reward_average_priors=(0.3,)).way_posteriors()
    assert [posterior.mean for posterior in posteriors] == [0.3, 0.3]
    assert replace(TWO, family="beta").posterior().mean == 0.5


def test_a_score_is_asked_of_the_judge_once_and_not_where_it_has_spoken() -> None:
    class Scored:
        """First answers come with a score of the judge."""

        def steps(self, tree: Tree, start: Start) -> list[Step]:
            assert isinstance(start.command, Grow)
            is_first = start.command.node == ROOT
            scores = (Score("llm", 0.4),) if is_first else ()
            edge = "continues" if is_first else "quotes"
            return [text_step("x", stop="answer", action=start.command.action, edge=edge, scores=scores)]

    trip = journey(search(ABMCTSConfig(num_answers=30)), Scored())
    asked = (command for event in trip.events if isinstance(event, Asked) for command in event.commands)
    judged = [command.nodes[0] for command in asked if isinstance(command, Judge)]
    assert len(judged) == len(set(judged))
    assert all(trip.tree.parent(node) != ROOT for node in judged)
    assert all(len(trip.tree.scores(node)) == 1 for node in range(1, len(trip.tree)))


def test_an_answer_without_a_score_is_never_grown_from_and_is_no_candidate() -> None:
    trip = played(ABMCTSConfig(num_answers=40), lambda tree, node: None if node % 3 == 0 else 0.6)
    assert not any(node and node % 3 == 0 for node, _ in actions(trip))
    found = [c.node for c in search_of(trip).candidates(trip.tree)]
    assert found == sorted(found) and not any(node % 3 == 0 for node in found)


def test_a_vote_of_the_majority_counts_answers_without_scores() -> None:
    trip = played(ABMCTSConfig(num_answers=9, vote="majority"), lambda tree, node: None)
    assert len(search_of(trip).candidates(trip.tree)) == 9


def search_of(trip: Journey) -> ABMCTS:
    strategy = trip.driver.strategy
    assert isinstance(strategy, ABMCTS)
    return strategy


@pytest.mark.parametrize("value", [1.01, -0.01, float("nan"), 80.0])
def test_a_score_outside_the_range_is_refused_with_the_name_of_the_judge(value: float) -> None:
    with pytest.raises(ContractError, match=r"'llm'.*score_range"):
        played(ABMCTSConfig(), lambda tree, node: value)


def test_a_known_range_is_mapped_to_scores_between_0_and_1() -> None:
    config = ABMCTSConfig(num_answers=4, score_range=(-100.0, 100.0))
    trip = played(config, lambda tree, node: (-100.0, 0.0, 50.0, 100.0)[node - 1])
    assert [c.score for c in search_of(trip).candidates(trip.tree)] == [0.0, 0.5, 0.75, 1.0]


def test_an_oracle_steers_only_where_it_is_declared() -> None:
    class Knowing(Answering):
        def steps(self, tree: Tree, start: Start) -> list[Step]:
            return [replace(s, scores=(Score("llm", 1.0, is_oracle=True),)) for s in super().steps(tree, start)]

    with pytest.raises(ContractError, match="oracle"):
        journey(search(), Knowing())
    assert journey(search(ABMCTSConfig(oracle="declared")), Knowing()).driver.is_finished


def test_the_reward_will_do_where_every_answer_is_a_first_one() -> None:
    config = ABMCTSConfig(first_actions=("small", "large"), actions=(), judge="reward", num_answers=20)
    trip = journey(search(config), SeededWorld())
    assert {node for node, _ in actions(trip)} == {ROOT}
    assert not any(isinstance(c, Judge) for e in trip.events if isinstance(e, Asked) for c in e.commands)
    assert len(search_of(trip).candidates(trip.tree)) == 20


def test_each_new_answer_is_a_decision_of_its_own() -> None:
    trip = played(ABMCTSConfig(num_answers=12), lambda tree, node: 0.5)
    assert [(fork.rule, fork.num_siblings) for fork in trip.tree.forks] == [("gen", 1)] * 12
    grows = [c for e in trip.events if isinstance(e, Asked) for c in e.commands if isinstance(c, Grow)]
    assert all(1 <= len(grow.why) <= 8 and grow.why[-1].node == grow.node for grow in grows)
    assert all(isinstance(grow.fork, Fork) and grow.fork.score == grow.why[-1].score for grow in grows)


# -- in flight ------------------------------------------------------------------------------------------------------


def widest(config: ABMCTSConfig) -> tuple[int, int]:
    """The most answers on their way at a time: of all, and below one choice (a place or an answer entered)."""
    trip = Journey(search(config), Answering(), order=random.Random(2), delivery="eager")
    most, below = 0, 0
    while trip.step():
        heads = [c.node if isinstance(c, Grow) else trip.tree.parent(c.nodes[0]) for c in trip.tree.pending.values()]
        places = Counter(node for head in heads for node in trip.tree.path(head or ROOT)[1:])
        most = max(most, len(heads))
        below = max([below, sum(head == ROOT for head in heads), *places.values()])
    return most, below


def test_siblings_in_flight_are_capped_at_the_root_of_all() -> None:
    assert widest(ABMCTSConfig(num_answers=150, max_in_flight=16)) == (16, 4)
    assert widest(ABMCTSConfig(num_answers=150, max_in_flight=10)) == (10, 4)


def test_as_published_all_of_the_first_batch_go_to_the_root() -> None:
    config = replace(AS_PUBLISHED, max_in_flight=16)
    first = search(config).ask(bare_tree())
    assert [command.node for command in first if isinstance(command, Grow)] == [ROOT] * 16


def test_a_batch_is_asked_when_all_of_the_last_one_is_told() -> None:
    trip = Journey(search(replace(AS_PUBLISHED, max_in_flight=4, num_answers=12)), Answering())
    trip.run()
    sizes = [sum(isinstance(c, Grow) for c in event.commands) for event in trip.events if isinstance(event, Asked)]
    assert [size for size in sizes if size] == [4, 4, 4]


@pytest.mark.parametrize("fails", ["engine_error", "cancelled"])
def test_what_fails_leaves_nothing_pending_and_no_score(fails: str) -> None:
    config = replace(TWO, model_selection="stack", max_in_flight=9)
    trip = journey(search(config), Answering(), fails=lambda command_id: fails if command_id % 2 else None)
    strategy = search_of(trip)
    found = [p for place in strategy._places.values() for options in place.options for p in options.posteriors]
    kept = [p for place in strategy._places.values() for o in place.options for p in (o.gen, o.cont)]
    assert all(posterior.pending == 0 for posterior in [*found, *kept, *strategy._ways])
    assert len(actions(trip)) == 40


def test_a_budget_refused_ends_the_search() -> None:
    trip = journey(search(ABMCTSConfig(num_answers=1000)), limits=Limits(decode=300))
    assert trip.driver.is_finished and trip.driver.growth.num_asked < 100


@pytest.mark.parametrize("seed", range(3))
def test_one_in_flight_is_the_same_tree_in_any_order(seed: int) -> None:
    config = ABMCTSConfig(max_in_flight=1, num_answers=25)
    expected = shape(journey(search(config)).tree)
    assert shape(journey(search(config), order=random.Random(seed), delivery="eager").tree) == expected


@pytest.mark.slow
def test_a_chain_of_a_thousand_answers_can_be_pickled() -> None:
    config = ABMCTSConfig(num_answers=sys.getrecursionlimit() + 200, max_in_flight=1)
    trip = played(config, lambda tree, node: min(1.0, 0.5 + 0.4 * (tree.parent(node) == node - 1)))
    assert max(map(trip.tree.depth, range(1, len(trip.tree), 50))) > 1
    assert pickle.loads(pickle.dumps(search_of(trip))).is_done(trip.tree)


def test_the_published_set_differs_in_what_is_in_flight_alone() -> None:
    assert replace(AS_PUBLISHED, max_in_flight=4, in_flight="pessimistic", refill="each") == ABMCTSConfig()


@pytest.mark.parametrize(
    "wrong",
    [
        {"first_actions": ()},
        {"first_actions": ("a", "b")},
        {"first_actions": ("a", "a"), "actions": ("b", "b")},
        {"first_actions": ("a", "a"), "actions": ()},
        {"judge": "reward"},
        {"score_range": (1.0, 1.0)},
        {"score_range": (0.0, float("inf"))},
        {"num_answers": 0},
        {"max_in_flight": 0},
        {"reward_average_priors": (0.1, 0.2)},
        {"reward_average_priors": (float("nan"),)},
        {"family": "beta", "reward_average_priors": (1.0,)},
    ],
)
def test_an_impossible_configuration_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        ABMCTSConfig(**wrong)


def test_an_action_that_does_not_quote_is_refused_by_the_tree() -> None:
    with pytest.raises(ContractError, match="it ended with"):
        played(ABMCTSConfig(num_answers=40), lambda t, n: 0.9, rules=GrowthRules(quoting=QUOTING - {"refine"}))


def test_a_beta_prior_of_ones_own_is_used() -> None:
    assert ABMCTSConfig(family="beta", beta=BetaPrior(8.0, 2.0)).posterior().mean == 0.8
