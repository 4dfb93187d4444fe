"""A width shared among paths, and where a finished one is cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.core.errors import ConfigError
from ramify.strategies.parts.allotment import (
    even_allotment,
    fallback_index,
    softmax,
    total_allotment,
    weighted_allotment,
)

WEIGHTS = st.lists(st.floats(0, 9), min_size=1, max_size=6).filter(lambda weights: sum(weights) > 0)


@given(st.integers(-3, 20), st.integers(0, 4), st.integers(1, 9), st.integers(1, 4))
def test_paths_that_go_on_are_never_dropped_and_the_room_never_exceeded_otherwise(
    room: int, finished_now: int, active: int, divergence: int
) -> None:
    total = total_allotment(room, finished_now=finished_now, active=active, divergence=divergence)
    assert active <= total <= max(room, active)
    assert total <= max(divergence * (finished_now + active), active)


@given(st.integers(0, 30), st.integers(1, 9))
def test_an_even_share_differs_by_one_at_most_and_as_published_the_last_takes_the_rest(extra: int, number: int) -> None:
    total = number + extra
    first, last = even_allotment(total, number), even_allotment(total, number, remainder="last")
    assert sum(first) == sum(last) == total
    assert min(first) >= 1
    assert max(first) - min(first) <= 1
    assert first == sorted(first, reverse=True)
    assert len(set(last[:-1])) <= 1


@given(WEIGHTS, st.integers(0, 20))
def test_a_weighted_share_is_one_each_and_the_rest_by_weight(weights: list[float], extra: int) -> None:
    found = weighted_allotment(weights, len(weights) + extra)
    assert sum(found) == len(weights) + extra
    for weight, number in zip(weights, found, strict=True):
        assert abs(number - 1 - extra * weight / sum(weights)) < 1 + 1e-9


def test_ties_go_to_the_earlier_path_and_impossible_shares_are_refused() -> None:
    assert weighted_allotment([1.0, 1.0, 1.0], 5) == [2, 2, 1]
    with pytest.raises(ConfigError, match="one each"):
        weighted_allotment([1.0, 1.0], 1)
    with pytest.raises(ConfigError, match="weights"):
        weighted_allotment([0.0, 0.0], 2)


def test_softmax_of_distant_values_does_not_overflow() -> None:
    assert softmax([-1e5, 0.0], 1.0) == [0.0, 1.0]
    assert softmax([3.0, 3.0], 0.1) == [0.5, 0.5]


@given(st.integers(1, 99), st.integers(1, 9), st.integers(1, 6), st.integers(1, 12), st.data())
def test_a_cut_keeps_less_than_the_path_and_less_than_the_depth(
    output_len: int, segment: int, max_depth: int, window: int, data: st.DataObject
) -> None:
    block = data.draw(st.integers(1, -(-output_len // window)))
    kept = fallback_index(output_len, block, segment=segment, max_depth=max_depth, window=window)
    assert 0 <= kept < output_len
    assert -(-kept // segment) < max_depth
    assert kept == 0 or output_len >= window
