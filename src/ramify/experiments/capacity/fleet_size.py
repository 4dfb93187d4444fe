"""Fleet size: engines on GPUs, what one step of an engine costs, and what bounds the time of a run.

Costs follow from reading: a step reads the weights once for the whole batch and the keys and values of every sequence;
a token costs two operations a parameter. Efficiencies are those with which a 7 B model on an H100 comes to 6 ms a step,
27 us a sequence, 44 ns a token read and 30 us a token computed. They are assumptions, for a first look: an H200 took
1.2 of the estimate a step, 1.1 a sequence and 0.7 a token computed (`bench/gpu_serving.py`). Measure an engine of yours
for more (`ramify capacity --measure`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from types import MappingProxyType
from typing import Any, Final, Literal

import numpy as np

from ramify.core.errors import ConfigError, nearest
from ramify.testing.simulated_server import SimulatedCosts

WEIGHT_READS: Final = 0.75
"""Share of the memory bandwidth that reading weights reaches."""
KV_READS: Final = 0.39
"""Share of the memory bandwidth that reading keys and values reaches."""
DECODE_FLOPS: Final = 0.57
"""Share of the arithmetic that a large batch of new tokens reaches."""
PREFILL_FLOPS: Final = 0.51
"""Share of the arithmetic that computing a context reaches."""
ALL_REDUCE_S: Final = 15e-6
"""Seconds of one exchange between the GPUs of an engine; a layer needs two a step."""
USABLE: Final = 0.9
"""Share of a GPU's memory for weights, keys and values (vllm-project/vllm: gpu_memory_utilization)."""
BYTES_A_NUMBER: Final = 2
"""Of weights, keys and values: 16 bits."""
TURN_S: Final = 2e-3
"""Seconds of CPU of the growing process a turn, with HTTP and journal (`bench/saturation.py`)."""


@dataclass(frozen=True, slots=True)
class GPU:
    """What one GPU has, by its maker's data sheet."""

    name: str
    memory: float
    """Bytes."""
    bandwidth: float
    """Bytes a second."""
    flops: float
    """Operations a second in 16 bits, dense."""


