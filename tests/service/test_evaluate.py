"""Evaluation: the names and the step rule of the source document, and figures that go by problem."""

import dataclasses
import io
import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from ramify.core.errors import ConfigError, ContractError, ExportError
from ramify.rows.sample import Sample, SampleStatus
from ramify.service.eval_results import EvalResult, eval_result, eval_results, numbers
from ramify.service.evaluate import StepRule, eval_metrics, rollout_metrics, standard_error, table

F = "service.eval_function = 'mine.evaluate'"


def sample(reward=1.0, *, length=2, **fields):
    return Sample(tokens=[7] * (length + 1), response_length=length, reward=reward, **fields)


def of(uid, reward, **fields):
    return sample(reward, metadata={"ramify": {"uid": uid}}, **fields)


def result(rewards, problems=None, name="aime"):
    return EvalResult(name=name, rewards=tuple(rewards), problems=None if problems is None else tuple(problems))


# The step rule.


@pytest.mark.covers("S3.7")
def test_the_step_is_the_rollout():
    assert [StepRule().step(rollout_id) for rollout_id in (0, 1, 7)] == [0, 1, 7]


@pytest.mark.covers("S3.7")
def test_the_step_is_the_train_step_where_that_is_asked_for():
    rule = StepRule(always_train_step=True, rollout_batch_size=32, n_samples_per_prompt=8, global_batch_size=96)
    assert [rule.step(rollout_id) for rollout_id in (0, 1, 2, 3)] == [0, 2, 5, 8]  # 256 samples a rollout, floored


def test_train_steps_need_the_sizes():
    with pytest.raises(ConfigError, match="n_samples_per_prompt, global_batch_size"):
        StepRule(always_train_step=True, rollout_batch_size=32)


@pytest.mark.parametrize("field", ["rollout_batch_size", "n_samples_per_prompt", "global_batch_size"])
def test_a_size_below_one_is_refused(field):
    with pytest.raises(ConfigError, match=f"{field} = 0"):
        StepRule(**{field: 0})


# What one data set comes to.


@pytest.mark.covers("S3.7")
def test_mean_reward_and_truncated_ratio_have_the_names_of_the_source_document():
    data = {"aime": {"rewards": [1, 0, 0, 1], "truncated": [False, True, False, False]}, "gsm8k": {"rewards": [0.5]}}
    metrics = eval_metrics(eval_results(data, function=F))
    assert metrics == {
        "eval/aime": 0.5,
        "eval/aime-truncated_ratio": 0.25,
        "eval/aime-unjudged_ratio": 0.0,
        "eval/gsm8k": 0.5,
        "eval/gsm8k-unjudged_ratio": 0.0,
    }


@pytest.mark.covers("S3.7")
def test_samples_say_all_of_it():
    samples = [
        of("a", 1.0, length=10, status=SampleStatus.COMPLETED),
        of("a", 0.0, length=40, status=SampleStatus.TRUNCATED),
        of("b", 0.0, length=20, status=SampleStatus.COMPLETED),
        of("b", 0.0, length=30, status=SampleStatus.COMPLETED),
    ]
    assert eval_metrics([eval_result("aime", samples)]) == pytest.approx(
        {
            "eval/aime": 0.25,
            "eval/aime-truncated_ratio": 0.25,
            "eval/aime-unjudged_ratio": 0.0,
            "eval/aime-stderr": 0.25,
            "eval/aime-pass@1": 0.25,
            "eval/aime-pass@2": 0.5,
            "eval/aime/response_len/mean": 25,
            "eval/aime/response_len/median": 25,
            "eval/aime/response_len/max": 40,
            "eval/aime/response_len/min": 10,
        }
    )


def test_a_reward_that_is_not_there_is_no_zero():
    metrics = eval_metrics([result([1.0, None, None, 1.0], "aabb")])
    assert metrics["eval/aime"] == 1.0
    assert metrics["eval/aime-unjudged_ratio"] == 0.5
    assert metrics["eval/aime-pass@1"] == 1.0
    assert "eval/aime-pass@2" not in metrics  # each problem has one judged sample


