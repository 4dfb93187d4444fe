"""What a pilot predicts against what runs come to: five shapes a task, at the same decode tokens as chains.

A pilot of 60 held-out problems predicts for each shape how many more problems it solves than chains of as many tokens
(`ramify.planner.coverage`). Then every shape is grown on 200 other held-out problems, three times each, and held
against chains of equally many tokens as `ramify compare` does. One line a shape: predicted with the interval of a
promise, realised with its interval over problems, whether the signs agree where both leave 0 out, and the mean
prediction of all pilots. Below: what is left between that mean and the runs beside the runs' own noise, which is the
error of the model; and what each pilot advises.

Run: python bench/plan_validation.py [--problems 200] [--seeds 3] [--pilots 10] [--plot docs/choose/plan-validation.svg]
"""

import argparse
import math
import time
from collections import Counter
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import get_args

import numpy as np
from smoke import few

from ramify.config.configure import resolve
from ramify.config.run_config import RunConfig, StrategyConfig
from ramify.core.problem import Problem
from ramify.experiments.compare import ChainPool, TreeFigures, chains_of, figures, line
from ramify.experiments.pilot import DECODE, grow_pilot, unseen
from ramify.planner.coverage import MODEL_ERROR, NUM_PREDICTED, more_solved, successes
from ramify.planner.interval import Interval
from ramify.planner.levels import levels, resampled
from ramify.planner.pilot import Pilot
from ramify.planner.plan import NUM_AGAIN, Aim, plan
from ramify.planner.shape import Shape
from ramify.runner import build, library
from ramify.runner.events import TreeClosed

BUDGET = 160
CHAINS_A_PROBLEM = few(24, 4)
PILOT_PROBLEMS = few(60, 4)
PILOT_SEED = 1000
FORKS: dict[str, tuple[tuple[float, ...], ...]] = {
    "countdown": ((1, 2), (1, 1, 3), (1, 1, 1, 2), (1, 2, 2, 2)),
    "hops": ((1, 3), (1, 1, 2), (1, 1, 1, 2), (1, 2, 2, 2), (1, 1, 4)),
    "herds": ((1, 3), (1, 1, 1, 3), (1, 1, 1, 1, 1, 3), (1, 2, 2, 2), (1, 1, 1, 1, 1, 2)),
}
"""Task -> children of shapes for one stem; each task has its plan, and of these the first four that differ from it."""
NUM_SHAPES = 5


@dataclass(frozen=True)
class Point:
    """One shape of one task."""

    task: str
    shape: Shape
    predicted: Interval
    realised: Interval
    tokens: float
    mean_predicted: float
    """Over all pilots."""

    @property
    def name(self) -> str:
        return shape_text(self.shape)

    @property
    def agrees(self) -> str:
        signs = [self.predicted.sign(), self.realised.sign()]
        return "-" if 0 in signs else "yes" if signs[0] == signs[1] else "NO"


def config(task: str, shape: Shape | None = None, *, seed: int = 0) -> RunConfig:
    flags = {"task.name": task, "task.split": "heldout", "seed": seed, "limits.decode": BUDGET, "max_trees": 16}
    made = resolve(preset="chains", flags=flags).config
    if shape is None:
        return made
    growth = replace(made.growth, prune=None if shape.keep is None else "task", keep=shape.keep or 0.0)
    strategy = StrategyConfig(name="planned", options={"children": list(shape.children)})
    return replace(made, strategy=strategy, growth=growth, limits=replace(made.limits, decode=None))


def shape_text(shape: Shape) -> str:
    return f"{','.join(f'{k:g}' for k in shape.children)}{'' if shape.keep is None else ' prune'}"


def shapes(task: str, pilot: Pilot) -> list[Shape]:
    """Five shapes, each with as many stems as the budget pays for."""
    made = plan(pilot, budget=BUDGET, rng=np.random.default_rng(0), aim="coverage").shape
    rest = (shape for shape in map(Shape, FORKS[task]) if shape.children[1:] != made.children[1:])
    return [made, *(stemmed(shape, pilot) for shape in islice(rest, NUM_SHAPES - 1))]


def stemmed(shape: Shape, pilot: Pilot) -> Shape:
    cost = levels(pilot if shape.keep is None else pilot.truncated()).cost[0]
    stems = BUDGET / float((cost * shape.widths(len(cost))).sum())
    return replace(shape, children=(max(1.0, round(stems, 1)), *shape.children[1:]))


def predicted(shape: Shape, pilot: Pilot, tokens: float) -> Interval:
    """Share of problems solved beyond chains of as many tokens."""
    solved = pilot.solved()
    picks = resampled(len(solved.trees), np.random.default_rng(0), num_resamples=NUM_PREDICTED)
    whole = successes(levels(solved, picks).settled())
    own = whole if shape.keep is None else successes(levels(solved.truncated(), picks).settled())
    return more_solved(own, whole, shape, tokens).widened(MODEL_ERROR)


def flown(task: str, seed: int = PILOT_SEED) -> Pilot:
    return grow_pilot(config(task, seed=seed), num_problems=PILOT_PROBLEMS, prices=DECODE, watch=unseen).pilot


def others(task: str, number: int) -> list[Problem]:
    """Held-out problems that the first pilot did not see."""
    built = build.build_task(config(task))
    known = {problem.uid for problem in built.problems("heldout", PILOT_PROBLEMS, PILOT_SEED)}
    drawn = built.problems("heldout", number + PILOT_PROBLEMS, 0)
    return [problem for problem in drawn if problem.uid not in known][:number]


