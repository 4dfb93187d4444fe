"""Data sets of a service's evaluations: each may be sampled and read in a way of its own (slime: --eval-config)."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.service.services import config, served

from ramify.core.engine import Generation, Request
from ramify.core.errors import ConfigError, ExportError
from ramify.core.segment import Sampling
from ramify.rows.sample import Sample
from ramify.service.manager import RolloutManager
from ramify.testing.scripted import Scripted

REWARD = """
def parts(args, sample):
    return {"score": len(sample.response) % 5 / 4, "length": float(len(sample.response))}

def number(args, sample):
    return len(sample.response) % 5 / 4
"""


class Noting(Scripted):
    """Notes how it is asked to sample, and for how many tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[Sampling, int]] = []

    async def generate(self, request: Request) -> Generation:
        self.asked.append((request.sampling, request.max_tokens))
        return await super().generate(request)


def evaluated(folder: Path, **settings: Any) -> tuple[Any, Noting, list[Sample]]:
    """The metrics of an evaluation, the engine that answered, and the samples as they were saved."""
    (folder / "mine.py").write_text(REWARD)
    engine = Noting()

    async def use(manager: RolloutManager) -> Any:
        return await manager.eval(0)

    wanted = config(service__debug="rollout_only", service__save_debug=str(folder / "{rollout_id}.jsonl"), **settings)
    metrics = served(folder / "run", use, configured=wanted, engine=engine)
    lines = (folder / "eval_0.jsonl").read_text().splitlines()
    return metrics, engine, [Sample.from_dict(json.loads(line)) for line in lines]


@pytest.mark.covers("S3.7")
def test_each_set_is_sampled_at_its_own_temperature_and_length(tmp_path: Path) -> None:
    sets = {
        "service__eval__greedy__temperature": 0.0,
        "service__eval__greedy__max_response_tokens": 17,
        "service__eval__narrow__temperature": 0.6,
        "service__eval__narrow__top_p": 0.9,
        "service__eval__narrow__top_k": 20,
        "service__eval__usual__split": "heldout",
    }
    prompts = {f"service__eval__{name}__prompts": 2 for name in ("greedy", "narrow", "usual")}
    training = {"actions__policy__sampling__temperature": 0.8}
    metrics, engine, samples = evaluated(tmp_path, **sets, **prompts, **training)
    laws = {sampling for sampling, _ in engine.asked}
    narrow = Sampling(temperature=0.6, top_p=0.9, top_k=20)
    assert laws == {Sampling(temperature=0.0), narrow, Sampling(temperature=0.8)}
    assert max(most for sampling, most in engine.asked if sampling.temperature == 0.0) == 17
    assert max(most for sampling, most in engine.asked if sampling.temperature == 0.8) == 120
    assert all(sample.response_length <= 17 for sample in samples[:2])
    assert {"eval/greedy", "eval/narrow", "eval/usual"} <= metrics.keys()


@pytest.mark.covers("S3.7")
def test_a_set_reports_a_part_of_the_reward_of_its_own(tmp_path: Path) -> None:
    sets = {"service__eval__scored__prompts": 3, "service__eval__measured__prompts": 3}
    sets |= {"service__eval__measured__reward_key": "length"}
    keys = {"service__reward_key": "score", "service__reward_function": f"{tmp_path / 'mine.py'}:parts"}
    metrics, _, samples = evaluated(tmp_path, **sets, **keys)
    scored, measured = samples[:3], samples[3:]
    assert metrics["eval/scored"] == pytest.approx(sum(s.reward["score"] for s in scored) / 3)
    assert metrics["eval/measured"] == pytest.approx(sum(s.reward["length"] for s in measured) / 3)
    assert all(sample.reward.keys() == {"score", "length"} for sample in samples)


def test_a_set_whose_judge_gives_one_number_needs_no_key(tmp_path: Path) -> None:
    keys = {"service__reward_key": "score", "service__reward_function": f"{tmp_path / 'mine.py'}:number"}
    metrics, _, samples = evaluated(tmp_path, service__eval__sums__prompts=3, **keys)
    assert all(isinstance(sample.reward, float) for sample in samples)
    assert metrics["eval/sums"] == pytest.approx(sum(sample.reward for sample in samples) / 3)


@pytest.mark.parametrize("function", ["parts", "number"])
def test_a_key_that_a_set_names_must_be_a_part(tmp_path: Path, function: str) -> None:
    keys = {"service__reward_key": "score"} if function == "parts" else {}
    with pytest.raises(ExportError, match="no reward under the reward key 'accuracy'"):
        evaluated(
            tmp_path,
            **keys,
            service__reward_function=f"{tmp_path / 'mine.py'}:{function}",
            service__eval__sums__prompts=2,
            service__eval__sums__reward_key="accuracy",
        )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("inf")),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("top_k", -1),
        ("max_response_tokens", 0),
    ],
)
def test_what_no_set_can_be_sampled_by_is_refused(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=name):
        config(**{f"service__eval__sums__{name}": value})
