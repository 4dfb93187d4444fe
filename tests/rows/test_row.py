"""Over all rows of a tree every sampled token is trained once, with the coefficient its credit says."""

from collections import Counter
from itertools import combinations
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.credit.trees import SOURCE, bare, end, failed, fork, nested, sampled, step, wild

from ramify.core.codec import ByteCodec
from ramify.core.errors import ContractError, ExportError
from ramify.core.tree import ROOT, Tree
from ramify.credit import credit, forest_of, group_advantages
from ramify.rows import Row, rows_of
from ramify.rows.weights import Policy

SEEDS = st.integers(0, 10_000)
POLICIES: tuple[Policy, ...] = get_args(Policy)
Token = tuple[int, int]
"""(canonical number of its node, position on the branch)."""


def summed(rows: list[Row], attribute: str) -> dict[Token, float]:
    """Token -> its weights or coefficients, summed over the rows that hold it as sampled."""
    totals: dict[Token, float] = {}
    for row in rows:
        values = {"weights": row.weights, "coefficients": row.coefficients}[attribute]
        for position, (node, value) in enumerate(zip(row.nodes.tolist(), values.tolist(), strict=True)):
            if row.is_sampled[position]:
                totals[node, position] = totals.get((node, position), 0.0) + value
    return totals


def expected(tree: Tree, name: str = "auto") -> dict[Token, float]:
    """Token -> the credit's coefficient, for every sampled token of the forest."""
    forest = forest_of(tree)
    number = {node: i for i, node in enumerate(tree.subtree())}
    found: dict[Token, float] = {}
    for node, coefficient in zip(forest.nodes.tolist(), credit(name, forest).coefficients.tolist(), strict=True):
        branch = tree.branch(node)
        owners = np.repeat([p.node for p in branch.pieces], [len(p.segment) for p in branch.pieces])
        for position in np.flatnonzero(branch.is_sampled & (owners == node)).tolist():
            found[number[node], position] = coefficient
    return found


@given(SEEDS, st.sampled_from(POLICIES))
@pytest.mark.covers("S0.7")
def test_every_token_has_the_total_weight_that_the_policy_says(seed: int, policy: Policy) -> None:
    tree = wild(seed)
    rows = rows_of(tree, policy=policy)
    holders = Counter(
        (node, position)
        for row in rows_of(tree, policy="per_leaf")
        for position, node in enumerate(row.nodes.tolist())
        if row.is_sampled[position]
    )
    for token, weight in summed(rows, "weights").items():
        assert weight == pytest.approx(holders[token] if policy == "per_leaf" else 1.0)


@given(SEEDS, st.sampled_from(["once", "fraction"]), st.sampled_from(["auto", "leaf_grpo", "leaf_loo"]))
def test_every_sampled_token_has_one_coefficient(seed: int, policy: Policy, name: str) -> None:
    tree = wild(seed)
    rows = rows_of(tree, credit=name, policy=policy)
    found, wanted = summed(rows, "coefficients"), expected(tree, name)
    assert set(found) == set(wanted)
    assert all(found[token] == pytest.approx(wanted[token], abs=1e-12) for token in wanted)
    if policy == "once":
        trained = Counter(
            (node, position)
            for row in rows
            for position, node in enumerate(row.nodes.tolist())
            if row.weights[position] > 0
        )
        assert set(trained.values()) <= {1}


@given(SEEDS)
def test_leaf_credits_as_published_have_the_same_coefficients(seed: int) -> None:
    """Training a shared token in every row with its leaf's advantage is training it once with their sum."""
    tree = wild(seed)
    rows = rows_of(tree, credit="leaf_grpo", policy="per_leaf")
    wanted = expected(tree, "leaf_grpo")
    assert summed(rows, "coefficients") == {token: pytest.approx(c, abs=1e-12) for token, c in wanted.items()}
    for row in rows:
        assert len(set(row.advantages[row.is_sampled])) <= 1


