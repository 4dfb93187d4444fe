"""Forecasts: a part of a fleet stands for the whole, bounds are below the time, and every preset is grown."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.engines.token_servers import FakeVllm, serving

from ramify.config.configure import resolve
from ramify.config.presets import preset_names
from ramify.config.run_config import RunConfig
from ramify.core.errors import ConfigError
from ramify.core.problem import Problem
from ramify.core.segment import Sampling
from ramify.engines.builtin import FOLDER
from ramify.experiments.capacity import Capacity, Workload, between, measured_costs
from ramify.experiments.capacity.engine_costs import BATCHES
from ramify.experiments.capacity.fleet_size import GPUS, SIZES, EngineSize, smallest_engine
from ramify.experiments.capacity.workload import Speaker, stand_in_task
from ramify.runner.folder import begin
from ramify.runner.library import rollout_sync
from ramify.runner.saved import Saved
from ramify.testing.scripts import ScriptedTurn
from ramify.testing.simulated import Simulated
from ramify.testing.simulated_server import SimulatedCosts

LOAD = Workload(200, [1, 2, 3, 4], [20, 40, 60], [40], [0.5])
SHORT = Workload(16, [2], [4], [4], [0.0])
SIZE = smallest_engine(GPUS["h100"], SIZES["7b"])


def config(preset: str = "chains", prompts: int = 8, **flags: Any) -> RunConfig:
    return resolve(preset=preset, flags={"prompts": prompts, "engine.name": "simulated", **flags}).config


@pytest.mark.slow
@pytest.mark.parametrize("preset", sorted(preset_names()))
def test_every_preset_is_grown(preset: str) -> None:
    found = Capacity(config(preset, 1), LOAD, SIZE).on(1)
    assert found.num_turns > 0
    assert found.seconds > 0


@pytest.mark.slow
@pytest.mark.parametrize(("preset", "num_gpus"), [("chains", 4), ("tree_grpo", 4), ("treepo", 2)])
def test_a_part_of_a_fleet_takes_as_long_as_the_whole(preset: str, num_gpus: int) -> None:
    run = config(preset, 64, **{"tools.max_parallel": 10_000})
    whole = Capacity(run, LOAD, SIZE).on(num_gpus)
    part = Capacity(run, LOAD, SIZE, max_turns=round(whole.num_turns / 2)).on(num_gpus)
    assert part.seconds == pytest.approx(whole.seconds, rel=0.1)
    assert part.decode_tokens == pytest.approx(whole.decode_tokens, rel=0.1)
    assert part.mean_batch == pytest.approx(whole.mean_batch, rel=0.15)


@pytest.mark.slow
@pytest.mark.parametrize("num_gpus", [1, 2, 8])
def test_no_bound_is_above_the_time(num_gpus: int) -> None:
    found = Capacity(config("tree_grpo", 24), LOAD, SIZE).on(num_gpus)
    assert max(found.bounds.values()) <= found.seconds * (1 + 1e-9)


@pytest.mark.slow
def test_a_larger_fleet_grows_the_same_trees() -> None:
    capacity = Capacity(config("tree_grpo", 16), LOAD, SIZE)
    one, four = capacity.on(1), capacity.on(4)
    assert (one.num_turns, one.decode_tokens) == (four.num_turns, four.decode_tokens)
    assert four.seconds < one.seconds


@pytest.mark.slow
def test_tools_bind_where_few_calls_run_at_once() -> None:
    slow = replace(LOAD, tool_seconds=[10.0], turns=[3])
    few = Capacity(config("chains", 16, **{"tools.max_parallel": 2}), slow, SIZE).on(1)
    assert few.binding == "tools"
    assert few.of_bound == pytest.approx(1.0, abs=0.1)


@pytest.mark.slow
def test_the_growing_process_binds_where_the_engines_are_fast() -> None:
    fast = EngineSize(1, SimulatedCosts(1e-6, 0, 0, 0), math.inf)
    one = Capacity(config("chains", 16), replace(LOAD, tool_seconds=[0.0]), fast)
    assert one.on(1).binding == "driver"
    four = Capacity(config("chains", 16), replace(LOAD, tool_seconds=[0.0]), fast, num_drivers=4)
    assert four.on(1).seconds == pytest.approx(one.on(1).seconds / 4)


@pytest.mark.slow
def test_an_engine_of_the_growing_process_takes_turns_with_it() -> None:
    load = replace(LOAD, tool_seconds=[0.0])
    apart, within = (
        Capacity(config("chains", 16), load, replace(SIZE, is_in_process=is_in_process)).on(1)
        for is_in_process in (False, True)
    )
    assert within.seconds == pytest.approx(apart.seconds + within.bounds["driver"])
    assert within.bounds["work"] == pytest.approx(apart.bounds["work"] + within.bounds["driver"])
    assert 0 < within.bounds["driver"] != apart.bounds["driver"], "charged what a turn takes on this machine"


@pytest.mark.slow
def test_sequences_wait_where_keys_and_values_do_not_fit() -> None:
    narrow = replace(SIZE, kv_tokens=2000)
    capacity = Capacity(config("chains", 32), replace(LOAD, tool_seconds=[0.0]), narrow)
    found = capacity.on(1)
    assert 1 <= found.max_batch < 16
    assert found.seconds > Capacity(config("chains", 32), replace(LOAD, tool_seconds=[0.0]), SIZE).on(1).seconds


def test_a_part_of_the_trees_has_its_part_of_the_limits_of_a_run() -> None:
    run = config("chains", 64, **{"run_limits.decode": 64 * 300})
    assert Capacity(run, LOAD, SIZE, max_turns=100).on(32).decode_tokens <= 64 * 300


def test_smaller_blocks_leave_less_of_a_context_to_compute() -> None:
    dear = EngineSize(1, SimulatedCosts(1e-3, 0, 0, 1e-3), math.inf)
    small, large = (
        Capacity(config("tree_grpo", 4), LOAD, replace(dear, block_size=size)).on(1).seconds for size in (1, 128)
    )
    assert small < large


@pytest.mark.parametrize("preset", ["chains", "tree_grpo"])
def test_paths_have_the_turns_and_the_tokens_of_the_workload(preset: str) -> None:
    """A preset that goes on behind a turn without an action ends at the answer too."""
    short = replace(LOAD, turns=[3], turn_tokens=[5], tool_tokens=[8])
    found = Capacity(config(preset, 4, **{"growth.max_turns": 7}), short, SIZE).on(1)
    assert found.decode_tokens == 5 * found.num_turns
    assert found.num_turns <= 3 * 4 * 8


@pytest.mark.parametrize(("segment_tokens", "num_turns"), [(1, 3), (2, 3), (4, 3), (7, 3), (3, 12)])
def test_a_turn_that_a_segment_cuts_is_as_long_as_the_others(segment_tokens: int, num_turns: int) -> None:
    """Also one that is cut inside of its call, of the number in it, or of its answer."""
    load = replace(LOAD, turns=[num_turns], turn_tokens=[9])
    options = {"segment_tokens": segment_tokens, "max_depth": 80, "width": 4}
    treepo = config("treepo", 1, **{"strategy.options": options, "growth.max_tool_calls": 20})
    task = stand_in_task(load, {"reward"})
    grown = rollout_sync([Problem("0", "?" * 200)], config=treepo, engine=Simulated(Speaker(load)), task=task)
    [tree] = grown.trees
    lengths = {int(tree.branch(leaf).is_sampled.sum()) for leaf in tree.leaves()}
    assert lengths == {num_turns * 9}


@pytest.mark.parametrize(
    ("said", "rest"),
    [("...#", "12e!"), ("...#1", "2e!"), ("...#12", "e!"), ("...#12q", "!"), ("...q", "="), ("...", "....#12e!")],
)
def test_a_cut_end_goes_on(said: str, rest: str) -> None:
    load = replace(LOAD, turns=[12, 30], turn_tokens=[2, 12])
    for seed in range(4, 400, 26):
        turn = ScriptedTurn(f"??{said}", seed, Sampling(), "", 0)
        assert Speaker(load)(turn) in {rest, rest.replace("12", "30")}
        if "1" in said:
            assert Speaker(load)(turn) == rest


@pytest.mark.slow
def test_what_all_prompts_share_is_computed_once() -> None:
    dear = replace(SIZE, costs=SimulatedCosts(1e-3, 0, 0, 1e-3), block_size=1)
    apart, shared = (
        Capacity(config("chains", 8), replace(LOAD, shared_tokens=number), dear).on(1).seconds for number in (0, 190)
    )
    assert apart - shared > 7 * 190 * 1e-3 / 2


def test_fewer_gpus_than_an_engine_needs_are_refused() -> None:
    capacity = Capacity(config(), LOAD, replace(SIZE, num_gpus=4))
    with pytest.raises(ConfigError, match="--gpus 3: an engine needs 4"):
        capacity.on(3)


def test_the_workload_of_a_run_is_what_its_paths_have(tmp_path: Path) -> None:
    run = resolve(preset="tree_grpo", flags={"prompts": 4, "seed": 3}).config
    report = begin(run, tmp_path / "run")
    load = Workload.of_run(Saved.open(tmp_path / "run"))
    assert sum(load.turn_tokens) == report.decode_tokens
    assert len(load.turns) == report.leaves
    assert len(load.tool_tokens) <= report.tool_calls
    assert set(load.tool_seconds) == {0.0}
    assert load.shared_tokens == 3, "<|user|>, make and a space"


def test_a_run_without_leaves_has_no_workload(tmp_path: Path) -> None:
    begin(resolve(flags={"prompts": 1, "limits.turns": 1}).config, tmp_path / "run")
    saved = Saved.open(tmp_path / "run")
    if not any(tree.leaves() for tree in saved.trees()):
        with pytest.raises(ConfigError, match="has no finished leaf"):
            Workload.of_run(saved)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"turns": []}, "turns: numbers of 1 or more are needed"),
        ({"turn_tokens": [0]}, "turn tokens: numbers of 1 or more"),
        ({"tool_seconds": [-1.0]}, "tool seconds: numbers of 0 or more"),
        ({"prompt_tokens": 0}, "a prompt of 0 tokens"),
        ({"shared_tokens": -1}, "-1 tokens that all prompts share"),
        ({"shared_tokens": LOAD.prompt_tokens + 1}, f"0 to {LOAD.prompt_tokens}, the tokens of a prompt"),
    ],
)
def test_an_impossible_workload_is_refused(changes: dict[str, Sequence[float]], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        replace(LOAD, **changes)  # type: ignore[arg-type]


def test_values_between_two_are_even_in_their_logarithm() -> None:
    found = between(1, 100)
    assert len(found) == 64
    assert sum(value < 10 for value in found) == 32
    assert between(5, 5) == [pytest.approx(5)] * 64
    assert between(0, 2)[0] > 0


@pytest.mark.slow
async def test_all_servers_are_measured_at_once() -> None:
    first, second = FakeVllm(), FakeVllm()
    async with serving(first) as one, serving(second) as other:
        flags = {"engine.name": "vllm", "engine.model": str(FOLDER), "engine.base_url": f"{one},{other}", "prompts": 4}
        await asyncio.to_thread(measured_costs, resolve(flags=flags).config, SHORT)
    assert len(first.asked) == len(second.asked) > sum(BATCHES)


@pytest.mark.slow
def test_costs_of_an_engine_are_measured() -> None:
    costs = measured_costs(resolve(flags={"prompts": 4}).config, SHORT)
    assert costs.step_s + costs.sequence_s > 0
    assert min(costs.step_s, costs.sequence_s, costs.kv_token_s, costs.prefill_token_s, costs.join_s) >= 0
