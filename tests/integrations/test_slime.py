"""Functions that slime loads by path, with our own samples and a data source of slime's protocol. That they fit slime's
own code is proved by `bench/slime_contracts.py`."""

import asyncio
import threading
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.credit.trees import nested
from tests.engines.token_servers import FakeSglang, serving
from tests.rows.batches import batch_of, chains
from tests.service import trainer
from tests.service.trainer import TREES, Source, arguments, flat

from ramify.core.errors import ConfigError, ContractError, ExportError
from ramify.engines.builtin import FOLDER
from ramify.integrations.background_loop import background_loop, run_in_background
from ramify.integrations.evaluation import EvalSampling, evaluation_config
from ramify.integrations.prompts import question_of
from ramify.integrations.slime import (
    advantages,
    convert_samples_to_train_data,
    generate_rollout,
    post_process_rewards,
)
from ramify.integrations.slime.args import SlimeArgs, loaded
from ramify.integrations.slime.batch import GroupsFailed, drawn_batch
from ramify.integrations.slime.config import training_config
from ramify.integrations.slime.metrics import batch_metrics
from ramify.integrations.slime.runs import close_runs
from ramify.rows import rows_of
from ramify.rows.sample import Sample, SampleStatus
from ramify.rows.slime import samples, train_data
from ramify.runner.scheduler import TooManyFailures

HERE = "tests.service.trainer"


# -- batches -----------------------------------------------------------------------------------------------------------


