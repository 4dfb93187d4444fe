"""Rows as slime's samples, and samples as the training data of its default converter."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.credit.trees import CODEC, bare, end, fork, nested, sampled, step
from tests.rows.batches import SEEDS, batch_of, chains

from ramify.core.errors import ConfigError, ExportError
from ramify.core.segment import Segment, token_array
from ramify.core.tree import ROOT, Step
from ramify.credit import group_advantages
from ramify.rows import rows_of
from ramify.rows.sample import Sample
from ramify.rows.sft import examples
from ramify.rows.slime import (
    even_sums,
    normalised,
    read,
    samples,
    sft_samples,
    train_data,
    was_ended_by_coin,
    write,
    write_train_data,
)
from ramify.service import debug_files
from ramify.service.samples import rewards_differ


@pytest.mark.covers("S3.6")
def test_a_row_becomes_a_sample() -> None:
    growth = bare(public={"data_source": "sums", "level": 2})
    fork(growth, ROOT, [step("ab"), end("c", 0.5, "length")])
    (sample,) = samples(rows_of(growth.tree, credit="leaf_loo"), codec=CODEC)
    assert (sample.prompt, sample.response) == ("go: ", "ab=c")
    assert (list(sample.tokens), sample.response_length) == ([*b"go: ab=c"], 4)
    assert sample.loss_mask == [1, 1, 0, 1]
    assert sample.rollout_log_probs == [-0.097, -0.098, 0.0, -0.099]
    assert (sample.status, sample.reward) == ("truncated", 0.5)
    assert (sample.index, sample.group_index, sample.rollout_id) == (0, 0, 0)
    assert sample.metadata["source_name"] == "sums"
    assert (sample.metadata["level"], sample.metadata["round_number"]) == (2, 2)
    assert sample.metadata["ramify"]["uid"] == "p"
    assert sample.train_metadata == {"advantages": [0.0, 0.0, 0.0, 0.0]}


@pytest.mark.covers("S3.6")
@given(SEEDS)
def test_everything_from_the_first_sampled_token_on_is_response(seeds: list[int]) -> None:
    rows = batch_of(seeds)
    for row, sample in zip(rows, samples(rows), strict=True):
        start = len(sample.tokens) - sample.response_length
        assert sample.loss_mask is not None and sample.rollout_log_probs is not None
        assert len(sample.loss_mask) == len(sample.rollout_log_probs) == sample.response_length <= len(sample.tokens)
        assert row.is_sampled[start] and not row.is_sampled[:start].any()
        assert np.array(sample.rollout_log_probs)[~row.is_sampled[start:]].tolist() == [0.0] * int(
            (~row.is_sampled[start:]).sum()
        )
        assert sample.status == ("truncated" if row.is_truncated else "completed")


def test_what_a_coin_ended_has_a_reward_of_0_in_whatever_form_the_others_have() -> None:
    growth = bare()
    fork(growth, ROOT, [end("a", 1.0)], [end("b", None, "roulette")])
    rows = rows_of(growth.tree)
    assert all(row.is_unbiased for row in rows)
    assert [sample.reward for sample in samples(rows)] == [1.0, 0.0]
    keyed = samples(rows, reward_key="part")
    assert [sample.reward for sample in keyed] == [{"part": 1.0}, {"part": 0.0}]
    assert [was_ended_by_coin(sample) for sample in keyed] == [False, True]
    assert not rewards_differ(keyed, "part")


def test_given_tokens_before_the_first_sampled_one_are_prompt() -> None:
    growth = bare()
    fork(growth, ROOT, [Step((Segment("given", token_array([1, 2])), sampled("a")), stop="answer",
                             scores=end("", 1.0).scores)])  # fmt: skip
    (sample,) = samples(rows_of(growth.tree))
    assert (sample.response_length, sample.loss_mask) == (1, [1])


def test_leaves_are_rollouts_of_their_own_or_a_tree_is_one() -> None:
    rows = [*rows_of(nested()), *(replace(row, uid="q") for row in rows_of(chains(1.0, 0.0)))]
    assert [s.rollout_id for s in samples(rows)] == list(range(7))
    assert [s.rollout_id for s in samples(rows, rollouts="tree")] == [0] * 5 + [1] * 2
    data = train_data(samples(rows, rollouts="tree"))
    assert data["rollout_mask_sums"] == [11] * 5 + [7] * 2
    assert train_data(samples(rows))["rollout_mask_sums"] == [sum(mask) for mask in data["loss_masks"]]


def test_a_file_of_training_data_weighs_every_token_alike(tmp_path: Path) -> None:
    rows = rows_of(nested())
    num_tokens = sum(int((row.weights > 0).sum()) for row in rows)

    def sums(**options: Any) -> list[float]:
        write_train_data(rows, tmp_path / "data.jsonl", force=True, **options)
        return [
            json.loads(line)["rollout_mask_sums"] for line in (tmp_path / "data.jsonl").read_text("utf-8").splitlines()
        ]

    own = [int((row.weights > 0).sum()) for row in rows]
    assert len(set(own)) > 1
    assert sums() == [num_tokens / len(rows)] * len(rows)
    assert sums(rollouts="tree") == [num_tokens] * len(rows)
    assert sums(mean="rollouts") == sums(credit_by="trainer") == own


def test_versions_are_listed_as_they_change() -> None:
    growth = bare()
    segments = (sampled("a", version=3), sampled("b", version=3), sampled("c", version=4))
    fork(growth, ROOT, [Step(segments, stop="answer", scores=end("", 1.0).scores)])
    assert samples(rows_of(growth.tree))[0].weight_versions == ["3", "4"]


def test_a_part_of_the_reward_is_trained_by_its_key() -> None:
    rows = rows_of(chains(1.0, 0.25))
    made = samples(rows, reward_key="part", credit_by="trainer")
    assert [s.reward for s in made] == [{"part": 1.0}, {"part": 0.25}]
    assert train_data(made, reward_key="part")["rewards"] == [1.0, 0.25]
    with pytest.raises(ExportError, match=r"no part 'style'; it has \['part'\]"):
        samples(rows, reward_key="style")


@pytest.mark.covers("S3.6")
def test_training_data_has_the_keys_of_the_default_converter() -> None:
    batch = [
        Sample(index=0, tokens=[1, 2, 3], response_length=2, reward=1.0, status="completed",
               metadata={"source_name": "a", "raw_reward": 9.0}),
        Sample(index=1, rollout_id=0, tokens=[1, 4], response_length=1, reward=0.0, status="truncated"),
        Sample(index=2, tokens=[5, 6], response_length=1, reward=0.5, loss_mask=[1], remove_sample=True),
    ]  # fmt: skip
    assert train_data(batch) == {
        "tokens": [[1, 2, 3], [1, 4], [5, 6]],
        "response_lengths": [2, 1, 1],
        "rewards": [1.0, 0.0, 0.5],
        "raw_reward": [9.0, 0.0, 0.5],
        "truncated": [0, 1, 0],
        "sample_indices": [0, 1, 2],
        "rollout_ids": [1, 0, 2],
        "loss_masks": [[1, 1], [1], [0]],
        "rollout_mask_sums": [2, 1, 0],
        "source_names": ["a", "unknown", "unknown"],
    }


def test_a_key_that_only_some_samples_have_is_refused() -> None:
    with_logprobs = Sample(index=0, tokens=[1], response_length=1, reward=1.0, rollout_log_probs=[-1.0])
    without = Sample(index=1, tokens=[1], response_length=1, reward=1.0)
    assert train_data([with_logprobs])["rollout_log_probs"] == [[-1.0]]
    with pytest.raises(ExportError, match=r"rollout_log_probs: samples \[1\] lack"):
        train_data([with_logprobs, without])


@pytest.mark.slow
@given(SEEDS)
def test_advantages_a_token_travel_in_rewards_and_raw_rewards_stay_numbers(seeds: list[int]) -> None:
    rows = batch_of(seeds)
    data = train_data(samples(rows))
    assert data["raw_reward"] == [row.reward for row in rows]
    for advantages, length in zip(data["rewards"], data["response_lengths"], strict=True):
        assert len(advantages) == length
    assert train_data(samples(rows, credit_by="trainer"))["rewards"] == [row.reward for row in rows]


@pytest.mark.slow
@pytest.mark.covers("S1.4")
@given(SEEDS, st.randoms())
def test_rewards_are_normalised_in_their_groups_however_many_leaves_each_has(seeds: list[int], random) -> None:
    rows = batch_of(seeds)
    random.shuffle(rows)
    raw, advantages = normalised(samples(rows))
    assert raw == [row.reward for row in rows]
    for row, advantage in zip(rows, advantages, strict=True):
        group = [other.reward for other in rows if other.uid == row.uid]
        assert advantage == pytest.approx(group_advantages(np.array(group), "grpo")[group.index(row.reward)])


def test_a_sample_of_no_group_is_not_normalised() -> None:
    with pytest.raises(ExportError, match=r"samples \[3\] have no group_index"):
        normalised([Sample(index=3, reward=1.0)])


@pytest.mark.covers("S3.9")
def test_written_samples_take_the_same_way() -> None:
    growth = bare()
    written = Segment("written", token_array(CODEC.encode("ab")))
    more = Segment("written", token_array(CODEC.encode("c")))
    fork(growth, ROOT, [Step((written, step("").segments[1])), Step((more,), stop="answer")])
    data = train_data(sft_samples(examples(growth.tree)))
    assert data["tokens"] == [[*b"go: ab=c"]]
    assert data["response_lengths"] == [4]
    assert data["loss_masks"] == [[1, 1, 0, 1]]
    assert (data["rewards"], data["truncated"]) == ([0.0], [0])


@pytest.mark.covers("S3.6")
def test_files_hold_a_sample_or_a_samples_share_a_line(tmp_path: Path) -> None:
    rows = batch_of([1, 2, 3])
    assert write(rows, tmp_path / "samples.jsonl") == len(rows)
    assert read(tmp_path / "samples.jsonl") == samples(rows)
    assert write_train_data(rows, tmp_path / "train.jsonl") == len(rows)
    (tmp_path / "other.jsonl").write_text('{"status": "done"}\n[1]\n', "utf-8")
    with pytest.raises(ExportError, match=r"other\.jsonl:1: this is no sample: .*status 'done'"):
        read(tmp_path / "other.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "train.jsonl").read_text("utf-8").splitlines()]
    data = train_data(samples(rows))
    data["rollout_mask_sums"] = even_sums(data)
    assert {name: [line[name] for line in lines] for name in data} == data


def test_a_file_of_torch_is_refused_without_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ConfigError, match=r"rows\.pt is a file of torch\.save, which needs torch: pip install"):
        write(rows_of(chains(1.0, 0.0), credit="leaf_loo"), tmp_path / "rows.pt")
    assert not list(tmp_path.iterdir())


@pytest.mark.hf
def test_a_file_of_torch_is_a_debug_file_of_slime(tmp_path: Path) -> None:
    rows = list(rows_of(chains(1.0, 0.0), credit="leaf_loo"))
    assert write(rows, tmp_path / "rows.pt") == len(rows)
    assert debug_files.load(tmp_path / "rows.pt") == samples(rows)
