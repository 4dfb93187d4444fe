"""Fleets: what fits on GPUs, what a step costs, and costs fitted to what was timed."""

import json
import math
from dataclasses import astuple
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.core.errors import ConfigError
from ramify.engines.builtin import FOLDER
from ramify.experiments.capacity.fleet_size import (
    GPUS,
    SIZES,
    EngineSize,
    FleetForecast,
    ModelShape,
    fitted_costs,
    fitting_batch,
    gpu_of,
    smallest_engine,
    step_costs,
)
from ramify.testing.simulated_server import SimulatedCosts

COSTS = st.builds(SimulatedCosts, *[st.sampled_from([0.0, 1e-6, 1e-3])] * 5)


def test_a_7_b_model_on_an_h100_costs_what_the_simulated_engine_assumes() -> None:
    found, assumed = step_costs(GPUS["h100"], SIZES["7b"], 1), SimulatedCosts()
    for name in ("step_s", "sequence_s", "kv_token_s", "prefill_token_s"):
        assert getattr(found, name) == pytest.approx(getattr(assumed, name), rel=0.02)


@pytest.mark.parametrize(
    ("model", "gpu", "num_gpus"), [("0.5b", "rtx4090", 1), ("7b", "h100", 1), ("32b", "h100", 2), ("72b", "h100", 4)]
)
def test_an_engine_has_as_few_gpus_as_hold_it(model: str, gpu: str, num_gpus: int) -> None:
    size = smallest_engine(GPUS[gpu], SIZES[model])
    assert size.num_gpus == num_gpus
    assert size.kv_tokens * SIZES[model].kv_bytes + SIZES[model].weight_bytes == pytest.approx(
        0.9 * num_gpus * GPUS[gpu].memory
    )


def test_an_engine_of_several_gpus_is_faster_but_pays_for_their_exchange() -> None:
    one, two = (step_costs(GPUS["h200"], SIZES["32b"], number) for number in (1, 2))
    assert two.kv_token_s == one.kv_token_s / 2
    assert one.step_s / 2 < two.step_s < one.step_s


@pytest.mark.parametrize(
    ("model", "gpu", "num_gpus", "said"),
    [("72b", "rtx4090", 4, "72b has 145 GB of weights"), ("14b", "rtx4090", 1, "do not fit on 1 x rtx4090")],
)
def test_a_model_that_does_not_fit_is_refused(model: str, gpu: str, num_gpus: int | None, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        smallest_engine(GPUS[gpu], SIZES[model], num_gpus=num_gpus)
    with pytest.raises(ConfigError, match="do not fit on 8 x"):
        smallest_engine(GPUS[gpu], SIZES[model], min_tokens=10**8)


def test_an_unknown_gpu_is_refused_with_the_nearest_name() -> None:
    assert gpu_of("H100").name == "h100"
    with pytest.raises(ConfigError, match=r"--gpu 'h10': unknown GPU; .*h100"):
        gpu_of("h10")


def test_the_shape_of_a_config_has_the_parameters_of_the_weights() -> None:
    shape = ModelShape.of_config("builtin", json.loads((FOLDER / "config.json").read_text()))
    raw = (FOLDER / "model.safetensors").read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    count = sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")
    assert shape.num_parameters == pytest.approx(count, rel=0.01)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"num_experts": 8}, "num_experts = 8, and costs of mixtures of experts are not estimated"),
        ({"hidden_size": 8}, "has no num_hidden_layers, num_attention_heads"),
    ],
)
def test_a_config_of_another_kind_of_model_is_refused(values: dict[str, int], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ModelShape.of_config("mine", values)


@given(COSTS)
def test_costs_are_found_again_in_what_they_come_to(costs: SimulatedCosts) -> None:
    rng = np.random.default_rng(0)
    rows = rng.uniform(1, 100, (16, 5)) * [1, 10, 1000, 100, 1]
    true = np.array([costs.step_s, costs.sequence_s, costs.kv_token_s, costs.prefill_token_s, costs.join_s])
    seconds = rows @ true
    if seconds.min() <= 0:
        return
    found = fitted_costs(rows.tolist(), seconds.tolist())
    assert rows @ [
        *map(float, (found.step_s, found.sequence_s, found.kv_token_s, found.prefill_token_s, found.join_s))
    ] == (pytest.approx(seconds, rel=1e-4))


@given(st.integers(0, 10_000))
def test_no_other_costs_fit_better(seed: int) -> None:
    """Also where the best costs without a bound are below 0."""
    rng = np.random.default_rng(seed)
    rows = rng.uniform(1, 100, (12, 5)) * [1, 10, 1000, 100, 1]
    seconds = rows @ (rng.normal(size=5) * [1, 0.1, 0.001, 0.01, 1])
    rows, seconds = rows[seconds > 0.1], seconds[seconds > 0.1]
    if len(rows) < 6:
        return
    found = np.array(astuple(fitted_costs(rows.tolist(), seconds.tolist())))
    counts = rows / seconds[:, None]

    def off(costs: Any) -> float:
        return float(np.square(counts @ costs - 1).sum())

    for column in range(5):
        for change in (-1e-3, 1e-3):
            near = found.copy()
            near[column] = max(0.0, near[column] + change / counts[:, column].mean())
            assert off(near) >= off(found) - 1e-9


def test_no_cost_is_below_0() -> None:
    rows = [[48, 48 * b, 48 * b * 100, 64 * b, b] for b in (1, 4, 16, 64)]
    found = fitted_costs(rows, [1.0, 0.9, 1.1, 1.0])
    assert min(found.step_s, found.sequence_s, found.kv_token_s, found.prefill_token_s, found.join_s) >= 0
    assert found.step_s > 0


def test_a_batch_is_as_large_as_its_keys_and_values_fit() -> None:
    size = EngineSize(1, SimulatedCosts(1, 1, 1, 1), kv_tokens=1000)
    assert fitting_batch(size, 16, held=1000) == 16
    assert fitting_batch(size, 16, held=4000) == 4
    assert fitting_batch(size, 16, held=1e9) == 1


def test_the_largest_bound_binds() -> None:
    bounds = {"work": 3.0, "longest tree": 5.0, "tools": 0.0, "driver": 1.0}
    one = FleetForecast(
        num_gpus=8,
        num_engines=4,
        max_batch=256,
        seconds=6.0,
        bounds=bounds,  # type: ignore[arg-type]
        mean_batch=10.0,
        num_turns=100,
        decode_tokens=1000,
    )
    assert (one.binding, one.of_bound, one.gpu_hours) == ("longest tree", 1.2, 8 * 6 / 3600)
