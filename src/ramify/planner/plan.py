"""Plan: from a pilot to a shape: where to fork, where to prune, and what gain is predicted.

A pure function of the pilot. It forks only where the interval of the best number of children lies above 1, so a pilot
that is too small to tell gives chains. Its prediction has an interval over problems, for the shape that it chose. There
are two aims. `gradient`: variance of the return, times cost. For pruning, it ends paths for good if that loses almost
none of the return; otherwise it uses exact random termination (a coin), in which the surviving paths count for more.
`coverage`: problems solved at a budget; pruning then ends paths for good.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from ramify.planner.coverage import MODEL_ERROR, Successes, coverage, more_solved, successes
from ramify.planner.interval import Interval
from ramify.planner.levels import NUM_RESAMPLES, Levels, levels, resampled
from ramify.planner.pilot import Pilot
from ramify.planner.pruning import best_keep, pruned_noise, rule_of
from ramify.planner.shape import MAX_CHILDREN, Shape, best_children, best_ratio, noise_times_cost

Array = npt.NDArray[np.float64]
Aim = Literal["gradient", "coverage"]
"""What a plan is for: less variance of the return per token (training), or more solved problems."""
Call = Literal["fork", "go on", "too close to call", "nothing to see"]
NUMBERS: Final = (2.0, 3.0, 4.0, 6.0, 8.0, 12.0)
"""Numbers of children that are tried at a depth, for coverage."""
NARROWINGS: Final = 20
"""Number of steps in which forks are narrowed to fit a budget."""
MIN_STEMS: Final = 2
"""Exact credits compare a path with others of its prompt that do not share its tokens, so at least two stems (root
branches) are needed."""
NUM_AGAIN: Final = 5
"""How often the pilot's problems are drawn again, to see whether the advice stays."""
NUM_QUICK: Final = 100
"""Number of resamples behind the intervals of such a redrawn pilot."""
MOST_TIMES: Final = 50
"""The plan never asks for a pilot more than this many times larger."""
FARTHEST: Final = 64.0
"""Ratios are limited to the range from 1 / FARTHEST to FARTHEST, because an estimate near 0 can give any ratio."""


@dataclass(frozen=True, slots=True)
class Depth:
    """The advice for one depth: what to do when a path has made this many steps."""

    steps: int
    ratio: Interval
    """Best number of children here, if it could be below 1. NaN = the return varies neither before nor after this
    depth."""
    number: float
    """Number of children for which `gain` is computed."""
    gain: Interval
    """Gain of forking only here, as in `Plan`."""
    call: Call
    variance_share: float
    """Share of the return's variance within problems that the steps so far have added."""
    cost_share: float
    """Share of the cost that the steps so far have added."""
    more_problems: int | None
    """If it is too close to call: how many more problems would decide it. None = too many to ask for."""


@dataclass(frozen=True, slots=True)
class Pruning:
    """The advice on the prune rule."""

    fires: float
    """Share of paths that the rule would end early."""
    saves: float
    """Share of the cost that these paths spend after the rule fires."""
    loses: Interval
    """Share of the return that these paths still bring. Exceptions are rare, so the upper end assumes one more."""
    keep: float
    gain: Interval
    """Gain of pruning alone, as in `Plan`."""

    @property
    def pays(self) -> bool:
        return self.gain.sign() > 0


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do, and why. For the gradient, a gain is relative (0.2: chains cost a fifth more for the same variance).
    For coverage, it is the share of problems solved (0.05: five points)."""

    aim: Aim
    shape: Shape
    depths: tuple[Depth, ...]
    pruning: Pruning | None
    """None = the task has no rule, or it never fired."""
    gain: Interval
    """Compared with chains at the same cost. For coverage, the interval also holds the error of the model."""
    num_agreeing: int
    """Of `NUM_AGAIN` pilots of problems drawn from this one's with replacement, those that advise the same forks and
    the same pruning."""
    num_problems: int
    mean_return: float
    varies: bool
    """Whether the paths of one problem differ in their return."""
    cost_a_path: float
    cost: Interval
    """Mean cost of a problem's tree of this shape, over the pilot's problems, in the pilot's prices."""
    budget: float
    """What a problem's tree may cost on average."""


