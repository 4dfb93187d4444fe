"""What whole batches do to advantages: TreePO's whitening, AEPO's entropy factor."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from tests.credit.trees import bare, end, fork
from tests.rows.batches import SEEDS, batch_of, chains

from ramify.core.errors import ExportError
from ramify.core.tree import ROOT
from ramify.rows import Row, rows_of
from ramify.rows.batch import entropy_scaled, whitened

VECTORS = Path(__file__).parents[1] / "golden" / "vectors" / "rollout_treepo.json"
WHITENED = [
    pytest.param(case["input"]["token_counts"], case["expected"], id=case["id"])
    for case in json.loads(VECTORS.read_text("utf-8"))["cases"]
    if case["function"] == "subgroup_advantage" and case["expected"].get("whitened")
]


def trained(rows: list[Row], attribute: str = "advantages") -> np.ndarray:
    return np.concatenate([getattr(row, attribute)[row.weights > 0] for row in rows])


def with_entropies(*entropies: list[float]) -> list[Row]:
    """A chain for each list, a token for each number, with reward 1, 0, 1, …"""
    growth = bare()
    fork(growth, ROOT, *[[end("x" * len(values), float(i % 2 == 0))] for i, values in enumerate(entropies)])
    rows = rows_of(growth.tree, credit="leaf_loo")
    return [
        replace(row, entropies=np.array([np.nan] * row.num_prompt + values, np.float32))
        for row, values in zip(rows, entropies, strict=True)
    ]


@pytest.mark.parametrize(("token_counts", "expected"), WHITENED)
def test_whitening_is_that_of_treepo(token_counts: list[int], expected: dict[str, list[float]]) -> None:
    growth = bare()
    fork(growth, ROOT, *[[end("x" * number, 0.0)] for number in token_counts])
    rows = [
        replace(row, advantages=np.where(row.is_sampled, value, 0.0))
        for row, value in zip(rows_of(growth.tree), expected["advantage"], strict=True)
    ]
    for row, value in zip(whitened(rows), expected["whitened"], strict=True):
        assert row.advantages[row.is_sampled] == pytest.approx(value, abs=1e-9)


@pytest.mark.slow
@given(SEEDS)
def test_whitened_advantages_have_mean_0_and_variance_1(seeds: list[int]) -> None:
    rows = batch_of(seeds)
    assume(len(rows) > 1 and np.ptp(trained(rows)) > 0.01)
    made = whitened(rows)
    assert trained(made).mean() == pytest.approx(0, abs=1e-9)
    assert trained(made).var(ddof=1) == pytest.approx(1, abs=1e-3)
    for row in made:
        assert not row.advantages[~row.is_sampled].any()
        assert not row.is_unbiased


def test_equal_advantages_are_whitened_to_0() -> None:
    assert not trained(whitened(rows_of(chains(1.0, 1.0, 1.0)))).any()


def test_a_batch_of_one_token_has_no_variance() -> None:
    growth = bare()
    fork(growth, ROOT, [end("a", 1.0)])
    with pytest.raises(ExportError, match="its statistics need more than 1"):
        whitened(rows_of(growth.tree))


def test_uncertain_tokens_are_trained_more() -> None:
    """Entropies 1, 2, 3, 6: mean 3, sample deviation sqrt(14 / 3)."""
    rows = with_entropies([1.0, 2.0], [3.0, 6.0])
    factors = 1 + 0.2 * (np.array([1, 2, 3, 6]) - 3) / np.sqrt(14 / 3)
    assert trained(entropy_scaled(rows)) == pytest.approx(np.array([1, 1, -1, -1]) * factors)


def test_equal_entropies_change_nothing() -> None:
    rows = with_entropies([0.5, 0.5], [0.5])
    assert trained(entropy_scaled(rows)).tolist() == [1.0, 1.0, -1.0]


def test_tokens_without_an_entropy_are_refused() -> None:
    with pytest.raises(ExportError, match="reads the measure 'entropy'"):
        entropy_scaled(rows_of(chains(1.0, 0.0)))