@pytest.mark.covers("S3.4")
def test_a_batch_is_groups_of_the_sources_own_samples_filled(tmp_path: Path) -> None:
    source = Source(metadata={"level": 2})
    groups = generate_rollout(arguments(tmp_path), 7, source)
    assert groups == source.drawn and [len(group) for group in groups] == [4, 4]
    for place, sample in enumerate(flat(groups)):
        sample.check()
        assert any(sample is given for given in flat(source.drawn))
        assert (sample.index, sample.group_index, sample.label) == (place, place // 4, "3")
        assert sample.prompt == trainer.question(place // 4)
        assert sample.status in (SampleStatus.COMPLETED, SampleStatus.TRUNCATED)
        assert sample.response_length == len(sample.loss_mask) == len(sample.rollout_log_probs) < len(sample.tokens)
        assert sum(sample.loss_mask) > 0 and isinstance(sample.reward, float)
        assert len(sample.train_metadata["advantages"]) == sample.response_length
        assert sample.metadata["level"] == 2 and sample.metadata["round_number"] >= 1
        assert sample.metadata["ramify"]["uid"] == f"group-{place // 4}@7"
    assert not source.buffer


def test_of_more_leaves_than_samples_as_many_are_drawn_as_there_are_samples(tmp_path: Path) -> None:
    groups = generate_rollout(arguments(tmp_path), 0, Source())
    for group in groups:
        assert len({sample.metadata["ramify"]["leaf"] for sample in group}) == 4
        assert {sample.metadata["ramify"]["normaliser"] for sample in group} == {4.0}


@pytest.mark.covers("S3.8")
def test_groups_whose_trees_have_too_few_leaves_go_back_as_they_came(tmp_path: Path) -> None:
    source = Source(n=8)
    with pytest.raises(GroupsFailed, match=r"5 groups failed; .* has 5 leaves .* 8 rows are wanted; set rows.min_leav"):
        generate_rollout(arguments(tmp_path, n_samples_per_prompt=8), 0, source)
    assert source.drawn and sorted(map(id, flat(source.buffer))) == sorted(map(id, flat(source.drawn)))
    assert all(s.status == SampleStatus.PENDING and not s.tokens for s in flat(source.buffer))


def test_topped_up_trees_have_as_many_rows_as_there_are_samples(tmp_path: Path) -> None:
    args = arguments(tmp_path, TREES + "[rows]\nmin_leaves = 8\n", n_samples_per_prompt=8)
    groups = generate_rollout(args, 0, Source(n=8))
    assert [len(group) for group in groups] == [8, 8]
    assert not any(sample.metadata["ramify"]["is_unbiased"] for sample in flat(groups))


@pytest.mark.covers("S3.8")
def test_the_surplus_goes_back_and_is_drawn_first(tmp_path: Path) -> None:
    args, source = arguments(tmp_path, over_sampling_batch_size=5), Source()
    kept = {group[0].group_index for group in generate_rollout(args, 0, source)}
    left = [group[0].group_index for group in source.buffer]
    assert len(kept) == 2 and sorted(kept | set(left)) == [0, 1, 2, 3, 4] and left == sorted(left)
    assert all(sample.tokens == [] for sample in flat(source.buffer))
    generate_rollout(args, 1, source)
    assert [group[0].group_index for group in source.drawn[5:]] == [*left, 5, 6]


def test_batches_are_in_the_order_of_their_samples(tmp_path: Path) -> None:
    args = arguments(tmp_path, rollout_batch_size=6)
    assert [sample.index for sample in flat(generate_rollout(args, 0, Source()))] == list(range(24))


def test_the_same_rollout_grows_the_same_trees_and_the_next_one_others(tmp_path: Path) -> None:
    one, again, other = (
        [s.tokens for s in flat(generate_rollout(arguments(tmp_path), number, Source()))] for number in (4, 4, 5)
    )
    assert one == again != other


def test_leaves_are_rollouts_of_their_own_or_a_tree_is_one(tmp_path: Path) -> None:
    leaves = flat(generate_rollout(arguments(tmp_path), 0, Source()))
    assert [sample.rollout_id for sample in leaves] == list(range(8))
    trees = flat(generate_rollout(arguments(tmp_path, ramify_rollouts="tree"), 0, Source()))
    assert [sample.rollout_id for sample in trees] == [0] * 4 + [4] * 4


class Bare:
    """A source as slime's contract tests have it: groups of two, without numbers, labels or a way back."""

    def get_samples(self, num_samples: int) -> list[list[Sample]]:
        return [[Sample(index=2 * n + k, prompt=trainer.question(n)) for k in range(2)] for n in range(num_samples)]


@pytest.mark.covers("S3.4")
def test_without_arguments_the_toml_says_how_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments(tmp_path, "prompts = 3\n" + TREES)
    monkeypatch.setenv("RAMIFY_CONFIG", str(tmp_path / "run.toml"))
    groups = generate_rollout(None, 2, Bare())
    assert [len(group) for group in groups] == [2, 2, 2]
    assert groups[1][0].metadata["ramify"]["uid"] == "sample-2@2"
    (name, found), *others = generate_rollout(None, 2, Bare(), evaluation=True).items()
    assert (name, others) == ("data_source", [])
    assert len(found["rewards"]) == len(found["truncated"]) == len(found["samples"]) == 6
    assert all(sample.reward is not None for sample in found["samples"])
    monkeypatch.delenv("RAMIFY_CONFIG")
    with pytest.raises(ConfigError, match="no TOML says how trees grow"):
        generate_rollout(None, 2, Bare())


def test_a_tree_as_one_rollout_needs_a_number(tmp_path: Path) -> None:
    class Numberless(Bare):
        def get_samples(self, num_samples: int) -> list[list[Sample]]:
            return [[Sample(prompt=s.prompt) for s in group] for group in super().get_samples(num_samples)]

    args = arguments(tmp_path, n_samples_per_prompt=2)
    groups = generate_rollout(args, 0, Numberless())
    assert [s.metadata["ramify"]["uid"] for s in flat(groups)] == ["draw-0@0"] * 2 + ["draw-1@0"] * 2
    assert [s.rollout_id for s in flat(groups)] == [None] * 4
    args.ramify_rollouts = "tree"
    with pytest.raises(ConfigError, match="needs samples with an index"):
        generate_rollout(args, 0, Numberless())


@pytest.mark.parametrize("sizes", [(4, 3), (5, 5), (0, 0)])
def test_groups_of_other_sizes_are_refused(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    class Uneven(Source):
        def get_samples(self, num_samples: int) -> list[list[Any]]:
            return [Source(n).get_samples(1)[0] for n in sizes]

    with pytest.raises(ConfigError, match=r"groups of \["):
        generate_rollout(arguments(tmp_path), 0, Uneven())


def test_a_source_that_runs_out_gets_back_what_it_gave(tmp_path: Path) -> None:
    source = Source(num_left=1)
    with pytest.raises(ConfigError, match=r"gave no more groups; the batch has \d of 2"):
        generate_rollout(arguments(tmp_path), 0, source)
    assert source.buffer == source.drawn


def test_a_source_that_only_reads_loses_the_surplus(tmp_path: Path) -> None:
    class ReadOnly(Source):
        def add_samples(self, samples: list[list[Any]]) -> None:
            raise RuntimeError("this is a read-only data source")

    args = arguments(tmp_path, over_sampling_batch_size=5)
    batch, num_lost = run_in_background(drawn_batch(args, 0, ReadOnly()))
    assert (len(batch.kept), num_lost) == (2, 3)
    assert batch_metrics(batch, num_lost=num_lost)["rollout/ramify/lost_groups"] == 3.0


def test_a_batch_says_what_it_came_to(tmp_path: Path) -> None:
    args = arguments(tmp_path, dynamic_sampling_filter_path=f"{HERE}.by_spread", custom_rm_path=f"{HERE}.by_group")
    batch, num_lost = run_in_background(drawn_batch(args, 0, Source()))
    metrics = batch_metrics(batch, num_lost=num_lost)
    assert metrics["rollout/dynamic_filter/drop_zero_std"] == len(batch.dropped) >= 1
    told = {name.removeprefix("rollout/ramify/"): value for name, value in metrics.items()}
    assert told["trees"] == len(batch.kept) + len(batch.dropped)
    assert (told["leaves_a_tree"], told["failed_groups"], told["lost_groups"]) == (5.0, 0.0, 0.0)
    assert 0 < told["trained_tokens"] < told["row_tokens"]
    assert all(isinstance(value, float) for value in metrics.values())


def test_engines_that_fail_too_often_end_the_batch_and_nothing_is_lost(tmp_path: Path) -> None:
    toml = TREES.replace('"scripted"', '"tests.service.trainer:Flaky"')
    source = Source()
    with pytest.raises((TooManyFailures, GroupsFailed)):
        generate_rollout(arguments(tmp_path, toml, rollout_batch_size=8), 0, source)
    assert sorted(map(id, flat(source.buffer))) == sorted(map(id, flat(source.drawn)))


# -- rewards -----------------------------------------------------------------------------------------------------------


def test_leaves_are_rewarded_before_their_tree_is_credited(tmp_path: Path) -> None:
    args = arguments(tmp_path, custom_rm_path=f"{HERE}.parts", reward_key="score")
    for sample in flat(generate_rollout(args, 0, Source())):
        assert sample.reward == {"score": sample.reward["score"], "said": sample.response[:5], "gold": "3"}
        assert sample.metadata["ramify"]["reward"] == sample.reward["score"]
        assert sample.metadata["ramify"]["parts"] == {"score": sample.reward["score"]}
        assert sample.metadata["ramify"]["is_oracle"]


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("raising", "the reward server is away"),
        ("nan", "returned nan; it must return a finite number"),
        ("parts", "reward_key = None"),
    ],
)
def test_a_reward_function_that_fails_is_no_reward_of_0(tmp_path: Path, name: str, fault: str) -> None:
    source = Source()
    with pytest.raises(GroupsFailed, match=fault):
        generate_rollout(arguments(tmp_path, custom_rm_path=f"{HERE}.{name}"), 0, source)
    assert sorted(map(id, flat(source.buffer))) == sorted(map(id, flat(source.drawn)))


def test_a_leaf_without_a_reward_is_left_out_where_others_are_enough(tmp_path: Path) -> None:
    args = arguments(tmp_path, custom_rm_path=f"{HERE}.raising_at_times", rollout_batch_size=12)
    batch = flat(generate_rollout(args, 0, Source()))
    assert len(batch) == 48 and all(sum(sample.tokens) % 13 for sample in batch)
    assert any("no judge gave a reward" in " ".join(sample.metadata["ramify"]["reasons"]) for sample in batch)


def test_rewards_of_slimes_own_kinds_need_slime(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"rm_type = 'math' needs slime"):
        generate_rollout(arguments(tmp_path, rm_type="math"), 0, Source())


def test_the_tomls_task_may_be_judged_by_its_answers(tmp_path: Path) -> None:
    toml = '[engine]\nname = "scripted"\n'
    batch = flat(generate_rollout(arguments(tmp_path, toml), 0, Source()))
    assert len(batch) == 8 and all(sample.metadata["ramify"]["is_unbiased"] for sample in batch)
    assert all(sample.metadata["ramify"]["is_oracle"] and sample.reward in (0.0, 1.0) for sample in batch)
    with pytest.raises(GroupsFailed, match="has no secret 'answer'"):
        generate_rollout(arguments(tmp_path, toml), 0, Source(label=None))


# -- filters -----------------------------------------------------------------------------------------------------------


@pytest.mark.covers("S3.8")
def test_groups_of_equal_rewards_are_dropped_and_others_drawn(tmp_path: Path) -> None:
    args = arguments(tmp_path, dynamic_sampling_filter_path=f"{HERE}.by_spread", custom_rm_path=f"{HERE}.by_group")
    source = Source()
    groups = generate_rollout(args, 0, source)
    assert [len({sample.reward for sample in group}) for group in groups] == [2, 2]
    assert all(group[0].group_index % 2 for group in groups) and len(source.drawn) >= 4


def test_a_filter_may_keep_what_it_would_drop_where_there_are_too_few(tmp_path: Path) -> None:
    path = f"{HERE}.if_there_are_enough"
    source = Source()
    generate_rollout(arguments(tmp_path, dynamic_sampling_filter_path=path), 0, source)
    assert len(source.drawn) == 2
    generate_rollout(arguments(tmp_path, dynamic_sampling_filter_path=path, over_sampling_batch_size=5), 0, source)
    assert len(source.drawn) == 7


def test_a_filter_that_drops_everything_ends_with_the_data(tmp_path: Path) -> None:
    source = Source(num_left=4)
    with pytest.raises(ConfigError, match="gave no more groups; the batch has 0 of 2"):
        generate_rollout(arguments(tmp_path, dynamic_sampling_filter_path=f"{HERE}.never"), 0, source)
    assert len(source.buffer) < 2 and len(source.drawn) == 4


def test_batches_pass_through_the_functions_behind(tmp_path: Path) -> None:
    named = {"rollout_sample_filter_path": "first_only", "rollout_all_samples_process_path": "counted"}
    paths = {name: f"{HERE}.{function}" for name, function in named.items()}
    args = arguments(tmp_path, dynamic_sampling_filter_path=f"{HERE}.by_spread", **paths)
    batch = flat(generate_rollout(args, 0, Source()))
    assert [sample.remove_sample for sample in batch] == [False] + [True] * 7
    assert args.num_processed >= 2
    data = convert_samples_to_train_data(args, batch)
    assert [sum(mask) > 0 for mask in data["loss_masks"]] == [True] + [False] * 7


@pytest.mark.parametrize(
    ("path", "fault"),
    [
        ("never", "'never': name package.module.function"),
        ("no.such.module", "cannot be imported"),
        (f"{HERE}.nothing", "has no 'nothing'"),
        (f"{HERE}.TREES", "not a function"),
    ],
)
def test_a_path_that_names_no_function_is_refused(path: str, fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        loaded(path)


# -- the loop ----------------------------------------------------------------------------------------------------------


@pytest.mark.covers("S3.10")
def test_every_call_runs_on_the_same_loop_behind_the_caller(tmp_path: Path) -> None:
    trainer.LOOPS.clear()
    args = arguments(tmp_path, custom_rm_path=f"{HERE}.noting")
    for number in range(2):
        generate_rollout(args, number, Source())
    assert set(trainer.LOOPS) == {background_loop()} and len(trainer.LOOPS) == 20
    assert all(thread.daemon for thread in threading.enumerate() if thread.name == "ramify background loop")


def test_a_rollout_function_may_be_called_from_a_coroutine_of_another_loop_only(tmp_path: Path) -> None:
    async def calling() -> object:
        return generate_rollout(arguments(tmp_path), 0, Source())

    assert len(asyncio.run(calling())) == 2  # pyright: ignore[reportArgumentType]
    with pytest.raises(ContractError, match="inside the event loop that it waits for"):
        run_in_background(calling())


def test_runs_can_be_closed_and_are_made_again(tmp_path: Path) -> None:
    generate_rollout(arguments(tmp_path), 0, Source())
    run_in_background(close_runs())
    assert len(generate_rollout(arguments(tmp_path), 0, Source())) == 2


def test_calls_of_one_run_take_turns(tmp_path: Path) -> None:
    args = arguments(tmp_path)

    async def both() -> list[Any]:
        return await asyncio.gather(*(drawn_batch(args, n, Source()) for n in range(3)))

    assert [len(batch.kept) for batch, _ in run_in_background(both())] == [2, 2, 2]


# -- configuration -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("apply_chat_template", True),
        ("group_rm", True),
        ("multimodal_keys", {"image": "images"}),
        ("rollout_top_p", 0.9),
        ("rollout_top_k", 20),
        ("rollout_stop", ["END"]),
        ("rollout_stop_token_ids", [7]),
        ("custom_generate_function_path", "a.b"),
        ("rollout_sample_hook_path", ["a.b"]),
        ("use_rollout_routing_replay", True),
        ("use_critic", True),
        ("n_samples_per_prompt", 0),
        ("rollout_batch_size", 0),
        ("over_sampling_batch_size", -1),
        ("rollout_temperature", 0.0),
        ("ramify_rollouts", "branch"),
        ("ramify_mean", "rows"),
    ],
)
def test_arguments_that_trees_cannot_heed_are_refused(tmp_path: Path, name: str, value: object) -> None:
    source = Source()
    with pytest.raises(ConfigError, match=name.removeprefix("use_").replace("_", "[_-]")):
        generate_rollout(arguments(tmp_path, **{name: value}), 0, source)
    assert source.drawn == []


