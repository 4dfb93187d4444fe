"""A pool of chains says exactly what any number of them would come to; arms are held against it problem by problem."""

from dataclasses import replace
from fractions import Fraction
from itertools import combinations
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.runner.parts import Small, grown

from ramify.cli.compare import findings
from ramify.config.run_config import StrategyConfig
from ramify.core.ledger import Spend
from ramify.experiments.compare import Chain, ChainPool, CompareLine, TreeFigures, chains_of, line

ANSWERS = st.sampled_from([None, "0", "1", "2", "3"])
CHAINS = st.lists(st.builds(Chain, st.sampled_from([0.0, 0.5, 1.0]), ANSWERS, st.just(10)), min_size=2, max_size=7)


def pool_of(**chains: list[Chain]) -> ChainPool:
    """Chains by problem; answers are the same that have the same text."""
    pool = ChainPool(str.__eq__)
    for uid, some in chains.items():
        pool.add(uid, some)
    return pool


def brute_force(chains: list[Chain], k: int) -> dict[str, float]:
    """Means over every set of k chains, one by one."""
    drawn = list(combinations(chains, k))
    return {
        "solved": fmean(any(c.reward >= 1 for c in some) for some in drawn),
        "mixed": fmean(len({c.reward for c in some}) > 1 for some in drawn),
        "answers": fmean(len({c.answer for c in some} - {None}) for some in drawn),
    }


@given(CHAINS, st.data())
def test_the_pool_gives_the_mean_over_every_set_of_chains(chains: list[Chain], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(chains)))
    pool = pool_of(p=chains)
    assert pool.expected(10 * k)["p"] == pytest.approx(brute_force(chains, k))


def test_between_whole_numbers_of_chains_it_is_between_their_means() -> None:
    chains = [Chain(1.0, "0", 10), Chain(0.0, "1", 10), Chain(0.0, "2", 10)]
    low, high = brute_force(chains, 1)["solved"], brute_force(chains, 2)["solved"]
    assert pool_of(p=chains).expected(12.5)["p"]["solved"] == pytest.approx(0.75 * low + 0.25 * high)


def test_a_budget_below_one_chain_pays_for_one_and_beyond_the_pool_for_all() -> None:
    pool = pool_of(p=[Chain(1.0, "0", 10), Chain(0.0, "1", 30)])
    assert pool.tokens_a_chain == 20
    assert [pool.num_chains(n) for n in (1, 20, 30, 40, 1000)] == [1, 1, 1.5, 2, 2]


def test_the_pool_is_as_large_as_its_smallest_problem() -> None:
    pool = pool_of(p=[Chain(1.0, "0", 10)] * 3)
    pool.add("q", [Chain(0.0, "0", 10)] * 2)
    assert pool.size == 2
    assert pool.expected(30)["p"]["solved"] == 1.0


def test_answers_of_chains_grown_in_several_runs_are_told_apart_together() -> None:
    pool, read = pool_of(), Small().format.answer
    four = StrategyConfig(name="chains", options={"n": 4})
    trees = [tree for seed in range(3) for tree in grown(None, strategy=four, seed=seed).trees]
    for tree in trees:
        pool.add("p", chains_of(tree, read))
    said = [read(tree.branch(leaf).said) for tree in trees for leaf in tree.leaves()]
    assert pool.size == len(said) == 12
    assert pool.expected(12 * pool.tokens_a_chain)["p"]["answers"] == pytest.approx(len(set(said)))


def tree(solved: float, *, decode: int = 20, leaves: int = 2) -> TreeFigures:
    return TreeFigures(solved, solved / 2, 1.0, 1.0, Spend(decode=decode, leaves=leaves))


def test_an_arm_is_compared_with_chains_of_its_own_tokens_problem_by_problem() -> None:
    pool = pool_of(**{uid: [Chain(1.0, "0", 10), Chain(0.0, "1", 10), Chain(0.0, "1", 10)] for uid in "pq"})
    found = line("arm", {"p": [tree(1.0), tree(0.0)], "q": [tree(1.0), tree(1.0)]}, pool, seconds=1.0)
    two_chains = float(1 - Fraction(1, 3))
    assert (found.num_trees, found.tokens, found.leaves, found.solved) == (4, 20, 2, 0.75)
    assert found.less_chains["solved"].value == pytest.approx(fmean([0.5 - two_chains, 1.0 - two_chains]))
    assert found.is_covered


def test_an_arm_dearer_than_the_pool_says_so() -> None:
    pool = pool_of(p=[Chain(1.0, "0", 10)] * 2)
    assert not line("arm", {"p": [tree(1.0, decode=50)]}, pool, seconds=1.0).is_covered


EASY, HARD, EVEN = (
    [Chain(reward, "0", 10) for reward in rewards] for rewards in ([1.0] * 4, [0.0] * 4, [1.0, 0.0] * 2)
)


def compared(pool: list[Chain], solved: list[float], *, num_problems: int = 4) -> CompareLine:
    uids = [str(number) for number in range(num_problems)]
    return line(
        "arm", {uid: [tree(s) for s in solved] for uid in uids}, pool_of(**dict.fromkeys(uids, pool)), seconds=1.0
    )


@pytest.mark.parametrize(
    ("pool", "solved", "num_problems", "said"),
    [
        (HARD, [1.0], 4, "few problems cannot show one"),
        (EASY, [1.0], 40, "even solving all would not show more"),
        (HARD, [0.0], 40, "even solving none would not show fewer"),
        (EVEN, [1.0] * 5 + [0.0], 40, "no difference"),
        (HARD, [1.0], 40, "solves more problems than chains"),
        (EASY, [0.0], 40, "solves fewer problems than chains"),
    ],
    ids=["four problems", "all right", "none right", "ties", "more", "fewer"],
)
def test_what_is_said_of_a_contender(pool: list[Chain], solved: list[float], num_problems: int, said: str) -> None:
    found = compared(pool, solved, num_problems=num_problems)
    (sentence,) = findings([found])
    assert said in sentence
    assert ("no difference" in sentence) == (found.less_chains["solved"].word == "equal")


def test_trees_that_faults_ended_are_counted_and_told() -> None:
    half = [replace(tree(1.0), fault="EngineError: gone"), tree(0.0)]
    found = line("arm", {"p": half, "q": half}, pool_of(p=EVEN, q=EVEN), seconds=1.0)
    assert (found.num_failed, found.num_trees) == (2, 4)
    said = "arm: faults ended 2 of 4 trees; what they had grown counts; the first: EngineError: gone"
    assert said in list(findings([found]))


def test_a_problem_whose_chains_all_failed_is_left_out() -> None:
    found = line("arm", {"p": [tree(1.0)], "q": [tree(1.0)]}, pool_of(p=EVEN), seconds=1.0)
    assert found.solved == 1.0 and found.less_chains["solved"].value == pytest.approx(1 - 5 / 6)


def test_the_cost_of_judges_that_sample_is_shared_by_the_chains() -> None:
    grown_tree = grown(None, strategy=StrategyConfig(name="chains", options={"n": 4})).trees[0]
    own = sum(chain.num_tokens for chain in chains_of(grown_tree, lambda text: None))
    assert own == sum(spend.decode for spend in grown_tree.spent().values())
