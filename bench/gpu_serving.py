"""Trees on a GPU: what a vLLM server takes there, what `ramify capacity` says of it, and trees beside chains.

The server has a model of Qwen2.5's shape with weights that vLLM draws: it says noise, and takes the time of a trained
one. Its vocabulary is the built-in model's, so its output layer is smaller. A world answers each of 2 to 6 turns with
100 to 400 tokens after 0.05 to 2 s.

- costs: those of a step as measured (`ramify capacity --measure`), beside those that follow from the GPU's data sheet.
- runs: each preset is grown, and forecast from a small run of it with either costs; the last columns are forecasts over
  the time taken, which is the median of the rounds. Target: within 20 %. Counts are of the last round: `computed` are
  the tokens of contexts that the server computed, `cached` the share that it had. `a leaf`: the time of chains over
  ours.

Needs vLLM and a GPU: PYTHONPATH=src python bench/gpu_serving.py --gpu h100 --size 7b [--python .venv-vllm/bin/python]
"""

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from real_replicas import running
from smoke import few

from ramify import AgentTurn, Observation, Problem, Verdict
from ramify.config.configure import resolve
from ramify.config.run_config import RunConfig
from ramify.core.format import Action, TurnAction
from ramify.engines.builtin import FOLDER
from ramify.environments.blocking import BlockingEnvironment
from ramify.experiments.capacity import Capacity, Workload, between, measured_costs
from ramify.experiments.capacity.fleet_size import GPUS, SIZES, EngineSize, ModelShape, smallest_engine
from ramify.formats.tags import TagFormat
from ramify.runner import folder
from ramify.runner.saved import Saved
from ramify.servers.installed import settled
from ramify.servers.launch import Launch
from ramify.servers.server_config import ServerConfig
from ramify.testing.simulated_server import SimulatedCosts

NUM_TREES = few(64, 2)
NUM_PILOT = few(8, 2)
MAX_BATCH = 256
CONTEXT = 8192
TOOL_SECONDS = between(0.05, 2.0)
TOOL_TOKENS = [*map(round, between(100, 400))]
LOAD = Workload(500, [4], [few(140, 4)], TOOL_TOKENS, [0.0])
"""What the costs are measured with: the mean of what the world and its model say."""
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "chains": {"strategy.options.n": 8},
    "tree_grpo": {},
    "arpo": {},
    "treepo": {},
}
INNER: Mapping[str, tuple[int, int, int]] = {
    "0.5b": (896, 4864, 14),
    "1.5b": (1536, 8960, 12),
    "3b": (2048, 11008, 16),
    "7b": (3584, 18944, 28),
    "14b": (5120, 13824, 40),
}
"""Hidden size, intermediate size and heads (arXiv 2412.15115, table 1)."""
SERVER_FLAGS = (
    *("--load-format", "dummy", "--max-num-seqs", str(MAX_BATCH), "--gpu-memory-utilization", "0.9"),
    *("--generation-config", "vllm"),
)


