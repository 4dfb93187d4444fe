"""A forest is what counts of a tree: paths of the policy, their shares, and why they are not exact."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.credit.enumeration import MDP, outcomes, rational
from tests.credit.samplers import sampler
from tests.credit.trees import ask, bare, end, failed, fork, give, nested, sampled, step, wild

from ramify.core.command import Close, Fork, Grow, roulette
from ramify.core.errors import ContractError, ExportError
from ramify.core.growth import Done, Failure, Growth
from ramify.core.tree import ROOT, Step, Tree
from ramify.credit import Forest, forest_of
from ramify.credit.forest import STEM


def weights(forest: Forest) -> list[float]:
    return forest.weight[forest.leaves].tolist()


def sums_below(forest: Forest) -> list[float]:
    """For each inner node, its weight less the weights of its children."""
    left = forest.weight.copy()
    for node, parent in enumerate(forest.parent):
        if parent != STEM:
            left[parent] -= forest.weight[node]
    return left[~forest.is_leaf].tolist()


def test_a_tree_without_forks_of_its_own_has_equal_stems() -> None:
    growth = bare()
    fork(growth, ROOT, [step("a"), end("b", 1.0)], [end("c", 0.0)])
    forest = forest_of(growth.tree)
    assert forest.parent.tolist() == [STEM, STEM, 0]
    assert weights(forest) == [0.5, 0.5]
    assert not forest.is_forked
    assert forest.post_hoc_reasons == forest.caveats == ()


def test_weights_are_products_of_planned_shares() -> None:
    forest = forest_of(nested())
    assert weights(forest) == pytest.approx([3 / 8, 1 / 8, 1 / 6, 1 / 6, 1 / 6])
    assert sums_below(forest) == pytest.approx([0.0] * 4)
    assert forest.is_forked


def test_split_weights_are_a_martingale() -> None:
    """Whatever forked, a path's expected weight is its probability (`docs/concepts/exactness.md`, lemma 1)."""
    mdp = MDP.of("binary3")
    grow = sampler({"kind": "coin", "num_trees": 1, "forks": {"1": 2, "11": 3}, "fork_prob": "1/3"}, mdp)
    expected: dict[str, Fraction] = {}
    for probability, tree in outcomes(grow):
        forest = rational(forest_of(tree))
        assert not any(sums_below(forest))
        for leaf in forest.leaves:
            text = tree.branch(int(forest.nodes[leaf])).transcript
            expected[text] = expected.get(text, Fraction(0)) + probability * forest.weight[leaf]
    for path, weight in expected.items():
        law = Fraction(1)
        for i, action in enumerate(path):
            law *= mdp.probs[path[:i]][int(action)]
        assert weight == law
    assert set(expected) == set(mdp.rewards)


@given(st.integers(0, 10_000))
def test_weights_of_any_tree_sum_to_one(seed: int) -> None:
    forest = forest_of(wild(seed))
    if len(forest):
        assert forest.weight[forest.leaves].sum() == pytest.approx(1.0)
        assert forest.weight[forest.stems].sum() == pytest.approx(1.0)


def test_failed_siblings_are_dropped_and_the_others_keep_the_rest() -> None:
    growth = bare()
    fork(growth, ROOT, [end("a", 1.0)], [failed()], [step("b"), failed("replay_diverged")], [end("c", 0.0)])
    forest = forest_of(growth.tree)
    assert weights(forest) == [0.5, 0.5]
    assert forest.caveats == ()


def test_dropped_siblings_leave_unequal_shares_in_proportion() -> None:
    growth = bare()
    fork(growth, ROOT, [end("a", 1.0)], [failed()], [end("c", 0.0)], shares=(0.2, 0.5, 0.3))
    assert weights(forest_of(growth.tree)) == pytest.approx([0.4, 0.6])


def test_a_node_whose_paths_all_failed_is_dropped() -> None:
    growth = bare()
    one, _ = fork(growth, ROOT, [step("a")], [end("b", 1.0)])
    fork(growth, one, [failed()], [failed()])
    forest = forest_of(growth.tree)
    assert weights(forest) == [1.0]
    assert forest.caveats == ()