def test_a_step_has_no_more_rollouts_than_a_batch_of_trees(tmp_path: Path) -> None:
    args = arguments(tmp_path, ramify_rollouts="tree", global_batch_size=8)
    with pytest.raises(ConfigError, match=r"global_batch_size = 8 .* rollout_batch_size = 2"):
        generate_rollout(args, 0, Source())


@pytest.mark.parametrize(
    ("toml", "fault"),
    [
        ("[engine\n", "is not valid TOML"),
        ("", "names no engine, and the arguments no router"),
        (TREES + "[run_limits]\ndecode = 100\n", "run_limits are of a whole run"),
        (TREES + "[actions.policy.sampling]\ntemperature = 0.5\n", "computes logprobs at rollout_temperature = 0.8"),
        (TREES + "[actions.policy.sampling]\ntop_p = 0.5\n", "of the whole distribution"),
        (TREES + "[strategi]\n", "unknown key"),
    ],
)
def test_a_toml_that_does_not_fit_is_refused(tmp_path: Path, toml: str, fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        generate_rollout(arguments(tmp_path, toml, rollout_temperature=0.8), 0, Source())
    with pytest.raises(ConfigError, match="cannot be read"):
        generate_rollout(arguments(tmp_path, ramify_config=str(tmp_path / "none.toml")), 0, Source())


def test_arguments_fill_in_what_the_toml_leaves_open(tmp_path: Path) -> None:
    router = {"sglang_router_ip": "10.0.0.1", "sglang_router_port": 3000, "hf_checkpoint": str(FOLDER)}
    lengths = {"rollout_temperature": 0.7, "rollout_max_response_len": 99, "over_sampling_batch_size": 50}
    config = training_config(SlimeArgs.of(arguments(tmp_path, "", **router, **lengths)))
    assert (config.engine.name, config.engine.base_url) == ("sglang", "http://10.0.0.1:3000")
    assert (config.engine.model, config.task.name, config.max_trees) == (str(FOLDER), "data", 50)
    assert config.actions["policy"].sampling.temperature == 0.7
    assert (config.growth.max_response_tokens, config.strategy.options["n"]) == (99, 4)
    own = TREES + "[growth]\nmax_response_tokens = 77\n"
    config = training_config(SlimeArgs.of(arguments(tmp_path, own, **router, **lengths)))
    assert (config.engine.name, config.engine.base_url, config.task.name) == ("scripted", None, "countdown")
    assert (config.growth.max_response_tokens, config.strategy.name) == (77, "offline")


def test_a_preset_is_not_made_small_for_the_trainers_engines(tmp_path: Path) -> None:
    router = {"sglang_router_ip": "10.0.0.1", "sglang_router_port": 3000, "hf_checkpoint": str(FOLDER)}
    config = training_config(SlimeArgs.of(arguments(tmp_path, 'preset = "arpo"\n', **router)))
    assert (config.strategy.name, config.growth.max_response_tokens) == ("online", 4096)


@pytest.mark.covers("S3.3")
@pytest.mark.covers("S3.4")
def test_tokens_come_from_the_trainers_router(tmp_path: Path) -> None:
    fake = FakeSglang(version="12")
    server = serving(fake)
    host, _, port = run_in_background(server.__aenter__()).removeprefix("http://").partition(":")
    try:
        router = {"sglang_router_ip": host, "sglang_router_port": int(port), "hf_checkpoint": str(FOLDER)}
        toml = '[task]\nname = "countdown"\n'
        args = arguments(tmp_path, toml, custom_rm_path=f"{HERE}.equal", rollout_temperature=0.5, **router)
        batch = flat(generate_rollout(args, 0, Source()))
        asked = len(fake.asked)
        assert asked and {body["sampling_params"]["temperature"] for body in fake.asked} == {0.5}
        assert all(set(sample.weight_versions) == {"12"} for sample in batch)
        fake.version = "13"
        again = flat(generate_rollout(args, 1, Source()))
        assert len(fake.asked) == 2 * asked and all(set(sample.weight_versions) == {"13"} for sample in again)
    finally:
        run_in_background(close_runs())
        run_in_background(server.__aexit__(None, None, None))


def test_questions_are_text_or_one_message_of_the_user() -> None:
    user = {"role": "user", "content": "why?"}
    assert question_of("why?") == question_of([user]) == "why?"
    assert question_of([{"role": "system", "content": "be brief"}, user], system="be brief") == "why?"
    with pytest.raises(ConfigError, match=r"format_options\.system"):
        question_of([{"role": "system", "content": "be brief"}, user])
    with pytest.raises(ConfigError, match="would not say"):
        question_of([user, {"role": "assistant", "content": "so"}, user])
    with pytest.raises(ConfigError, match="one user message with text"):
        question_of([{"role": "user", "content": [{"type": "image"}]}])
    with pytest.raises(ConfigError, match="one user message"):
        question_of([])


# -- evaluation --------------------------------------------------------------------------------------------------------


def evaluating(folder: Path, *lines: str, **given: Any) -> Namespace:
    """Arguments with one set of questions, three answers each."""
    path = folder / "eval.jsonl"
    path.write_text("\n".join(lines), "utf-8")
    said = {"name": "sums", "path": str(path), "input_key": "text", "label_key": "answer"}
    law = {"n_samples_per_eval_prompt": 3, "temperature": 0.5, "top_p": None, "top_k": -1, "max_response_len": 64}
    dataset = Namespace(**said, **law, custom_rm_path=None, rm_type=None)
    return arguments(folder, **{"eval_datasets": [dataset], **given})


QUESTIONS = [f'{{"text": "make {n} from 1 2", "answer": "3", "level": {n}}}' for n in (3, 4)]


@pytest.mark.covers("S3.7")
def test_a_set_is_answered_by_independent_chains_in_order(tmp_path: Path) -> None:
    found = generate_rollout(evaluating(tmp_path, *QUESTIONS), 5, Source(), evaluation=True)
    assert set(found) == {"sums"} and set(found["sums"]) == {"rewards", "truncated", "samples"}
    made = found["sums"]["samples"]
    assert [sample.prompt for sample in made] == ["make 3 from 1 2"] * 3 + ["make 4 from 1 2"] * 3
    assert [sample.index for sample in made] == list(range(6))
    assert found["sums"]["rewards"] == [sample.reward for sample in made]
    assert found["sums"]["truncated"] == [sample.status == SampleStatus.TRUNCATED for sample in made]
    assert all(len(sample.tokens) > 0 and sample.response_length <= 64 for sample in made)
    assert all(sample.metadata["level"] in (3, 4) for sample in made)


def test_a_question_whose_answers_have_no_reward_is_left_out_and_a_set_without_any_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(GroupsFailed, match=r"no question of 'sums' was answered; .* the reward server is away"):
        generate_rollout(
            evaluating(tmp_path, *QUESTIONS, custom_rm_path=f"{HERE}.raising"), 0, Source(), evaluation=True
        )
    lines = [f'{{"text": "make {n} from 1 2"}}' for n in range(3, 40)]
    args = evaluating(tmp_path, *lines, custom_rm_path=f"{HERE}.raising_at_times")
    args.eval_datasets[0].label_key = None
    made = generate_rollout(args, 0, Source(), evaluation=True)["sums"]["samples"]
    assert 0 < len(made) < 111 and len(made) % 3 == 0
    assert [made[i].prompt for i in range(0, len(made), 3)] == [made[i + 2].prompt for i in range(0, len(made), 3)]


def test_a_set_may_have_a_reward_of_its_own_and_a_key(tmp_path: Path) -> None:
    args = evaluating(tmp_path, *QUESTIONS, eval_reward_key="score")
    args.eval_datasets[0].custom_rm_path = f"{HERE}.parts"
    found = generate_rollout(args, 0, Source(), evaluation=True)["sums"]
    assert found["rewards"] == [sample.reward["score"] for sample in found["samples"]]


@pytest.mark.covers("S3.7")
def test_the_key_of_training_is_that_of_evaluations_unless_they_have_one(tmp_path: Path) -> None:
    for own, key in ((None, "score"), ("size", "size")):
        keys = {"reward_key": "score", "eval_reward_key": own}
        args = evaluating(tmp_path, *QUESTIONS, custom_rm_path=f"{HERE}.sized", **keys)
        found = generate_rollout(args, 0, Source(), evaluation=True)["sums"]
        assert found["rewards"] == [sample.reward[key] for sample in found["samples"]]
        assert all(sample.metadata["ramify"]["reward"] == sample.reward[key] for sample in found["samples"])


def test_questions_of_the_data_source_are_judged_by_the_key_of_evaluations(tmp_path: Path) -> None:
    args = arguments(tmp_path, custom_rm_path=f"{HERE}.sized", reward_key="score", eval_reward_key="size")
    found = generate_rollout(args, 0, Source(), evaluation=True)["data_source"]
    assert found["rewards"] == [sample.metadata["ramify"]["reward"] for sample in found["samples"]]


@pytest.mark.covers("S3.7")
def test_each_set_is_asked_at_its_own_temperature_and_length(tmp_path: Path) -> None:
    fake = FakeSglang()
    server = serving(fake)
    host, _, port = run_in_background(server.__aenter__()).removeprefix("http://").partition(":")
    try:
        router = {"sglang_router_ip": host, "sglang_router_port": int(port), "hf_checkpoint": str(FOLDER)}
        args = evaluating(tmp_path, *QUESTIONS, custom_rm_path=f"{HERE}.equal", rollout_temperature=0.8, **router)
        (tmp_path / "run.toml").write_text('[task]\nname = "countdown"\n', "utf-8")
        (first,) = args.eval_datasets
        law = {"temperature": None, "max_response_len": 9, "n_samples_per_eval_prompt": 1}
        args.eval_datasets = [first, Namespace(**{**vars(first), "name": "others", **law})]
        found = generate_rollout(args, 0, Source(), evaluation=True)
        sampled = [body["sampling_params"] for body in fake.asked]
        asked = {(each["temperature"], each["max_new_tokens"]) for each in sampled}
        assert {temperature for temperature, _ in asked} == {0.5, 0.8}
        assert max(most for temperature, most in asked if temperature == 0.8) == 9
        assert max(most for temperature, most in asked if temperature == 0.5) > 9
        assert [len(found[name]["samples"]) for name in ("sums", "others")] == [6, 2]
    finally:
        run_in_background(close_runs())
        run_in_background(server.__aexit__(None, None, None))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("stop", ["END"]),
        ("stop_token_ids", [7]),
        ("min_new_tokens", 8),
        ("repetition_penalty", 1.1),
        ("skip_special_tokens", True),
        ("no_stop_trim", False),
        ("apply_chat_template", True),
        ("multimodal_keys", {"image": "images"}),
        ("custom_generate_function_path", "a.b"),
        ("app_service", "http://localhost:1"),
        ("eval_task_timeout", 60),
        ("min_eval_samples", 5),
        ("eval_early_stop_remaining", 5),
        ("eval_early_stop_idle_timeout", 5.0),
        ("message_processor", {}),
        ("reward_model", {"path": "x"}),
        ("remote_environment", {"url": "x"}),
    ],
)
def test_fields_of_a_set_that_chains_cannot_heed_are_refused(tmp_path: Path, name: str, value: object) -> None:
    args, source = evaluating(tmp_path, *QUESTIONS), Source()
    setattr(args.eval_datasets[0], name, value)
    for is_evaluation in (True, False):
        with pytest.raises(ConfigError, match=rf"set 'sums' of --eval-config: {name} = .* is not supported: "):
            generate_rollout(args, 0, source, evaluation=is_evaluation)
    assert source.drawn == []
    args.eval_function_path = "slime.rollout.sglang_rollout.generate_rollout"
    assert len(generate_rollout(args, 0, source)) == 2  # slime evaluates, and heeds it


