"""Paths that grow by segments and fork within a width, and finished ones that are continued."""

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies.token_world import BareWorld, TokenWorld
from tests.strategies.world import Journey, ListDraws, SeededWorld, bare_tree, journey, shape

from ramify.core.errors import ConfigError, ContractError
from ramify.core.limits import Limits
from ramify.core.tree import ROOT, Step, Tree
from ramify.runner.driver import Asked, Start
from ramify.strategies.treepo import TreePO, TreePOConfig

PROMPT = len(bare_tree().branch(ROOT))
CONFIGS = st.builds(
    TreePOConfig,
    width=st.integers(1, 9),
    segment_tokens=st.integers(1, 6),
    max_depth=st.integers(1, 5),
    divergence=st.integers(1, 4),
    first_divergence=st.sampled_from([(1, 1), (2, 4), (9, 9)]),
    allotment=st.sampled_from(["even", "sum", "mean", "segment"]),
    favours=st.sampled_from(["unlikely", "likely"]),
    remainder=st.sampled_from(["first", "last"]),
    fallback=st.sampled_from(["random", "none"]),
    fallback_window=st.sampled_from([-1, 1, 3]),
)


def treepo(seed: int = 0, **config: object) -> TreePO:
    return TreePO(TreePOConfig(**config), np.random.default_rng(seed))  # type: ignore[arg-type]


def decisions(tree: Tree) -> list[tuple[str, int, int]]:
    """Rule, token of the response and children of every decision, in the order decided."""
    return [(fork.rule, fork.position - PROMPT, fork.num_siblings) for fork in tree.forks]


@pytest.mark.slow
@given(CONFIGS, st.integers(0, 99))
def test_no_more_than_width_paths_finish_and_with_a_fallback_just_so_many(config: TreePOConfig, seed: int) -> None:
    for world in (TokenWorld(turn=5), SeededWorld(prunes=True)):
        trip = journey(TreePO(config, np.random.default_rng(seed)), world, tree=bare_tree(seed))
        assert trip.tree.num_leaves <= config.width
        assert trip.tree.num_leaves == config.width or config.fallback == "none"


@given(CONFIGS, st.integers(0, 99))
def test_forks_at_segment_ends_are_predictable_and_fallbacks_are_not(config: TreePOConfig, seed: int) -> None:
    tree = journey(TreePO(config, np.random.default_rng(seed)), SeededWorld(prunes=True), tree=bare_tree(seed)).tree
    assert all(fork.is_post_hoc == (fork.rule == "fallback") for fork in tree.forks)
    for fork in tree.forks:
        assert sum(fork.shares) == pytest.approx(1)


def test_paths_double_at_every_segment_until_the_width_is_used() -> None:
    """Width 8, divergence 2, segments of 3 of 12 tokens: 2, 4, 8, 8."""
    tree = journey(treepo(width=8, segment_tokens=3, first_divergence=(2, 2)), TokenWorld()).tree
    assert decisions(tree) == [("initial", 0, 2)] + [("width", 3, 2)] * 2 + [("width", 6, 2)] * 4
    assert tree.num_leaves == 8
    assert tree.spent()["policy"].decode == (2 + 4 + 8 + 8) * 3


def test_the_width_that_does_not_divide_goes_to_the_first_or_as_published_to_the_last() -> None:
    def siblings(remainder: str) -> list[int]:
        strategy = treepo(width=8, segment_tokens=6, divergence=3, first_divergence=(3, 3), remainder=remainder)
        return [number for rule, _, number in decisions(journey(strategy, TokenWorld()).tree) if rule == "width"]

    assert siblings("first") == [3, 3, 2]
    assert siblings("last") == [2, 2, 4]


def test_the_number_of_stems_is_drawn_where_it_is_a_range() -> None:
    config = TreePOConfig(width=9, segment_tokens=4, first_divergence=(2, 8), fallback="none")
    assert len(journey(TreePO(config, ListDraws(integers=[3])), TokenWorld()).tree.stems()) == 5
    drawn = [journey(treepo(seed, fallback="none"), TokenWorld()).tree for seed in range(60)]
    assert {len(tree.stems()) for tree in drawn} == set(range(2, 9))


