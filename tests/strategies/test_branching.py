"""The rules to fork by: each probability is the share of draws that decide so."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.strategies.parts.branching import Clipping, ForkRule, dynamic_initial_rollouts

RULES = st.builds(
    ForkRule,
    name=st.sampled_from(["arpo", "aepo"]),
    branch_probability=st.floats(-0.5, 1.5),
    entropy_weight=st.floats(0, 1),
    clipping=st.sampled_from(["score", "probability"]),
)
GRID = np.linspace(0, 1, 400, endpoint=False) + 1 / 800


@given(RULES, st.floats(-4, 4), st.integers(0, 25))
def test_the_probability_is_the_share_of_draws_that_fork(rule: ForkRule, delta: float, consecutive: int) -> None:
    share = np.mean([rule.decide(float(u), delta, consecutive) for u in GRID])
    assert share == pytest.approx(rule.probability(delta, consecutive), abs=2 / len(GRID))


@pytest.mark.covers("S0.8")
@given(RULES, st.floats(-4, 4), st.floats(0, 4), st.integers(0, 25))
def test_more_entropy_never_makes_a_fork_less_likely(rule: ForkRule, delta: float, more: float, count: int) -> None:
    assert rule.probability(delta + more, count) >= rule.probability(delta, count)


@pytest.mark.parametrize(("clipping", "expected"), [("score", 1.0), ("probability", 0.4)])
def test_bp_of_one_forks_always_only_as_published(clipping: Clipping, expected: float) -> None:
    assert ForkRule("arpo", 1.0, 0.2, clipping).probability(-3, 0) == pytest.approx(expected)


def test_raising_bp_makes_arpo_fork_more_and_aepo_less() -> None:
    for bp in (0.3, 0.5, 0.7):
        assert ForkRule("arpo", bp, 0.2, "probability").probability(0, 0) == pytest.approx(bp)
        assert ForkRule("aepo", bp, 0.2, "probability").probability(0, 0) == pytest.approx(1 - bp)


@pytest.mark.covers("S0.2")
@given(st.floats(0, 40), st.lists(st.floats(0, 40), max_size=5), st.integers(1, 64))
def test_dynamic_rollouts_are_between_one_and_n(h_root: float, h_steps: list[float], n: int) -> None:
    corrected = dynamic_initial_rollouts(h_root, h_steps, n)
    published = dynamic_initial_rollouts(h_root, h_steps, n, rounding="int_plus_one")
    assert 1 <= corrected <= published <= n
    assert published - corrected <= 1