@pytest.mark.parametrize(("name", "value"), [("eval_max_prompt_len", 99), ("eval_min_new_tokens", 8)])
def test_arguments_of_evaluations_that_chains_cannot_heed_are_refused(tmp_path: Path, name: str, value: object) -> None:
    for is_evaluation in (True, False):
        with pytest.raises(ConfigError, match=f"--{name.replace('_', '-')} = {value} is not supported"):
            generate_rollout(evaluating(tmp_path, *QUESTIONS, **{name: value}), 0, Source(), evaluation=is_evaluation)
    generate_rollout(arguments(tmp_path, eval_datasets=None, **{name: value}), 0, Source())  # nothing is evaluated


def test_what_slime_sets_by_itself_is_no_reason_to_refuse_a_set(tmp_path: Path) -> None:
    args = evaluating(tmp_path, *QUESTIONS)
    usual = {"stop": None, "stop_token_ids": None, "min_new_tokens": None, "apply_chat_template": False}
    usual |= {"multimodal_keys": None, "no_stop_trim": True, "skip_special_tokens": False, "tool_key": "tools"}
    vars(args.eval_datasets[0]).update(usual, metadata_overrides={})
    assert len(generate_rollout(args, 0, Source(), evaluation=True)["sums"]["samples"]) == 6


