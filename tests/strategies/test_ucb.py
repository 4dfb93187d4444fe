"""Bounds by which searches choose, and the split of them into what siblings share and what a child brings."""

import math
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.strategies.mcts.config import Widening
from ramify.strategies.mcts.node import Counting, MCTSNode, soft_maximum
from ramify.strategies.parts.ucb import (
    growing_exploration,
    inverse_cdf,
    max_children,
    puct,
    uct,
    with_virtual_loss,
    wu_uct,
)

VISITS = st.integers(0, 50)


def family(visits: list[int], weights: list[float], counting: Counting) -> MCTSNode:
    """A parent whose children were visited so often, each time for the same value."""
    parent = MCTSNode(0)
    parent.sum_weights = sum(weights)
    for place, (number, weight) in enumerate(zip(visits, weights, strict=True)):
        child = MCTSNode(place + 1, parent)
        child.prior = child.weight = weight
        counting.add(parent, child)
        for _ in range(number):
            counting.visit(child, place / 10)
    return parent


def scores(parent: MCTSNode, counting: Counting) -> list[float]:
    return [q + counting.factor(parent) * share for q, share in zip(parent.qs, parent.shares, strict=True)]


@given(st.lists(st.tuples(VISITS, st.floats(0.01, 1)), min_size=1, max_size=6))
def test_puct_is_a_factor_of_the_parent_times_a_share_of_the_child(children: list[tuple[int, float]]) -> None:
    visits, weights = [n for n, _ in children], [w for _, w in children]
    for counting in (Counting(), Counting(rule="muzero")):
        parent = family(visits, weights, counting)
        c = growing_exploration(1.25, sum(visits)) if counting.rule == "muzero" else 1.25
        expected = [puct(x.q, x.weight / sum(weights), x.visits, sum(visits), exploration=c) for x in parent.children]
        assert scores(parent, counting) == pytest.approx(expected)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=6))
def test_uct_without_priors_is_the_plain_bound(visits: list[int]) -> None:
    counting = Counting(rule="uct", pending="ignored")
    parent = family(visits, [1.0] * len(visits), counting)
    parent.sum_weights = 1.0
    expected = [uct(x.q, x.visits, parent.visits, exploration=1.25) for x in parent.children]
    assert scores(parent, counting) == pytest.approx(expected)


def test_a_request_in_flight_counts_as_a_visit_and_leaves_q_alone() -> None:
    counting = Counting(rule="uct", exploration=math.sqrt(2))
    parent = family([3, 5], [1.0, 1.0], counting)
    parent.sum_weights = 1.0
    counting.reserve(parent.children[0])
    expected = [
        wu_uct(x.q, x.visits, x.in_flight, parent_visits=8, parent_in_flight=1, beta=1.0) for x in parent.children
    ]
    assert scores(parent, counting) == pytest.approx(expected)


def test_virtual_loss_takes_from_the_mean_and_adds_visits() -> None:
    counting = Counting(pending="virtual_loss", loss=0.5, loss_visits=2)
    parent = family([3, 5], [0.4, 0.6], counting)
    child = parent.children[1]
    counting.reserve(child)
    total, count = with_virtual_loss(child.value_sum, 5, 1, loss=0.5, weight=2)
    assert parent.qs[1] == pytest.approx(total / count)
    assert scores(parent, counting)[1] == pytest.approx(puct(total / count, 0.6, count, 10, exploration=1.25))


@pytest.mark.parametrize("pending", ["counted", "virtual_loss", "ignored"])
@pytest.mark.parametrize("rule", ["puct", "uct"])
def test_what_was_reserved_and_released_leaves_no_trace(pending: str, rule: str) -> None:
    counting = Counting(rule=rule, pending=pending)  # type: ignore[arg-type]
    parent = family([3, 5, 1], [0.4, 0.5, 0.1], counting)
    before = scores(parent, counting)
    counting.reserve(parent.children[1])
    counting.release(parent.children[1])
    assert scores(parent, counting) == pytest.approx(before)


@pytest.mark.parametrize("pending", ["counted", "virtual_loss", "ignored"])
def test_a_value_that_arrives_is_a_release_and_a_visit(pending: str) -> None:
    counting = Counting(pending=pending)  # type: ignore[arg-type]
    one, other = (family([3, 5, 1], [0.4, 0.5, 0.1], counting) for _ in range(2))
    for parent in (one, other):
        counting.reserve(parent.children[2])
    counting.arrive(one.children[2], 0.7)
    counting.release(other.children[2])
    counting.visit(other.children[2], 0.7)
    assert scores(one, counting) == pytest.approx(scores(other, counting))
    assert (one.visits, one.in_flight, one.sum_counts) == (other.visits, other.in_flight, other.sum_counts)


@given(
    st.floats(0.1, 5),
    st.sampled_from([0.0, 0.25, 0.3, 0.5, 0.9, 1.0]),
    st.integers(0, 30),
)
def test_the_visits_that_one_more_child_needs_are_those_at_which_it_is_allowed(
    scale: float, exponent: float, number: int
) -> None:
    needed = Widening(scale=scale, exponent=exponent).visits_needed(number)
    if math.isinf(needed):
        assert max_children(10**6, scale=scale, exponent=exponent) <= number
    else:
        assert max_children(int(needed), scale=scale, exponent=exponent) > number
        assert not needed or max_children(int(needed) - 1, scale=scale, exponent=exponent) <= number


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=8))
def test_the_soft_maximum_lies_between_the_mean_and_the_largest(values: list[float]) -> None:
    q = 0.0
    for number, value in enumerate(values):
        q = soft_maximum(q, number, value, softness=0.5)
    assert sum(values) / len(values) - 1e-9 <= q <= max(values) + 1e-9
    assert q == pytest.approx(0.5 * math.log(sum(math.exp(v / 0.5) for v in values) / len(values)))


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=300), st.floats(0, 1, exclude_max=True))
def test_a_draw_is_the_first_weight_whose_sum_exceeds_its_share(weights: list[float], u: float) -> None:
    sums = list(accumulate(weights))
    exceeds = [index for index, total in enumerate(sums) if total > u * sums[-1]]
    assert inverse_cdf(weights, u) == (exceeds[0] if exceeds else len(weights) - 1)