def test_a_data_set_that_nobody_judged_has_no_mean():
    assert eval_metrics([result([None, None], "ab")]) == {"eval/aime-unjudged_ratio": 1.0}


def test_where_nothing_says_whose_a_sample_is_there_is_no_pass_at_k():
    assert set(eval_metrics([result([1.0, 0.0])])) == {"eval/aime", "eval/aime-unjudged_ratio"}


def test_k_doubles_up_to_the_repeats():
    names = eval_metrics([result([1.0] * 12, "aaaaaabbbbbb")])
    assert [name.partition("@")[2] for name in names if "@" in name] == ["1", "2", "4", "6"]


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from([0.0, 0.5, 1.0, None])), min_size=1), st.randoms())
def test_the_order_of_samples_changes_no_figure(pairs, rng: random.Random):
    shuffled = rng.sample(pairs, len(pairs))
    first, second = (eval_metrics([eval_result("x", [of(uid, r) for uid, r in each])]) for each in (pairs, shuffled))
    assert first == pytest.approx(second)


def test_pass_at_k_is_unbiased():
    # 3 of 5 right: a pair without a right one is 1 of 10; the other problem has none.
    metrics = eval_metrics([result([1, 1, 1, 0, 0, 0, 0, 0, 0, 0], "aaaaabbbbb")])
    assert metrics["eval/aime-pass@2"] == pytest.approx((0.9 + 0) / 2)


def test_a_right_answer_is_one_of_the_least_reward():
    results = [result([0.6, 0.4], "aa")]
    assert eval_metrics(results)["eval/aime-pass@1"] == 0.0
    assert eval_metrics(results, right=0.5)["eval/aime-pass@1"] == 0.5


def test_the_error_is_that_of_the_problems_means():
    groups = [[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]]
    assert standard_error(groups) == pytest.approx(np.std([0.5, 1, 0], ddof=1) / math.sqrt(3))
    assert standard_error([[1.0] * 99]) is None


def test_repeats_of_a_problem_do_not_make_the_error_smaller():
    once, often = [[1.0], [0.0], [1.0]], [[1.0] * 8, [0.0] * 8, [1.0] * 8]
    assert standard_error(once) == pytest.approx(standard_error(often))


def test_the_uid_says_the_problem_where_groups_differ():
    samples = [of("a", 1.0, group_index=0), of("a", 0.0, group_index=1)]
    assert eval_result("x", samples).problems == ("a", "a")
    assert eval_result("x", [sample(group_index=3), sample(group_index=4)]).problems == ("3", "4")


def test_samples_of_which_some_have_no_problem_are_refused():
    with pytest.raises(ContractError, match="sample 1 has no uid"):
        eval_result("x", [of("a", 1.0), sample()])
    with pytest.raises(ContractError, match="sample 0 has no group_index"):
        eval_result("x", [sample(), sample(group_index=1)])


def test_a_reward_with_parts_is_read_by_its_key():
    samples = [sample({"right": 1.0, "style": 0.2}), sample({"right": None, "style": 0.9})]
    assert eval_result("x", samples, reward_key="right").rewards == (1.0, None)
    with pytest.raises(ExportError, match="reward key None"):
        eval_result("x", samples)
    with pytest.raises(ExportError, match="reward key 'form'"):
        eval_result("x", samples, reward_key="form")


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_not_finite_is_refused(reward):
    with pytest.raises(ContractError, match="'aime' has the reward"):
        result([1.0, reward])


@pytest.mark.parametrize("name", ["", "a\nb", "a\x1b[31m"])
def test_a_name_that_cannot_be_printed_is_refused(name):
    with pytest.raises(ContractError, match="name"):
        result([1.0], name=name)