def test_a_set_puts_its_own_words_into_the_metadata_of_its_questions(tmp_path: Path) -> None:
    args = evaluating(tmp_path, *QUESTIONS)
    vars(args.eval_datasets[0]).update(rm_type="mine", metadata_overrides={"level": 9, "new": [1]})
    args.eval_datasets[0].custom_rm_path = f"{HERE}.equal"
    made = generate_rollout(args, 0, Source(), evaluation=True)["sums"]["samples"]
    assert [(s.metadata["level"], s.metadata["new"], s.metadata["rm_type"]) for s in made] == [(9, [1], "mine")] * 6


def test_without_sets_nothing_is_evaluated_and_no_prompt_is_used_up(tmp_path: Path) -> None:
    source = Source()
    assert generate_rollout(arguments(tmp_path, eval_datasets=None), 0, source, evaluation=True) == {}
    assert source.drawn == []


def test_evaluation_runs_chains_whatever_training_grows(tmp_path: Path) -> None:
    config = training_config(SlimeArgs.of(arguments(tmp_path)))
    law = EvalSampling(num_samples=3, temperature=0.0, top_p=0.7, max_response_tokens=11)
    made = evaluation_config(config, law)
    assert (made.strategy.name, made.strategy.options) == ("chains", {"n": 3})
    sampling = made.actions["policy"].sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.0, 0.7, 0)
    assert (made.growth.max_response_tokens, made.judges) == (11, config.judges)


