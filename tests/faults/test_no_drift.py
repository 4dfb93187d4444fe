"""No token drifts: `bench/no_drift.py` in small, and that it would find whoever encoded text again."""

import importlib
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.experiments.test_log_check import changed, compared
from tests.runner.parts import grown, problems

from ramify import plugins
from ramify.config.run_config import RunConfig, StrategyConfig
from ramify.core.codec import Codec
from ramify.core.engine import Capabilities, Engine, Generation, Request
from ramify.core.segment import Ids_T, token_array
from ramify.engines.logged import Logged
from ramify.testing.clock import run_virtual

FOLDER = Path(__file__).parents[2] / "bench"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module("no_drift")


@pytest.mark.covers("S0.2", "S0.3")
@pytest.mark.parametrize("num_turns", [200, pytest.param(2000, marks=pytest.mark.slow)])
def test_no_id_differs_over_many_turns_of_every_kind(
    bench: ModuleType, capsys: pytest.CaptureFixture[str], num_turns: int
) -> None:
    """Initial chains and forks of many prompts, grown to their ends: each id fed and sampled is the engine's own."""
    code = bench.main(["--turns", str(num_turns)])
    said = capsys.readouterr().out
    assert code == 0, said
    (total,) = [line for line in said.splitlines() if line.startswith("all ")]
    turns, _, sampled, differences, only_in_log, drifting, _ = [float(n.replace(",", "")) for n in total.split()[1:]]
    assert turns >= num_turns
    assert differences == 0
    assert sampled > turns
    assert only_in_log > 0
    assert drifting > turns / 3


def test_one_other_id_in_a_log_fails_the_bench(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def grow(config: RunConfig, path: Path, num_turns: float) -> None:
        bench.at_once(config, path, num_turns)
        changed(bench.log_of(path), lambda entries: entries[-1]["sampled"].__setitem__(0, 3))

    monkeypatch.setattr(bench, "LEGS", (bench.Leg("spoilt", "offline", 28, grow=grow),))
    assert bench.main(["--turns", "20"]) == 1
    assert "sampled id 0: the log has 3" in capsys.readouterr().out


class Reencoding:
    """Between a run and its engine: what goes one way is decoded and encoded again."""

    def __init__(self, engine: Engine, way: str) -> None:
        self._engine = engine
        self._way = way

    @property
    def codec(self) -> Codec:
        return self._engine.codec

    @property
    def capabilities(self) -> Capabilities:
        return replace(self._engine.capabilities, logprobs=None, max_topk=0, measures=frozenset())

    async def generate(self, request: Request) -> Generation:
        if self._way == "fed":
            request = replace(request, ids=self._again(request.ids))
        generation = await self._engine.generate(request)
        ids = self._again(generation.ids) if self._way == "sampled" else generation.ids
        ids = ids[: request.max_tokens]
        return replace(generation, ids=ids, logprobs=None, measures={}, topk=())

    async def close(self) -> None:
        await self._engine.close()

    def _again(self, ids: Ids_T) -> Ids_T:
        return token_array(self.codec.encode(self.codec.decode(ids), allow_special=True))


@pytest.mark.parametrize("way", ["fed", "sampled", "neither"])
def test_whoever_encoded_text_again_would_be_found(way: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    scribe = plugins.build("engine", f"{FOLDER / 'scribe.py'}:Scribe")
    engine = Reencoding(Logged(scribe, log), way)
    fields: dict[str, Any] = {"strategy": StrategyConfig(options={"n": 6})}
    result = grown(None, engine, questions=problems(4), **fields)
    run_virtual(engine.close())
    found = compared(list(result.trees), log)
    assert found.turns > 40
    assert len(found.differences) > found.turns / 3 if way != "neither" else not found.differences