@dataclass
class Place:
    """A world's state. Mutated by `step`."""

    num_turns: int
    num_done: int = 0

    def step(self, turn: AgentTurn, seed: int) -> Observation:
        time.sleep(TOOL_SECONDS[seed % len(TOOL_SECONDS)])
        self.num_done += 1
        is_last = self.num_done == self.num_turns
        return Observation(",7" * (TOOL_TOKENS[seed // 64 % len(TOOL_TOKENS)] // 2), end="done" if is_last else None)

    def copy(self) -> "Place":
        return replace(self)

    def digest(self) -> str:
        return f"{self.num_done} of {self.num_turns}"

    def score(self, said: str, problem: Problem) -> Verdict | None:
        return Verdict(len(said) % 2)

    def close(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class NoiseFormat(TagFormat):
    """A turn ends at one of three letters, which are a token each: noise has turns of 140 tokens on average, with the
    end of the sequence."""

    @property
    def stops(self) -> tuple[str, ...]:
        return ("J", "Q", "Z")

    def read(self, run: str) -> Action | None:
        return TurnAction(run) if any(stop in run for stop in self.stops) else None


class Noise(BlockingEnvironment):
    """A world for a model that says noise: it answers any turn, and ends after as many as the seed says."""

    name: ClassVar[str] = "noise"
    format: ClassVar[TagFormat] = NoiseFormat()

    def problems(self, split: str, num_problems: int, seed: int) -> Sequence[Problem]:
        return [Problem(f"noise-{i}", f"{i} ".ljust(500, "?")) for i in range(num_problems)]

    def world(self, problem: Problem, seed: int) -> Place:
        return Place(2 + seed % 5)


def write_model(target: Path, size: str) -> None:
    """A folder with the shape of a model and the built-in tokenizer, without weights."""
    shape, (hidden, inner, heads) = SIZES[size], INNER[size]
    own = json.loads((FOLDER / "config.json").read_text())
    shutil.copytree(FOLDER, target, ignore=shutil.ignore_patterns("*.safetensors", "report*"))
    config = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_attention_heads": heads,
        "num_hidden_layers": shape.num_layers,
        "num_key_value_heads": shape.num_kv_heads,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        **{name: own[name] for name in ("vocab_size", "eos_token_id", "bos_token_id", "pad_token_id")},
    }
    (target / "config.json").write_text(json.dumps(config))


def config_of(preset: str, number: int, engine: Mapping[str, Any], **settings: Any) -> RunConfig:
    flags = {
        "environment.name": f"{Path(__file__).resolve()}:Noise",
        "growth.max_response_tokens": CONTEXT - 1024,
        "prompts": number,
        "max_trees": number,
        **engine,
        **PRESETS[preset],
        **settings,
    }
    return resolve(preset=preset, flags=flags).config


def show_costs(measured: SimulatedCosts, estimated: SimulatedCosts) -> None:
    print(f"{'':12}{'step ms':>9}{'sequence us':>13}{'token read ns':>15}{'token computed us':>19}")
    for name, costs in (("measured", measured), ("data sheet", estimated)):
        print(
            f"{name:12}{1e3 * costs.step_s:9.2f}{1e6 * costs.sequence_s:13.1f}{1e9 * costs.kv_token_s:15.1f}"
            f"{1e6 * costs.prefill_token_s:19.1f}",
            flush=True,
        )


def show_runs(engine: Mapping[str, Any], sizes: Mapping[str, EngineSize], rounds: int) -> None:
    print(
        f"{'':11}{'leaves':>7}{'turns':>7}{'sampled':>9}{'computed':>10}{'cached':>8}{'grown s':>9}"
        f"{'ms a leaf':>11}{'a leaf':>8}" + "".join(f"{name:>12}" for name in sizes)
    )
    chains_ms = None
    with tempfile.TemporaryDirectory() as out:
        for preset in PRESETS:
            pilot = Path(out) / f"{preset}-pilot"
            folder.begin(config_of(preset, NUM_PILOT, engine, seed=1), pilot)
            load = replace(Workload.of_run(Saved.open(pilot)), tool_seconds=TOOL_SECONDS)
            config = config_of(preset, NUM_TREES, engine)
            reports = [
                folder.begin(replace(config, seed=number + 2), Path(out) / f"{preset}-{number}")
                for number in range(rounds)
            ]
            report = reports[-1]
            seconds = statistics.median(each.seconds for each in reports)
            leaf_ms = 1e3 * seconds / report.leaves
            chains_ms = chains_ms or leaf_ms
            forecasts = [Capacity(config, load, size, max_batch=MAX_BATCH).on(1) for size in sizes.values()]
            computed, cached = report.prefill_uncached, report.prefill_cached
            print(
                f"{preset:11}{report.leaves:7}{report.turns:7}{report.decode_tokens:9}{computed:10}"
                f"{cached / max(1, cached + computed):8.2f}{seconds:9.1f}{leaf_ms:11.1f}{chains_ms / leaf_ms:7.2f}x"
                + "".join(f"{found.seconds / seconds:12.2f}" for found in forecasts)
                + f"  {forecasts[0].binding}",
                flush=True,
            )


def measured(engine: Mapping[str, Any], model: ModelShape, gpu: str) -> Mapping[str, EngineSize]:
    """The size of the engine by its measured costs, and by the data sheet."""
    estimate = smallest_engine(GPUS[gpu], model)
    costs = measured_costs(config_of("chains", 64, engine), LOAD)
    show_costs(costs, estimate.costs)
    return {"measured": replace(estimate, num_gpus=1, costs=costs), "data sheet": estimate}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", choices=sorted(GPUS), default="h100")
    parser.add_argument("--size", choices=sorted(INNER), default="7b")
    parser.add_argument("--python", help="interpreter that has vLLM (default: this one)")
    parser.add_argument("--rounds", type=int, default=few(3, 1))
    parser.add_argument("arguments", nargs="*", help="more arguments of the server, behind --")
    options = parser.parse_args()
    if shutil.which("nvidia-smi") is None:
        print("skipped: no GPU here")
        sys.exit()
    with tempfile.TemporaryDirectory() as scratch:
        model = Path(scratch) / f"qwen-{options.size}"
        write_model(model, options.size)
        server = ServerConfig(
            python=options.python, max_model_len=CONTEXT, arguments=(*SERVER_FLAGS, *options.arguments)
        )
        launch = settled(Launch(model=str(model), config=server), ours=os.environ)
        with running(launch, launch.probe) as url:
            engine = {"engine.name": "vllm", "engine.model": str(model), "engine.base_url": url}
            show_runs(engine, measured(engine, SIZES[options.size], options.gpu), options.rounds)


if __name__ == "__main__":
    main()
