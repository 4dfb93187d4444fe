"""Credits of segment trees: SPO-tree, TreeRPO and DeepSearch, by hand and by enumeration."""

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
from tests.credit.enumeration import MDP, Draw, expected_gradients
from tests.strategies.planned_world import End, PlannedWorld, ends_of
from tests.strategies.world import CODEC, journey

from ramify.core.command import Grow, Score
from ramify.core.errors import ContractError
from ramify.core.segment import Segment, token_array
from ramify.core.tree import Step, Tree
from ramify.credit import Forest, credit, forest_of
from ramify.credit.deepsearch import Overlong, deepsearch, deepsearch_as_published
from ramify.credit.forest import Array_N
from ramify.credit.segments import child_values, goes_on
from ramify.credit.spo import is_kept, spo, spo_as_published
from ramify.credit.treerpo import treerpo
from ramify.rows.row import rows_of
from ramify.runner.driver import Start
from ramify.strategies.deepsearch import DeepSearch, DeepSearchConfig
from ramify.strategies.segments import Segments, SegmentsConfig

HALF = 0.5
NESTED = Forest.of_arrays([-1, -1, 0, 0, 0], [HALF, HALF, 1 / 3, 1 / 3, 1 / 3], [None, 1.0, 1.0, 0.0, 0.0])
"""Two stems; the first forks in three."""


def test_values_are_plain_means_over_children_so_an_early_leaf_weighs_as_much_as_a_subtree() -> None:
    assert child_values(NESTED).tolist() == pytest.approx([1 / 3, 1, 1, 0, 0])
    assert spo(NESTED).tolist() == pytest.approx([x / 2 for x in (-1 / 3, 1 / 3, 2 / 3, -1 / 3, -1 / 3)])


def test_published_advantages_are_over_the_number_of_leaves() -> None:
    assert (spo_as_published(NESTED) * 4).tolist() == pytest.approx([-1 / 3, 1 / 3, 2 / 3, -1 / 3, -1 / 3])
    scaled = spo_as_published(NESTED, method="grpo") * 4
    assert scaled[2:].tolist() == pytest.approx([math.sqrt(2), -math.sqrt(HALF), -math.sqrt(HALF)], abs=1e-6)


def test_segments_without_a_signal_are_dropped_and_so_are_some_beyond_a_value_of_one() -> None:
    assert not is_kept(Forest.of_arrays([-1, -1], [HALF, HALF], [1.0, 1.0]), "rloo").any()
    beyond = Forest.of_arrays([-1, -1], [HALF, HALF], [0.0, 2.0])
    assert is_kept(beyond, "rloo").tolist() == [True, False]
    assert spo_as_published(beyond).tolist() == [-HALF, 0.0]


@pytest.mark.parametrize("denominator", ["sample_std", "none"])
def test_only_children_and_equal_siblings_get_exactly_zero(denominator: str) -> None:
    flat = Forest.of_arrays([-1, 0, 0, 0], [1, 1 / 3, 1 / 3, 1 / 3], [None, 0.1, 0.1, 0.1])
    assert not treerpo(flat, denominator=denominator).any()  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["spo", "spo_as_published", "spo_grpo_as_published", "treerpo", "treerpo_no_std"])
def test_all_steps_of_a_segment_get_what_its_first_gets(name: str) -> None:
    ends = {(0, 0): End(1.0), (0, 1): End(0.0), (1, 0): End(1.0), (1, 1): End(1.0)}
    long, short = (
        journey(Segments(SegmentsConfig((2, 2), 2), np.random.default_rng(0)), PlannedWorld(ends, num_steps=n)).tree
        for n in (3, 1)
    )
    of_short = credit(name, forest_of(short))
    expected = dict(zip(of_short.forest.nodes.tolist(), of_short.coefficients, strict=True))
    found = credit(name, forest_of(long))
    assert goes_on(found.forest).sum() == 2 * len(found.forest) / 3
    by_node = dict(zip(found.forest.nodes.tolist(), found.coefficients, strict=True))
    for place, node in ends_of(short).items():
        segment = long.path(ends_of(long)[place])[-3:]
        assert [by_node[n] for n in segment] == [pytest.approx(expected[node])] * 3


