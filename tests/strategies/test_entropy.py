"""Measures of uncertainty, beyond the golden numbers."""

import math

import numpy as np
import pytest
from tests.strategies.world import bare_tree

from ramify.core.errors import ContractError
from ramify.strategies.parts.entropy import (
    mean_surprisal,
    renormalised_topk_entropy,
    step_entropy,
    step_entropy_topk,
    surprisal,
)

UNIFORM_10 = np.full(10, math.log(0.1))


@pytest.mark.covers("S0.4")
def test_only_the_first_twenty_tokens_count() -> None:
    assert step_entropy_topk([UNIFORM_10] * 25, 151_665) == step_entropy_topk([UNIFORM_10] * 20, 151_665)
    assert step_entropy_topk([UNIFORM_10] * 20, 151_665) == pytest.approx(20 * math.log(10) / math.log(151_665))


def test_the_mean_does_not_depend_on_the_length() -> None:
    short, long = (step_entropy_topk([UNIFORM_10] * n, 100, reduce="mean") for n in (2, 20))
    assert short == pytest.approx(long)


def test_what_was_not_returned_is_not_zero() -> None:
    assert step_entropy_topk(None, 100) is None
    assert mean_surprisal(None) is None
    assert mean_surprisal([]) is None
    assert renormalised_topk_entropy([]) is None


def test_an_entry_of_probability_zero_adds_nothing() -> None:
    assert step_entropy_topk([[0.0, -np.inf]], 100) == 0.0


def test_surprisal_is_minus_the_logprob() -> None:
    assert surprisal(-1.5) == 1.5


def test_a_strategy_that_needs_the_measure_says_so() -> None:
    with pytest.raises(ContractError, match="node 0 has no measure 'step_entropy_topk'"):
        step_entropy(bare_tree(), 0)
