"""A pool of chains says exactly what any number of them would come to; arms are held against it problem by problem."""

from fractions import Fraction
from itertools import combinations
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.core.ledger import Spend
from ramify.runner.compare import Chain, Pool, TreeFigures, line

CHAINS = st.lists(
    st.builds(Chain, st.sampled_from([0.0, 0.5, 1.0]), st.integers(-1, 3), st.just(10)), min_size=2, max_size=7
)


def brute_force(chains: list[Chain], k: int) -> dict[str, float]:
    """Means over every set of k chains, one by one."""
    drawn = list(combinations(chains, k))
    return {
        "solved": fmean(any(c.reward >= 1 for c in some) for some in drawn),
        "mixed": fmean(len({c.reward for c in some}) > 1 for some in drawn),
        "answers": fmean(len({c.answer for c in some} - {-1}) for some in drawn),
    }


@given(CHAINS, st.data())
def test_the_pool_gives_the_mean_over_every_set_of_chains(chains: list[Chain], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(chains)))
    pool = Pool({"p": chains})
    assert pool.expected(10 * k)["p"] == pytest.approx(brute_force(chains, k))


def test_between_whole_numbers_of_chains_it_is_between_their_means() -> None:
    chains = [Chain(1.0, 0, 10), Chain(0.0, 1, 10), Chain(0.0, 2, 10)]
    low, high = brute_force(chains, 1)["solved"], brute_force(chains, 2)["solved"]
    assert Pool({"p": chains}).expected(12.5)["p"]["solved"] == pytest.approx(0.75 * low + 0.25 * high)


def test_a_budget_below_one_chain_pays_for_one_and_beyond_the_pool_for_all() -> None:
    pool = Pool({"p": [Chain(1.0, 0, 10), Chain(0.0, 1, 30)]})
    assert pool.tokens_a_chain == 20
    assert [pool.num_chains(n) for n in (1, 20, 30, 40, 1000)] == [1, 1, 1.5, 2, 2]


def test_the_pool_is_as_large_as_its_smallest_problem() -> None:
    pool = Pool({"p": [Chain(1.0, 0, 10)] * 3})
    pool.add("q", [Chain(0.0, 0, 10)] * 2)
    assert pool.size == 2
    assert pool.expected(30)["p"]["solved"] == 1.0


def tree(solved: float, *, decode: int = 20, leaves: int = 2) -> TreeFigures:
    return TreeFigures(solved, solved / 2, 1.0, 1.0, Spend(decode=decode, leaves=leaves))


def test_an_arm_is_compared_with_chains_of_its_own_tokens_problem_by_problem() -> None:
    pool = Pool({uid: [Chain(1.0, 0, 10), Chain(0.0, 1, 10), Chain(0.0, 1, 10)] for uid in "pq"})
    found = line("arm", {"p": [tree(1.0), tree(0.0)], "q": [tree(1.0), tree(1.0)]}, pool, seconds=1.0)
    two_chains = float(1 - Fraction(1, 3))
    assert (found.num_trees, found.tokens, found.leaves, found.solved) == (4, 20, 2, 0.75)
    assert found.less_chains["solved"].mean == pytest.approx(fmean([0.5 - two_chains, 1.0 - two_chains]))
    assert found.is_covered


def test_an_arm_dearer_than_the_pool_says_so() -> None:
    pool = Pool({"p": [Chain(1.0, 0, 10)] * 2})
    assert not line("arm", {"p": [tree(1.0, decode=50)]}, pool, seconds=1.0).is_covered