def test_no_coin_is_thrown_in_an_evaluation(tmp_path: Path) -> None:
    config = training_config(SlimeArgs.of(arguments(tmp_path)))
    law = EvalSampling(num_samples=3, temperature=0.0, top_p=0.7, max_response_tokens=11)
    thrown = replace(config, growth=replace(config.growth, prune="task", keep=0.5))
    pruned = replace(config, growth=replace(config.growth, prune="task"))
    assert (evaluation_config(thrown, law).growth.prune, evaluation_config(thrown, law).growth.keep) == (None, 0.0)
    assert evaluation_config(pruned, law).growth.prune == "task"


# -- training data -----------------------------------------------------------------------------------------------------


@pytest.mark.covers("S3.6")
def test_training_data_carries_the_credit_token_by_token_and_every_token_weighs_the_same() -> None:
    batch = samples(batch_of([1, 2, 3]))
    data, plain = convert_samples_to_train_data(Namespace(), batch), train_data(batch)
    assert {k: v for k, v in data.items() if k != "rollout_mask_sums"} == {
        k: v for k, v in plain.items() if k not in ("rollout_mask_sums", "metadata")
    }
    assert [len(row) for row in data["rewards"]] == data["response_lengths"]
    assert all(isinstance(reward, float) for reward in data["raw_reward"])
    num_tokens = sum(map(sum, data["loss_masks"]))
    assert data["rollout_mask_sums"] == [num_tokens / len(batch)] * len(batch)
    own = convert_samples_to_train_data(Namespace(ramify_mean="rollouts"), batch)
    assert own["rollout_mask_sums"] == plain["rollout_mask_sums"]


