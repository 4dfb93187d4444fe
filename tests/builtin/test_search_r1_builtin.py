"""Requirements S1.1 to S1.5 and S3.6 on the built-in model: real searches over made-up worlds, exported to trainers."""

from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
from tests.runner.parts import Listening

from ramify.config.configure import resolve
from ramify.config.run_config import RunConfig
from ramify.engines.builtin import Builtin
from ramify.formats.search_r1 import SINGLE_TURN
from ramify.rows.row import Row
from ramify.rows.sample import Sample
from ramify.rows.search_r1 import batch
from ramify.rows.slime import read, samples, train_data, write
from ramify.runner.library import Rollout, rollout
from ramify.tasks.hops import FORMAT, Hops
from ramify.tasks.hops_world import world
from ramify.testing.clock import run_virtual

NUM_PROBLEMS, NUM_ROLLOUTS = 6, 5


def search_r1(*overrides: str) -> RunConfig:
    flags = {"prompts": NUM_PROBLEMS, "seed": 3, "task.name": "hops"}
    return resolve(preset="search_r1", flags=flags, overrides=overrides).config


@lru_cache
def searched() -> tuple[Rollout, Listening]:
    """One run of the preset, and the engine's requests."""
    engine = Listening(Builtin())
    return run_virtual(rollout(config=search_r1(), engine=engine)), engine


@lru_cache
def rows() -> list[Row]:
    return list(searched()[0].rows())


@pytest.mark.covers("S1.1", engine="builtin")
def test_one_prompt_is_n_trajectories_of_one_completion_a_call() -> None:
    result, engine = searched()
    assert [len(tree.stems()) for tree in result.trees] == [NUM_ROLLOUTS] * NUM_PROBLEMS
    assert len(engine.requests) == result.report.engine_calls
    turns = sum(tree.branch(leaf).num_turns for tree in result.trees for leaf in tree.leaves())
    assert len(engine.answers) == turns


@pytest.mark.covers("S1.1", engine="builtin")
def test_the_legacy_layout_is_one_group_of_n_agent_times_n_and_the_reading_is_stored() -> None:
    config = search_r1("strategy.options.n_agent=2", "strategy.options.n=3")
    assert config.strategy.options["n"] == 6
    assert config.strategy.reading
    result = run_virtual(rollout(config=config))
    assert [len(tree.leaves()) for tree in result.trees] == [6] * NUM_PROBLEMS


@pytest.mark.covers("S1.2", engine="builtin")
def test_the_loop_searches_the_problems_world_and_ends_with_an_answer() -> None:
    result, _ = searched()
    for tree in result.trees:
        passages = set(world(tree.problem.public["world"]).passages)
        for leaf in tree.leaves():
            branch = tree.branch(leaf)
            assert branch.transcript.count("<information>") == len(branch.tool_calls)
            found = [p for call in branch.tool_calls if call.status == "ok" for p in call.result.split(" ; ") if p]
            assert found and set(found) <= passages
            answered = FORMAT.answer(branch.transcript) is not None
            assert answered == (tree.stop(leaf) == "answer")
    assert result.report.stop_words["answer"] >= 0.8 * result.report.leaves


@pytest.mark.covers("S1.2", engine="builtin")
def test_the_last_turn_is_forced() -> None:
    result = run_virtual(rollout(config=search_r1("growth.max_turns=2")))
    for tree in result.trees:
        for leaf in tree.leaves():
            assert tree.branch(leaf).num_turns <= 2
            assert len(tree.branch(leaf).tool_calls) <= 1
    assert result.report.stop_words.get("turn_limit", 0) > 0


@pytest.mark.covers("S1.2", engine="builtin")
def test_without_search_it_is_single_turn() -> None:
    task = Hops(format=SINGLE_TURN, tools=())
    result = run_virtual(rollout(config=search_r1("growth.max_turns=1"), task=task))
    assert {tree.branch(leaf).num_turns for tree in result.trees for leaf in tree.leaves()} == {1}
    assert result.report.tool_calls == 0


@pytest.mark.covers("S1.3", engine="builtin")
def test_no_token_of_an_observation_is_trained_in_any_batch() -> None:
    found = batch(rows())
    num_prompt = found.tensors["prompts"].shape[1]
    for row, mask in zip(rows(), found.tensors["info_mask"][:, num_prompt:], strict=True):
        own = row.is_sampled[row.num_prompt :]
        assert mask[: len(own)].tolist() == own.astype(int).tolist()
        assert not mask[len(own) :].any()
    for sample in samples(rows()):
        assert sample.loss_mask is not None
        assert sum(sample.loss_mask) == int(rows()[0].is_sampled.sum()) or sum(sample.loss_mask) > 0


@pytest.mark.covers("S1.4", engine="builtin")
def test_groups_are_keyed_by_uid_whatever_the_order_of_rows() -> None:
    shuffled = [rows()[i] for i in np.random.default_rng(0).permutation(len(rows()))]
    found = batch(shuffled)
    assert found.columns["uid"] == [row.uid for row in shuffled]
    assert sorted(set(found.columns["uid"])) == sorted(p.uid for p in Hops().problems("heldout", NUM_PROBLEMS, 3))


@pytest.mark.covers("S1.5", engine="builtin")
def test_the_batch_has_search_r1s_tensors_and_every_row_its_problems_columns() -> None:
    found = batch(rows())
    assert set(found.tensors) == {
        "prompts", "responses", "responses_with_info_mask", "input_ids", "attention_mask", "info_mask", "position_ids",
    }  # fmt: skip
    for i, row in enumerate(rows()):
        kept = found.tensors["attention_mask"][i].astype(bool)
        assert found.tensors["input_ids"][i][kept].tolist() == row.ids.tolist()
        assert found.columns["world"][i] == row.public["world"]
        assert found.columns["num_hops"][i] == row.public["num_hops"]


@pytest.mark.covers("S3.6", engine="builtin")
def test_samples_become_slimes_train_data_and_go_through_plain_dicts(tmp_path: Path) -> None:
    made = samples(rows())
    assert [Sample.from_dict(sample.to_dict()) for sample in made] == made
    assert write(rows(), tmp_path / "samples.jsonl") == len(made)
    assert [s.tokens for s in read(tmp_path / "samples.jsonl")] == [s.tokens for s in made]
    data = train_data(made)
    assert {"tokens", "response_lengths", "rewards", "truncated", "sample_indices", "loss_masks"} <= set(data)
    for row, tokens, mask, length in zip(
        rows(), data["tokens"], data["loss_masks"], data["response_lengths"], strict=True
    ):
        assert tokens == row.ids.tolist()
        assert len(mask) == length
        assert sum(mask) == int(row.is_sampled.sum())
    assert data["raw_reward"] == [row.reward for row in rows()]
