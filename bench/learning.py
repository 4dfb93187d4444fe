"""What is learnt from trees: held-out reward of the same policy, trained on the trees of several presets.

Every arm gets the same decode tokens, the same seeds and the same problems. Its learning rate is chosen by one rule:
each of `--rates` trains one policy with a seed of its own for half the tokens, and the one whose policy answers most
held-out problems of another set is taken. Trees of the preset `planned` have the shape that pilots advise, and the
tokens of pilots count. Then `--seeds` policies are trained with it and examined on 200 held-out problems, four times
each. Intervals are over problems and seeds; `less the first` is paired by both. The start is a model between the two
shipped ones (`models/weaken.py`), which has room to learn.

Run, with TRL: PYTHONPATH=. .venv-train/bin/python bench/learning.py [--presets chains,planned,tree_grpo_as_published]
[--task herds] [--tokens 60000] [--trees 12] [--pilot 15] [--seeds 3] [--rates 3e-4,1e-3,3e-3] [--out build/learning]
[--plot learning.svg]
"""

import argparse
import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from smoke import IS_BOOK, few

from ramify.cli.train import findings, table
from ramify.config.configure import resolve
from ramify.config.run_config import RunConfig
from ramify.planner.interval import Interval

try:
    from models.weaken import STARTS, weaken

    from ramify.train.compare import Arm, Learning, compare, interval
    from ramify.train.loop import Figures, TrainConfig
except ImportError as error:
    print(f"skipped: {error}; pip install 'ramify[train]', and run it from a checkout: PYTHONPATH=.")
    sys.exit()

PILOT_SEED = 1000
"""Of the policies that choose a learning rate; no arm has it."""


def arms_of(presets: str, task: str, model: Path) -> Mapping[str, RunConfig]:
    flags = {"task.name": task, "task.split": "train", "prompts": 1000, "engine.model": str(model)}
    return {name: resolve(preset=name, flags=flags).config for name in presets.split(",")}


def told(arm: str, step: int, figures: Figures) -> None:
    if "eval_heldout" in figures:
        print(f"  {arm}, {step} updates: held out {figures['eval_heldout']:.3f}", file=sys.stderr)


def chosen_rate(name: str, run: RunConfig, config: TrainConfig, rates: list[float]) -> float:
    """The rate of the pilot policy with the highest held-out reward; printed with the others."""
    found: dict[float, Interval] = {}
    for rate in rates:
        own = replace(config, out=config.out / f"rate-{rate:g}", learning_rate=rate, tokens=config.tokens // 2)
        pilot = compare({name: run}, own, seeds=[PILOT_SEED], exam_problems=100, exam_seed=1, tell=told)
        found[rate] = interval(pilot.arms[0].scores - pilot.start)
    best = max(found, key=lambda rate: found[rate].value)
    said = ", ".join(f"{rate:g}: {each.value:+.3f} [{each.low:+.3f}, {each.high:+.3f}]" for rate, each in found.items())
    print(f"{name}: learning rate {best:g} of {said}")
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--presets", default="chains,planned,tree_grpo_as_published")
    parser.add_argument("--task", choices=STARTS, default="herds")
    parser.add_argument("--tokens", type=int, default=few(60_000, 600))
    parser.add_argument("--trees", type=int, default=few(12, 2))
    parser.add_argument("--pilot", type=int, default=few(15, 2), help="problems of each pilot")
    parser.add_argument("--seeds", type=int, default=few(3, 1))
    parser.add_argument("--rates", default=few("3e-4,1e-3,3e-3", "1e-4"))
    parser.add_argument("--out", type=Path, default=Path("build/learning"))
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    if IS_BOOK:  # A chapter is measured anew; otherwise what was trained before goes on.
        options.out = Path("build/bench/learning")
        shutil.rmtree(options.out, ignore_errors=True)

    model = options.out / "start-model"
    if not model.exists():
        weaken(model, options.task)
    config = TrainConfig(
        model=str(model),
        out=options.out,
        steps=1_000_000,
        tokens=options.tokens,
        trees=options.trees,
        eval_every=8,
        pilot=options.pilot,
    )
    arms: list[Arm] = []
    for name, run in arms_of(options.presets, options.task, model).items():
        rate = chosen_rate(name, run, config, [float(rate) for rate in options.rates.split(",")])
        own = replace(config, learning_rate=rate)
        found = compare({name: run}, own, seeds=range(options.seeds), tell=told)
        arms += found.arms
    learnt = Learning(found.start, arms)
    Console(width=160).print(table(learnt))
    print("\n".join(findings(learnt)))
    if options.plot is not None:
        from ramify.cli.plot import draw_learning

        draw_learning(learnt, options.plot, title=f"{options.task}: {options.seeds} seeds")


if __name__ == "__main__":
    main()
