"""Samples to and from plain dictionaries, with the invariants of slime."""

import json
from typing import Any

import pytest
from hypothesis import given
from tests.rows.batches import SEEDS, batch_of

from ramify.core.errors import ExportError
from ramify.rows.sample import Sample
from ramify.rows.slime import samples, train_data

ALL_FIELDS: dict[str, Any] = {
    "group_index": 1,
    "index": 4,
    "rollout_id": None,
    "prompt": [{"role": "user", "content": "2 + 2?"}],
    "tokens": [1, 2, 3],
    "multimodal_inputs": None,
    "response": "4",
    "response_length": 2,
    "label": "4",
    "reward": {"right": 1.0},
    "loss_mask": None,
    "weight_versions": ["7"],
    "rollout_log_probs": [-0.5, 0.0],
    "remove_sample": False,
    "teacher_log_probs": None,
    "status": "completed",
    "metadata": {"source_name": "sums"},
    "train_metadata": None,
    "session_id": "s",
    "non_generation_time": 0.25,
    "spec_info": {"spec_verify_ct": 3},
    "somebody": ["put", "this", "there"],
}


@pytest.mark.covers("S3.6")
def test_a_dictionary_comes_back_whole_unknown_keys_included() -> None:
    assert Sample.from_dict(ALL_FIELDS).to_dict() == ALL_FIELDS


@pytest.mark.slow
@pytest.mark.covers("S3.6")
@given(SEEDS)
def test_samples_survive_dictionaries_and_json(seeds: list[int]) -> None:
    for sample in samples(batch_of(seeds)):
        assert Sample.from_dict(json.loads(json.dumps(sample.to_dict()))) == sample


@pytest.mark.parametrize("name", ["check", "to_dict", "Status", "__class__"])
def test_a_key_that_would_hide_a_method_is_refused(name: str) -> None:
    with pytest.raises(ExportError, match=f"a sample has the key '{name}', which is no field"):
        Sample.from_dict({"status": "pending", name: 1})


def test_what_a_dictionary_lacks_is_as_in_a_fresh_sample() -> None:
    assert Sample.from_dict({"status": "pending"}) == Sample()


@pytest.mark.covers("S3.6")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss_mask": [1]}, "loss_mask has length 1, response_length is 2"),
        ({"rollout_log_probs": [0.0] * 3}, "rollout_log_probs has length 3"),
        ({"teacher_log_probs": []}, "teacher_log_probs has length 0"),
        ({"response_length": 4, "rollout_log_probs": None}, "response_length 4 of 3 tokens"),
        ({"response_length": -1, "rollout_log_probs": None}, "response_length -1"),
        ({"status": "done"}, "status 'done'"),
        ({"loss_mask": [1, 0.5]}, r"loss_mask holds \[0.5\]"),
    ],
)
def test_a_sample_that_breaks_an_invariant_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ExportError, match=f"sample 4.*{message}"):
        Sample.from_dict({**ALL_FIELDS, **changes})


@pytest.mark.covers("S3.6")
def test_masks_are_ones_where_none_is_given_and_zeros_where_the_sample_is_removed() -> None:
    assert Sample.from_dict(ALL_FIELDS).mask() == [1, 1]
    assert Sample.from_dict({**ALL_FIELDS, "loss_mask": [0, 1]}).mask() == [0, 1]
    assert Sample.from_dict({**ALL_FIELDS, "loss_mask": [0, 1], "remove_sample": True}).mask() == [0, 0]


@pytest.mark.covers("S3.6")
def test_a_reward_with_parts_needs_the_key_of_one() -> None:
    sample = Sample(reward={"right": 1.0, "short": 0.5})
    assert sample.reward_value("short") == 0.5
    assert Sample(reward=0.25).reward_value() == 0.25
    for wrong in (None, "fast"):
        with pytest.raises(ExportError, match=r"parts \['right', 'short'\]"):
            sample.reward_value(wrong)
    with pytest.raises(ExportError, match=r"it is 0\.25"):
        Sample(reward=0.25).reward_value("right")
    with pytest.raises(ExportError, match="it is None"):
        Sample().reward_value()


def test_a_sample_is_filled_in_and_checked_when_it_is_trained() -> None:
    sample = Sample(index=4)
    sample.tokens, sample.response_length, sample.loss_mask = [1, 2, 3], 2, [1]
    sample.status = Sample.Status.COMPLETED
    sample.reward = 1.0
    with pytest.raises(ExportError, match="sample 4: loss_mask has length 1"):
        train_data([sample])
    sample.loss_mask = [1, 1]
    assert train_data([sample])["truncated"] == [0]


def test_a_status_may_be_a_word_and_attributes_of_anybody_come_along() -> None:
    sample = Sample()
    sample.status = "truncated"  # pyright: ignore[reportAttributeAccessIssue]
    sample.somebody = ["put", "this", "there"]  # pyright: ignore[reportAttributeAccessIssue]
    sample.check()
    assert sample.status is Sample.Status.TRUNCATED
    assert sample.to_dict()["somebody"] == ["put", "this", "there"]
    assert sample.to_dict()["status"] == "truncated"
