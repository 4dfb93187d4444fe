"""AT2PO: the most uncertain turns are sampled anew, beside those that were sampled."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies.world import SeededWorld, bare_tree, journey, sampled_step, shape

from ramify.core.errors import ConfigError, ContractError
from ramify.core.tree import ROOT, Step, Tree
from ramify.runner.driver import Start
from ramify.strategies.at2po import AS_PUBLISHED, AT2PO, AT2POConfig
from ramify.strategies.offline import Offline, OfflineConfig
from ramify.strategies.parts.resample import Penalty, highest, step_surprisal
from ramify.strategies.parts.sample import copies_of_last


def with_surprisal(step: Step, surprisal: float) -> Step:
    """The step with every sampled token as surprising as that."""
    action = replace(step.segments[0], logprobs=np.full(len(step.segments[0]), -surprisal, np.float32))
    return replace(step, segments=(action, *step.segments[1:]))


class UnsureWorld(SeededWorld):
    """Steps whose surprisal follows from the place's seed."""

    def steps(self, tree: Tree, start: Start) -> list[Step]:
        assert start.place is not None
        grown = super().steps(tree, start)
        return [with_surprisal(step, (start.place.seed + 7 * i) % 89 / 32) for i, step in enumerate(grown)]


class ScriptedWorld:
    """Chains of two observed steps and an answer, with the surprisals of the case."""

    def __init__(self, *surprisals: tuple[float, ...]) -> None:
        self._surprisals = iter(surprisals)

    def steps(self, tree: Tree, start: Start) -> list[Step]:
        chain = next(self._surprisals)
        last = len(chain) - 1
        return [
            with_surprisal(sampled_step(2, entropy=0.0, stop="answer" if i == last else None), h)
            for i, h in enumerate(chain)
        ]


def at2po(**config: object) -> AT2PO:
    return AT2PO(AT2POConfig(**config), np.random.default_rng(0))  # type: ignore[arg-type]


def places(tree: Tree) -> list[int]:
    """Depth of the place of each resampling."""
    return [tree.depth(fork.node) for fork in tree.forks[1:]]


@pytest.mark.slow
@given(m=st.integers(1, 6), k=st.integers(1, 5), rounds=st.integers(0, 3), seed=st.integers(0, 99))
def test_every_chosen_turn_gets_one_new_sibling(m: int, k: int, rounds: int, seed: int) -> None:
    config = replace(AS_PUBLISHED, initial_rollouts=m, expansion_nodes=k, expansion_iterations=rounds)
    tree = journey(AT2PO(config, np.random.default_rng(0)), UnsureWorld(), tree=bare_tree(seed)).tree
    assert tree.num_leaves == m + k * rounds
    assert [fork.num_siblings for fork in tree.forks] == [m] + [1] * (k * rounds)
    assert all(fork.is_post_hoc for fork in tree.forks[1:])


@pytest.mark.parametrize("seed", range(5))
def test_offline_with_the_rule_at2po_grows_the_same_tree(seed: int) -> None:
    offline = OfflineConfig(initial_rollouts=4, expansion_nodes=3, choose="at2po")
    one = journey(at2po(initial_rollouts=4, expansion_nodes=3), UnsureWorld(), tree=bare_tree(seed)).tree
    two = journey(Offline(offline, np.random.default_rng(0)), UnsureWorld(), tree=bare_tree(seed)).tree
    assert shape(one) == shape(two)
    assert not Offline(offline, np.random.default_rng(0)).measures


def test_the_most_uncertain_turn_is_sampled_anew_at_its_parent() -> None:
    world = ScriptedWorld((0.1, 0.9, 2.0), (0.3, 0.2, 0.1), (0.5, 0.5))
    trip = journey(at2po(initial_rollouts=2, expansion_nodes=1, expansion_iterations=1), world)
    tree = trip.tree
    assert [(fork.node, fork.score) for fork in tree.forks[1:]] == [(tree.stems()[0], pytest.approx(0.9))]
    assert [tree.num_sampled(node) for node in tree.children(tree.stems()[0])] == [2, 2]