def test_paths_that_finish_early_pass_their_width_on() -> None:
    """The second of two stems ends in its first segment: the first gets twice its divergence."""

    class EarlyEnd(TokenWorld):
        def steps(self, tree: Tree, start: Start) -> list[Step]:
            world = TokenWorld(length=4) if start.command_id == 1 else TokenWorld()
            return world.steps(tree, start)

    tree = journey(treepo(width=8, segment_tokens=4, first_divergence=(2, 2), fallback="none"), EarlyEnd()).tree
    assert decisions(tree)[1] == ("width", 4, 4)
    assert tree.num_leaves == 8, "seven paths from the first stem, and the second"


def test_the_last_segment_runs_to_the_end() -> None:
    trip = journey(treepo(width=1, segment_tokens=2, max_depth=3, first_divergence=(1, 1)), TokenWorld())
    asked = [command for event in trip.events if isinstance(event, Asked) for command in event.commands]
    assert [getattr(command.until, "n", command.until) for command in asked] == [2, 2, "end"]  # type: ignore[union-attr]


def test_a_segment_goes_on_through_observations_and_may_end_inside_a_turn() -> None:
    """Turns of 4 tokens, segments of 6: the first ends two tokens into the second turn, the second behind the third."""
    tree = journey(treepo(width=1, segment_tokens=6, first_divergence=(1, 1)), TokenWorld(turn=4)).tree
    path = tree.path(tree.leaves()[0])[1:]
    assert [[s.origin for s in tree.segments(node)] for node in path] == [
        ["sampled", "given"], ["sampled"], ["sampled", "given"], ["sampled"],
    ]  # fmt: skip
    assert [tree.num_sampled(node) for node in path] == [4, 2, 2, 4]


@pytest.mark.parametrize(("favours", "numbers"), [("unlikely", [2, 6]), ("likely", [6, 2])])
def test_the_width_is_shared_by_the_logprobs_of_the_paths(favours: str, numbers: list[int]) -> None:
    """Two stems whose tokens cost 0 and ln 5: one each, and of six more one to the likely for five to the unlikely."""

    class TwoStems(TokenWorld):
        def steps(self, tree: Tree, start: Start) -> list[Step]:
            cost = -np.log(5) / 4 if start.command_id == 1 else 0.0
            return TokenWorld(law=lambda seed, position: cost).steps(tree, start)

    def siblings(allotment: str, temperature: float = 1.0) -> list[int]:
        strategy = treepo(width=8, segment_tokens=4, divergence=9, first_divergence=(2, 2), allotment=allotment,
                          favours=favours, temperature=temperature)  # fmt: skip
        return [fork.num_siblings for fork in journey(strategy, TwoStems()).tree.forks if fork.rule == "width"]

    assert siblings("sum") == numbers
    assert siblings("mean", 0.25) == siblings("segment", 0.25) == numbers
    assert siblings("sum", 1e6) == [4, 4]


def test_sharing_by_logprobs_needs_an_engine_that_gives_them() -> None:
    with pytest.raises(ContractError, match="logprobs"):
        journey(treepo(allotment="mean", segment_tokens=4), BareWorld())
    assert journey(treepo(segment_tokens=4), BareWorld()).tree.num_leaves == 16


# -- fallback ----------------------------------------------------------------------------------------------------------


def fallback_draws(*whole: int, **config: object) -> Tree:
    options = {"width": 3, "segment_tokens": 4, "divergence": 1, "first_divergence": (1, 1), **config}
    return journey(TreePO(TreePOConfig(**options), ListDraws(integers=whole)), TokenWorld(turn=5)).tree  # type: ignore[arg-type]


@pytest.mark.parametrize(("block", "at"), [(0, 9), (1, 4), (2, 0)])
def test_a_finished_path_is_continued_from_a_segment_end_drawn(block: int, at: int) -> None:
    """Twelve sampled tokens, an observation after five and ten: eight tokens kept end at position 9, none at the start.

    The first fallback draws the order of one path, then its cut; the second has two to order.
    """
    tree = fallback_draws(0, block, 0, 0, 0, width=2)
    assert decisions(tree)[1] == ("fallback", at, 1)
    assert tree.num_leaves == 2
    assert sorted(len(tree.branch(leaf)) for leaf in tree.leaves()) == [PROMPT + 14] * 2


def test_a_cut_behind_an_observation_keeps_the_observation() -> None:
    tree = fallback_draws(0, 1, width=2, fallback_window=5)
    assert decisions(tree)[1] == ("fallback", 6, 1), "five tokens kept of twelve, and what answered them"
    assert [s.origin for s in tree.segments(tree.forks[1].node)][-1] == "given"


