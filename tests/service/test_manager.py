"""A service from its start to its end: batches, weights, buffers, and what is left when it is opened again."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.service.services import config, digest, plain, served

from ramify.core.engine import Generation, Request
from ramify.core.errors import ConfigError, ContractError, EngineError, StoreError
from ramify.engines.fleet.replicas import Replicas
from ramify.plugins import located
from ramify.rows.sample import Sample
from ramify.runner import folder, saved
from ramify.runner.scheduler import TooManyFailures
from ramify.service.controller import Batch
from ramify.service.manager import RolloutManager
from ramify.testing.planned_faults import Delay
from ramify.testing.scripted import Scripted


@pytest.mark.slow
@pytest.mark.covers("S3.1", "S3.4")
def test_batches_are_groups_of_trees_with_their_training_data(tmp_path: Path) -> None:
    async def use(manager: RolloutManager) -> list[Batch]:
        return [await manager.generate(rollout_id) for rollout_id in range(3)]

    batches = served(tmp_path / "run", use, configured=config())
    assert [sorted({s.group_index for s in batch.samples}) for batch in batches] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9, 10, 11],
    ]
    assert [s.index for batch in batches for s in batch.samples] == list(range(sum(len(b.samples) for b in batches)))
    for batch in batches:
        assert batch.train_data is not None
        assert batch.train_data["tokens"] == [list(s.tokens) for s in batch.samples]
        assert [len(a) for a in batch.train_data["rewards"]] == batch.train_data["response_lengths"]
    uids = {s.metadata["ramify"]["uid"] for batch in batches for s in batch.samples}
    assert len(uids) == 12, "a problem of the second epoch is another group"


@pytest.mark.covers("S3.1")
def test_a_batch_asked_for_again_is_the_same_one(tmp_path: Path) -> None:
    async def use(manager: RolloutManager) -> tuple[str, str, str]:
        first = digest(await manager.generate(0))
        await manager.update_weights(1, "weights")
        await manager.generate(1)
        return first, digest(await manager.generate(0)), digest(await manager.generate(0))

    first, *again = served(tmp_path / "run", use, configured=config())
    assert again == [first, first]
    assert served(tmp_path / "run", lambda manager: manager.generate(0)).samples[0].index == 0
    assert digest(served(tmp_path / "run", lambda manager: manager.generate(0))) == first


@pytest.mark.covers("S3.4")
def test_exactly_n_rows_of_each_group_where_the_trainer_counts_on_it(tmp_path: Path) -> None:
    wanted = config("offline", service__rows_per_group=3)
    batch = served(tmp_path / "run", lambda manager: manager.generate(0), configured=wanted)
    assert [s.group_index for s in batch.samples] == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3


@pytest.mark.slow
@pytest.mark.covers("S3.8")
def test_a_service_opened_again_goes_on_with_the_next_problems(tmp_path: Path) -> None:
    async def three(manager: RolloutManager) -> list[str]:
        return [digest(await manager.generate(rollout_id)) for rollout_id in range(3)]

    whole = served(tmp_path / "whole", three, configured=config())

    def one(rollout_id: int, **options: Any) -> str:
        return digest(served(tmp_path / "run", lambda manager: manager.generate(rollout_id), **options))

    assert [one(0, configured=config()), one(1), one(2, configured=config())] == whole


@pytest.mark.slow
@pytest.mark.covers("S3.8")
def test_going_back_to_where_it_was_saved_grows_the_same_batches_again(tmp_path: Path) -> None:
    async def use(manager: RolloutManager) -> tuple[list[str], list[str]]:
        await manager.generate(0)
        await manager.update_weights(1, "one")
        await manager.save(0)
        before = [digest(await manager.generate(1))]
        await manager.update_weights(2, "two")
        before.append(digest(await manager.generate(2)))
        await manager.save(2)
        assert manager.saved == {0, 2}
        await manager.load(0)
        assert (manager.version, manager.saved) == (1, {0})
        with pytest.raises(StoreError, match=r"has no save of rollout 2; the last saves are \[0\]"):
            await manager.load(2)
        after = [digest(await manager.generate(1))]
        await manager.update_weights(2, "two")
        return before, [*after, digest(await manager.generate(2))]

    before, after = served(tmp_path / "run", use, configured=config())
    assert before == after
    assert (tmp_path / "run" / "journal.before-1").is_dir()


@pytest.mark.covers("S3.1")
def test_segments_carry_the_weights_that_sampled_them(tmp_path: Path) -> None:
    async def use(manager: RolloutManager) -> list[Batch]:
        batches = [await manager.generate(0)]
        await manager.update_weights(5, "five")
        return [*batches, await manager.generate(1)]

    zero, five = served(tmp_path / "run", use, configured=config())
    assert {v for s in zero.samples for v in s.weight_versions} == {"0"}
    assert {v for s in five.samples for v in s.weight_versions} == {"5"}


@pytest.mark.covers("S3.1")
def test_an_older_version_of_weights_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    async def use(manager: RolloutManager) -> int:
        await manager.update_weights(3, "three")
        with pytest.raises(ConfigError, match="version 2 are older than those of version 3"):
            await manager.update_weights(2, "two")
        await manager.generate(0)
        return manager.version

    assert served(tmp_path / "run", use, configured=config()) == 3


@pytest.mark.covers("S3.2")
def test_an_update_that_fails_on_one_of_two_engines_leaves_that_one_out_until_it_has_it(tmp_path: Path) -> None:
    class Stubborn(Scripted):
        num_updates = 0

        async def update_weights(self, source: str, version: int) -> None:
            self.num_updates += 1
            if self.num_updates == 1:
                raise EngineError("update_failed", "the first time it never works")
            await super().update_weights(source, version)

    stubborn = Stubborn(version=0)
    engine = Replicas([Scripted(version=0), stubborn], placement="round_robin", names=["good", "stubborn"])

    async def use(manager: RolloutManager) -> Batch:
        await manager.update_weights(1, "one")
        return await manager.generate(0)

    batch = served(tmp_path / "run", use, configured=config(), engine=engine)
    assert {v for s in batch.samples for v in s.weight_versions} == {"1"}


@pytest.mark.covers("S3.2")
def test_an_update_that_fails_on_every_engine_changes_nothing(tmp_path: Path) -> None:
    class Refusing(Scripted):
        async def update_weights(self, source: str, version: int) -> None:
            raise EngineError("update_failed", "never")

    async def use(manager: RolloutManager) -> Batch:
        with pytest.raises(EngineError, match="never"):
            await manager.update_weights(1, "one")
        assert manager.version == 0
        return await manager.generate(0)

    batch = served(tmp_path / "run", use, configured=config(), engine=Refusing(version=0))
    assert {v for s in batch.samples for v in s.weight_versions} == {"0"}


@pytest.mark.covers("S3.1")
def test_offloaded_engines_make_no_batch_until_their_memory_is_back(tmp_path: Path) -> None:
    async def use(manager: RolloutManager) -> None:
        await manager.offload()
        with pytest.raises(ConfigError, match="offloaded: call `onload`"):
            await manager.generate(0)
        await manager.onload(["weights"])
        await manager.update_weights(1, "one")
        with pytest.raises(ConfigError, match="offloaded"):
            await manager.generate(0)
        await manager.onload(["kv_cache", "cuda_graph"])
        assert {v for s in (await manager.generate(0)).samples for v in s.weight_versions} == {"1"}

    served(tmp_path / "run", use, configured=config())


@pytest.mark.covers("S3.1")
def test_weights_that_only_the_trainer_has_are_waited_for(tmp_path: Path) -> None:
    async def push(manager: RolloutManager) -> str:
        async with manager.updating(1):
            await manager.run.prepared.engine.update_weights("pushed", 1)
        return digest(await manager.generate(0))

    first = served(tmp_path / "run", push, configured=config())

    async def again(manager: RolloutManager) -> str:
        with pytest.raises(ConfigError, match="version 1, which only the trainer has"):
            await manager.generate(1)
        await manager.update_weights(1, "pushed")
        await manager.generate(1)
        return digest(await manager.generate(0))

    assert served(tmp_path / "run", again) == first


@pytest.mark.covers("S3.1")
def test_the_lock_keeps_others_from_changing_the_engines(tmp_path: Path) -> None:
    async def use(manager: RolloutManager) -> None:
        async with manager.lock():
            update = asyncio.create_task(manager.update_weights(1, "one"))
            for _ in range(20):
                await asyncio.sleep(0)
            assert manager.version == 0
        await update
        assert manager.version == 1

    served(tmp_path / "run", use, configured=config())


@pytest.mark.slow
@pytest.mark.covers("S3.8", "S3.10")
@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_trees_are_grown_ahead_as_far_as_staleness_allows(tmp_path: Path, staleness: int) -> None:
    async def use(manager: RolloutManager) -> None:
        for rollout_id in range(4):
            batch = await manager.generate(rollout_id)
            lags = [manager.version - int(v) for s in batch.samples for v in s.weight_versions]
            assert min(lags) >= 0 and max(lags) <= staleness
            counts = manager.counts
            assert counts["growing"] + counts["checking"] + counts["ready"] <= 4 * staleness
            await manager.update_weights(rollout_id + 1, "weights")
        assert [reason for reason in manager.counts if reason.startswith("dropped")] == []

    served(tmp_path / "run", use, configured=config(service__max_staleness=staleness))


SLOW_GROUPS = {"0", "1", "2"}


class LongTail(Scripted):
    """Requests of some trees take a hundred times as long."""

    def __init__(self) -> None:
        super().__init__(
            version=0, delay=lambda turn: Delay(0.3 if turn.request_id.split("/")[0] in SLOW_GROUPS else 0.001)
        )


@pytest.mark.covers("S3.8", "S3.10")
def test_over_sampling_goes_on_with_the_rest_in_later_batches(tmp_path: Path) -> None:
    async def use(manager: RolloutManager) -> list[set[int | None]]:
        batches: list[set[int | None]] = []
        for rollout_id in range(3):
            batches.append({s.group_index for s in (await manager.generate(rollout_id)).samples})
            await manager.update_weights(rollout_id + 1, "weights")
        return batches

    wanted = config(service__over_sampling=3, service__on_stale="keep", max_trees=64)
    batches = served(tmp_path / "run", use, configured=wanted, engine=LongTail())
    assert batches[0] == {3, 4, 5, 6}, "the slow ones are not waited for"
    handed = set[int | None]().union(*batches)
    assert sum(map(len, batches)) == len(handed) == 12, "nobody is handed over twice"


@pytest.mark.slow
@pytest.mark.covers("S3.8")
def test_partial_trees_go_on_under_new_weights_and_say_so(tmp_path: Path) -> None:
    async def use(manager: RolloutManager) -> list[Sample]:
        samples: list[Sample] = []
        for rollout_id in range(6):
            samples += (await manager.generate(rollout_id)).samples
            await manager.update_weights(rollout_id + 1, "weights")
        return samples

    wanted = config(service__over_sampling=3, service__on_stale="keep", max_trees=64, growth__max_response_tokens=400)
    engine = Scripted(version=0, delay=Delay(0.0, 0.0005))
    samples = served(tmp_path / "run", use, configured=wanted, engine=engine)
    mixed = [s for s in samples if len(set(s.weight_versions)) > 1]
    assert mixed, "some path was cut by an update and went on"
    for sample in mixed:
        assert [int(v) for v in sample.weight_versions] == sorted(int(v) for v in sample.weight_versions)


@pytest.mark.slow
@pytest.mark.covers("S3.8")
@pytest.mark.parametrize("rule", ["drop", "mask"])
def test_tokens_too_far_behind_are_not_trained(tmp_path: Path, rule: str) -> None:
    seen: list[tuple[int, list[Sample]]] = []

    async def use(manager: RolloutManager) -> dict[str, int]:
        for rollout_id in range(6):
            seen.append((manager.version, (await manager.generate(rollout_id)).samples))
            await manager.update_weights(rollout_id + 1, "weights")
        return dict(manager.counts)

    wanted = config(service__over_sampling=3, service__on_stale=rule, max_trees=64, growth__max_response_tokens=400)
    counts = served(tmp_path / "run", use, configured=wanted, engine=Scripted(version=0, delay=Delay(0.0, 0.0005)))
    oldest = [
        (version, sample) for version, samples in seen for sample in samples if int(sample.weight_versions[0]) < version
    ]
    if rule == "drop":
        assert not oldest and counts["dropped/stale"] > 0
    else:
        assert oldest
        for _, sample in oldest:
            assert sample.loss_mask is not None and sum(sample.loss_mask) < sample.response_length


# -- filters and functions --------------------------------------------------------------------------------------------


def written(tmp_path: Path, text: str) -> str:
    (tmp_path / "mine.py").write_text(text)
    return str(tmp_path / "mine.py")


@pytest.mark.covers("S3.8")
def test_groups_whose_rewards_are_all_the_same_are_dropped_and_made_up_for(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        "def reward(args, sample):\n    is_mixed = sum(map(ord, sample.metadata['uid'])) % 2\n"
        "    return float(is_mixed and sum(sample.tokens) % 2)\n",
    )
    wanted = config(
        service__group_filter="mixed",
        service__reward_function=f"{file}:reward",
        service__batch_size=2,
        strategy__options__n=6,
    )

    async def use(manager: RolloutManager) -> tuple[Batch, dict[str, int]]:
        return await manager.generate(0), dict(manager.counts)

    batch, counts = served(tmp_path / "run", use, configured=wanted)
    for group in {s.group_index for s in batch.samples}:
        assert len({s.reward for s in batch.samples if s.group_index == group}) == 2
    assert counts["dropped/mixed"] > 0


@pytest.mark.covers("S3.8")
def test_filters_of_the_users_choose_groups_and_samples(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        "def keep(args, samples):\n    return samples[0].group_index % 2 == 0\n"
        "def pick(args, rollout_id, buffer, num_samples):\n    return buffer[-num_samples:]\n"
        "def mark(args, groups):\n    groups[0][0].remove_sample = True\n",
    )
    wanted = config(
        service__group_filter=f"{file}:keep",
        service__buffer_filter=f"{file}:pick",
        service__sample_filter=f"{file}:mark",
        service__over_sampling=2,
        service__batch_size=2,
    )
    batch = served(tmp_path / "run", lambda manager: manager.generate(0), configured=wanted)
    assert all(s.group_index is not None and s.group_index % 2 == 0 for s in batch.samples)
    assert [s.remove_sample for s in batch.samples].count(True) == 1
    assert batch.train_data is not None and sum(batch.train_data["loss_masks"][0]) == 0


BAD_FILTERS = {
    "raises": (
        "def keep(args, samples):\n    if samples[0].group_index == 1: raise ValueError('no')\n    return True\n"
    ),
    "returns the wrong type": "def keep(args, samples):\n    return 'yes' if samples[0].group_index == 1 else True\n",
    "hangs": (
        "import time\ndef keep(args, samples):\n    if samples[0].group_index == 1: time.sleep(30)\n    return True\n"
    ),
}


@pytest.mark.covers("S3.8")
@pytest.mark.parametrize("text", BAD_FILTERS.values(), ids=BAD_FILTERS)
def test_a_filter_that_fails_on_one_group_costs_that_group_alone(tmp_path: Path, text: str) -> None:
    wanted = config(service__group_filter=f"{written(tmp_path, text)}:keep", service__function_deadline_s=0.5)

    async def use(manager: RolloutManager) -> tuple[Batch, dict[str, int]]:
        return await manager.generate(0), dict(manager.counts)

    batch, counts = served(tmp_path / "run", use, configured=wanted)
    assert {s.group_index for s in batch.samples} == {0, 2, 3, 4}
    assert counts["dropped/filter_failed"] == 1


@pytest.mark.slow
@pytest.mark.covers("S3.8")
def test_a_filter_that_fails_on_every_group_stops_the_service(tmp_path: Path) -> None:
    wanted = config(service__group_filter=f"{written(tmp_path, 'def keep(args, samples): return 1 / 0')}:keep")
    with pytest.raises(TooManyFailures, match="filter_failed"):
        served(tmp_path / "run", lambda manager: manager.generate(0), configured=wanted)


IF_BAD = "import time\ndef reward(args, sample):\n    if sample.metadata['uid'].endswith('BAD'): {}\n    return 1.0\n"
BAD_REWARDS = {
    "raises": IF_BAD.format("raise ValueError('no')"),
    "returns the wrong type": IF_BAD.format("return 'good'"),
    "hangs": IF_BAD.format("time.sleep(30)"),
    "has parts without the key": IF_BAD.format("return {'a': 1.0}"),
}


@pytest.mark.covers("S3.4")
@pytest.mark.parametrize("text", BAD_REWARDS.values(), ids=BAD_REWARDS)
def test_a_reward_that_fails_on_one_group_is_no_reward_and_costs_that_group_alone(tmp_path: Path, text: str) -> None:
    (tmp_path / "q.jsonl").write_text(
        "".join(f'{{"question": "q{i}", "id": "{i}{"BAD" * (i == 1)}"}}\n' for i in range(8))
    )
    wanted = config(
        service__reward_function=f"{written(tmp_path, text)}:reward",
        service__function_deadline_s=0.5,
        data__path=str(tmp_path / "q.jsonl"),
        data__uid="id",
        service__shuffle=False,
        strategy__options__n=2,
    )

    async def use(manager: RolloutManager) -> tuple[Batch, dict[str, int]]:
        return await manager.generate(0), dict(manager.counts)

    batch, counts = served(tmp_path / "run", use, configured=wanted)
    assert {s.group_index for s in batch.samples} == {0, 2, 3, 4}
    assert counts["dropped/no_rows"] == 1
    assert {s.reward for s in batch.samples} == {1.0}


@pytest.mark.covers("S3.6")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def convert(args, samples): raise ValueError('no')", "convert' raised ValueError: no"),
        ("def convert(args, samples): return samples", "must return a mapping of training data"),
        ("import time\ndef convert(args, samples): time.sleep(30)", "did not return within 0.5 s"),
    ],
)
def test_a_conversion_that_fails_loses_nothing(tmp_path: Path, text: str, message: str) -> None:
    file = written(tmp_path, text)
    wanted = config(service__convert_function=f"{file}:convert", service__function_deadline_s=0.5)

    async def use(manager: RolloutManager) -> None:
        for _ in range(2):
            with pytest.raises(ContractError, match=message):
                await manager.generate(0)
        assert manager.counts["handed"] == 4

    served(tmp_path / "run", use, configured=wanted)


@pytest.mark.covers("S3.6")
def test_a_conversion_of_the_users_takes_the_place_of_ours(tmp_path: Path) -> None:
    file = written(tmp_path, "async def convert(args, samples): return {'n': [len(s.tokens) for s in samples]}")
    wanted = config(service__convert_function=f"{file}:convert")
    batch = served(tmp_path / "run", lambda manager: manager.generate(0), configured=wanted)
    assert batch.train_data == {"n": [len(s.tokens) for s in batch.samples]}


FUNCTIONS = """
import ramify

