"""Traces of our trees are read by verifiers, and made into samples by prime-rl's own code."""

import json
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("verifiers", reason="needs verifiers==0.4.0, in an environment of its own")
    import verifiers.v1 as vf

import numpy as np
from tests.originals.sources import imports, source

import ramify
from ramify.rows.traces import traces, write

pytestmark = pytest.mark.filterwarnings("ignore")  # other people's
PRESETS = ("chains", "tree_grpo", "planned", "arpo")


def grown(preset: str) -> ramify.Rollout:
    return ramify.rollout_sync(preset=preset, task="hops", prompts=3, seed=5)


@pytest.mark.parametrize("preset", PRESETS)
def test_verifiers_reads_every_row(preset: str, tmp_path: Path) -> None:
    run = grown(preset)
    rows = run.rows()
    write(rows, tmp_path / "traces.jsonl", codec=run.trees[0].codec)
    lines = (tmp_path / "traces.jsonl").read_text("utf-8").splitlines()
    read = [vf.WireTrace.model_validate(json.loads(line)) for line in lines]
    assert len(read) == len({row.uid for row in rows})
    for trace in read:
        of_tree = [row for row in rows if row.uid == trace.task.key]
        assert trace.reward == pytest.approx(np.mean([row.reward for row in of_tree]))
        paths = {tuple(row.ids.tolist()): row for row in of_tree}  # leaves may say the same
        assert sorted(branch.token_ids for branch in trace.branches) == sorted(row.ids.tolist() for row in of_tree)
        for branch in trace.branches:
            row = paths[tuple(branch.token_ids)]
            assert np.array_equal(branch.sampled_mask, row.is_sampled)
            logprobs = np.where(row.is_sampled, np.nan_to_num(row.logprobs), 0)
            assert branch.logprobs == pytest.approx(logprobs.tolist(), abs=1e-6)
        again = vf.WireTrace.model_validate(trace.to_record(float_decimals=None))
        assert [branch.advantages for branch in again.branches] == [branch.advantages for branch in trace.branches]


@pytest.fixture(scope="module")
def trajectories() -> Iterator[Any]:
    root = source("RAMIFY_PRIME_RL", "PrimeIntellect-ai/prime-rl", "src/prime_rl/orchestrator/trajectories.py")
    packages = ("prime_rl", "prime_rl.orchestrator", "prime_rl.transports", "prime_rl.transports.rollouts")
    absent = (*packages, "prime_rl.utils", "prime_rl.utils.logger")
    kept = {name: module for name, module in sys.modules.items() if name.startswith("verifiers")}
    with imports(root / "src", absent=absent) as load:
        types = load("prime_rl.transports.rollouts.types")
        sys.modules["prime_rl.transports.rollouts"].TrainingSample = types.TrainingSample  # type: ignore[attr-defined]
        yield load("prime_rl.orchestrator.trajectories")
    sys.modules.update(kept)


def trained(token_ids: Sequence[int], mask: Sequence[bool], advantages: Sequence[float]) -> list[tuple[Any, float]]:
    """(the tokens up to a trained one, its advantage)."""
    return [(tuple(token_ids[: at + 1]), advantages[at]) for at, is_trained in enumerate(mask) if is_trained]


@pytest.mark.parametrize("preset", PRESETS)
def test_prime_rl_trains_every_token_once_with_its_advantage(
    preset: str, trajectories: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vf.Branch, "multi_modal_data", None, raising=False)  # verifiers 0.4.0 has no images
    run = grown(preset)
    for line in traces(run.rows(), run.trees[0].codec):
        trace = vf.WireTrace.model_validate(line)
        samples = trajectories.trace_to_samples(trace, env_name="hops")
        found = [each for one in samples for each in trained(one.token_ids, one.mask, one.advantages)]
        rows = [row for row in run.rows() if row.uid == trace.task.key]
        expected = [each for row in rows for each in trained(row.ids.tolist(), row.weights > 0, row.trained)]
        assert sorted(found) == sorted(expected)
