"""Chains that are continued anew from before, or behind, the tokens they were the least sure of."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies.token_world import BareWorld, TokenWorld
from tests.strategies.world import CODEC, Journey, ListDraws, bare_tree, journey, shape, varied

from ramify.core.errors import ConfigError, ContractError
from ramify.core.growth import GrowthRules
from ramify.core.limits import Limits
from ramify.core.tree import ROOT, Tree
from ramify.strategies.treerl import TreeRL, TreeRLConfig

PROMPT = len(bare_tree().branch(ROOT))


def treerl(**config: object) -> TreeRL:
    """It draws nothing: the draws handed in are empty."""
    return TreeRL(varied(TreeRLConfig(), **config), ListDraws())  # type: ignore[arg-type]


def places(tree: Tree) -> list[int]:
    """Tokens of the response before which the later decisions stand, in the order decided."""
    return [fork.position - PROMPT for fork in tree.forks[1:]]


def surprised_at(*at: int, first: float = -5.0) -> TokenWorld:
    """Every path is surprised at these tokens of its response, the most at the first of them."""
    surprises = {PROMPT + position: first + rank for rank, position in enumerate(at)}
    return TokenWorld(law=lambda seed, position: surprises.get(position, -0.1))


@given(m=st.integers(1, 4), n=st.integers(1, 3), rounds=st.integers(0, 2), t=st.integers(1, 3), seed=st.integers(0, 99))
def test_leaves_are_m_times_1_plus_n_t_l(m: int, n: int, rounds: int, t: int, seed: int) -> None:
    strategy = treerl(stems=m, forks=n, rounds=rounds, continuations=t)
    tree = journey(strategy, TokenWorld(), tree=bare_tree(seed)).tree
    assert tree.num_leaves == m * (1 + n * t * rounds)


def test_every_tree_forks_before_its_least_likely_tokens() -> None:
    tree = journey(treerl(stems=2), surprised_at(7, 3)).tree
    assert places(tree) == [7, 3, 7, 3]
    found = [(fork.rule, fork.num_siblings, fork.is_post_hoc) for fork in tree.forks[1:]]
    assert found == [("surprise/0", 2, True)] * 2 + [("surprise/1", 2, True)] * 2
    assert tree.forks[1].score == 5.0
    for fork in tree.forks[1:]:
        assert len(tree.children(fork.node)) == 3, "the trunk and two continuations"


def test_a_continuation_samples_the_token_anew() -> None:
    tree = journey(treerl(stems=1, forks=1), surprised_at(4)).tree
    lengths = {tree.length(tree.parent(leaf) or ROOT) - PROMPT for leaf in tree.leaves()}
    assert lengths == {4}
    assert {len(tree.branch(leaf)) for leaf in tree.leaves()} == {PROMPT + 12}


def test_a_fork_before_the_first_token_is_one_more_stem() -> None:
    tree = journey(treerl(stems=1, forks=1), surprised_at(0)).tree
    assert len(tree.stems()) == 3


def test_a_later_round_also_forks_what_forked_from_the_tree_but_not_before_its_first_token() -> None:
    """All paths are the most surprised at token 5, where the continuations of round 1 begin, and then at token 8."""
    tree = journey(treerl(stems=1, forks=2, rounds=2, continuations=1), surprised_at(5, 8)).tree
    assert places(tree) == [5, 8, 5, 8]
    assert len({fork.node for fork in tree.forks[1:]}) == 2, "round 2 forks the trunk again, being the earlier path"
    later = journey(treerl(stems=1, forks=2, rounds=2, continuations=1, ties="later"), surprised_at(5, 8)).tree
    assert places(later) == [5, 8, 5, 8]
    assert later.forks[4].node != later.forks[2].node, "as published, a continuation wins a tie"


def test_no_fork_stands_behind_a_word_or_the_last_position() -> None:
    words = journey(treerl(stems=1, words=("xxxx",)), surprised_at(9, 2)).tree
    assert places(words)[0] != 9
    assert set(places(words)) == {0}, "only the token the word begins with is free, and its fork is chosen once"
    bounded = journey(treerl(stems=1, forks=1, max_position=6), surprised_at(9, 2)).tree
    assert places(bounded) == [2]


def test_too_few_tokens_give_fewer_forks_or_pay_for_the_same_ones_twice() -> None:
    world = TokenWorld(length=2)
    assert journey(treerl(stems=1, forks=3, continuations=1), world).tree.num_leaves == 3
    repeated = journey(treerl(stems=1, forks=3, continuations=1, shortage="repeat"), world).tree
    assert repeated.num_leaves == 4


def test_a_tree_with_nothing_to_fork_ends_its_rounds() -> None:
    trip = journey(treerl(stems=2, rounds=3, max_position=1, words=("x",)), surprised_at(3))
    assert trip.driver.is_finished
    nothing = journey(treerl(stems=2, rounds=3, max_position=0), surprised_at(3)).tree
    assert nothing.num_leaves == 2


def test_a_fork_behind_an_observation_samples_the_turn_anew_and_keeps_the_observation() -> None:
    world = TokenWorld(turn=4, law=lambda seed, position: -3.0 if position == PROMPT + 5 else -0.1)
    tree = journey(treerl(stems=1, forks=1), world).tree
    assert places(tree) == [5], "four tokens and an observation of one"
    assert [s.origin for s in tree.segments(tree.forks[1].node)] == ["sampled", "given"]
    assert all(len(tree.branch(leaf).tool_calls) == 2 for leaf in tree.leaves())


def test_a_position_inside_a_stop_word_moves_left_to_where_it_begins() -> None:
    world = surprised_at(6)
    tree = journey(treerl(stems=1, forks=1), world, rules=GrowthRules(words=("x" * 4,))).tree
    assert places(tree) == [0], "twelve x are stop words from the first on"


def test_chains_that_failed_are_neither_forked_nor_awaited() -> None:
    trip = journey(treerl(stems=3), TokenWorld(), fails=lambda i: "engine_error" if i == 1 else None)
    assert trip.tree.num_leaves == 2 * 5
    late = journey(treerl(stems=1, rounds=2), TokenWorld(), fails=lambda i: "engine_error" if i == 2 else None)
    assert late.tree.num_leaves == 1 + 3 + 4


def test_a_refused_continuation_ends_the_rounds() -> None:
    trip = journey(treerl(stems=2, rounds=9), TokenWorld(), limits=Limits(leaves=5))
    assert trip.driver.is_finished
    assert trip.tree.num_leaves == 5


@pytest.mark.parametrize("config", [{"rounds": 2}, {"fork": "after", "threshold": 0.9}])
def test_the_tree_does_not_depend_on_the_order_of_outcomes(config: dict[str, object]) -> None:
    expected = shape(journey(treerl(**config), TokenWorld(turn=5)).tree)
    for seed in range(5):
        order = random.Random(seed)
        assert shape(journey(treerl(**config), TokenWorld(turn=5), delivery="eager", order=order).tree) == expected


def test_an_engine_without_logprobs_is_refused() -> None:
    for config in ({}, {"fork": "after"}):
        with pytest.raises(ContractError, match="logprobs"):
            journey(treerl(**config), BareWorld())


# -- forks after -------------------------------------------------------------------------------------------------------


def test_the_first_surprises_of_a_chain_fork_behind_them_and_are_predictable() -> None:
    strategy = treerl(stems=1, fork="after", forks=2, continuations=2, threshold=0.1)
    tree = journey(strategy, surprised_at(3, 6, 9)).tree
    assert places(tree) == [4, 7], "behind tokens 3 and 6 of the chain; its siblings and its ninth token fork no more"
    assert tree.num_leaves == 1 + 2 + 2
    assert not any(fork.is_post_hoc for fork in tree.forks)
    assert strategy.post_hoc_reason == ""


def test_a_chain_that_may_fork_no_more_runs_to_its_end_in_one_request() -> None:
    strategy = treerl(stems=1, fork="after", forks=1, continuations=1, threshold=0.1)
    trip = journey(strategy, surprised_at(3))
    assert trip.driver.growth.num_asked == 4 + 2
    never = journey(treerl(stems=1, fork="after", words=("xx",), threshold=0.1), surprised_at(9))
    assert never.tree.num_leaves == 1
    assert never.driver.growth.num_asked == 3, "behind the word no token is looked at"


def test_a_surprise_that_ends_a_path_forks_nothing() -> None:
    tree = journey(treerl(stems=1, fork="after", threshold=0.1), surprised_at(11)).tree
    assert tree.num_leaves == 1


@pytest.mark.parametrize(
    "config",
    [{"stems": 0}, {"rounds": -1}, {"fork": "after", "rounds": 2}, {"fork": "after", "threshold": 0.0}],
)
def test_impossible_settings_are_refused(config: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="treerl"):
        varied(TreeRLConfig(), **config)  # type: ignore[arg-type]


@pytest.mark.covers("S0.9")
def test_phases_go_from_build_to_collection() -> None:
    strategy = treerl(rounds=2)
    trip = Journey(strategy, TokenWorld())
    names = [strategy.phase(trip.tree).name]
    while trip.step():
        names.append(strategy.phase(trip.tree).name)
    assert list(dict.fromkeys(names)) == ["build", "initial chains", "expansion", "collection"]


def test_a_world_of_tokens_has_the_logprobs_that_its_law_says() -> None:
    tree = journey(treerl(stems=1, rounds=0), surprised_at(2)).tree
    branch = tree.branch(tree.leaves()[0])
    assert branch.transcript == "x" * 12
    assert np.isclose(branch.logprobs[PROMPT + 2], -5.0)
    assert CODEC.decode(branch.ids[:PROMPT]) == branch.prompt_text