async def generate_rollout(args, rollout_id, data_source, evaluation=False):
    groups = data_source.get_samples(args.rollout_batch_size + 1)
    data_source.add_samples(groups[-1:])
    for group in groups[:-1]:
        grown = await ramify.rollout([group[0].prompt], config=args.config, engine=args.engine)
        for sample, row in zip(group, grown.rows()):
            sample.tokens, sample.response_length = row.ids.tolist(), len(row) - row.num_prompt
            sample.reward, sample.status = row.reward, sample.Status.COMPLETED
    return groups[:-1]
"""


@pytest.mark.covers("S3.4", "S3.8")
def test_a_rollout_function_of_slimes_signature_runs_here(tmp_path: Path) -> None:
    file = written(tmp_path, FUNCTIONS)
    wanted = config(service__rollout_function=f"{file}:generate_rollout", strategy__options__n=2)

    async def use(manager: RolloutManager) -> list[list[dict[str, Any]]]:
        first = plain(await manager.generate(0))
        await manager.save(0)
        second = plain(await manager.generate(1))
        await manager.load(0)
        assert plain(await manager.generate(1)) == second, "the group that was given back is saved, too"
        return [first, second]

    first, second = served(tmp_path / "run", use, configured=wanted)
    assert [s["group_index"] for s in first] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [s["group_index"] for s in second] == [4, 4, 5, 5, 6, 6, 7, 7]
    assert all(s["tokens"] and s["reward"] is not None for s in first)


@pytest.mark.covers("S3.4")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "def generate_rollout(args, rollout_id, data_source, evaluation=False): return 5",
            "must return groups of samples",
        ),
        ("def generate_rollout(args, rollout_id, data_source, evaluation=False): return []", "the batch has no sample"),
        (
            "def generate_rollout(args, rollout_id, data_source, evaluation=False): return [[1]]",
            "a sample is wanted, got 1",
        ),
        ("def generate_rollout(args, rollout_id, data_source, evaluation=False): exit(3)", "raised"),
    ],
)
def test_a_rollout_function_that_makes_no_samples_is_named(tmp_path: Path, text: str, message: str) -> None:
    wanted = config(service__rollout_function=f"{written(tmp_path, text)}:generate_rollout")
    with pytest.raises(ContractError, match=message):
        served(tmp_path / "run", lambda manager: manager.generate(0), configured=wanted)


@pytest.mark.covers("S3.4")
def test_signatures_are_checked_before_the_start_all_at_once(tmp_path: Path) -> None:
    file = written(tmp_path, "def one(args): ...\nvalue = 3\n")
    wanted = config(
        service__rollout_function=f"{file}:one",
        service__reward_function=f"{file}:missing",
        service__convert_function=f"{file}:value",
        service__group_filter="nowhere.at.all",
        service__eval_function="justaname",
    )
    with pytest.raises(ConfigError) as caught:
        RolloutManager(wanted, tmp_path / "run")
    for said in (
        r"service.rollout_function = ",
        "must take (args, rollout_id, data_source, evaluation=False)",
        "has no 'missing'",
        "3 is not a function",
        "'nowhere.at.all' cannot be imported",
        "name package.module.function",
    ):
        assert said in str(caught.value)


# -- modes ------------------------------------------------------------------------------------------------------------


@pytest.mark.covers("S3.5")
def test_batches_are_saved_as_files_and_trained_on_again_without_an_engine(tmp_path: Path) -> None:
    class Unasked(Scripted):
        async def generate(self, request: Request) -> Generation:
            raise AssertionError("nobody asks it")

    template = str(tmp_path / "batches" / "{rollout_id}.jsonl")
    first = served(tmp_path / "run", lambda m: m.generate(0), configured=config(service__save_debug=template))
    wanted = config(service__load_debug=template, service__debug="train_only")

    async def use(manager: RolloutManager) -> Batch:
        with pytest.raises(ConfigError, match=r"no batch to load at .*/1.jsonl"):
            await manager.generate(1)
        return await manager.generate(0)

    again = served(tmp_path / "again", use, configured=wanted, engine=Unasked())
    assert plain(again) == plain(first) and again.train_data == first.train_data


@pytest.mark.covers("S3.5")
def test_rollouts_alone_are_not_converted(tmp_path: Path) -> None:
    wanted = config(service__debug="rollout_only")
    batch = served(tmp_path / "run", lambda manager: manager.generate(0), configured=wanted)
    assert batch.train_data is None and batch.samples


@pytest.mark.covers("S3.9")
def test_written_answers_are_training_data_by_the_same_path(tmp_path: Path) -> None:
    (tmp_path / "sft.jsonl").write_text('{"q": "2 + 2?", "a": "<answer>4</answer>"}\n{"q": "3?", "a": "three"}\n')
    wanted = config(
        service__rollout_function="ramify.service.sft.generate_rollout",
        service__label_key="answer",
        service__shuffle=False,
        service__batch_size=2,
        data__path=str(tmp_path / "sft.jsonl"),
        data__question="q",
        data__answer="a",
    )

    async def use(manager: RolloutManager) -> tuple[Batch, str]:
        batch = await manager.generate(0)
        return batch, manager.run.prepared.codec.decode(batch.samples[0].tokens)

    batch, text = served(tmp_path / "run", use, configured=wanted)
    first = batch.samples[0]
    assert "2 + 2?" in text and "<answer>4</answer>" in text
    assert first.loss_mask == [1] * first.response_length and first.reward == 0.0
    assert batch.train_data is not None and batch.train_data["response_lengths"] == [
        s.response_length for s in batch.samples
    ]


@pytest.mark.covers("S3.9")
def test_of_written_turns_only_the_assistants_are_trained(tmp_path: Path) -> None:
    (tmp_path / "sft.jsonl").write_text(
        '{"question": "2 + 2?", "messages": [{"role": "assistant", "content": "<calc>2+2</calc>"}, '
        '{"role": "tool", "content": "<result>4</result>"}, {"role": "assistant", "content": "<answer>4</answer>"}]}\n'
    )
    wanted = config(
        service__rollout_function="ramify.service.sft.generate_rollout",
        service__batch_size=1,
        data__path=str(tmp_path / "sft.jsonl"),
    )

    async def use(manager: RolloutManager) -> tuple[Sample, str]:
        (sample,) = (await manager.generate(0)).samples
        response = sample.tokens[-sample.response_length :]
        trained = [token for token, is_trained in zip(response, sample.loss_mask or (), strict=True) if is_trained]
        return sample, manager.run.prepared.codec.decode(trained)

    _, trained = served(tmp_path / "run", use, configured=wanted)
    assert trained.startswith("<calc>2+2</calc><answer>4</answer>")


@pytest.mark.covers("S3.9")
def test_a_row_with_nothing_written_is_named(tmp_path: Path) -> None:
    wanted = config(service__rollout_function="ramify.service.sft.generate_rollout")
    with pytest.raises(ConfigError, match="has no written answer: name the column"):
        served(tmp_path / "run", lambda manager: manager.generate(0), configured=wanted)


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.covers("S3.1")
def test_a_folder_has_one_manager_at_a_time(tmp_path: Path) -> None:
    async def use(manager: RolloutManager) -> None:
        with pytest.raises(StoreError, match="written by another run"):
            await RolloutManager(None, tmp_path / "run").start()
        await manager.generate(0)

    served(tmp_path / "run", use, configured=config())


def test_another_configuration_is_refused_where_a_service_was_begun(tmp_path: Path) -> None:
    served(tmp_path / "run", lambda manager: manager.generate(0), configured=config())
    with pytest.raises(ConfigError, match="begun with another configuration"):
        RolloutManager(config(seed=4), tmp_path / "run")


def test_an_empty_folder_needs_a_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no service"):
        RolloutManager(None, tmp_path / "run")


@pytest.mark.parametrize("setting", ["run_limits__decode", "limits__seconds"])
def test_limits_that_a_service_cannot_keep_are_refused(tmp_path: Path, setting: str) -> None:
    with pytest.raises(ConfigError, match="a service has no end"):
        RolloutManager(config(**{setting: 100}), tmp_path / "run")


def test_a_service_that_is_not_started_or_is_closed_says_so(tmp_path: Path) -> None:
    manager = RolloutManager(config(), tmp_path / "run")

    async def use() -> None:
        with pytest.raises(ConfigError, match="not started"):
            await manager.generate(0)
        await manager.start()
        await manager.close()
        await manager.close()
        with pytest.raises(ConfigError, match="not started or is closed"):
            await manager.generate(0)

    asyncio.run(use())


@pytest.mark.covers("S3.8")
def test_bad_rows_of_the_data_are_named_or_skipped_by_choice(tmp_path: Path) -> None:
    (tmp_path / "q.jsonl").write_text('{"question": "good"}\n{"question": 5}\n')
    with pytest.raises(ConfigError, match=r"q.jsonl:2: column 'question' holds no question: 5"):
        RolloutManager(config(data__path=str(tmp_path / "q.jsonl")), tmp_path / "run")
    wanted = config(data__path=str(tmp_path / "q.jsonl"), data__on_bad_row="skip", service__batch_size=1)
    assert len(RolloutManager(wanted, tmp_path / "run").run.prepared.problems) == 1


@pytest.mark.covers("S3.1")
def test_of_two_updates_at_once_the_older_one_that_comes_later_is_refused(tmp_path: Path) -> None:
    async def use(manager: RolloutManager) -> int:
        newer = asyncio.create_task(manager.update_weights(3, "three"))
        await asyncio.sleep(0)
        with pytest.raises(ConfigError, match="older"):
            await manager.update_weights(2, "two")
        await newer
        return manager.version

    assert served(tmp_path / "run", use, configured=config()) == 3


@pytest.mark.slow
@pytest.mark.covers("S3.1")
def test_weights_that_somebody_else_loaded_are_found_out(tmp_path: Path) -> None:
    with pytest.raises(TooManyFailures, match="weights of version 7 sampled it and were never acknowledged"):
        served(
            tmp_path / "run",
            lambda manager: manager.generate(0),
            configured=config(max_trees=64, service__batch_size=20),
            engine=Scripted(version=7),
        )


@pytest.mark.slow
@pytest.mark.covers("S3.8")
def test_a_batch_whose_caller_is_cancelled_at_any_moment_is_handed_over_once(tmp_path: Path) -> None:
    async def use(manager: RolloutManager) -> None:
        for number in range(0, 60, 3):
            asking = asyncio.create_task(manager.generate(0))
            for _ in range(number):
                await asyncio.sleep(0)
            asking.cancel()
            await asyncio.wait({asking})
        one = {s.group_index for s in (await manager.generate(0)).samples}
        two = {s.group_index for s in (await manager.generate(1)).samples}
        assert one == {0, 1, 2, 3} and two == {4, 5, 6, 7}

    served(tmp_path / "run", use, configured=config())


THINKING = """
import asyncio

