"""The batch of Search-R1: its formulas where they are right, what the tokens are where they are not."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from safetensors.numpy import load_file
from tests.credit.trees import bare, end, fork, step
from tests.rows.batches import SEEDS, batch_of, chains

from ramify.core.segment import Segment, ToolCall, token_array
from ramify.core.tree import ROOT, Step
from ramify.rows import rows_of, search_r1

NEVER = 0
"""No token of these trees has this id."""


@pytest.mark.covers("S1.5")
def test_a_batch_has_the_names_and_shapes_of_the_loop() -> None:
    rows = rows_of(chains(1.0, 0.0))
    tensors = search_r1.batch(rows, pad_id=NEVER).tensors
    assert tensors["prompts"].tolist() == [[*b"go: "]] * 2
    assert tensors["responses"].tolist() == [[*b"ab=c", 0], [*b"ab=cc"]]
    assert tensors["responses_with_info_mask"].tolist() == [[*b"ab\0c", 0], [*b"ab\0cc"]]
    assert tensors["info_mask"].tolist() == [[1, 1, 1, 1, 1, 1, 0, 1, 0], [1, 1, 1, 1, 1, 1, 0, 1, 1]]
    assert tensors["attention_mask"].tolist() == [[1] * 8 + [0], [1] * 9]
    assert tensors["position_ids"].tolist() == [[*range(8), 0], [*range(9)]]
    assert (tensors["input_ids"] == np.hstack([tensors["prompts"], tensors["responses"]])).all()
    assert {tensor.dtype for tensor in tensors.values()} == {np.dtype(np.int64)}


@pytest.mark.slow
@given(SEEDS)
def test_the_published_formulas_hold_where_nobody_sampled_the_pad_id(seeds: list[int]) -> None:
    """Source: `_compose_final_output` and `create_position_ids`."""
    rows = batch_of(seeds, "per_leaf")
    rows += [replace(row, uid="short", ids=row.ids[2:], spans=(replace(row.spans[0], num_tokens=2), *row.spans[1:]),
                     weights=row.weights[2:], advantages=row.advantages[2:], logprobs=row.logprobs[2:])
             for row in rows_of(chains(1.0))]  # fmt: skip
    tensors = search_r1.batch(rows, pad_id=NEVER).tensors
    left = tensors["prompts"] != NEVER
    assert (tensors["attention_mask"] == np.hstack([left, tensors["responses"] != NEVER])).all()
    assert (tensors["info_mask"] == np.hstack([left, tensors["responses_with_info_mask"] != NEVER])).all()
    attention = tensors["attention_mask"]
    assert (tensors["position_ids"] == (np.cumsum(attention, axis=1) - 1) * attention).all()
    for row, shown, whole in zip(rows, tensors["responses_with_info_mask"], tensors["responses"], strict=True):
        is_sampled = np.pad(row.is_sampled[row.num_prompt :], (0, len(whole) - len(row) + row.num_prompt))
        assert (shown == np.where(is_sampled, whole, NEVER)).all()


@pytest.mark.covers("S1.3")
def test_a_sampled_pad_id_is_attended_and_trained_and_an_observed_one_is_not_trained() -> None:
    growth = bare()
    fork(growth, ROOT, [step("a="), end("b", 1.0)])
    tensors = search_r1.batch(rows_of(growth.tree), pad_id=ord("=")).tensors
    assert tensors["responses"].tolist() == [[*b"a==b"]]
    assert tensors["info_mask"].tolist() == [[1, 1, 1, 1, 1, 1, 0, 1]]
    assert tensors["attention_mask"].tolist() == [[1] * 8]
    assert tensors["position_ids"].tolist() == [[*range(8)]]


def test_actions_are_counted_as_the_loop_counts_them() -> None:
    refused = replace(step("x").segments[1], tool_call=ToolCall("", "", status="invalid"))
    invalid = Step((step("x").segments[0], refused))
    forced = Step((step("y").segments[0], Segment("given", token_array([*b" so "]))))
    growth = bare()
    fork(growth, ROOT, [step("a"), invalid, end("b", 1.0)], [forced, end("c", 0.0, "turn_limit")])
    rows = sorted(rows_of(growth.tree), key=lambda row: -row.reward)
    assert search_r1.batch(rows).meta_info == {
        "turns_stats": [3, 2],
        "active_mask": [False, True],
        "valid_action_stats": [2, 0],
        "valid_search_stats": [1, 0],
    }


def test_a_file_holds_tensors_and_meta_info_and_the_columns_lie_beside_it(tmp_path: Path) -> None:
    rows = rows_of(chains(1.0, 0.0))
    assert search_r1.write(rows, tmp_path / "batch.safetensors", pad_id=NEVER) == 2
    whole = search_r1.batch(rows, pad_id=NEVER)
    saved = load_file(tmp_path / "batch.safetensors")
    assert {name for name in saved if not name.startswith("meta_info.")} == set(whole.tensors)
    assert all((saved[name] == tensor).all() for name, tensor in whole.tensors.items())
    assert saved["meta_info.turns_stats"].tolist() == [2, 2]
    lines = (tmp_path / "batch.jsonl").read_bytes().splitlines()
    assert [line.startswith(b'{"uid":"p"') for line in lines] == [True, True]
