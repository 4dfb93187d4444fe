"""`ramify capacity` against what runs take: on modelled servers, and on real ones.

- simulator: the forecast of a part of a fleet with its share of the trees, beside the whole fleet grown in full, for
  several presets and loads. Target: within 5 %.
- vLLM (with `RAMIFY_ENGINES_PYTHON`): a server of the built-in model on this machine's CPU. The load is that of a small
  run, costs are measured with paths like it, and runs of several presets and sizes are predicted and then grown.
  Target: within 20 %. Each run is grown `--rounds` times, and its median is taken; where `from - to` is wider than the
  target, no forecast can meet it. vLLM's processes poll while they wait, so on two cores they keep each other from
  working; two servers (`--servers 2`) more so than one.
- builtin: the same with the engine of this process.

Run: python bench/capacity.py [--part simulator|builtin|vllm] [--servers N] [--rounds 5] [--smoke]
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from real_replicas import BLOCK, PYTHON, served
from smoke import few

from ramify.cli.capacity import costs_text
from ramify.config.configure import resolve
from ramify.config.run_config import RunConfig
from ramify.experiments.capacity import Capacity, Workload, between, measured_costs
from ramify.experiments.capacity.fleet_size import GPUS, SIZES, EngineSize, smallest_engine
from ramify.runner import folder, library
from ramify.runner.saved import Saved

QUICK = Workload(500, range(1, 7), [*map(round, between(30, 300))], [*map(round, between(100, 400))], between(0.05, 2))
SLOW = Workload(1500, range(2, 9), [*map(round, between(50, 800))], [*map(round, between(50, 1000))], between(1, 20))
WORKS = few(
    (
        ("chains", QUICK, 1024, 8),
        ("tree_grpo", QUICK, 768, 8),
        ("arpo", QUICK, 256, 8),
        ("treepo", QUICK, 256, 8),
        ("tree_grpo", SLOW, 512, 16),
        ("offline", SLOW, 512, 16),
    ),
    (("chains", QUICK, 16, 2),),
    book=(("chains", QUICK, 512, 8), ("tree_grpo", QUICK, 384, 8), ("arpo", QUICK, 128, 8)),
)
"""Preset, load, trees, GPUs."""
RUNS = few(
    (("chains", 24), ("chains", 96), ("tree_grpo", 48), ("arpo", 16)),
    (("chains", 2),),
    book=(("chains", 24), ("tree_grpo", 24)),
)
"""Preset, trees, of real runs."""


def config_of(preset: str, number: int, engine: Mapping[str, Any], **settings: Any) -> RunConfig:
    flags = {"prompts": number, "max_trees": number, **engine, **settings}
    return resolve(preset=preset, flags=flags).config


def simulator() -> None:
    size = smallest_engine(GPUS["h100"], SIZES["7b"])
    print(f"{'simulator':24}{'trees':>7}{'GPUs':>6}{'forecast s':>12}{'whole s':>10}{'ratio':>8}  bound by")
    for preset, load, number, gpus in WORKS:
        config = config_of(preset, number, {"engine.name": "simulated"})
        found = Capacity(config, load, size).on(gpus)
        whole = Capacity(config, load, size, max_turns=10**9).on(gpus)
        name = f"{preset}, {'slow' if load is SLOW else 'quick'} tools"
        ratio = found.seconds / whole.seconds
        print(
            f"{name:24}{number:7}{gpus:6}{found.seconds:12.1f}{whole.seconds:10.1f}{ratio:8.3f}  {whole.binding}",
            flush=True,
        )


def real(title: str, engine: Mapping[str, Any], *, num_engines: int, block_size: int, rounds: int) -> None:
    """Predict runs on engines that were measured, and grow them."""
    print(f"{title:24}{'trees':>7}{'turns':>8}{'forecast s':>12}{'grown s':>10}{'from - to':>14}{'ratio':>8}")
    with tempfile.TemporaryDirectory() as out:
        for number, (preset, trees) in enumerate(RUNS):
            pilot = Path(out) / f"pilot-{number}"
            folder.begin(config_of(preset, few(8, 2), engine, seed=1), pilot)
            config = config_of(preset, trees, engine)
            load = Workload.of_run(Saved.open(pilot))
            costs = measured_costs(config, load)
            problems = library.check_start(config, ()).problems
            took: list[float] = []
            num_turns = 0
            for _ in range(rounds):
                began = time.perf_counter()
                num_turns = library.rollout_sync(problems or None, config=config).report.turns
                took.append(time.perf_counter() - began)
            size = EngineSize(1, costs, float("inf"), block_size, is_in_process="engine.base_url" not in engine)
            found = Capacity(config, load, size, max_batch=64).on(num_engines)
            grown = statistics.median(took)
            print(
                f"{preset:24}{trees:7}{num_turns:8}{found.seconds:12.2f}{grown:10.2f}"
                f"{f'{min(took):.2f} - {max(took):.2f}':>14}{found.seconds / grown:8.2f}"
                f"  {found.binding}; {costs_text(costs)}",
                flush=True,
            )


@contextmanager
def vllm(count: int) -> Iterator[Mapping[str, Any]]:
    with served(count=count) as site:
        yield site.flags()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", action="append", choices=("simulator", "builtin", "vllm"))
    parser.add_argument("--servers", type=int, default=1, help="vLLM servers")
    parser.add_argument("--rounds", type=int, default=few(5, 1))
    arguments = parser.parse_args()
    parts = arguments.part or few(("simulator", "builtin", "vllm"), ("simulator", "builtin"))
    if "simulator" in parts:
        simulator()
    if "builtin" in parts:
        real("builtin", {"engine.name": "builtin"}, num_engines=1, block_size=1, rounds=arguments.rounds)
    if "vllm" in parts:
        if PYTHON not in os.environ:
            print(f"vLLM: {PYTHON} names no interpreter that has it: not measured")
            return
        count = arguments.servers
        with vllm(count) as engine:
            real(f"vLLM, servers: {count}", engine, num_engines=count, block_size=BLOCK, rounds=arguments.rounds)


if __name__ == "__main__":
    main()
