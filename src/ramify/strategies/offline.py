"""Offline: grow chains first, then expand nodes of the tree in rounds (the source plan, corrected).

`commit="after"`: a round starts when the previous round of the tree has ended. It takes all expandable nodes in
canonical order, chooses some and grows new continuations from them. Sampled tokens decide where, so these forks are
post-hoc. `commit="before"`: the strategy draws the depths of all forks before the chains grow. A chain forks when it
reaches such a depth, and does not fork there if it ended earlier. These forks are predictable, so exact credits accept
the tree.

Draws. after: the draws of the rule, one round at a time. before: for each fork an initial chain, then a depth. The tree
does not depend on the order of outcomes. Source: `docs/methods/offline.md`; OFFLINE_TREE_SEARCH_REFACTOR_PLAN.md of
zzfoutofspace/ATPO. That plan, run as written, never forks at an inner node: every leaf grows from the bare prompt.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Literal

from ramify.core.command import Failed, Fork, Grow, Grown, Option, Outcome
from ramify.core.errors import ConfigError
from ramify.core.strategy import Phase
from ramify.core.tree import ROOT, Tree
from ramify.strategies.parts.branching import Rounding
from ramify.strategies.parts.choose import UNMEASURED, Choose, rule
from ramify.strategies.parts.draws import Draws
from ramify.strategies.parts.entropy import STEP_ENTROPY
from ramify.strategies.parts.flight import InFlight
from ramify.strategies.parts.initial import InitialRollouts, Number, Probes


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflinePublished:
    """Switches that only reproduce the published code; the defaults are the corrected behaviour."""

    candidates: Literal["steps", "chains"] = "steps"
    """chains: a whole chain is one node, so after it has ended only the root can be expanded (published)."""
    chosen: Literal["rest", "grow"] = "rest"
    """grow: a chosen node is itself generated once more, and cannot be chosen again (published)."""
    probes: Probes = "keep"
    """Whether the probe of `dynamic` is the first chain, or two probes are sampled and thrown away (published)."""
    rounding: Rounding = "ceil"
    """How a number of chains that is not whole is rounded: up, or down and then plus one (published)."""


@dataclass(frozen=True, slots=True)
class OfflineConfig:
    """Defaults are the corrected ones; numbers are the plan's (step 4)."""

    initial_rollouts: Number = 3
    """Chains at the start; `dynamic` = computed from probes, as in AEPO."""
    beam_size: int = 2
    """Each chosen node gets beam_size - 1 new continuations."""
    expansion_iterations: int = 2
    """Rounds of expansion after the chains; 0 = chains only."""
    expansion_nodes: int = 1
    """Nodes chosen in each round."""
    choose: str = field(default="uniform", metadata={"plugin": "choose"})
    """Name of the rule (`parts/choose.py`), or `path/to/file.py:function`."""
    commit: Literal["after", "before"] = "after"
    """When forks are chosen: `after` the chains have grown, by the rule `choose` (post-hoc, no exact credit), or
    `before` they grow, by drawn depths (exact)."""
    max_depth: int = 4
    """With `commit="before"`, fork depths are drawn from 0 .. max_depth - 1 steps."""
    n: int = 16
    """Rows wanted. It limits the number of initial chains, and scales it where that is dynamic."""
    published: OfflinePublished = OfflinePublished()
    """Switches that reproduce the published code."""

    def __post_init__(self) -> None:
        if ":" not in self.choose:
            rule(self.choose)
        numbers = (self.initial_rollouts, self.beam_size, self.expansion_nodes, self.max_depth, self.n)
        if any(number != "dynamic" and number < 1 for number in numbers) or self.expansion_iterations < 0:
            raise ConfigError(f"offline: numbers must be at least 1, expansion_iterations at least 0, got {self!r}")
        if self.commit == "before" and self.initial_rollouts == "dynamic":
            raise ConfigError("offline: commit='before' needs a fixed number of initial_rollouts, got 'dynamic'")

    @property
    def planned_leaves(self) -> int:
        num_chains = self.n if self.initial_rollouts == "dynamic" else min(self.initial_rollouts, self.n)
        return num_chains + self.expansion_iterations * self.expansion_nodes * (self.beam_size - 1)


AS_PUBLISHED = OfflineConfig(
    published=OfflinePublished(candidates="chains", chosen="grow", probes="discard", rounding="int_plus_one")
)


@dataclass(slots=True)
class _Walk:
    """A growing chain. `commits` lists the depths where it still has to fork, each with its number of new children."""

    commits: list[tuple[int, int]]
    tip: int = ROOT
    depth: int = 0