@pytest.mark.parametrize("stop", ["budget", "deadline", "cancelled"])
def test_paths_cut_from_outside_are_left_out_and_named(stop: str) -> None:
    growth = bare()
    cut = failed(stop) if stop == "cancelled" else end("b", 1.0, stop)
    fork(growth, ROOT, [end("a", 1.0)], [cut])
    forest = forest_of(growth.tree)
    assert weights(forest) == [1.0]
    assert forest.caveats == (f"1 path(s) left out: ended with {stop!r}",)
    assert forest.post_hoc_reasons == ()


@pytest.mark.parametrize("stop", ["length", "tool_limit", "context_full", "turn_limit", "repetition", "closed"])
def test_limits_that_the_tokens_caused_are_leaves_with_their_reward(stop: str) -> None:
    growth = bare()
    fork(growth, ROOT, [end("a", 1.0)], [end("b", 0.25, stop)])
    forest = forest_of(growth.tree)
    assert forest.rewards.tolist() == [1.0, 0.25]
    assert forest.caveats == ()


def test_planned_siblings_that_never_came_are_named() -> None:
    growth = bare()
    commands = ask(growth, ROOT, 3)
    give(growth, commands[0], end("a", 1.0))
    for command in commands[1:]:
        give(growth, command, ending=Failure("budget"))
    forest = forest_of(growth.tree)
    assert weights(forest) == [1.0]
    assert forest.caveats == ("2 planned sibling(s) never came",)


def test_paths_that_never_ended_are_left_out_and_named() -> None:
    growth = bare()
    fork(growth, ROOT, [end("a", 1.0)], [step("b")])
    assert forest_of(growth.tree).caveats == ("1 path(s) left out: never ended",)


def test_commands_in_flight_are_named() -> None:
    growth = bare()
    give(growth, ask(growth, ROOT, 2)[0], end("a", 1.0))
    assert forest_of(growth.tree).caveats == ("1 planned sibling(s) never came", "1 command(s) were still in flight")


def test_forks_after_the_fact_are_not_predictable_and_share_equally() -> None:
    growth = bare()
    fork(growth, ROOT, [step("a"), end("b", 1.0)], shares=(1.0,))
    fork(growth, ROOT, [end("c", 0.0)], [end("d", 0.0)], rule="restart")
    forest = forest_of(growth.tree)
    assert weights(forest) == pytest.approx([1 / 3] * 3)
    assert forest.post_hoc_reasons == (
        "1 decision(s) of rule 'restart' forked where a continuation had already been sampled",
    )


def test_a_fork_inside_a_sampled_run_is_not_predictable() -> None:
    growth = bare()
    (leaf,) = fork(growth, ROOT, [end("abcd", 1.0)])
    fork(growth, leaf, [end("x", 0.0)], at=growth.tree.length(ROOT) + 2, rule="surprise")
    forest = forest_of(growth.tree)
    assert forest.num_tokens.tolist() == [2, 2, 1]
    assert weights(forest) == [0.5, 0.5]
    assert len(forest.post_hoc_reasons) == 1


def test_what_a_strategy_says_beforehand_counts() -> None:
    forest = forest_of(nested(), post_hoc_reasons=("the rule restarts chains",))
    assert forest.post_hoc_reasons == ("the rule restarts chains",)


def test_critiques_and_probes_are_no_siblings() -> None:
    growth = bare()
    commands = ask(growth, ROOT, 2, shares=(0.25, 0.75))
    give(growth, commands[0], Step((sampled("probe"),), role="probe", action="probe", stop="length"))
    tip = give(growth, commands[1], end("a", 1.0))
    give(growth, growth.ask(Grow(ROOT)), Step((sampled("bad"),), edge="quotes", role="critique", action="critique"))
    forest = forest_of(growth.tree)
    assert forest.nodes.tolist() == [tip]
    assert weights(forest) == [1.0]
    assert forest.caveats == ()


def test_a_leaf_without_a_reward_is_an_error_and_never_zero() -> None:
    growth = bare()
    fork(growth, ROOT, [end("a", 1.0)], [end("b", None)])
    with pytest.raises(ExportError, match=r"leaf 2 of tree 'p' ended with 'answer' and has no reward"):
        forest_of(growth.tree)
    forest = forest_of(growth.tree, unjudged="drop")
    assert weights(forest) == [1.0]
    assert forest.caveats == ("1 path(s) left out: no judge gave a reward",)


