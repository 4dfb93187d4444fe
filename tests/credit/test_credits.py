"""Credits are exact where they say so, zero where a group says nothing, and refuse what they cannot do."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.credit.trees import bare, end, fork, nested, step, wild

from ramify.core.errors import ConfigError, ContractError
from ramify.core.tree import ROOT
from ramify.credit import (
    NAMES,
    Forest,
    clip_parts,
    credit,
    forest_of,
    group_advantages,
    leaf_grpo,
    leaf_loo,
    leaf_mean,
    split,
    split_tree_loo,
    subtree_loo,
    vine,
)
from ramify.credit.forest import STEM

REWARDS = st.lists(st.sampled_from([0.0, 1.0, 0.1, -2.5]), min_size=2, max_size=8)


def chains(rewards: list[float]) -> Forest:
    growth = bare()
    fork(growth, ROOT, *[[step("a"), end("b", reward)] for reward in rewards])
    return forest_of(growth.tree)


def single_stem() -> Forest:
    """One stem that forks in two, one of them in three."""
    return Forest.of_arrays(
        parent=[STEM, 0, 0, 1, 1, 1],
        share=[Fraction(1), Fraction(1, 2), Fraction(1, 2), *[Fraction(1, 3)] * 3],
        reward=[None, None, Fraction(1), Fraction(0), Fraction(1, 2), Fraction(1)],
    )


def late() -> Forest:
    growth = bare()
    fork(growth, ROOT, [end("a", 1.0)])
    fork(growth, ROOT, [end("b", 0.0)], rule="restart")
    return forest_of(growth.tree)


def test_trunk_of_single_tree_gets_zero_under_grpo() -> None:
    forest = single_stem()
    assert leaf_mean(forest)[0] == 0
    assert leaf_grpo(forest)[0] == pytest.approx(0, abs=1e-15)
    assert subtree_loo(forest)[0] != 0


@given(REWARDS)
def test_chains_under_leaf_grpo_are_plain_grpo(rewards: list[float]) -> None:
    """verl's z-score, written out: (r - mean) / (sample deviation + 1e-6); equal rewards are 0 without noise."""
    expected = [0.0] * len(rewards)
    if len(set(rewards)) > 1:
        mean = sum(rewards) / len(rewards)
        deviation = (sum((r - mean) ** 2 for r in rewards) / (len(rewards) - 1)) ** 0.5
        expected = [(r - mean) / (deviation + 1e-6) for r in rewards]
    forest = chains(rewards)
    found = leaf_grpo(forest) * len(rewards)
    assert found[forest.leaves].tolist() == pytest.approx(expected, abs=1e-12)
    assert found[forest.stems].tolist() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("rewards", [[0.1] * 3, [0.7], [0.1 + 0.2] * 7])
@pytest.mark.parametrize("name", ["leaf_grpo", "leaf_loo", "leaf_mean"])
def test_groups_that_say_nothing_get_exactly_zero(rewards: list[float], name: str) -> None:
    assert not credit(name, chains(rewards)).coefficients.any()


@given(REWARDS)
def test_rloo_on_chains_is_what_the_split_credits_are(rewards: list[float]) -> None:
    forest = chains(rewards)
    for other in (split_tree_loo, subtree_loo):
        assert other(forest).tolist() == pytest.approx(leaf_loo(forest).tolist(), abs=1e-12)


def test_the_deviation_is_named() -> None:
    rewards = np.array([0.0, 1.0])
    assert group_advantages(rewards, "grpo", deviation="population").tolist() == [-1.0, 1.0]
    assert group_advantages(rewards, "grpo").tolist() == pytest.approx([-0.7071, 0.7071], abs=1e-4)


@given(st.lists(st.tuples(st.integers(1, 5), st.fractions(-2, 2, max_denominator=8)), min_size=1, max_size=6),
       st.fractions(0, 3, max_denominator=16))  # fmt: skip