def test_a_turn_with_a_new_sibling_is_less_likely_to_get_another() -> None:
    """0.90 and 0.87 in a row: after the first round the former has lost .05, and so has its new sibling, at .89."""
    world = ScriptedWorld((0.1, 0.90, 0.0), (0.2, 0.87, 0.0), (0.89, 0.0), (0.0, 0.0))
    tree = journey(at2po(initial_rollouts=2, expansion_nodes=1), world).tree
    assert [fork.node for fork in tree.forks[1:]] == tree.stems()


def test_the_root_and_first_turns_pay_for_all_chains_unless_the_initial_ones_are_excluded() -> None:
    def first_choice(*, excludes: bool) -> int:
        world = ScriptedWorld(*[(0.8, 0.6, 0.0)] * 10, (0.0,))
        strategy = at2po(expansion_nodes=1, expansion_iterations=1, penalty_excludes_initial=excludes)
        return places(journey(strategy, world).tree)[0]

    assert (first_choice(excludes=False), first_choice(excludes=True)) == (1, 0)


def test_last_turns_are_candidates_if_asked_for() -> None:
    def first_choice(candidates: str) -> int:
        world = ScriptedWorld((0.1, 0.2, 3.0), (0.0,))
        strategy = at2po(initial_rollouts=1, expansion_nodes=1, expansion_iterations=1, candidates=candidates)
        return places(journey(strategy, world).tree)[0]

    assert (first_choice("inner"), first_choice("all")) == (1, 2)


def test_too_few_candidates_are_taken_once_or_again_from_the_best() -> None:
    assert highest({4: 0.1, 2: 0.7, 9: 0.7}, 5) == [2, 9, 4]
    assert highest({4: 0.1, 2: 0.7, 9: 0.7}, 5, "repeat") == [2, 9, 4, 2, 9]
    assert highest({}, 2, "repeat") == []


def test_failed_branches_cost_nothing() -> None:
    tree = journey(
        at2po(initial_rollouts=4, expansion_iterations=0),
        UnsureWorld(),
        fails=lambda command_id: "engine_error" if command_id < 2 else None,
    ).tree
    assert Penalty(weight=1.0).of(tree, ROOT) == 1.0


def test_a_failed_sibling_is_not_replaced_and_a_refused_one_ends_the_rounds() -> None:
    def asked(reason: str) -> int:
        strategy = at2po(initial_rollouts=4, expansion_nodes=2, expansion_iterations=4)
        trip = journey(strategy, UnsureWorld(), fails=lambda command_id: reason if command_id == 5 else None)
        assert trip.driver.is_finished
        return trip.driver.growth.num_asked

    assert (asked("engine_error"), asked("budget")) == (12, 6)


def test_an_engine_without_logprobs_is_refused_with_its_node() -> None:
    class Mute(SeededWorld):
        def steps(self, tree: Tree, start: Start) -> list[Step]:
            grown = super().steps(tree, start)
            return [replace(s, segments=(replace(s.segments[0], logprobs=None), *s.segments[1:])) for s in grown]

    with pytest.raises(ContractError, match="has no logprobs"):
        journey(at2po(), Mute())
    assert step_surprisal(bare_tree(), ROOT) == 0.0


def test_missing_rows_are_copies_of_the_last_leaf_as_published() -> None:
    rng = np.random.default_rng(0)
    assert copies_of_last(bare_tree(), [3, 5], 4, rng) == [3, 5, 5, 5]
    kept = [leaf for leaf in copies_of_last(bare_tree(), list(range(9)), 4, rng) if leaf is not None]
    assert len(set(kept)) == 4
    assert kept == sorted(kept)


def test_impossible_numbers_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        AT2POConfig(initial_rollouts=0)
