"""Compare: trains the same policy on the trees of several runs, with several seeds, and compares what was learnt.

All arms get the same decode tokens, problems, learning rule and held-out problems. An interval is over problems (by
bootstrap) and seeds (the standard error of their means): it says how much a figure may change with other problems and
other seeds, and nothing about other policies or tasks.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ramify.config.run_config import RunConfig, StrategyConfig
from ramify.core.errors import ConfigError
from ramify.core.limits import Limits
from ramify.core.problem import Problem
from ramify.planner.interval import Interval
from ramify.runner import build, library
from ramify.runner.events import Event, TreeClosed
from ramify.train.log import LOG, TrainingLog
from ramify.train.loop import Figures, TrainConfig, train
from ramify.train.planned import OF_FOLDERS

NUM_RESAMPLES: Final = 2000
EXAM: Final = "exam.json"
"""Rewards of a trained policy on the held-out problems, in the folder of its training."""
Scores_P = npt.NDArray[np.float64]
"""Mean reward of a policy's answers to each held-out problem."""


@dataclass(frozen=True, slots=True)
class Exam:
    """The held-out problems, and how often each is answered."""

    problems: Sequence[Problem]
    repeats: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """One policy that was trained."""

    seed: int
    scores: Scores_P
    tokens: int
    """Decode tokens of its trees."""
    updates: int
    curve: Sequence[tuple[int, float]]
    """Decode tokens, and the mean held-out reward then."""
    seconds: Mapping[str, float]
    """Mean seconds an update: `rollout`, `weights`, `training`."""


@dataclass(frozen=True, slots=True)
class Arm:
    """The policies that were trained on the trees of one run, one a seed."""

    name: str
    policies: Sequence[Trained]

    @property
    def scores(self) -> npt.NDArray[np.float64]:
        """(S, P) of every seed's policy."""
        return np.stack([policy.scores for policy in self.policies])


@dataclass(frozen=True, slots=True)
class Learning:
    """What was learnt in each arm, from the policy that all began with."""

    start: Scores_P
    arms: Sequence[Arm]

    def gain(self, arm: Arm) -> Interval:
        """Mean held-out reward of an arm, less that of the first policy."""
        return interval(arm.scores - self.start)

    def less_first(self, arm: Arm) -> Interval:
        """Mean held-out reward of an arm, less that of the first arm, paired by seed and by problem."""
        return interval(arm.scores - self.arms[0].scores)


def interval(differences: npt.NDArray[np.float64], *, seed: int = 0) -> Interval:
    """The mean of (S, P) differences, with its 95 % interval over P problems and, if there are several, S seeds."""
    of_problem, of_seed = differences.mean(0), differences.mean(1)
    rng = np.random.default_rng(seed)
    drawn = rng.integers(len(of_problem), size=(NUM_RESAMPLES, len(of_problem)))
    found = Interval.of(np.concatenate([[of_problem.mean()], of_problem[drawn].mean(1)]))
    return found.widened(stdev(of_seed) / len(of_seed) ** 0.5) if len(of_seed) > 1 else found


def compare(
    arms: Mapping[str, RunConfig],
    config: TrainConfig,
    *,
    seeds: Sequence[int],
    exam_problems: int = 200,
    exam_repeats: int = 4,
    exam_seed: int = 0,
    tell: Callable[[str, int, Figures], None] = lambda *_: None,
) -> Learning:
    """Train a policy an arm and seed, in `config.out/ARM/SEED`, and examine each on the same held-out problems.

    With `config.pilot`, pilots shape the trees of the arms whose strategy is `planned`. What is finished already is
    read, so the same call goes on after a stop. `exam_seed`: another one draws other held-out problems. `tell` gets the
    arm with its seed, the updates so far and the figures of an update. Raises `ConfigError` and what training raises.
    """
    if config.tokens is None:
        raise ConfigError("arms are compared at equal decode tokens: set their number")
    for run in arms.values():
        if run.engine.name not in OF_FOLDERS:
            raise ConfigError(
                f"engine {run.engine.name!r}: arms are compared with an engine that runs a folder in this process: set "
                f"{' or '.join(OF_FOLDERS)}"
            )
    first = next(iter(arms.values()))
    task = build.build_task(first)
    exam = Exam(task.problems("heldout", exam_problems, exam_seed), exam_repeats)
    start = _examined(config.out / "start", first, config.model, exam, num_updates=0)
    policies: dict[str, list[Trained]] = {name: [] for name in arms}
    for seed in seeds:
        for name, run in arms.items():
            own = replace(config, out=config.out / name / str(seed))
            policies[name].append(_trained(replace(run, seed=seed), own, exam, partial(tell, f"{name}, seed {seed}")))
    return Learning(start, [Arm(name, of_arm) for name, of_arm in policies.items()])


def _trained(run: RunConfig, config: TrainConfig, exam: Exam, tell: Callable[[int, Figures], None]) -> Trained:
    is_planned = run.strategy.name == "planned"
    model = train(run, config if is_planned else replace(config, pilot=None), tell)
    lines = TrainingLog(config.out / LOG).lines
    updates = [line for line in lines if "step_time" in line]
    seconds = {part: fmean(line[f"seconds/{part}"] for line in updates) for part in ("rollout", "weights")}
    whole = fmean(line["step_time"] for line in updates)
    return Trained(
        seed=run.seed,
        scores=_examined(config.out, run, str(model), exam, num_updates=len(updates)),
        tokens=lines[-1]["tokens"],
        updates=len(updates),
        curve=[(line["tokens"], line["eval_heldout"]) for line in lines if "eval_heldout" in line],
        seconds={**seconds, "training": whole - sum(seconds.values())},
    )


def _examined(folder: Path, run: RunConfig, model: str, exam: Exam, *, num_updates: int) -> Scores_P:
    """The rewards of the policy in the folder `model`, kept in `folder`. An exam after other updates, or of other
    problems, is not this one."""
    file, uids = folder / EXAM, [problem.uid for problem in exam.problems]
    kept = json.loads(file.read_text("utf-8")) if file.exists() else {}
    if (kept.get("updates"), kept.get("repeats"), list(kept.get("rewards", ()))) != (num_updates, exam.repeats, uids):
        rewards = _rewards(run, model, exam)
        kept = {"updates": num_updates, "repeats": exam.repeats, "rewards": {uid: rewards[uid] for uid in uids}}
        folder.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(kept), "utf-8")
    return np.array(list(kept["rewards"].values()))


def _rewards(run: RunConfig, model: str, exam: Exam) -> dict[str, float]:
    """Uid -> mean reward of independent answers; an answer that failed earns 0."""
    found: dict[str, float] = {}

    def note(event: Event) -> None:
        if isinstance(event, TreeClosed):
            rewards: list[Any] = [event.tree.reward(leaf) for leaf in event.tree.leaves()]
            found[event.tree.problem.uid] = sum(reward or 0.0 for reward in rewards) / exam.repeats

    chains = StrategyConfig(name="chains", options={"n": exam.repeats})
    answers = replace(run, preset=None, strategy=chains, credit="auto", limits=Limits(), seed=0)
    library.grow(replace(answers, engine=replace(run.engine, model=model)), exam.problems, observers=[note])
    return found