def plan(pilot: Pilot, *, budget: float, rng: np.random.Generator, aim: Aim = "gradient") -> Plan:
    """The shape that a pilot supports, if each problem may cost `budget`. `rng` is used for resampling, and is
    consumed."""
    pilot = pilot.solved() if aim == "coverage" else pilot
    outlook = _Outlook.of(pilot, budget, aim, rng)
    depths, pruning, shape = outlook.advice()
    again = (_Outlook.of(pilot.redrawn(rng), budget, aim, rng, num_resamples=NUM_QUICK) for _ in range(NUM_AGAIN))
    found = outlook.found
    return Plan(
        aim=aim,
        shape=shape,
        depths=depths,
        pruning=pruning,
        gain=outlook.promised(shape),
        num_agreeing=sum(other.advice()[2].kind == shape.kind for other in again),
        num_problems=len(pilot.trees),
        mean_return=float(found.mean[0]),
        varies=bool(found.variance[0].sum() > 0),
        cost_a_path=float(found.cost[0].sum()),
        cost=outlook.cost(shape),
        budget=budget,
    )


@dataclass(frozen=True, slots=True)
class _Outlook:
    """Predicts what shapes achieve."""

    pilot: Pilot
    found: Levels
    truncated: Levels
    """Of paths that end where the rule fires; `found` where there is no rule."""
    budget: float
    aim: Aim
    whole: Sequence[Successes]
    """For coverage: of paths that are never pruned, one a resample."""
    pruned: Sequence[Successes]
    """For coverage: of paths that end where the rule fires."""

    @classmethod
    def of(
        cls, pilot: Pilot, budget: float, aim: Aim, rng: np.random.Generator, *, num_resamples: int = NUM_RESAMPLES
    ) -> "_Outlook":
        picks = resampled(len(pilot.trees), rng, num_resamples=num_resamples)
        found = levels(pilot, picks).settled()
        truncated = levels(pilot.truncated(), picks).settled() if pilot.has_rule else found
        whole, pruned = (successes(found), successes(truncated)) if aim == "coverage" else ((), ())
        return cls(pilot, found, truncated, budget, aim, whole, pruned)

    def advice(self) -> tuple[tuple[Depth, ...], Pruning | None, Shape]:
        depths = self.depths()
        pruning = self.pruning() if self.pilot.has_rule else None
        keep = pruning.keep if pruning is not None and pruning.pays else None
        return depths, pruning, self.shape(depths, keep)

    def depths(self) -> tuple[Depth, ...]:
        """The advice for every depth, each as if it were the only fork."""
        variance, cost = self.found.variance[0], self.found.cost[0]
        ratios = np.clip(best_ratio(self.found.variance, self.found.cost), 1 / FARTHEST, FARTHEST)
        return tuple(
            self._depth(d + 1, ratios[:, d], _share(variance, d + 1), _share(cost, d + 1)) for d in range(len(cost) - 1)
        )

    def _depth(self, steps: int, ratios: Array, variance_share: float, cost_share: float) -> Depth:
        ratio = Interval.of(ratios)
        number = self._number(steps, ratio.value)
        gain = self.gain(self._fork(steps, number))
        judged, even = (gain, 0.0) if self.aim == "coverage" else (ratio, 1.0)
        call: Call = "too close to call"
        if math.isnan(ratio.value):
            call = "nothing to see"
        elif judged.sign(even) > 0:
            call = "fork"
        elif judged.sign(even) < 0:
            call = "go on"
        more = _more_problems(judged, even, len(self.pilot.trees)) if call == "too close to call" else None
        return Depth(steps, ratio, number, gain, call, variance_share, cost_share, more)

    def _number(self, steps: int, ratio: float) -> float:
        """The best number of children after `steps` steps, if this is the only fork. 2 if it is not above 1."""
        if self.aim == "coverage":
            return max(NUMBERS, key=lambda k: coverage(self.whole[0], self._fork(steps, k), self.budget))
        return round(min(ratio, MAX_CHILDREN), 1) if ratio >= 1.05 else 2.0

    def _fork(self, steps: int, number: float) -> Shape:
        return Shape((1.0,) * steps + (number,))

    def shape(self, depths: Sequence[Depth], keep: float | None) -> Shape:
        """Compares chains, one fork, and forks at all depths that pay. Returns the shape whose gain has the highest
        lower end."""
        paying = [depth for depth in depths if depth.call == "fork"]
        shapes = [self._fork(depth.steps, depth.number) for depth in paying]
        if len(paying) > 1:
            variance, cost = self.found.variance[0].tolist(), self.found.cost[0].tolist()
            shapes.append(Shape((1.0, *best_children(variance, cost, [d.call == "fork" for d in depths]))))
        chains = self._with_stems(Shape((1.0,), keep))
        fitting = [self._with_stems(replace(shape, keep=keep)) for shape in shapes]
        return max([chains, *fitting], key=lambda shape: self.gain(shape).low)

    def pruning(self) -> Pruning:
        rule = rule_of(self.pilot, self.found.picks)
        keep = 0.0 if self.aim == "coverage" else best_keep(rule, self.found)
        cost, mean = float(self.found.cost[0].sum()), float(self.found.mean[0])
        return Pruning(
            fires=float(rule.fires[0]),
            saves=float(rule.cost[0]) / cost,
            loses=Interval.between(rule.returns / mean, rule.most_returns / mean) if mean else Interval(0.0, 0.0, 0.0),
            keep=keep,
            gain=self.gain(Shape((1.0,), keep if keep < 1 else None)),
        )

    def _with_stems(self, shape: Shape) -> Shape:
        """Adds as many stems as the budget allows, at least two. If needed, forks are narrowed to make room."""
        cost = self._costs(shape.keep)[0]
        narrowed = (shape.narrowed(part / NARROWINGS) for part in range(NARROWINGS, -1, -1))
        stems = ((each, self.budget / float((cost * each.widths(len(cost))).sum())) for each in narrowed)
        fitting, number = next((pair for pair in stems if pair[1] >= MIN_STEMS), (shape.narrowed(0), MIN_STEMS))
        return Shape((round(float(number), 1), *fitting.children[1:]), shape.keep)

    def _costs(self, keep: float | None) -> Array:
        """(R, L) cost of a path that continues after the rule fires with probability `keep`."""
        whole = self.found.cost
        return whole if keep is None else keep * whole + (1 - keep) * self.truncated.cost

    def cost(self, shape: Shape) -> Interval:
        """Mean cost of one problem's tree."""
        costs = self._costs(shape.keep)
        return Interval.of(shape.children[0] * (costs * shape.widths(costs.shape[1])).sum(axis=1))

    def gain(self, shape: Shape) -> Interval:
        """Gain of `shape` over chains of the same cost."""
        if self.aim == "gradient":
            return Interval.of(self._less_noise(shape))
        return more_solved(self.whole if shape.keep is None else self.pruned, self.whole, shape, self.budget)

    def promised(self, shape: Shape) -> Interval:
        """The gain with all that it is uncertain of. The advice goes by `gain`: the model's error tells no shape from
        another."""
        gain, is_chains = self.gain(shape), not shape.is_forked and shape.keep is None
        return gain if is_chains or self.aim == "gradient" else gain.widened(MODEL_ERROR)

    def _less_noise(self, shape: Shape) -> Array:
        """(R,) variance x cost of chains, divided by that of `shape`, minus 1. Forks and random termination are
        computed separately."""
        variance, cost = self.found.variance, self.found.cost
        chains = noise_times_cost(variance, cost, np.ones(cost.shape[1]))
        better = _ratio(chains, noise_times_cost(variance, cost, shape.widths(cost.shape[1])))
        if shape.keep is not None:
            rule = rule_of(self.pilot, self.found.picks)
            better *= _ratio(pruned_noise(rule, self.found, 1.0), pruned_noise(rule, self.found, shape.keep))
        return better - 1


def _ratio(chains: Array, others: Array) -> Array:
    """How much better `others` are; 1 if they have no noise."""
    return np.divide(chains, others, out=np.ones_like(chains), where=others > 0)


def _more_problems(judged: Interval, even: float, num_problems: int) -> int | None:
    """Number of problems to add until the interval excludes `even`. The interval narrows with the square root of the
    number of problems."""
    distance = abs(judged.value - even)
    half = judged.high - even if judged.value < even else even - judged.low
    times = ((distance + half) / distance) ** 2 if distance else math.inf
    return math.ceil(num_problems * (times - 1)) if times <= MOST_TIMES else None


def _share(parts: Array, num: int) -> float:
    return float(parts[:num].sum() / parts.sum()) if parts.sum() else 0.0