def test_a_data_set_without_samples_is_refused():
    with pytest.raises(ContractError, match="no sample"):
        eval_result("aime", [])


@pytest.mark.parametrize("field", ["problems", "is_truncated", "response_lengths", "samples"])
def test_lengths_that_disagree_are_refused(field):
    values = {"problems": "a", "is_truncated": True, "response_lengths": 3, "samples": sample()}
    with pytest.raises(ContractError, match="2 rewards and 1"):
        EvalResult(name="aime", rewards=(1.0, 0.0), **{field: (values[field],)})


def test_two_data_sets_of_one_name_are_refused():
    with pytest.raises(ContractError, match="two data sets are called 'aime'"):
        eval_metrics([result([1.0]), result([0.0])])


# What a user's function returns.


def test_samples_of_a_functions_data_say_problems_and_lengths():
    samples = [of("a", None, length=3), of("a", None, length=5)]
    (made,) = eval_results({"x": {"rewards": np.array([1.0, 0.0]), "samples": samples}}, function=F)
    assert made.rewards == (1.0, 0.0) and made.problems == ("a", "a")
    assert made.response_lengths == (3, 5) and made.is_truncated is None


def test_samples_of_another_class_are_read_by_their_dictionary():
    class Foreign:
        def to_dict(self):
            return sample(group_index=2).to_dict()

    (made,) = eval_results({"x": {"rewards": [True], "samples": [Foreign()]}}, function=F)
    assert made.rewards == (1.0,) and made.problems == ("2",)


class Broken:
    def to_dict(self):
        return {"tokens": [1], "response_length": 4}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([1.0], "mapping of data sets"),
        ({}, "mapping of data sets"),
        ({"x": [1.0]}, r"data\['x'\] = \[1.0\]; it needs"),
        ({3: {"rewards": [1.0]}}, r"data\[3\]"),
        ({"x": {"reward": [1.0]}}, r"data\['x'\] .* 'rewards'"),
        ({"x": {"rewards": 0.5}}, r"data\['x'\]\['rewards'\] = 0.5"),
        ({"x": {"rewards": [1.0, "good"]}}, r"data\['x'\]: rewards\[1\] = 'good'; it must be a number"),
        ({"x": {"rewards": [math.nan]}}, r"data\['x'\]: .* nan"),
        ({"x": {"rewards": []}}, r"data\['x'\]: .* no sample"),
        ({"x": {"rewards": [1.0, 0.0], "truncated": [True]}}, r"data\['x'\]: .* 2 rewards and 1 truncated"),
        ({"x": {"rewards": [1.0], "truncated": 1}}, r"\['truncated'\] = 1"),
        ({"x": {"rewards": [1.0], "truncated": [2]}}, r"\['truncated'\] holds 2"),
        ({"x": {"rewards": [1.0], "truncated": ["no"]}}, r"\['truncated'\] holds 'no'"),
        ({"x": {"rewards": [1.0], "samples": [sample(), sample()]}}, "1 rewards and 2"),
        ({"x": {"rewards": [1.0], "samples": ["a"]}}, r"data\['x'\]: a sample is wanted, got 'a'"),
        ({"x": {"rewards": [1.0], "samples": [Broken()]}}, r"data\['x'\]: .* response_length 4"),
    ],
)
def test_what_a_function_gave_wrong_is_named(data, words):
    with pytest.raises(ContractError, match=words) as fault:
        eval_results(data, function=F)
    assert str(fault.value).startswith(F)


def test_figures_of_a_functions_own_are_checked():
    assert numbers({"mine/x": np.float32(0.5), "mine/n": 3}, function=F) == {"mine/x": 0.5, "mine/n": 3.0}
    assert math.isnan(numbers({"mine/x": math.nan}, function=F)["mine/x"])
    with pytest.raises(ContractError, match=r"metrics\['mine/x'\] = 'high'"):
        numbers({"mine/x": "high"}, function=F)
    with pytest.raises(ContractError, match="mapping of names"):
        numbers({1: 0.5}, function=F)
    with pytest.raises(ContractError, match="mapping of names"):
        numbers([0.5], function=F)