def test_a_tree_without_leaves_is_an_empty_forest() -> None:
    forest = forest_of(bare().tree)
    assert len(forest) == forest.num_leaves == 0
    assert len(forest.weight) == len(forest.value) == len(forest.stem) == 0


def test_nodes_come_in_canonical_order_whatever_came_first() -> None:
    def grown(order: list[int]) -> Tree:
        growth: Growth = bare()
        commands = ask(growth, ROOT, 3)
        for number in order:
            give(growth, commands[number], end(f"answer {number}", float(number)))
        return growth.tree

    assert forest_of(grown([2, 0, 1])).reward.tolist() == forest_of(grown([0, 1, 2])).reward.tolist() == [0, 1, 2]


def test_arrays_that_are_no_forest_are_refused() -> None:
    with pytest.raises(ContractError, match="parents before their children"):
        Forest.of_arrays([0, STEM], [1.0, 1.0], [1.0, None])
    with pytest.raises(ContractError, match="without a reward"):
        Forest.of_arrays([STEM, 0], [1.0, 1.0], [1.0, None])
    with pytest.raises(ContractError, match="must all have the shape"):
        Forest(*(np.zeros(n, np.int32) for n in (2, 2, 2, 2, 1)))


def test_a_path_that_a_coin_ended_is_worth_0_whatever_judges_said_of_it() -> None:
    growth = bare()
    fork(growth, ROOT, [end("a", 1.0)], [end("b", 0.5, "roulette")], [end("c", None, "roulette")])
    forest = forest_of(growth.tree)
    assert forest.rewards.tolist() == [1.0, 0.0, 0.0]
    assert forest.has_coins
    assert forest.caveats == ()
    assert [growth.tree.reward(node) for node in forest.nodes.tolist()] == [1.0, None, None]


def test_a_path_that_was_closed_by_no_coin_must_be_judged() -> None:
    growth = bare()
    fork(growth, ROOT, [end("a", 1.0)], [end("b", None, "closed")])
    with pytest.raises(ExportError, match="'closed' and has no reward"):
        forest_of(growth.tree)


def test_a_decision_that_a_coin_let_through_counts_for_what_it_ended() -> None:
    growth = bare()
    one, two = fork(growth, ROOT, [step("a")], [step("b")])
    give(growth, growth.ask(Grow(one, fork=roulette(0.25))), end("c", 1.0))
    growth.end(growth.ask(Close(two, "a coin", stop="roulette")), Done())
    forest = forest_of(growth.tree)
    assert forest.weight.tolist() == [0.5, 0.5, 2.0]
    assert forest.outside.tolist() == [0.5, 0.5, 0.5]
    assert forest.caveats == ()


@pytest.mark.parametrize(
    ("rule", "probability", "shares"), [("test", 0.25, (4.0,)), ("roulette", 0.5, (4.0,)), ("roulette", None, (4.0,))]
)
def test_shares_that_no_coin_accounts_for_are_named(
    rule: str, probability: float | None, shares: tuple[float, ...]
) -> None:
    growth = bare()
    fork(growth, ROOT, [end("a", 1.0)], rule=rule, probability=probability, shares=shares)
    assert forest_of(growth.tree).caveats == ("1 decision(s) whose shares do not sum to 1",)


def test_a_strategy_ends_paths_by_no_other_word() -> None:
    growth = bare()
    (tip,) = fork(growth, ROOT, [step("a")])
    with pytest.raises(ContractError, match="'closed', or 'roulette' for random termination"):
        growth.ask(Close(tip, "why", stop="answer"))  # type: ignore[arg-type]


def test_a_coin_is_thrown_before_anything_below_is_asked_for_and_over_no_ended_path() -> None:
    growth = bare()
    tip, ended = fork(growth, ROOT, [step("a")], [end("b", 1.0)])
    growth.ask(Grow(tip))
    for node in (tip, ended):
        with pytest.raises(ContractError, match="before anything below"):
            growth.ask(Close(node, "a coin", stop="roulette"))


def test_a_planned_fork_with_shares_of_every_child_is_checked_by_the_core() -> None:
    with pytest.raises(ContractError):
        Fork(2, "r", shares=(1.0,))