def test_a_cut_never_keeps_as_many_segments_as_a_path_may_have() -> None:
    tree = fallback_draws(0, 0, width=2, max_depth=2)
    assert decisions(tree)[1] == ("fallback", 4, 1), "eight tokens would be two segments"


def test_each_finished_path_gets_the_divergence_until_the_width_is_used() -> None:
    tree = fallback_draws(*[0] * 5, width=7, divergence=2, first_divergence=(3, 3), segment_tokens=20)
    assert Counter(rule for rule, _, _ in decisions(tree)) == {"initial": 1, "fallback": 2}
    assert [number for _, _, number in decisions(tree)] == [3, 2, 2]


@pytest.mark.parametrize("stop", ["length", "closed", "turn_limit"])
def test_paths_that_did_not_end_well_are_left_alone_and_the_prompt_continued(stop: str) -> None:
    strategy = treepo(width=5, segment_tokens=4, first_divergence=(1, 1), divergence=2)

    class FirstBad(TokenWorld):
        def steps(self, tree: Tree, start: Start) -> list[Step]:
            return TokenWorld(length=3, stop=stop).steps(tree, start)

    tree = journey(strategy, FirstBad()).tree
    assert decisions(tree) == [("initial", 0, 1), ("fallback", 0, 2), ("fallback", 0, 2)]


def test_without_a_fallback_the_width_is_not_filled() -> None:
    strategy = treepo(width=9, segment_tokens=20, first_divergence=(2, 2), fallback="none")
    assert journey(strategy, TokenWorld()).tree.num_leaves == 2
    assert strategy.post_hoc_reason == ""
    assert treepo().post_hoc_reason


# -- order, failures ---------------------------------------------------------------------------------------------------


@given(CONFIGS, st.integers(0, 99), st.integers(0, 99))
def test_the_tree_does_not_depend_on_the_order_of_outcomes(config: TreePOConfig, seed: int, order: int) -> None:
    def grown(**options: object) -> list[tuple[object, ...]]:
        strategy = TreePO(config, np.random.default_rng(seed))
        return shape(journey(strategy, SeededWorld(prunes=True), tree=bare_tree(seed), **options).tree)

    assert grown(delivery="eager", order=random.Random(order)) == grown()


def test_paths_wait_for_each_other_only_while_there_is_width_to_share() -> None:
    def most_waiting(width: int) -> int:
        """The most commands of one ask, after the first two."""
        strategy = treepo(width=width, segment_tokens=2, first_divergence=(2, 2), fallback="none")
        trip = journey(strategy, TokenWorld(), delivery="eager", order=random.Random(0))
        return max(len(event.commands) for event in trip.events[2:] if isinstance(event, Asked))

    assert most_waiting(2) == 1
    assert most_waiting(8) == 4 * 2


def test_a_failed_path_keeps_its_slot_and_holds_nothing_up() -> None:
    for failing in range(6):
        strategy = treepo(width=4, segment_tokens=4, first_divergence=(2, 2))
        trip = journey(strategy, TokenWorld(), fails=lambda i, at=failing: "engine_error" if i == at else None)
        assert trip.tree.num_leaves == 3


def test_when_every_path_fails_the_tree_ends() -> None:
    trip = journey(treepo(width=5), fails=lambda command_id: "engine_error")
    assert trip.driver.growth.num_asked == 5


def test_a_refused_path_ends_forks_and_fallbacks() -> None:
    trip = journey(treepo(segment_tokens=20, width=40, first_divergence=(3, 3)), TokenWorld(), limits=Limits(leaves=5))
    assert trip.driver.is_finished
    assert trip.tree.num_leaves == 5
    assert trip.driver.growth.num_asked == 3 + 2 * 3, "three paths, and one fallback for each of them"


@pytest.mark.parametrize(
    "config",
    [{"width": 0}, {"segment_tokens": 0}, {"first_divergence": (3, 2)}, {"temperature": 0.0}, {"fallback_window": 0}],
)
def test_impossible_settings_are_refused(config: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="treepo"):
        TreePOConfig(**config)  # type: ignore[arg-type]


@pytest.mark.covers("S0.9")
def test_phases_go_from_build_to_collection() -> None:
    strategy = treepo(segment_tokens=3)
    trip = Journey(strategy, TokenWorld())
    names = [strategy.phase(trip.tree).name]
    while trip.step():
        names.append(strategy.phase(trip.tree).name)
    assert list(dict.fromkeys(names)) == ["build", "initial chains", "expansion", "collection"]