class Offline:
    """Grow chains, then expand the tree."""

    Config = OfflineConfig

    def __init__(self, config: OfflineConfig, rng: Draws, *, choose: Choose | None = None) -> None:
        """`choose` is the rule that the configuration names; None = a built-in rule."""
        self.config = config
        is_measured = config.initial_rollouts == "dynamic" or config.choose not in UNMEASURED
        self.measures = frozenset({STEP_ENTROPY} if is_measured else ())
        self.is_order_free = True
        self.post_hoc_reason = ""
        if config.commit == "after" and config.expansion_iterations:
            self.post_hoc_reason = "where the tree is expanded depends on how its chains went"
        elif config.initial_rollouts == "dynamic" and config.published.probes == "keep":
            self.post_hoc_reason = "how many chains there are depends on a chain that is kept"
        self._rng = rng
        self._choose = choose or rule(config.choose)
        self._initial = InitialRollouts(
            config.initial_rollouts, n=config.n, probes=config.published.probes, rounding=config.published.rounding
        )
        self._in_flight: InFlight[_Walk | int] = InFlight()
        self._arrived: list[_Walk] = []
        self._used_up: set[int] = set()
        self._has_started = False
        self._round = 0
        self._num_new = config.beam_size - (config.published.chosen == "rest")
        self._num_rounds = config.expansion_iterations if config.commit == "after" and self._num_new else 0

    def ask(self, tree: Tree) -> Sequence[Grow]:
        if self._initial.number is None:
            return [] if self._in_flight else self._in_flight.book(self._initial.probes(), count())
        if not self._has_started:
            self._has_started = True
            if number := self._initial.number - self._initial.num_grown:
                return self._start(number)
        if self._arrived:
            return self._go_on()
        return [] if self._in_flight or self._round >= self._num_rounds else self._expand(tree)

    def tell(self, tree: Tree, outcome: Outcome) -> None:
        walk = self._in_flight.take(outcome)
        if isinstance(walk, int):
            self._initial.tell(tree, outcome, walk)
        elif isinstance(outcome, Grown) and walk.commits and not tree.is_ended(outcome.tip):
            walk.tip, walk.depth = outcome.tip, walk.depth + 1
            self._arrived.append(walk)
        if isinstance(outcome, Failed) and outcome.reason == "budget":
            self._num_rounds = 0

    def is_done(self, tree: Tree) -> bool:
        return self._has_started and not self._in_flight and not self._arrived and self._round >= self._num_rounds

    def phase(self, tree: Tree) -> Phase:
        if not self._has_started:
            return Phase("build")
        if self.is_done(tree):
            return Phase("collection", self._round)
        return Phase("expansion", self._round) if self._round else Phase("initial chains")

    def _start(self, number: int) -> Sequence[Grow]:
        """Grow the initial chains. A fork committed at depth 0 adds more initial chains."""
        commits = self._drawn_commits(number)
        walks = [_Walk(sorted((depth, extra) for depth, extra in c.items() if depth)) for c in commits]
        walks += [_Walk([]) for _ in range(sum(c[0] for c in commits))]
        fork = Fork(len(walks), "initial")
        return self._grow([(walk, fork) for walk in walks])

    def _drawn_commits(self, num_chains: int) -> list[Counter[int]]:
        """For each chain: depth -> number of new children there. Drawn before anything is grown."""
        commits: list[Counter[int]] = [Counter() for _ in range(num_chains)]
        num_forks = self.config.expansion_iterations * self.config.expansion_nodes
        for _ in range(num_forks if self.config.commit == "before" and self._num_new else 0):
            chain, depth = int(self._rng.integers(num_chains)), int(self._rng.integers(self.config.max_depth))
            commits[chain][depth] += self._num_new
        return commits

    def _go_on(self) -> Sequence[Grow]:
        """Grow the next step of each chain that arrived; fork first where the chain is committed to fork."""
        going: list[tuple[_Walk, Fork | None]] = []
        for walk in self._arrived:
            fork = None
            if walk.commits[0][0] == walk.depth:
                fork = Fork(1 + walk.commits.pop(0)[1], "committed")
            going.append((walk, fork))
            going += [(_Walk([], walk.tip), fork) for _ in range(fork.num_siblings - 1 if fork else 0)]
        self._arrived = []
        return self._grow(going)

    def _grow(self, going: Sequence[tuple[_Walk, Fork | None]]) -> Sequence[Grow]:
        grows = [Grow(walk.tip, until="step" if walk.commits else "end", fork=fork) for walk, fork in going]
        return self._in_flight.book(grows, [walk for walk, _ in going])

    def _expand(self, tree: Tree) -> Sequence[Grow]:
        """One round: choose among all nodes grown so far and grow new continuations from them."""
        self._round += 1
        nodes = [ROOT] if self.config.published.candidates == "chains" else tree.expandable()
        candidates = [node for node in nodes if node not in self._used_up]
        chosen = self._choose(tree, candidates, self.config.expansion_nodes, self._rng) if candidates else []
        if not chosen:
            self._num_rounds = self._round = self._round - 1
            return []
        if self.config.published.chosen == "grow":
            self._used_up.update(chosen)
        grows = [grow for node in chosen for grow in self._continuations(tree, node, len(candidates))]
        return self._in_flight.book(grows, [_Walk([], grow.node) for grow in grows])

    def _continuations(self, tree: Tree, node: int, num_candidates: int) -> Sequence[Grow]:
        """New children of one chosen node. Where the rule reads entropy, the score shown in the viewer is the
        entropy."""
        entropy = tree.measure(node, STEP_ENTROPY) if STEP_ENTROPY in self.measures else None
        score = 1 / num_candidates if entropy is None else entropy
        fork = Fork(self._num_new, self.config.choose)
        why = (Option(node, score, (("num_candidates", float(num_candidates)),)),)
        return [Grow(node, fork=fork, why=why) for _ in range(self._num_new)]