@given(SEEDS, st.sampled_from(POLICIES))
def test_rows_are_their_branches_and_train_nothing_else(seed: int, policy: Policy) -> None:
    tree = wild(seed)
    for row in rows_of(tree, policy=policy):
        branch = tree.branch(row.leaf_id)
        assert row.ids.tolist() == branch.ids.tolist()
        assert row.is_sampled.tolist() == branch.is_sampled.tolist()
        assert np.array_equal(row.logprobs, branch.logprobs, equal_nan=True)
        assert row.num_prompt == branch.num_prompt
        assert not row.weights[~row.is_sampled].any()
        assert not row.advantages[~row.is_sampled].any()
        assert row.weights.any()
        assert sum(span.num_tokens for span in row.spans) == len(row)
        assert tree.subtree()[row.leaf] == row.leaf_id


def test_rows_come_in_canonical_order_whatever_came_first() -> None:
    tree = nested()
    rows = rows_of(tree)
    assert [row.leaf_id for row in rows] == tree.leaves()
    assert [row.reward for row in rows] == [0.25, -1.0, 1.0, 0.0, 0.5]


def test_the_first_row_that_holds_a_token_trains_it() -> None:
    """Five leaves; breadth first, those of the second stem come first."""
    rows = rows_of(nested())
    texts = ["".join(map(chr, row.ids[row.weights > 0])) for row in rows]
    assert texts == ["ci", "j", "abde", "ff", "gh"]


def test_chains_under_leaf_grpo_have_the_advantages_of_grpo() -> None:
    growth = bare()
    rewards = [0.0, 1.0, 0.25]
    fork(growth, ROOT, *[[step("a"), end("b", reward)] for reward in rewards])
    rows = rows_of(growth.tree, credit="leaf_grpo")
    for row, advantage in zip(rows, group_advantages(np.array(rewards), "grpo"), strict=True):
        assert row.advantages[row.is_sampled] == pytest.approx(advantage, abs=1e-12)
        assert row.weights[row.is_sampled].tolist() == [1.0, 1.0]
        assert row.normaliser == 3
        assert (row.credit, row.is_unbiased) == ("leaf_grpo", False)


def test_a_shared_token_may_take_the_mean_of_its_leaves() -> None:
    """`docs/concepts/credit.md`: trained once with the mean is trained in fractions with each leaf's own."""
    tree = nested()
    leaves = credit("leaf_loo", forest_of(tree)).leaf_advantages
    assert leaves is not None
    once = rows_of(tree, credit="leaf_loo", shared="mean")
    fraction = rows_of(tree, credit="leaf_loo", shared="mean", policy="fraction")
    assert once[2].advantages[once[2].is_sampled][0] == pytest.approx(leaves[2:].mean())
    for row, advantage in zip(fraction, leaves, strict=True):
        assert set(row.advantages[row.is_sampled]) == {advantage}
    assert summed(once, "coefficients") == pytest.approx(summed(fraction, "coefficients"))


@pytest.mark.parametrize("name", ["subtree_loo", "leaf_grpo"])
@pytest.mark.parametrize("policy", ["once", "fraction"])
@pytest.mark.parametrize("n", [1, 2, 4])
def test_leaves_drawn_uniformly_stand_for_all(name: str, policy: Policy, n: int) -> None:
    """Over all ways to keep n of N leaves the mean coefficient of every token is the credit's."""
    tree = nested()
    draws = list(combinations(tree.leaves(), n))
    totals = dict.fromkeys(expected(tree, name), 0.0)
    for kept in draws:
        for token, value in summed(rows_of(tree, credit=name, policy=policy, kept=kept), "coefficients").items():
            totals[token] += value / len(draws)
    assert totals == pytest.approx(expected(tree, name))


def test_a_constant_normaliser_changes_no_coefficient() -> None:
    tree = nested()
    rows = rows_of(tree, normaliser=16.0)
    assert {row.normaliser for row in rows} == {16.0}
    assert summed(rows, "coefficients") == pytest.approx(expected(tree))


def test_a_leaf_named_twice_is_one_row_and_two_as_published() -> None:
    tree = nested()
    leaf, other = tree.leaves()[:2]
    assert [row.leaf_id for row in rows_of(tree, kept=[leaf, leaf, other])] == [leaf, other]
    published = rows_of(tree, credit="leaf_grpo", kept=[leaf, leaf, other], policy="per_leaf")
    assert [row.leaf_id for row in published] == [leaf, leaf, other]


