"""Planned: trees of the shape that a pilot of the policy advises, planned again when the policy has moved.

A plan is a line of the training's log. The first one is for the policy that training begins with. It has moved when
held-out reward differs by more than its standard errors explain.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist
from typing import Any, Final

import numpy as np

from ramify.config.configure import TASK_PRUNE
from ramify.config.run_config import EngineConfig, RunConfig, StrategyConfig
from ramify.experiments.pilot import DECODE, PilotRun, Watch, grow_pilot
from ramify.planner.interval import CONFIDENCE
from ramify.planner.plan import Plan, plan
from ramify.runner import build, loop
from ramify.runner.run_strategy import RunStrategy
from ramify.train.log import EVALUATED, PLANNED, TrainingLog

OF_FOLDERS: Final = ("builtin", "local")
"""Engines of this process whose model is a folder."""
USUAL_LEAVES: Final = 8
"""Of a tree whose strategy does not say how many it plans."""
ERROR: Final = "-stderr"
"""Follows the name of a mean reward whose standard error it is."""
Advise = Callable[[int, Plan, PilotRun], None]
"""Gets every plan, with the number of updates before it."""


def has_moved(log: TrainingLog) -> bool:
    """Whether an evaluation since the last plan differs from that of the policy it was made for, at 95 %."""
    if not log.plans:
        return False
    begun = log.plans[-1]["step"]
    before, now = log.evaluation(begun), log.lines[-1]
    if before is None or EVALUATED not in now or now["step"] <= begun:
        return False
    width = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    means = [name.removesuffix(ERROR) for name in now if name.endswith(ERROR)]
    return any(
        abs(now[name] - before[name]) > width * math.hypot(now[name + ERROR], before[name + ERROR]) for name in means
    )


def make_plan(
    run: RunConfig,
    model: Path,
    log: TrainingLog,
    *,
    step: int,
    num_problems: int | None,
    run_tokens: int | None,
    run_paths: int,
    watch: Watch,
) -> tuple[Plan, PilotRun]:
    """Plan for the policy in the folder `model`, and write the plan to the log.

    A tree may cost `limits.decode` tokens, or as many as its `planned_paths`. `num_problems`, `run_tokens`,
    `run_paths`: as of `grow_pilot`. Raises `ConfigError`.
    """
    seed = run.seed + len(log.plans)
    flown = grow_pilot(
        replace(run, seed=seed, engine=_with_weights(run.engine, model, step)),
        num_problems=num_problems,
        run_tokens=run_tokens,
        run_paths=run_paths,
        prices=DECODE,
        watch=watch,
    )
    budget = run.limits.decode or planned_paths(run) * flown.cost_a_path
    made = plan(flown.pilot, budget=budget, rng=np.random.default_rng(seed))
    shape = {"children": list(made.shape.children), "keep": made.shape.keep}
    log.append({"step": step, "tokens": log.tokens + flown.decode, PLANNED: shape})
    return made, flown


def planned_paths(run: RunConfig) -> int:
    """Leaves of a tree of the run's own strategy, at least 2, or 8 where it does not say."""
    return max(round(RunStrategy.of(run).traits(()).planned_leaves or USUAL_LEAVES), 2)


def shaped(run: RunConfig, log: TrainingLog) -> RunConfig:
    """The run with the shape of the last plan and exact credit. Every plan has problems of its own, or an order of its
    own where they come from a file."""
    shape = log.plans[-1][PLANNED]
    growth = run.growth
    if shape["keep"] is not None:
        growth = replace(growth, prune=growth.prune or TASK_PRUNE, keep=shape["keep"])
    strategy = StrategyConfig(name="planned", options={"children": shape["children"]})
    return replace(
        run,
        preset=None,
        strategy=strategy,
        growth=growth,
        credit="auto",
        limits=replace(run.limits, decode=None),
        seed=run.seed + len(log.plans) - 1,
    )


def _with_weights(engine: EngineConfig, model: Path, step: int) -> EngineConfig:
    """The engine with the weights of the folder `model`; a server loads them now."""
    if engine.name in OF_FOLDERS:
        return replace(engine, model=str(model))
    loop.run(_pushed(engine, str(model.resolve()), step))
    return engine


async def _pushed(engine: EngineConfig, model: str, step: int) -> None:
    client: Any = build.build_engine(engine)
    try:
        await client.update_weights(model, step)
    finally:
        await client.close()