GPUS: Mapping[str, GPU] = MappingProxyType(
    {
        gpu.name: gpu
        for gpu in (
            GPU("a100", 80e9, 2.04e12, 312e12),
            GPU("b200", 180e9, 7.7e12, 2250e12),
            GPU("h100", 80e9, 3.35e12, 989e12),
            GPU("h200", 141e9, 4.8e12, 989e12),
            GPU("l40s", 48e9, 0.864e12, 362e12),
            GPU("rtx4090", 24e9, 1.008e12, 165e12),
        )
    }
)


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What the cost of a dense model with grouped-query attention depends on."""

    name: str
    num_parameters: float
    num_layers: int
    num_kv_heads: int
    head_size: int

    @property
    def weight_bytes(self) -> float:
        return BYTES_A_NUMBER * self.num_parameters

    @property
    def kv_bytes(self) -> float:
        """Of the keys and values of one token."""
        return 2 * BYTES_A_NUMBER * self.num_layers * self.num_kv_heads * self.head_size

    @classmethod
    def of_config(cls, name: str, values: Mapping[str, Any]) -> "ModelShape":
        """The shape in a model's `config.json`. Raises `ConfigError` where it is none of a dense decoder."""
        experts = [key for key in ("num_experts", "num_local_experts", "n_routed_experts") if values.get(key)]
        if experts:
            raise ConfigError(
                f"{name}: {experts[0]} = {values[experts[0]]!r}, and costs of mixtures of experts are not estimated; "
                "measure an engine with --measure"
            )
        needed = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
        lacking = [key for key in needed if not isinstance(values.get(key), int)]
        if lacking:
            raise ConfigError(f"{name}: its config.json has no {', '.join(lacking)}; measure an engine with --measure")
        hidden, layers, heads, inner, vocabulary = (int(values[key]) for key in needed)
        kv_heads, size = int(values.get("num_key_value_heads") or heads), int(values.get("head_dim") or hidden // heads)
        attention = hidden * size * (2 * heads + 2 * kv_heads)
        tables = vocabulary * hidden * (1 if values.get("tie_word_embeddings") else 2)
        return cls(name, layers * (attention + 3 * hidden * inner) + tables, layers, kv_heads, size)


SIZES: Mapping[str, ModelShape] = MappingProxyType(
    {
        shape.name: shape
        for shape in (
            ModelShape("0.5b", 0.49e9, 24, 2, 64),
            ModelShape("1.5b", 1.54e9, 28, 2, 128),
            ModelShape("3b", 3.09e9, 36, 2, 128),
            ModelShape("7b", 7.61e9, 28, 4, 128),
            ModelShape("14b", 14.7e9, 48, 8, 128),
            ModelShape("32b", 32.5e9, 64, 8, 128),
            ModelShape("72b", 72.7e9, 80, 8, 128),
        )
    }
)
"""Shapes of Qwen2.5 (arXiv 2412.15115, table 1)."""


@dataclass(frozen=True, slots=True)
class EngineSize:
    """One engine of a fleet."""

    num_gpus: int
    costs: SimulatedCosts
    kv_tokens: float
    """Tokens whose keys and values fit; infinite = not known."""
    block_size: int = 16
    """Tokens per block of its prefix cache (vllm-project/vllm: block_size on GPUs)."""
    is_in_process: bool = False
    """Whether it runs in the process that grows trees: one of the two works at a time. A turn is then charged what it
    takes on this machine, without HTTP and journal."""


def gpu_of(name: str) -> GPU:
    """Raises `ConfigError` for a name that is not known."""
    if name.lower() not in GPUS:
        raise ConfigError(f"--gpu {name!r}: unknown GPU; {nearest(name.lower(), GPUS)}")
    return GPUS[name.lower()]


def smallest_engine(
    gpu: GPU, model: ModelShape, *, num_gpus: int | None = None, min_tokens: int = 32_768
) -> EngineSize:
    """An engine on as few GPUs as hold the weights and the keys and values of `min_tokens`: 1, 2, 4 or 8; or on
    `num_gpus`. Raises `ConfigError` where it does not fit."""
    sizes = (1, 2, 4, 8) if num_gpus is None else (num_gpus,)
    for number in sizes:
        left = USABLE * gpu.memory * number - model.weight_bytes
        if left >= min_tokens * model.kv_bytes:
            return EngineSize(number, step_costs(gpu, model, number), left / model.kv_bytes)
    raise ConfigError(
        f"{model.name} has {model.weight_bytes / 1e9:.0f} GB of weights, and {min_tokens:,} tokens take "
        f"{min_tokens * model.kv_bytes / 1e9:.1f} GB: they do not fit on {sizes[-1]} x {gpu.name} with "
        f"{USABLE * gpu.memory / 1e9:.0f} GB each; take larger GPUs, or more for an engine"
    )


def step_costs(gpu: GPU, model: ModelShape, num_gpus: int) -> SimulatedCosts:
    """The costs of an engine on `num_gpus` GPUs, which share each layer."""
    exchanges = 2 * model.num_layers * ALL_REDUCE_S if num_gpus > 1 else 0.0
    bandwidth, flops = gpu.bandwidth * num_gpus, gpu.flops * num_gpus
    return SimulatedCosts(
        step_s=model.weight_bytes / (WEIGHT_READS * bandwidth) + exchanges,
        sequence_s=2 * model.num_parameters / (DECODE_FLOPS * flops),
        kv_token_s=model.kv_bytes / (KV_READS * bandwidth),
        prefill_token_s=2 * model.num_parameters / (PREFILL_FLOPS * flops),
    )


Bound = Literal["work", "longest tree", "tools", "driver"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetForecast:
    """How long a run takes on one fleet."""

    num_gpus: int
    num_engines: int
    max_batch: int
    """Sequences of one engine at once."""
    seconds: float
    bounds: Mapping[Bound, float]
    """Seconds that the run takes at least, by what holds it up."""
    mean_batch: float
    """Sequences in a step, on average over the engines' steps."""
    num_turns: float
    decode_tokens: float

    @property
    def binding(self) -> Bound:
        """The largest bound."""
        return max(self.bounds, key=self.bounds.__getitem__)

    @property
    def of_bound(self) -> float:
        """The time, as a multiple of the largest bound."""
        return self.seconds / self.bounds[self.binding] if self.bounds[self.binding] else math.inf

    @property
    def gpu_hours(self) -> float:
        return self.num_gpus * self.seconds / 3600


def fitting_batch(size: EngineSize, max_batch: int, *, held: float) -> int:
    """As many of `max_batch` sequences as fit, where a full engine would hold `held` tokens."""
    return max_batch if held <= size.kv_tokens else max(1, math.floor(max_batch * size.kv_tokens / held))


def fitted_costs(rows: Sequence[Sequence[float]], seconds: Sequence[float]) -> SimulatedCosts:
    """Costs by least squares of the relative errors, none below 0. A row: steps, sequences in all steps, tokens read in
    all steps, tokens computed, sequences that joined."""
    counts = np.array(rows, np.float64) / np.array(seconds, np.float64)[:, None]
    used = [column for column in range(counts.shape[1]) if counts[:, column].any()]
    best, found = math.inf, np.zeros(counts.shape[1])
    # The best costs without one below 0 are the best of some of the columns alone, so those few sets are tried.
    for columns in chain.from_iterable(combinations(used, number) for number in range(1, len(used) + 1)):
        some = counts[:, columns]
        solution = np.linalg.lstsq(some, np.ones(len(some)), rcond=None)[0]
        off = float(np.square(some @ solution - 1).sum())
        if (solution >= 0).all() and off < best:
            best, found = off, np.zeros(counts.shape[1])
            found[list(columns)] = solution
    return SimulatedCosts(*(float(value) for value in found))
