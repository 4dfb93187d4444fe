"""What a service says of itself: to trackers, to telemetry, on the console and in files."""

import io
import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.service.services import config, served
from tests.telemetry.exported import Exported

from ramify.core.errors import ConfigError, ContractError
from ramify.rows.slime import read
from ramify.service.controller import Batch
from ramify.service.manager import RolloutManager
from ramify.testing.planned_faults import Fault
from ramify.testing.scripted import Scripted

EVAL = {"service__eval__held.prompts": 3, "service__eval__held.repeats": 2}


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.covers("S3.7")
def test_batches_and_evaluations_are_logged_at_their_steps(tmp_path: Path) -> None:
    async def use(manager: RolloutManager) -> tuple[Batch, dict[str, float]]:
        await manager.generate(0)
        await manager.update_weights(1, "one")
        return await manager.generate(1), dict(await manager.eval(1))

    tracker = {"service__trackers__file.kind": "jsonl", "service__trackers__file.folder": str(tmp_path / "tracked")}
    console = Console(file=io.StringIO(), width=200)
    batch, evaluated = served(tmp_path / "run", use, configured=config(**EVAL, **tracker), console=console)
    first, second, evaluation = lines(tmp_path / "tracked")
    steps = [(line["step_key"], line["step"]) for line in (first, second, evaluation)]
    assert steps == [("rollout/step", 0), ("rollout/step", 1), ("eval/step", 1)]
    assert second["metrics"]["rollout/raw_reward"] == batch.metrics["rollout/raw_reward"]
    assert {"eval/held", "eval/held-truncated_ratio", "eval/held-pass@1", "eval/held-pass@2"} <= evaluated.keys()
    assert evaluation["metrics"]["eval/held"] == evaluated["eval/held"]
    assert isinstance(console.file, io.StringIO) and "held" in console.file.getvalue()


@pytest.mark.covers("S3.7")
def test_steps_of_training_are_counted_in_samples(tmp_path: Path) -> None:
    async def use(manager: RolloutManager) -> float:
        return (await manager.eval(3))["eval/step"]

    wanted = config(**EVAL, service__always_train_step=True, service__global_batch_size=6, service__rows_per_group=3)
    assert served(tmp_path / "run", use, configured=wanted) == 3 * 4 * 3 // 6


def test_steps_of_training_need_groups_of_one_size(tmp_path: Path) -> None:
    wanted = config("offline", service__always_train_step=True, service__global_batch_size=6)
    with pytest.raises(ConfigError, match="set n_samples_per_prompt"):
        RolloutManager(wanted, tmp_path / "run")


FUNCTION = """
from types import SimpleNamespace

def evaluate(args, rollout_id, data_source, evaluation=True):
    data = {"mine": {"rewards": [1.0, 0.0, 1.0, 1.0], "truncated": [0, 1, 0, 0]}}
    return SimpleNamespace(data=data, metrics={"eval/extra": 0.5})

def wrong(args, rollout_id, data_source, evaluation=True):
    return {"mine": {"rewards": "all"}}
"""


@pytest.mark.covers("S3.4", "S3.7")
def test_an_evaluation_of_the_users_has_the_names_of_ours(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FUNCTION)
    wanted = config(service__eval_function=f"{tmp_path / 'mine.py'}:evaluate")
    metrics = served(tmp_path / "run", lambda manager: manager.eval(2), configured=wanted)
    assert (metrics["eval/mine"], metrics["eval/mine-truncated_ratio"], metrics["eval/extra"]) == (0.75, 0.25, 0.5)
    wanted = config(service__eval_function=f"{tmp_path / 'mine.py'}:wrong")
    with pytest.raises(ContractError, match=r"service.eval_function = .*rewards"):
        served(tmp_path / "other", lambda manager: manager.eval(2), configured=wanted)


@pytest.mark.covers("S3.5", "S3.7")
def test_answers_of_an_evaluation_are_saved_beside_the_batches(tmp_path: Path) -> None:
    template = str(tmp_path / "batches" / "{rollout_id}.jsonl")
    served(tmp_path / "run", lambda m: m.eval(4), configured=config(**EVAL, service__save_debug=template))
    answers = read(tmp_path / "batches" / "eval_4.jsonl")
    assert [sample.group_index for sample in answers] == [0, 0, 1, 1, 2, 2]


@pytest.mark.covers("S3.10")
def test_telemetry_has_the_numbers_of_the_service_and_every_try_of_its_engine(tmp_path: Path) -> None:
    exported = Exported()
    (tmp_path / "mine.py").write_text("def reward(args, sample):\n    return float(sum(sample.tokens) % 2)\n")
    engine = Scripted(version=0, faults=[Fault("error", calls=(0, 1), reason="http_500", is_retryable=True)])

    async def use(manager: RolloutManager) -> dict[str, int]:
        await manager.generate(0)
        await manager.update_weights(1, "one")
        await manager.generate(1)
        return dict(manager.counts)

    with closing(exported.telemetry):
        wanted = config(service__group_filter="mixed", service__reward_function=f"{tmp_path / 'mine.py'}:reward")
        counts = served(tmp_path / "run", use, configured=wanted, engine=engine, telemetry=exported.telemetry)
        assert exported.total("ramify.batches") == 2
        assert exported.total("ramify.weight_version") == 1
        assert exported.by("ramify.buffer.groups", "state")["handed"] == counts["handed"] == 8
        assert exported.total("ramify.groups.dropped", reason="mixed") == counts.get("dropped/mixed", 0)
        assert sum(exported.counts("gen_ai.client.operation.duration").values()) == engine.num_calls
        failed = {
            key: num
            for key, num in exported.counts("gen_ai.client.operation.duration").items()
            if "http_500" in str(key)
        }
        assert sum(failed.values()) == 2, "a try that failed is one of its own"


@pytest.mark.covers("S3.8")
def test_rows_that_are_skipped_are_said(tmp_path: Path) -> None:
    (tmp_path / "q.jsonl").write_text('{"question": "good"}\n{"question": 5}\n')
    console = Console(file=io.StringIO(), width=300)
    wanted = config(data__path=str(tmp_path / "q.jsonl"), data__on_bad_row="skip")
    RolloutManager(wanted, tmp_path / "run", console=console)
    assert isinstance(console.file, io.StringIO)
    assert "q.jsonl:2: column 'question' holds no question: 5" in console.file.getvalue()


@pytest.mark.covers("S3.2")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"engine__base_url": "http://127.0.0.1:1"}, "service.pool starts the engines, and .* name others"),
        ({"service__pool__router": "own"}, "a service places its requests itself"),
    ],
)
def test_a_pool_that_cannot_serve_a_service_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    settings = {"engine__name": "vllm", "engine__model": "m", "service__pool__num_cpu_engines": 1, **changes}
    with pytest.raises(ConfigError, match=message):
        RolloutManager(config(**settings), tmp_path / "run")
