"""Padded arrays hold every row whole, mark what is padding, and train nothing else."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.credit.trees import bare, end, fork, nested, step, wild

from ramify.core.errors import ExportError
from ramify.core.segment import Segment, token_array
from ramify.core.tree import ROOT
from ramify.rows import Row, padded, rows_of


def two_rows() -> list[Row]:
    growth = bare()
    fork(growth, ROOT, [step("ab"), end("c", 1.0)], [end("d", 0.0)])
    return rows_of(growth.tree, credit="leaf_loo")


@pytest.mark.covers("S0.7")
def test_responses_and_masks_are_padded_on_the_right() -> None:
    arrays = padded(two_rows(), pad_id=0)
    assert arrays.responses.tolist() == [[*b"d", 0, 0, 0], [*b"ab=c"]]
    assert arrays.response_mask.tolist() == [[1, 0, 0, 0], [1, 1, 0, 1]]
    assert arrays.loss_weights.tolist() == [[1, 0, 0, 0], [1, 1, 0, 1]]
    assert arrays.advantages.tolist() == [[-1, 0, 0, 0], [1, 1, 0, 1]]
    assert arrays.attention_mask.tolist() == [[1] * 5 + [0] * 3, [1] * 8]
    assert arrays.position_ids.tolist() == [list(range(8))] * 2
    assert arrays.rewards.tolist() == [0.0, 1.0]
    assert arrays.normaliser.tolist() == [2.0, 2.0]
    assert not arrays.is_padding.any()


def test_prompts_are_padded_on_the_left() -> None:
    arrays = padded(two_rows()[:1], num_prompt=6, num_response=2)
    assert arrays.input_ids.tolist() == [[0, 0, *b"go: ", *b"d", 0]]
    assert arrays.attention_mask.tolist() == [[0, 0, 1, 1, 1, 1, 1, 0]]
    assert arrays.position_ids.tolist() == [[0, 0, 0, 1, 2, 3, 4, 5]]


@pytest.mark.covers("S0.7")
def test_padding_rows_are_marked_and_weigh_nothing() -> None:
    arrays = padded(two_rows(), num_rows=4)
    assert arrays.is_padding.tolist() == [False, False, True, True]
    assert arrays.uids.tolist() == ["p", "p", "", ""]
    assert not arrays.loss_weights[2:].any()
    assert not arrays.response_mask[2:].any()
    assert arrays.attention_mask[2:].sum(axis=1).tolist() == [1, 1]


@given(st.integers(0, 10_000))
def test_padding_loses_nothing(seed: int) -> None:
    rows = rows_of(wild(seed))
    arrays = padded(rows, num_rows=len(rows) + 1)
    width = arrays.input_ids.shape[1] - arrays.responses.shape[1]
    for number, row in enumerate(rows):
        start = width - row.num_prompt
        assert arrays.input_ids[number, start : start + len(row)].tolist() == row.ids.tolist()
        assert arrays.loss_weights[number].sum() == pytest.approx(row.weights.sum())
        assert arrays.response_mask[number].sum() == row.is_sampled.sum()
        assert not arrays.loss_weights[number][arrays.response_mask[number] == 0].any()


def test_old_logprobs_are_those_sampled() -> None:
    arrays = padded(two_rows())
    assert arrays.old_logprobs is not None
    assert arrays.old_logprobs == pytest.approx(np.array([[-0.1, 0, 0, 0], [-0.097, -0.098, 0, -0.099]]))


def test_old_logprobs_that_no_engine_gave_are_not_made_up() -> None:
    growth = bare()
    silent = replace(end("", 0.0), segments=(Segment("sampled", token_array([5])),))
    fork(growth, ROOT, [end("a", 1.0)], [silent])
    assert padded(rows_of(growth.tree)).old_logprobs is None


@pytest.mark.parametrize("limit", [{"num_rows": 1}, {"num_prompt": 3}, {"num_response": 3}])
def test_what_does_not_fit_is_refused_and_not_cut(limit: dict[str, Any]) -> None:
    with pytest.raises(ExportError, match="do not fit"):
        padded(two_rows(), **limit)


def test_rows_of_two_codecs_are_refused() -> None:
    row = rows_of(nested())[0]
    with pytest.raises(ExportError, match="share no ids; export the rows of each apart"):
        padded([row, replace(row, codec="other", codec_sha256="0")])


def test_no_rows_are_empty_arrays() -> None:
    arrays = padded([])
    assert arrays.input_ids.shape == (0, 2)