def pool_of(task: str, problems: list[Problem], size: int = CHAINS_A_PROBLEM) -> ChainPool:
    made = config(task, seed=-1)
    made = replace(made, strategy=StrategyConfig(name="chains", options={"n": size}))
    built = build.build_task(made)
    pool = ChainPool(built.is_same_answer)

    def note(event: object) -> None:
        if isinstance(event, TreeClosed):
            pool.add(event.tree.problem.uid, chains_of(event.tree, built.format.answer))

    library.grow(replace(made, limits=replace(made.limits, decode=None)), problems, observers=[note])
    return pool


def grown(run: RunConfig, problems: list[Problem], num_seeds: int) -> dict[str, list[TreeFigures]]:
    """Problem -> its trees, one a seed."""
    built = build.build_task(run)
    trees: dict[str, list[TreeFigures]] = {}

    def note(event: object) -> None:
        if isinstance(event, TreeClosed):
            found = figures(event, built.format.answer, built.is_same_answer)
            trees.setdefault(event.tree.problem.uid, []).append(found)

    for seed in range(num_seeds):
        library.grow(replace(run, seed=seed), problems, observers=[note])
    return trees


def points(task: str, num_problems: int, num_seeds: int, num_pilots: int) -> list[Point]:
    pilots = [flown(task, PILOT_SEED + number) for number in range(num_pilots)]
    problems = others(task, num_problems)
    pool = pool_of(task, problems)
    found: list[Point] = []
    for shape in shapes(task, pilots[0]):
        made = line(task, grown(config(task, shape), problems, num_seeds), pool, seconds=0.0)
        gains = [predicted(shape, pilot, made.tokens) for pilot in pilots]
        mean = fmean(gain.value for gain in gains)
        found.append(Point(task, shape, gains[0], made.less_chains["solved"], made.tokens, mean))
        show(found[-1], is_plan=len(found) == 1)
    for aim in get_args(Aim):
        plans = [plan(pilot, budget=BUDGET, rng=np.random.default_rng(0), aim=aim) for pilot in pilots]
        kinds = Counter(advised(made.shape) for made in plans)
        told = Counter(made.num_agreeing for made in plans)
        print(f"{task}, {aim}: {dict(kinds.most_common())}; agreeing of {NUM_AGAIN}: {dict(sorted(told.items()))}")
    return found


def advised(shape: Shape) -> str:
    forks, prunes = shape.kind
    said = f"fork after {', '.join(map(str, forks))}" if forks else "chains"
    return f"{said}, prune" if prunes else said


def model_error(found: list[Point]) -> float:
    """Root mean square of what is left between predictions and runs, less the runs' own noise."""
    left = fmean((point.realised.value - point.mean_predicted) ** 2 for point in found)
    noise = fmean(((point.realised.high - point.realised.low) / 3.92) ** 2 for point in found)
    return math.sqrt(max(0.0, left - noise))


def show(point: Point, *, is_plan: bool) -> None:
    p, r = point.predicted, point.realised
    print(
        f"| {point.task} | {point.name}{' (the plan)' if is_plan else ''} | {point.tokens:.0f} "
        f"| {p.value:+.3f} [{p.low:+.3f}, {p.high:+.3f}] | {r.value:+.3f} [{r.low:+.3f}, {r.high:+.3f}] "
        f"| {point.agrees} | {point.mean_predicted:+.3f} |",
        flush=True,
    )


def draw(found: list[Point], path: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "ramify"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(5.5, 5))
    for task, marker in zip(FORKS, "osD", strict=True):
        own = [point for point in found if point.task == task]
        x, y = [p.predicted.value for p in own], [p.realised.value for p in own]
        left = [[p.predicted.value - p.predicted.low for p in own], [p.predicted.high - p.predicted.value for p in own]]
        down = [[p.realised.value - p.realised.low for p in own], [p.realised.high - p.realised.value for p in own]]
        axes.errorbar(x, y, xerr=left, yerr=down, fmt=marker, label=task, capsize=2, linewidth=0.8)
    ends = [min(axes.get_xlim()[0], axes.get_ylim()[0]), max(axes.get_xlim()[1], axes.get_ylim()[1])]
    axes.plot(ends, ends, color="0.7", linewidth=0.8, zorder=0)
    axes.axhline(0, color="0.85", linewidth=0.8, zorder=0)
    axes.axvline(0, color="0.85", linewidth=0.8, zorder=0)
    axes.set_xlabel("predicted: share of problems solved beyond chains")
    axes.set_ylabel("realised, at the same tokens")
    axes.legend()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", type=int, default=few(200, 2))
    parser.add_argument("--seeds", type=int, default=few(3, 1))
    parser.add_argument("--pilots", type=int, default=few(10, 1))
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    began = time.process_time()
    names = ("task", "children", "tokens", "predicted", "realised", "signs agree", "predicted by all pilots")
    print(f"| {' | '.join(names)} |\n{'|---' * len(names)}|", flush=True)
    found = [point for task in FORKS for point in points(task, options.problems, options.seeds, options.pilots)]
    judged = [point for point in found if point.agrees != "-"]
    print(f"\n{sum(p.agrees == 'yes' for p in judged)} of {len(judged)} judged signs agree; {len(found)} shapes")
    print(f"error of the model: {model_error(found):.3f}; in use: {MODEL_ERROR}")
    held = sum(p.predicted.low <= p.realised.value <= p.predicted.high for p in found)
    print(f"{held} of {len(found)} realised gains lie in the interval of what was promised")
    print(f"{time.process_time() - began:.0f} CPU-seconds")
    if options.plot is not None:
        draw(found, options.plot)


if __name__ == "__main__":
    main()
