"""The batch of verl: what its own estimators make of it, and what carries the tree's credit."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.credit.trees import bare, end, fork, nested, sampled
from tests.rows.batches import SEEDS, batch_of, chains

from ramify.core.errors import ExportError
from ramify.core.segment import Segment, token_array
from ramify.core.tree import ROOT, Step
from ramify.credit import group_advantages
from ramify.rows import rows_of
from ramify.rows.verl import batch, write


def grpo(batch: dict[str, npt.NDArray[Any]]) -> npt.NDArray[np.float64]:
    """verl 0.9.1 `compute_grpo_outcome_advantage` by hand: scores compared by uid, spread over the mask."""
    scores = batch["rm_scores"].sum(axis=1)
    advantages = np.zeros(len(scores))
    for uid in set(batch["uid"]):
        group = batch["uid"] == uid
        mean, deviation = (scores[group].mean(), scores[group].std(ddof=1)) if group.sum() > 1 else (0.0, 1.0)
        advantages[group] = (scores[group] - mean) / (deviation + 1e-6)
    return advantages[:, None] * batch["response_mask"]


@pytest.mark.slow
@pytest.mark.covers("S1.4", "S1.5")
@given(SEEDS, st.randoms())
def test_verls_own_grpo_compares_leaves_of_one_problem(seeds: list[int], random) -> None:
    """Groups of any size, in any order of rows."""
    rows = batch_of(seeds, "per_leaf")
    random.shuffle(rows)
    made = batch(rows, credit_by="trainer").single_dict()
    for row, advantages in zip(rows, grpo(made), strict=True):
        group = [other.reward for other in rows if other.uid == row.uid]
        mode = "as_published" if len(group) == 1 else "corrected"
        expected = group_advantages(np.array(group), "grpo", mode=mode)[group.index(row.reward)]
        response = advantages[: len(row) - row.num_prompt]
        assert response[row.is_sampled[row.num_prompt :]] == pytest.approx(expected, abs=1e-5)
        assert not response[~row.is_sampled[row.num_prompt :]].any()


def test_chains_under_leaf_grpo_carry_what_verl_would_compute() -> None:
    rows = rows_of(chains(1.0, 0.0, 0.25), credit="leaf_grpo")
    by_verl = grpo(batch(rows, credit_by="trainer").single_dict())
    assert batch(rows).tensors["rm_scores"] == pytest.approx(by_verl, abs=1e-5)


def test_a_reward_stands_at_the_last_token_of_the_response() -> None:
    rows = rows_of(chains(1.0, 0.5))
    assert batch(rows, credit_by="trainer").tensors["rm_scores"].tolist() == [[0, 0, 0, 1.0, 0], [0, 0, 0, 0, 0.5]]


@pytest.mark.slow
@given(SEEDS)
def test_masks_and_scores_are_within_attention(seeds: list[int]) -> None:
    tensors = batch(batch_of(seeds)).tensors
    attention = tensors["attention_mask"][:, tensors["prompts"].shape[1] :]
    for name in ("response_mask", "rm_scores", "rollout_log_probs"):
        assert tensors[name].shape == tensors["responses"].shape
        assert not tensors[name][attention == 0].any()
    assert set(np.unique(tensors["response_mask"])) <= {0, 1}


def test_logprobs_are_there_for_all_or_for_none(caplog: pytest.LogCaptureFixture) -> None:
    growth = bare()
    silent = Step((Segment("sampled", token_array([5])),), stop="answer", scores=end("", 0.0).scores)
    fork(growth, ROOT, [end("a", 1.0)], [silent])
    assert "rollout_log_probs" in batch(rows_of(chains(1.0, 0.0))).tensors
    made = batch(rows_of(growth.tree))
    assert "rollout_log_probs" not in made.tensors
    assert caplog.messages == [
        "1 of 2 rows have trained tokens without logprobs: rollout_log_probs is left out for all rows"
    ]
    assert [about["has_logprobs"] for about in made.non_tensors["ramify"]] == [True, False]


def test_stale_and_long_rows_can_be_told() -> None:
    growth = bare()
    segments = (sampled("a", version=3), sampled("b", version=4))
    fork(growth, ROOT, [Step(segments, stop="answer", scores=end("", 1.0).scores)], [end("c", 0.0)])
    made = batch(rows_of(growth.tree))
    assert [about["versions"] for about in made.non_tensors["ramify"]] == [[3, 4], []]
    assert [about["num_tokens"] for about in made.non_tensors["ramify"]] == made.tensors["attention_mask"].sum(
        1
    ).tolist()
    assert made.tensors["versions"].tolist() == [[3, 4], [-1, -1]]


@given(SEEDS)
def test_everything_has_one_value_a_row(seeds: list[int]) -> None:
    rows = batch_of(seeds)
    made = batch(rows).single_dict()
    assert {len(values) for values in made.values()} == {len(rows)}
    assert {made[name].dtype for name in ("uid", "__num_turns__", "ramify")} == {np.dtype(object)}


def test_turns_are_counted_with_prompt_and_observations() -> None:
    assert batch(rows_of(chains(1.0))).non_tensors["__num_turns__"] == [4]


def test_files_hold_numbers_and_what_is_none(tmp_path: Path) -> None:
    rows = rows_of(nested())
    assert write(rows, tmp_path / "batch.npz", pad_id=1) == 5
    expected = batch(rows, pad_id=1)
    with np.load(tmp_path / "batch.npz", allow_pickle=False) as saved:
        assert set(saved) == set(expected.tensors)
        assert all((saved[name] == tensor).all() for name, tensor in expected.tensors.items())
    lines = [json.loads(line) for line in (tmp_path / "batch.jsonl").read_text("utf-8").splitlines()]
    assert [line["ramify"]["leaf"] for line in lines] == [row.leaf for row in rows]


def test_a_name_that_says_no_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"must end in \.npz or \.safetensors"):
        write(rows_of(nested()), tmp_path / "batch.pt")
    assert not list(tmp_path.iterdir())