def test_without_per_token_numbers_rewards_are_compared_in_their_groups_of_any_size() -> None:
    rows = [*rows_of(nested()), *(replace(row, uid="q") for row in rows_of(chains(1.0, 0.0)))]
    batch = samples(rows, credit_by="trainer", group_by="tree")
    args = Namespace(advantage_estimator="grpo", rewards_normalization=True, grpo_std_normalization=True)
    raw, wanted = post_process_rewards(args, batch)
    data = convert_samples_to_train_data(args, batch)
    assert (data["raw_reward"], data["rewards"]) == (raw, wanted)
    assert abs(sum(wanted[:5])) < 1e-9 and abs(sum(wanted[5:])) < 1e-9
    assert convert_samples_to_train_data(Namespace(), batch)["rewards"] == raw
    args.grpo_std_normalization = False
    assert post_process_rewards(args, batch)[1][5:] == [0.5, -0.5]


def test_groups_without_numbers_are_told_apart_by_position() -> None:
    batch = [Sample(index=n, tokens=[1], response_length=1, reward=float(n in (0, 5))) for n in range(6)]
    two = post_process_rewards(Namespace(n_samples_per_prompt=2, grpo_std_normalization=False), batch)[1]
    assert two == [0.5, -0.5, 0.0, 0.0, -0.5, 0.5]
    whole = post_process_rewards(Namespace(grpo_std_normalization=False), batch)[1]
    assert whole == pytest.approx(np.array([s.reward for s in batch]) - 1 / 3)
    batch[2].group_index = 1
    with pytest.raises(ExportError, match="have no group_index"):
        post_process_rewards(Namespace(), batch)


