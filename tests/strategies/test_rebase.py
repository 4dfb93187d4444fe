import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies.step_world import commands, found, played
from tests.strategies.world import ListDraws, path_text

from ramify.core.command import Grow
from ramify.core.errors import ConfigError
from ramify.strategies.rebase import AS_PUBLISHED, Rebase, RebaseConfig, ceilings, guarded_ceilings, largest_remainders

SAID = {"": ["a", "b", "c.", "d!"], "a": ["1.", "2.", "3."], "b": ["1.", "2.", "3."]}
VALUES = {"a": 0.5, "b": 0.6, "c.": 0.9, "d!": 0.9} | {f"{x}{i}.": 0.1 for x in "ab" for i in "123"}
numbers = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=12)


def allotted(config: RebaseConfig, scores: list[float], width: int) -> list[int]:
    return Rebase(config, ListDraws()).allot(scores, width)


@given(
    numbers,
    st.integers(1, 64),
    st.sampled_from(["largest_remainder", "guarded_ceil"]),
    st.sampled_from(["first", "later"]),
)
def test_the_whole_width_is_shared_out_and_no_more(scores: list[float], width: int, rounding: Any, ties: Any) -> None:
    counts = allotted(RebaseConfig(rounding=rounding, ties=ties), scores, width)
    assert sum(counts) == width
    assert min(counts) >= 0


@given(numbers, st.integers(1, 64))
def test_largest_remainders_are_within_one_of_the_share(scores: list[float], width: int) -> None:
    largest = max(scores)
    weights = [math.exp((score - largest) / 0.2) for score in scores]
    counts = largest_remainders(weights, width)
    assert all(abs(c - width * w / math.fsum(weights)) < 1 + 1e-6 for c, w in zip(counts, weights, strict=True))


@given(st.lists(st.floats(0, 1, width=32), min_size=1, max_size=6, unique=True), st.integers(1, 64), st.randoms())
def test_the_order_of_the_paths_does_not_matter(scores: list[float], width: int, order: Any) -> None:
    shuffled = list(scores)
    order.shuffle(shuffled)
    one = dict(zip(scores, allotted(RebaseConfig(), scores, width), strict=True))
    assert one == dict(zip(shuffled, allotted(RebaseConfig(), shuffled, width), strict=True))


def test_as_published_errors_of_rounding_move_counts_and_sum_to_more() -> None:
    scores = [0.25] * 6
    assert sum(ceilings(scores, 24, 0.2, "ceil_float32")) == 25
    assert sum(ceilings(scores, 24, 0.2, "ceil_float64")) == 24
    assert guarded_ceilings([1.0] * 6, 24) == [4] * 6


def test_as_published_the_later_of_equal_scores_is_served_first() -> None:
    assert allotted(AS_PUBLISHED, [0.6, 0.3, 0.6, 0.1], 3) == [1, 0, 2, 0]
    assert allotted(replace(AS_PUBLISHED, ties="first"), [0.6, 0.3, 0.6, 0.1], 3) == [2, 0, 1, 0]


def test_published_arithmetic_survives_scores_it_has_no_numbers_for() -> None:
    assert allotted(AS_PUBLISHED, [1e6, 2e6], 4) == [0, 0]
    assert allotted(AS_PUBLISHED, [-1e6, -2e6], 4) == [0, 0]
    assert sum(allotted(RebaseConfig(), [1e6, 2e6], 4)) == 4


def test_only_the_best_share_the_width_where_it_is_truncated() -> None:
    assert allotted(RebaseConfig(truncate=0.5), [0.5, 0.5, 0.6, 0.1], 4) == [2, 0, 2, 0]


def test_answers_take_their_width_with_them_and_what_vanished_gives_it_back() -> None:
    strategy = Rebase(RebaseConfig(width=4, max_depth=3), ListDraws())
    trip = played(strategy, SAID, VALUES)
    grows = [path_text(trip.tree, c.node) for c in commands(trip, Grow)]
    assert grows == [""] * 4 + ["b", "b", "a"], "three of four: c. answered, d! was cut off"
    published = Rebase(replace(AS_PUBLISHED, width=4), ListDraws())
    assert len(commands(played(published, SAID, VALUES), Grow)) == 4 + 2
    unjudged = Rebase(RebaseConfig(width=4, max_depth=3), ListDraws())
    trip = played(unjudged, SAID, {**VALUES, "c.": None})
    assert len(commands(trip, Grow)) == 4 + 4


def test_answers_vote_by_their_scores() -> None:
    strategy = Rebase(RebaseConfig(width=4, max_depth=3), ListDraws())
    assert strategy.vote == "weighted"
    assert found(strategy, played(strategy, SAID, VALUES)) == {"c.": 0.9, "b1.": 0.1, "b2.": 0.1, "a1.": 0.1}


@pytest.mark.parametrize(
    "options", [{"width": 0}, {"temperature": 0.0}, {"temperature": math.nan}, {"truncate": 0.0}, {"truncate": 1.5}]
)
def test_impossible_shares_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        RebaseConfig(**options)