is_asked, may_answer = asyncio.Event(), asyncio.Event()

async def keep(args, samples):
    if samples[0].group_index >= 2:
        is_asked.set()
        await may_answer.wait()
    return True
"""


@pytest.mark.covers("S3.8")
def test_a_group_that_becomes_stale_while_its_filter_thinks_is_dropped_once(tmp_path: Path) -> None:
    file = written(tmp_path, THINKING)
    wanted = config(service__group_filter=f"{file}:keep", service__max_staleness=1, service__batch_size=2)

    async def use(manager: RolloutManager) -> tuple[set[int | None], dict[str, int]]:
        await manager.generate(0)
        await located("filter", f"{file}:is_asked").wait()
        for version in (1, 2, 3):
            await manager.update_weights(version, "weights")
        located("filter", f"{file}:may_answer").set()
        groups = {sample.group_index for sample in (await manager.generate(1)).samples}
        return groups, dict(manager.counts)

    groups, counts = served(tmp_path / "run", use, configured=wanted)
    assert counts["dropped/stale"] >= 1 and counts["handed"] == 4
    assert not groups & {0, 1}


def test_a_service_is_looked_at_like_a_run_but_not_resumed_as_one(tmp_path: Path) -> None:
    batch = served(tmp_path / "run", lambda manager: manager.generate(0), configured=config())
    assert len(list(saved.Saved.open(tmp_path / "run").rows())) == len(batch.samples)
    with pytest.raises(ConfigError, match="is a rollout service's"):
        folder.resume(tmp_path / "run")