def test_rows_with_policy_once_carry_each_published_sample_once() -> None:
    """A published sample is (parent's text, segment): the same tokens, context and number as in the owner's row."""
    ends = {(0, 0): End(1.0), (0, 1): End(0.0), (1,): End(1.0), (2, 1): End(1.0)}
    tree = journey(Segments(SegmentsConfig((3, 2), 2), np.random.default_rng(0)), PlannedWorld(ends)).tree
    forest = forest_of(tree)
    wanted = dict(zip(forest.nodes.tolist(), spo_as_published(forest) * forest.num_leaves, strict=True))
    trained: list[int] = []
    for row in rows_of(tree, credit="spo_as_published", policy="once"):
        for node in tree.path(row.leaf_id)[1:]:
            start, end = tree.length(tree.parent(node) or 0), tree.length(node)
            if row.weights[start:end].any():
                trained.append(node)
                assert row.ids[:end].tolist() == tree.branch(node).ids.tolist()
                assert row.advantages[start:end].tolist() == pytest.approx([wanted[node]] * (end - start))
    assert sorted(trained) == sorted(forest.nodes.tolist())


# -- enumeration ----------------------------------------------------------------------------------------------------


class ProcessWorld:
    """Segments of a decision process, one token a segment but for the last level's."""

    def __init__(self, mdp: MDP, draw: Draw) -> None:
        self._mdp, self._draw = mdp, draw

    def steps(self, tree: Tree, start: Start) -> list[Step]:
        assert isinstance(start.command, Grow) and start.place is not None
        before, text = tree.branch(start.place.parent).transcript, ""
        while not text or (start.command.until == "end" and before + text not in self._mdp.rewards):
            text += str(self._draw(self._mdp.probs[before + text]))
        reward = self._mdp.rewards.get(before + text)
        scores = () if reward is None else (Score("mdp", float(reward)),)
        segment = Segment("sampled", token_array(CODEC.encode(text)))
        return [Step((segment,), stop=None if reward is None else "answer", scores=scores)]


def full_tree(mdp: MDP, branching: Sequence[int]) -> Callable[[Draw], Tree]:
    config = SegmentsConfig(tuple(branching), 1)
    return lambda draw: journey(Segments(config, np.random.default_rng(0)), ProcessWorld(mdp, draw)).tree


@pytest.mark.slow
@pytest.mark.parametrize("name", ["binary3", "ragged"])
@pytest.mark.parametrize("branching", [(2, 2), (1, 3)])
def test_auto_is_exact_on_full_trees(name: str, branching: tuple[int, ...]) -> None:
    mdp = MDP.of(name)
    grow = full_tree(mdp, branching)
    found = expected_gradients(grow, {"auto": lambda forest: credit("auto", forest).coefficients}, mdp)
    assert found["auto"] == mdp.gradient


@pytest.mark.slow
@pytest.mark.parametrize(("name", "branching"), [("binary3", (2, 2)), ("ternary2", (1, 3))])
def test_spo_weighs_a_level_by_its_number_of_nodes_and_shrinks_it_by_its_siblings(
    name: str, branching: tuple[int, int]
) -> None:
    """Factor of a level: the number of its segments over that of the stems, times (K - 1) / K."""
    mdp, (first, second) = MDP.of(name), branching
    found = expected_gradients(full_tree(mdp, branching), {"spo": spo}, mdp)["spo"]
    for prefix, law in mdp.gradient.items():
        factor = second * Fraction(second - 1, second) if prefix else Fraction(first - 1, first)
        assert found[prefix] == [factor * g for g in law]


@pytest.mark.slow
@pytest.mark.parametrize("published", [spo_as_published, partial(spo_as_published, method="grpo"), treerpo])
def test_published_credits_of_segments_are_biased(published: Callable[[Forest], Array_N]) -> None:
    mdp = MDP.of("ragged")
    found = expected_gradients(full_tree(mdp, (2, 2)), {"it": published}, mdp, number=float)["it"]
    ratios = {
        round(float(x / g), 6) for p, law in mdp.gradient.items() for x, g in zip(found[p], law, strict=True) if g
    }
    assert len(ratios) > 1