def test_samples_of_others_that_carry_more_are_refused() -> None:
    theirs = Sample.from_dict({"index": 4, "group_index": 0, "reward": 1.0, "rollout_routed_experts": [1]})
    for sample in (theirs, Namespace(to_dict=theirs.to_dict)):
        with pytest.raises(ExportError, match="sample 4 carries rollout_routed_experts"):
            convert_samples_to_train_data(Namespace(), [sample])
        assert post_process_rewards(Namespace(), [sample])[0] == [1.0]  # slime's converter hands them on


@pytest.mark.hf
def test_advantages_are_tensors_a_row_and_rewards_are_numbers_again() -> None:
    batch = samples(batch_of([1, 2]))
    data = convert_samples_to_train_data(Namespace(), batch)
    shard = {**data, "local_raw_reward": data["raw_reward"]}
    advantages(Namespace(), shard)
    for got, again, sample in zip(shard["advantages"], shard["returns"], batch, strict=True):
        assert got.tolist() == again.tolist() == pytest.approx(sample.train_metadata["advantages"], abs=1e-6)
    assert shard["rewards"] == [sample.reward for sample in batch]
    with pytest.raises(ExportError, match=r"row 0 has .* per-token advantages come from"):
        advantages(Namespace(), {**data, "rewards": [1.0] * len(batch)})
    short = {**data, "kl": [values[1:] for values in shard["advantages"]]}
    with pytest.raises(ExportError, match="advantages here, and"):
        advantages(Namespace(), short)


def test_a_filling_that_is_cancelled_leaves_no_group_behind(tmp_path: Path) -> None:
    source, args = Source(), arguments(tmp_path, rollout_batch_size=8)

    async def was_cancelled(after: int) -> bool:
        task = asyncio.create_task(drawn_batch(args, 0, source))
        for _ in range(after):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        return task.cancelled()

    for after in (0, 1, 2, 5, 20, 40):
        assert run_in_background(was_cancelled(after)), after
        assert sorted(map(id, flat(source.buffer))) == sorted(map(id, flat(source.drawn)))
        source.buffer, source.drawn = [], []
