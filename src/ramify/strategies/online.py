"""Online: the trees of ARPO and AEPO, which fork while they grow.

After a step and its tool result, a path may fork while fewer than n paths exist. The probability rises with the entropy
of the step minus the baseline of the path. The number of children is decided before any of their tokens is sampled, so
forks are predictable. If no path survives, fresh chains start; these are not predictable (`restart="none"` disables
them). `lockstep` decides for all paths once the slowest has finished its step. This is the published order, and timing
cannot change it. `free` decides for each path as it arrives. A failed path is dropped and its slot stays used, because
a refill would be post-hoc.

Draws: one uniform for each attempt, paths by age; none once n paths exist. Sources: `docs/methods/arpo.md`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Literal

from ramify.core.command import Failed, Fork, Grow, Grown, Option, Outcome
from ramify.core.errors import ConfigError
from ramify.core.strategy import Phase
from ramify.core.tree import ROOT, Tree
from ramify.strategies.parts.branching import Clipping, ForkRule, Rounding
from ramify.strategies.parts.draws import Draws, without_replacement
from ramify.strategies.parts.entropy import STEP_ENTROPY, step_entropy
from ramify.strategies.parts.flight import InFlight
from ramify.strategies.parts.initial import InitialRollouts, Number, Probes


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlinePublished:
    """Switches that only reproduce the published code; the defaults are the corrected behaviour."""

    baseline: Literal["own", "inherited"] = "inherited"
    """What the entropy of a branch is compared with: the entropy of its own first step (published), or the baseline of
    the path it left."""
    stale_baselines: tuple[tuple[int, float], ...] = ()
    """(path, baseline) left over from earlier problems, which the published code never clears. They replace the path's
    own baseline."""
    clipping: Clipping = "probability"
    probes: Probes = "keep"
    """Whether the probe of `dynamic` is the first chain, or two probes are sampled and thrown away (published)."""
    rounding: Rounding = "ceil"
    """How a number of chains that is not whole is rounded: up, or down and then plus one (published)."""


@dataclass(frozen=True, slots=True)
class OnlineConfig:
    """Defaults are the corrected ones; numbers are those of ARPO/scripts/*.sh."""

    n: int = 16
    """Maximum number of paths of a tree: initial chains, branches and restarts together."""
    initial_rollouts: Number = 8
    """Chains at the start; `dynamic` = computed from probes, as in AEPO."""
    beam_size: int = 2
    """Maximum number of children of one fork. After each step there are beam_size - 1 attempts to fork."""
    rule: Literal["arpo", "aepo"] = "arpo"
    """Rule of a fork: ARPO's, or AEPO's, which forks less often after consecutive forks."""
    branch_probability: float = 0.5
    """bp. For AEPO a higher value means fewer forks."""
    entropy_weight: float = 0.2
    """Weight of the entropy difference in the probability of a fork."""
    rounds: Literal["lockstep", "free"] = "lockstep"
    """Whether all paths are decided together, once the slowest has finished its step (published; timing cannot change
    the tree), or each as it arrives (`free`)."""
    restart: Literal["one", "all", "none"] = "one"
    """Fresh chains when no path is left: one at a time, as many as n still allows, or none."""
    counter: Literal["forks", "created", "path"] = "forks"
    """How AEPO counts consecutive forks. forks: consecutive rounds with a fork. created: rounds that created any path,
    restarts included; it is never reset within a tree (published). path: consecutive steps at which this path
    forked."""
    order: Literal["age", "shuffle"] = "age"
    """Which paths may fork first when slots are scarce."""
    published: OnlinePublished = OnlinePublished()
    """Switches that reproduce the published code."""

    def __post_init__(self) -> None:
        if self.n < 1 or self.beam_size < 1 or (self.initial_rollouts != "dynamic" and self.initial_rollouts < 1):
            raise ConfigError(f"online: n, initial_rollouts and beam_size must be at least 1, got {self!r}")
        if self.rule == "aepo" and self.rounds == "free" and self.counter != "path":
            raise ConfigError(f"online: free rounds have no round to count, got counter={self.counter!r}; use 'path'")

    @property
    def planned_leaves(self) -> int:
        return self.n


ARPO_AS_PUBLISHED = OnlineConfig(
    counter="created",
    published=OnlinePublished(baseline="own", clipping="score", probes="discard", rounding="int_plus_one"),
)
AEPO_AS_PUBLISHED = replace(ARPO_AS_PUBLISHED, rule="aepo")


@dataclass(slots=True)
class _Path:
    """One rollout: a stem (a root branch), or a branch that has left its source path."""

    index: int
    tip: int = ROOT
    baseline: float | None = None
    consecutive: int = 0


class Online:
    """Fork paths while they grow, up to n paths."""

    Config = OnlineConfig
    measures: frozenset[str] = frozenset({STEP_ENTROPY})

    def __init__(self, config: OnlineConfig, rng: Draws) -> None:
        self.config = config
        self.is_order_free = config.rounds == "lockstep"
        self.post_hoc_reason = ""
        if config.restart != "none":
            self.post_hoc_reason = "a fresh chain is started only where no path survived"
        elif config.initial_rollouts == "dynamic" and config.published.probes == "keep":
            self.post_hoc_reason = "how many chains there are depends on a chain that is kept"
        self.consecutive = 0
        """AEPO's counter of consecutive forks."""
        self._rng = rng
        self._initial = InitialRollouts(
            config.initial_rollouts, n=config.n, probes=config.published.probes, rounding=config.published.rounding
        )
        self._rule = ForkRule(config.rule, config.branch_probability, config.entropy_weight, config.published.clipping)
        self._stale = dict(config.published.stale_baselines)
        self._in_flight: InFlight[_Path | int] = InFlight()
        self._arrived: list[_Path] = []
        self._slots = config.n
        self._round = -1

    def ask(self, tree: Tree) -> Sequence[Grow]:
        if self._initial.number is None:
            return [] if self._in_flight else self._in_flight.book(self._initial.probes(), count())
        if self._round < 0:
            self._round = 0
            if number := self._initial.number - self._initial.num_grown:
                return self._start(number, "initial")
        is_waiting = self._in_flight and (self.config.rounds == "lockstep" or not self._arrived)
        if is_waiting or self.is_done(tree):
            return []
        self._round += 1
        if self._arrived:
            return self._go_on(tree)
        self._count(num_forks=0, num_created=1)
        return self._start(1 if self.config.restart == "one" else self._slots, "restart")

    def tell(self, tree: Tree, outcome: Outcome) -> None:
        path = self._in_flight.take(outcome)
        if isinstance(path, int):
            self._initial.tell(tree, outcome, path)
            self._slots = self.config.n - self._initial.num_grown
        elif isinstance(outcome, Grown):
            path.tip = outcome.tip
            if not tree.is_ended(outcome.tip):
                self._arrived.append(path)
        if isinstance(outcome, Failed) and outcome.reason == "budget":
            self._slots = 0

    def is_done(self, tree: Tree) -> bool:
        is_over = self._round >= 0 and not self._in_flight and not self._arrived
        return is_over and (self._slots == 0 or self.config.restart == "none")

    def phase(self, tree: Tree) -> Phase:
        if self._round < 0:
            return Phase("build")
        if self.is_done(tree):
            return Phase("collection", self._round)
        return Phase("expansion", self._round) if self._round else Phase("initial chains")

    def _start(self, number: int, rule: str) -> Sequence[Grow]:
        """Grow fresh chains from the bare prompt."""
        fork = Fork(number, rule)
        return self._grow([(self._new_path(_Path(0)), fork) for _ in range(number)])

    def _go_on(self, tree: Tree) -> Sequence[Grow]:
        """One round: every path that arrived continues, and forks if the rule decides so."""
        going: list[tuple[_Path, Fork | None]] = []
        branches: list[tuple[_Path, Fork | None]] = []
        for path in self._in_turn():
            fork = self._decide(tree, path)
            going.append((path, fork))
            source = path if self.config.published.baseline == "inherited" else replace(path, baseline=None)
            branches += [(self._new_path(source), fork) for _ in range(fork.num_siblings - 1 if fork else 0)]
        self._count(num_forks=len(branches), num_created=len(branches))
        return self._grow(going + branches)

    def _in_turn(self) -> list[_Path]:
        """The paths that arrived, in the order in which they may fork."""
        arrived = sorted(self._arrived, key=lambda path: path.index)
        self._arrived.clear()
        return arrived if self.config.order == "age" else without_replacement(arrived, len(arrived), self._rng)

    def _decide(self, tree: Tree, path: _Path) -> Fork | None:
        """Decide the path's continuation and branches together; None = the path continues alone."""
        attempts = min(self.config.beam_size - 1, self._slots)
        if not attempts:
            return None
        entropy = step_entropy(tree, path.tip)
        if path.baseline is None:
            path.baseline = self._stale.get(path.index, entropy)
        delta = entropy - path.baseline
        consecutive = path.consecutive if self.config.counter == "path" else self.consecutive
        num_forks = sum(self._rule.decide(self._rng.random(), delta, consecutive) for _ in range(attempts))
        path.consecutive = path.consecutive + 1 if num_forks else 0
        if not num_forks:
            return None
        p = self._rule.probability(delta, consecutive)
        probability = math.comb(attempts, num_forks) * p**num_forks * (1 - p) ** (attempts - num_forks)
        return Fork(1 + num_forks, self.config.rule, probability=probability, score=delta)

    def _new_path(self, source: _Path) -> _Path:
        self._slots -= 1
        return replace(source, index=self.config.n - self._slots - 1)

    def _count(self, *, num_forks: int, num_created: int) -> None:
        """Update AEPO's counter at the end of a round."""
        if self.config.counter == "created":
            self.consecutive += num_created > 0
        else:
            self.consecutive = self.consecutive + 1 if num_forks else 0

    def _grow(self, going: Sequence[tuple[_Path, Fork | None]]) -> Sequence[Grow]:
        may_fork = self._slots > 0 and self.config.beam_size > 1
        until = "step" if may_fork or self.config.rounds == "lockstep" else "end"
        grows = [Grow(path.tip, until=until, fork=fork, why=_why(path, fork)) for path, fork in going]
        return self._in_flight.book(grows, [path for path, _ in going])


def _why(path: _Path, fork: Fork | None) -> tuple[Option, ...]:
    """The terms of a fork's score, for the viewer."""
    if fork is None or fork.probability is None or fork.score is None or path.baseline is None:
        return ()
    terms = (("entropy", path.baseline + fork.score), ("baseline", path.baseline), ("delta_entropy", fork.score))
    return (Option(path.tip, fork.probability, terms),)