# -- DeepSearch -----------------------------------------------------------------------------------------------------


def searched(*, num_steps: int = 1) -> Tree:
    """The search of `tests/strategies/test_deepsearch.py` by hand: one success, two failures backed up, two not."""
    ends = {(0, 0): End(0.0), (0, 1): End(1.0), (1, 1): End(0.0), (1, 0, 0): End(0.0, -0.25), (1, 0, 1): End(0.0)}
    config = DeepSearchConfig(n=3, width=2, segment_tokens=2, max_depth=8)
    return journey(DeepSearch(config, np.random.default_rng(0)), PlannedWorld(ends, num_steps=num_steps)).tree


def coefficients(tree: Tree, of: Callable[[Forest], Array_N]) -> dict[tuple[int, ...], float]:
    forest = forest_of(tree, measures=["mean_surprisal"])
    by_node = dict(zip(forest.nodes.tolist(), of(forest).tolist(), strict=True))
    return {place: by_node[node] for place, node in ends_of(tree).items()}


@pytest.mark.parametrize("num_steps", [1, 2])
def test_published_deepsearch_by_hand(num_steps: int) -> None:
    mean = -1 / 3
    found = coefficients(searched(num_steps=num_steps), deepsearch_as_published)
    assert found == {
        (0,): pytest.approx((math.tanh(2 / 3) - mean) / 3),
        (0, 0): 0.0,
        (0, 1): pytest.approx((1 - mean) / 3),
        (1,): pytest.approx(2 * (math.tanh(-2 / 3 - 1 / 2) - mean) / 3),
        (1, 0): pytest.approx((math.tanh(-3 / 4) - mean) / 3),
        (1, 1): pytest.approx((-1 - mean) / 3),
        (1, 0, 0): pytest.approx((-1 - mean) / 3),
        (1, 0, 1): 0.0,
    }


def test_corrected_deepsearch_trains_every_end_and_every_trunk_once() -> None:
    mean = -3 / 5
    found = coefficients(searched(), deepsearch)
    assert found[0, 0] == found[1, 0, 1] == found[1, 1] == pytest.approx((-1 - mean) / 5)
    assert found[1,] == pytest.approx((math.tanh(-2 / 3 - 1 / 2) - mean) / 5)


def test_long_paths_lose_up_to_the_factor_over_the_buffer() -> None:
    overlong = Overlong(limit=100, buffer=40, factor=0.5)
    assert [overlong.penalty(n) for n in (0, 60, 80, 100)] == [0.0, 0.0, -0.25, -0.5]
    tree = searched()
    plain = coefficients(tree, deepsearch_as_published)
    shortened = coefficients(tree, partial(deepsearch_as_published, overlong=Overlong(limit=6, buffer=2)))
    penalty, mean = -1.0, -1 / 3
    assert shortened[1, 0, 0] == pytest.approx((-1 + penalty - (mean + penalty / 3)) / 3)
    assert shortened[0, 1] == pytest.approx(plain[0, 1] - penalty / 9)


def test_scaled_deepsearch_divides_by_the_deviation_of_the_final_scores() -> None:
    tree = searched()
    plain = coefficients(tree, deepsearch_as_published)
    scaled = coefficients(tree, partial(deepsearch_as_published, deviation="population"))
    deviation = float(np.std([1, -1, -1])) + 1e-6
    assert all(scaled[place] == pytest.approx(plain[place] / deviation) for place in plain)


def test_a_search_whose_paths_all_end_alike_says_nothing_and_as_published_holds_a_single_path_against_nothing() -> None:
    config = DeepSearchConfig(n=1, width=2, segment_tokens=2)
    tree = journey(DeepSearch(config, np.random.default_rng(0)), PlannedWorld({(0,): End(1.0), (1,): End(1.0)})).tree
    assert set(coefficients(tree, deepsearch).values()) == {0.0}
    assert coefficients(tree, deepsearch_as_published) == {(0,): 1.0, (1,): 0.0}


def test_a_forest_without_logprobs_is_refused() -> None:
    with pytest.raises(ContractError, match="needs the logprobs"):
        deepsearch(NESTED)