# Training batches.


@pytest.mark.covers("S3.7")
def test_a_training_batch_has_its_figures():
    samples = [
        sample(1.0, length=4, group_index=0, weight_versions=["5", "6"], status=SampleStatus.TRUNCATED),
        sample(1.0, length=8, group_index=0, weight_versions=["7"], status=SampleStatus.COMPLETED),
        sample(0.0, length=6, group_index=1, weight_versions=["7"], status=SampleStatus.COMPLETED),
        sample(1.0, length=6, group_index=1, weight_versions=["default"], status=SampleStatus.COMPLETED),
    ]
    assert rollout_metrics(samples, version=7) == pytest.approx(
        {
            "rollout/raw_reward": 0.75,
            "rollout/unjudged_ratio": 0.0,
            "rollout/truncated_ratio": 0.25,
            "rollout/response_len/mean": 6,
            "rollout/response_len/median": 6,
            "rollout/response_len/max": 8,
            "rollout/response_len/min": 4,
            "rollout/zero_std/ratio": 0.5,
            "rollout/zero_std/count_1.0": 1,
            "rollout/staleness/mean": 2 / 3,
            "rollout/staleness/median": 0,
            "rollout/staleness/max": 2,
            "rollout/staleness/min": 0,
            "rollout/staleness/unknown_ratio": 0.25,
        }
    )


def test_the_raw_reward_is_counted_and_the_trained_one_has_the_variance():
    samples = [sample(r, group_index=0, metadata={"raw_reward": raw}) for r, raw in ((0.3, 1), (0.7, 1))]
    metrics = rollout_metrics(samples)
    assert metrics["rollout/raw_reward"] == 1.0 and metrics["rollout/zero_std/ratio"] == 0.0
    with pytest.raises(ContractError, match="raw_reward"):
        rollout_metrics([sample(metadata={"raw_reward": "much"})])


def test_what_a_coin_ended_is_in_no_mean_of_rewards():
    ended = sample(0.0, group_index=0, metadata={"ramify": {"stop": "roulette"}})
    metrics = rollout_metrics([sample(1.0, group_index=0), sample(1.0, group_index=0), ended])
    assert metrics["rollout/raw_reward"] == 1.0
    assert metrics["rollout/unjudged_ratio"] == 0.0
    assert metrics["rollout/zero_std/ratio"] == 1.0
    assert not {"rollout/raw_reward", "rollout/unjudged_ratio"} & set(rollout_metrics([ended]))


def test_what_is_not_known_of_a_batch_has_no_figure():
    metrics = rollout_metrics([sample(None)])
    assert metrics["rollout/unjudged_ratio"] == 1.0
    assert not {"rollout/raw_reward", "rollout/zero_std/ratio", "rollout/staleness/mean"} & set(metrics)
    assert rollout_metrics([]) == {}


# The console.


def shown(results, **keywords):
    console = Console(file=io.StringIO(), width=140)
    console.print(table(results, **keywords))
    return console.file.getvalue()


@pytest.mark.covers("S3.7")
def test_the_table_says_what_is_known():
    whole = eval_result("aime [b]", [of("a", 1.0, length=10), of("a", 0.0, length=30), of("b", None, length=2)])
    text = shown([whole, result([0.25], name="gsm8k")], step=12)
    assert "evaluation at step 12" in text
    assert "aime [b]" in text and "0.500" in text and "33.3%" in text and "1: 0.500" in text
    assert text.count(" - ") == 6  # of gsm8k: problems, error, pass@k, truncated, length, longest


def test_a_result_is_a_value():
    with pytest.raises(dataclasses.FrozenInstanceError):
        result([1.0]).name = "other"
