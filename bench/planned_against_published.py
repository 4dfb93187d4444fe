"""The planned shape against published presets, on the same problems and at the decode tokens of each preset.

A pilot of 60 held-out problems a task plans, for coverage, a shape for the mean tokens of each preset's trees. Both are
grown on 200 other held-out problems. What each solves is held against chains of its own tokens, and the two differences
against each other, problem by problem: what is left of a difference in tokens cancels. One line a preset.

Run: python bench/planned_against_published.py [--tasks countdown,hops,herds] [--presets …] [--problems 200] [--seeds 2]
"""

import argparse
import os
import time
from dataclasses import dataclass, replace
from statistics import fmean

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before numpy is imported: see `engines.builtin`

import numpy as np
from plan_validation import FORKS, config, flown, grown, others, pool_of, shape_text
from smoke import few

from ramify.config.configure import resolve
from ramify.config.run_config import RunConfig
from ramify.core.problem import Problem
from ramify.experiments.compare import ChainPool
from ramify.experiments.paired import paired_difference
from ramify.planner.interval import Interval
from ramify.planner.plan import plan

PRESETS = ("tree_grpo", "at2po", "arpo", "aepo", "offline", "treepo", "spo", "treerl")
CHAINS_A_PROBLEM = few(40, 4)


@dataclass(frozen=True)
class Arm:
    """A shape's trees, and by how much they solve more of each problem than chains of their mean tokens."""

    tokens: float
    gains: list[float]

    @property
    def less_chains(self) -> Interval:
        return paired_difference(self.gains, [0.0] * len(self.gains))


def arm(run: RunConfig, problems: list[Problem], num_seeds: int, pool: ChainPool) -> Arm:
    # few trees at once, so that forks find their contexts in the engine's slots; no bits are compared here
    quick = replace(run, max_trees=8, engine=replace(run.engine, options={"batch_invariant": False}))
    trees = grown(quick, problems, num_seeds)
    tokens = fmean(tree.spent.decode for group in trees.values() for tree in group)
    chains = pool.expected(tokens)
    gains = [fmean(tree.solved for tree in trees[uid]) - chains[uid]["solved"] for uid in sorted(trees)]
    return Arm(tokens, gains)


def published(name: str, task: str) -> RunConfig:
    return resolve(preset=name, flags={"task.name": task, "task.split": "heldout"}).config


def text(difference: Interval) -> str:
    mark = "**" if difference.word != "equal" else ""
    return f"{mark}{difference.value:+.3f} [{difference.low:+.3f}, {difference.high:+.3f}]{mark}"


def compare(task: str, presets: list[str], num_problems: int, num_seeds: int) -> None:
    pilot, problems = flown(task), others(task, num_problems)
    pool = pool_of(task, problems, CHAINS_A_PROBLEM)
    for name in presets:
        preset = arm(published(name, task), problems, num_seeds, pool)
        shape = plan(pilot, budget=preset.tokens, rng=np.random.default_rng(0), aim="coverage").shape
        own = arm(config(task, shape), problems, num_seeds, pool)
        print(
            f"| {task} | {name} | {preset.tokens:.0f} | {text(preset.less_chains)} | {shape_text(shape)} "
            f"| {own.tokens:.0f} | {text(own.less_chains)} | {text(paired_difference(own.gains, preset.gains))} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", default=",".join(few([*FORKS], [*FORKS][:1])))
    parser.add_argument("--presets", default=",".join(few(PRESETS, PRESETS[:1])))
    parser.add_argument("--problems", type=int, default=few(200, 2))
    parser.add_argument("--seeds", type=int, default=few(2, 1))
    options = parser.parse_args()
    began = time.process_time()
    print("| task | preset | tokens | less chains | the plan | tokens | less chains | plan less preset |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    for task in options.tasks.split(","):
        compare(task, options.presets.split(","), options.problems, options.seeds)
    print(f"\n{time.process_time() - began:.0f} CPU-seconds")


if __name__ == "__main__":
    main()