def test_ppo_parts_equal_leaf_sum(rows: list[tuple[int, Fraction]], ratio: Fraction) -> None:
    total = sum(weight for weight, _ in rows)
    forest = Forest.of_arrays(
        parent=[STEM, *[0] * len(rows)],
        share=[Fraction(1), *[Fraction(weight, total) for weight, _ in rows]],
        reward=[None, *[Fraction(0)] * len(rows)],
    )
    advantages = np.array([a for _, a in rows], object)
    plus, minus, weight = (part[0] for part in clip_parts(forest, advantages))
    low, high = Fraction(4, 5), Fraction(32, 25)
    clipped = min(max(ratio, low), high)
    leaf_sum = sum(Fraction(w, total) * min(ratio * a, clipped * a) for w, a in rows)
    assert plus * min(ratio, high) + minus * max(ratio, low) == leaf_sum
    assert weight == 1


@given(st.integers(0, 10_000), st.sampled_from(["auto", "leaf_grpo", "leaf_loo", "leaf_mean"]))
def test_every_credit_gives_one_number_a_node(seed: int, name: str) -> None:
    forest = forest_of(wild(seed))
    credited = credit(name, forest)
    assert credited.coefficients.shape == credited.weights.shape == (len(forest),)
    assert credited.coefficients.dtype == np.float64
    assert np.isfinite(credited.coefficients).all()
    assert credited.is_unbiased == (not credited.reasons)


def test_auto_is_exact_where_forks_are_predictable() -> None:
    credited = credit("auto", forest_of(nested()))
    assert (credited.name, credited.is_unbiased, credited.reasons) == ("subtree_loo", True, ())


def test_auto_falls_back_to_a_published_credit_and_says_why() -> None:
    credited = credit("auto", late())
    assert credited.name == "leaf_grpo"
    assert not credited.is_unbiased
    assert "'restart'" in credited.reasons[0]


@pytest.mark.parametrize("name", ["split", "split_tree_loo", "subtree_loo"])
def test_exact_credits_refuse_forks_made_after_the_fact(name: str) -> None:
    with pytest.raises(ContractError, match=r"predictable forks only.*'restart'"):
        credit(name, late())


def test_lost_paths_leave_an_exact_credit_its_numbers_but_not_its_claim() -> None:
    growth = bare()
    fork(growth, ROOT, [end("a", 1.0)], [end("b", 0.0)], [end("c", 0.0, "budget")])
    credited = credit("subtree_loo", forest_of(growth.tree))
    assert credited.coefficients.tolist() == [0.5, -0.5]
    assert credited.reasons == ("1 path(s) left out: ended with 'budget'",)


def test_leaf_loo_is_exact_on_chains_only() -> None:
    assert credit("leaf_loo", chains([0.0, 1.0])).is_unbiased
    assert not credit("leaf_loo", chains([1.0])).is_unbiased
    assert credit("leaf_loo", forest_of(nested())).reasons == ("leaf_loo is exact for chains only",)


def test_a_single_stem_is_compared_with_nothing_and_says_so() -> None:
    assert split_tree_loo(single_stem()).tolist() == split(single_stem()).tolist()
    assert "needs 2 stems and has 1" in credit("split_tree_loo", single_stem()).reasons[0]
    assert not credit("leaf_tree_loo", single_stem()).is_unbiased


def test_a_single_path_has_no_baseline() -> None:
    forest = chains([0.7])
    assert subtree_loo(forest).tolist() == split(forest).tolist() == [0.7, 0.7]


def test_an_unknown_credit_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'leaf_loo'"):
        credit("leaf_lo", chains([0.0, 1.0]))
    assert NAMES[0] == "auto"


def test_an_empty_forest_has_no_coefficients() -> None:
    assert len(credit("auto", forest_of(bare().tree)).coefficients) == 0


def test_vine_needs_rollouts_beside_every_prefix_of_the_trunk() -> None:
    with pytest.raises(ContractError, match="the prompt has none"):
        vine(chains([1.0, 0.0]))
    rolled = Forest.of_arrays(parent=[-1, -1, 0, 0], share=[1.0, 0.0, 1.0, 0.0], reward=[None, 0.5, 1.0, 0.0])
    assert vine(rolled).tolist() == [0.0 - 0.5, 0.0, 1.0 - 0.0, 0.0]