def test_a_row_that_trains_nothing_is_dropped() -> None:
    growth = bare()
    (tip,) = fork(growth, ROOT, [step("a")])
    fork(growth, tip, [end("", 1.0, "length")], [end("b", 0.0)], [end("", 0.0, "length")])
    rows = rows_of(growth.tree)
    assert [(row.stop, row.weights.sum()) for row in rows] == [("length", 1.0), ("answer", 1.0)]


def test_a_tree_without_leaves_has_no_rows() -> None:
    growth = bare()
    fork(growth, ROOT, [failed()], [step("never ended")])
    assert rows_of(growth.tree) == []


def test_a_row_says_where_everything_is_from() -> None:
    growth = bare(public={"level": 3})
    chain = [step("ab"), end("c", 0.5, "length")]
    fork(growth, ROOT, chain)
    (row,) = rows_of(growth.tree)
    assert [(s.num_tokens, s.node, s.origin, s.source) for s in row.spans] == [
        (4, 0, "prompt", None),
        (2, 1, "sampled", SOURCE),
        (1, 1, "given", None),
        (1, 2, "sampled", SOURCE),
    ]
    assert (row.uid, row.tree_seed, row.leaf, row.public) == ("p", 7, 2, {"level": 3})
    assert (row.reward, row.parts, row.stop, row.is_truncated) == (0.5, {"part": 0.5}, "length", True)
    assert (row.codec, row.policy, row.is_oracle, len(row)) == ("bytes", "once", False, 8)
    assert row.versions.tolist() == [-1] * 8


def test_policy_versions_go_along() -> None:
    growth = bare()
    last = end("x", 1.0)
    fork(
        growth,
        ROOT,
        [type(last)((sampled("a", version=3), sampled("b", version=4)), stop="answer", scores=last.scores)],
    )
    (row,) = rows_of(growth.tree)
    assert row.versions.tolist() == [-1, -1, -1, -1, 3, 4]
    assert row.reasons == ("several policy versions sampled its tree: 3, 4",)


@pytest.mark.parametrize("reward", [float("inf"), float("nan")])
def test_a_reward_that_is_not_finite_makes_no_row(reward: float) -> None:
    growth = bare()
    fork(growth, ROOT, [end("x", reward)], [end("y", 1.0)])
    with pytest.raises(ExportError, match=f"its reward is {reward}: name a leaf judge"):
        rows_of(growth.tree)
    (row,) = rows_of(growth.tree, unjudged="drop")
    assert any(f"its reward is {reward}" in reason for reason in row.reasons)


def test_text_only_codecs_make_no_token_rows() -> None:
    with pytest.raises(ExportError, match="codec 'bytes' only carries text"):
        rows_of(bare(codec=ByteCodec()).tree)


def test_nodes_that_may_not_be_trained_cannot_be_kept() -> None:
    growth = bare()
    good, cut = fork(growth, ROOT, [end("a", 1.0)], [end("b", 0.0, "budget")])
    assert [row.leaf_id for row in rows_of(growth.tree, kept=[good])] == [good]
    with pytest.raises(ExportError, match="are not trainable leaves; trainable are"):
        rows_of(growth.tree, kept=[good, cut])


def test_an_exact_credit_on_late_forks_makes_no_rows() -> None:
    growth = bare()
    fork(growth, ROOT, [end("a", 1.0)])
    fork(growth, ROOT, [end("b", 0.0)])
    with pytest.raises(ContractError, match="predictable"):
        rows_of(growth.tree, credit="subtree_loo")
    assert {row.credit for row in rows_of(growth.tree)} == {"leaf_grpo"}
    assert not any(row.is_unbiased for row in rows_of(growth.tree))


def test_training_a_whole_coefficient_in_every_row_is_not_exact() -> None:
    tree = nested()
    assert all(row.is_unbiased for row in rows_of(tree))
    assert not any(row.is_unbiased for row in rows_of(tree, policy="per_leaf"))
