"""TreeRL: grow chains first, then grow new continuations before the tokens the model was least sure of (EPTree).

`fork="before"`, as published: when all chains of a round have ended, each tree (a chain and its forks) takes its
`forks` most surprising sampled tokens, and grows `continuations` from before each of them. Sampled tokens decide where,
so these forks are post-hoc. Never chosen: the first token of a continuation, tokens after one of the `words`, tokens
beyond `max_position`. A position that would cut a stop word moves left to the start of that word. `fork="after"` makes
the same idea exact: chains grow token by token, and fork after the first `forks` tokens that are less likely than
`threshold`. Until then it costs one request for each token.

Draws nothing; the tree does not depend on the order of outcomes. Source: arXiv 2506.11902; THUDM/TreeRL
entropy_chain_local_manager.py; exactness: `docs/concepts/credit.md`.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ramify.core.branch import Branch
from ramify.core.command import Failed, Fork, Grow, Grown, Option, Outcome, Tokens
from ramify.core.errors import ConfigError
from ramify.core.stems import joining
from ramify.core.strategy import Phase
from ramify.core.tree import ROOT, Tree
from ramify.strategies.parts.draws import Draws
from ramify.strategies.parts.entropy import LOGPROBS
from ramify.strategies.parts.flight import InFlight
from ramify.strategies.parts.post_hoc import settled_at, step_starts
from ramify.strategies.parts.surprise import Reading, Shortage, Surprisals, Ties, fork_positions, surprisals

RULE = "surprise"


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeRLPublished:
    """Switches that only reproduce the published code; the defaults are the corrected behaviour."""

    reading: Reading = "text"
    max_position: int | None = None
    """Position in the response from which on no fork is made; None = no limit. Published: 7,144, whatever the limit of
    the run."""
    shortage: Shortage = "fewer"
    ties: Ties = "earlier"


@dataclass(frozen=True, slots=True)
class TreeRLConfig:
    """Defaults are the corrected ones; numbers are those of THUDM/TreeRL scripts/treerl-qw14b.sh."""

    stems: int = 6
    """m: chains at the start (root branches). Each is the first chain of its own tree."""
    forks: int = 2
    """n: forks of each tree in a round."""
    rounds: int = 1
    """l: rounds of forks."""
    continuations: int = 2
    """t: new continuations at each fork."""
    fork: Literal["before", "after"] = "before"
    """Where forks are: `before` the most surprising tokens of finished chains (published, post-hoc), or `after`
    unlikely tokens while the chains grow (exact; one request for each token until the forks are made)."""
    threshold: float = 0.5
    """A token with a lower probability is followed by a fork. With 0.5 trees of the built-in model had 28 of 30 leaves,
    with 0.1 they had 8 (measured, means of 12 trees)."""
    words: tuple[str, ...] = ("answer", "conclusion")
    """No fork after one of these words in the tokens that a continuation itself sampled."""
    published: TreeRLPublished = TreeRLPublished()
    """Switches that reproduce the published code."""

    def __post_init__(self) -> None:
        if min(self.stems, self.forks, self.continuations) < 1 or self.rounds < 0:
            raise ConfigError(f"treerl: numbers must be at least 1, rounds at least 0, got {self!r}")
        if self.fork == "after" and (self.rounds != 1 or not 0 < self.threshold <= 1):
            raise ConfigError(f"treerl: fork='after' needs rounds = 1 and 0 < threshold <= 1, got {self!r}")

    @property
    def planned_leaves(self) -> int:
        return self.stems * (1 + self.rounds * self.forks * self.continuations)


AS_PUBLISHED = TreeRLConfig(
    published=TreeRLPublished(reading="token", max_position=7144, shortage="repeat", ties="later")
)


@dataclass(slots=True)
class _Chain:
    """One continuation in a tree, from where it left its source to its tip."""

    tree: int
    num_forks: int = 0
    """Forks it may still make while it grows."""
    tip: int = ROOT
    """The root = nothing has grown yet."""
    start: int = 0
    """Position of its first token."""
    fresh: int = 0
    """Position of the first token of its latest growth."""


_New = tuple[_Chain, int, int | None, Fork | None]
"""A chain to grow, the node it grows from, the position on the branch of that node (None = its end), and its fork."""


@dataclass(frozen=True, slots=True)
class LeastLikely:
    """TreeRL's post-hoc rule: fork before the least likely sampled tokens of a path, where forks are allowed."""

    config: TreeRLConfig
    words: tuple[str, ...] = ()
    """Stop words that a fork must not cut (`GrowthRules.words`)."""

    @property
    def max_forks(self) -> int:
        return self.config.forks

    def forks(self, tree: Tree, leaf: int) -> Mapping[int, float]:
        """Token position -> number of forks there."""
        branch, config = tree.branch(leaf), self.config
        found = fork_positions(
            [self._surprisals(tree, branch)],
            config.forks,
            shortage=config.published.shortage,
            ties=config.published.ties,
        )
        starts = step_starts(tree, leaf)
        return Counter(at if at in starts else settled_at(branch, at, self.words) for _, at in found)

    def _surprisals(self, tree: Tree, branch: Branch) -> Surprisals:
        """(T,) surprisal of the tokens before which a fork is allowed, treating the path as a chain from the bare
        prompt."""
        config = self.config
        start = tree.length(ROOT)
        return surprisals(
            branch, start, config.words, reading=config.published.reading, max_position=config.published.max_position
        )


class TreeRL:
    """Grow chains, then fork them at surprising tokens."""

    Config = TreeRLConfig
    measures: frozenset[str] = frozenset({LOGPROBS})

    def __init__(self, config: TreeRLConfig, rng: Draws) -> None:
        self.config = config
        self.is_order_free = True
        is_post_hoc = config.fork == "before" and config.rounds > 0
        self.post_hoc_reason = "forks stand before tokens chosen for having been unlikely" if is_post_hoc else ""
        self._in_flight: InFlight[_Chain] = InFlight()
        self._chains: list[_Chain] = []
        """In the order asked, which timing cannot change."""
        self._arrived: list[_Chain] = []
        self._round = 0
        self._num_rounds = config.rounds if config.fork == "before" else 0

    def ask(self, tree: Tree) -> Sequence[Grow]:
        if not self._chains:
            return self._start()
        if self._arrived:
            return self._go_on(tree)
        return [] if self._in_flight or self._round >= self._num_rounds else self._expand(tree)

    def tell(self, tree: Tree, outcome: Outcome) -> None:
        chain = self._in_flight.take(outcome)
        if isinstance(outcome, Failed) and outcome.reason == "budget":
            self._num_rounds = 0
        if not isinstance(outcome, Grown):
            return
        chain.fresh = tree.length(tree.parent(outcome.nodes[0]) or ROOT)
        chain.start = chain.fresh if chain.tip == ROOT else chain.start
        chain.tip = outcome.tip
        if chain.num_forks and not tree.is_ended(chain.tip):
            self._arrived.append(chain)

    def is_done(self, tree: Tree) -> bool:
        is_over = bool(self._chains) and not self._in_flight and not self._arrived
        return is_over and self._round >= self._num_rounds

    def phase(self, tree: Tree) -> Phase:
        if not self._chains:
            return Phase("build")
        if self.is_done(tree):
            return Phase("collection", self._round)
        return Phase("expansion", self._round) if self._round else Phase("initial chains")

    def post_hoc_rule(self, words: Sequence[str]) -> LeastLikely | None:
        is_one_round = self.config.fork == "before" and self.config.rounds == 1
        return LeastLikely(self.config, tuple(words)) if is_one_round else None

    def _start(self) -> Sequence[Grow]:
        num_forks = self.config.forks if self.config.fork == "after" else 0
        fork = Fork(self.config.stems, "initial")
        return self._grow([(_Chain(number, num_forks), ROOT, None, fork) for number in range(self.config.stems)])

    def _expand(self, tree: Tree) -> Sequence[Grow]:
        """One round: fork every tree before its most surprising tokens."""
        self._round += 1
        going = [new for number in range(self.config.stems) for new in self._continuations(tree, number)]
        if not going:
            self._num_rounds = self._round = self._round - 1
        return self._grow(going)

    def _continuations(self, tree: Tree, number: int) -> list[_New]:
        """New continuations of one tree."""
        config = self.config
        chains = [chain for chain in self._chains if chain.tree == number and chain.tip != ROOT]
        found = [self._surprisals(tree, chain) for chain in chains]
        going: list[_New] = []
        for i, at in fork_positions(
            found, config.forks, shortage=config.published.shortage, ties=config.published.ties
        ):
            rule = RULE if _is_observed(tree, chains[i].tip, at) else joining(RULE, number)
            fork = Fork(config.continuations, rule, score=float(found[i][at]), select_prob=1.0)
            going += [(_Chain(number), chains[i].tip, at, fork) for _ in range(config.continuations)]
        return going

    def _go_on(self, tree: Tree) -> Sequence[Grow]:
        """Every chain that arrived grows by one token. If its last token was surprising, it forks first. If it may not
        fork any more, it grows to its end."""
        going: list[_New] = []
        for chain in self._arrived:
            fresh = self._surprisals(tree, chain)[chain.fresh :]
            surprise = float(np.nanmax(fresh, initial=-math.inf))
            fork, siblings = None, [chain]
            if surprise > -math.log(self.config.threshold):
                fork = Fork(1 + self.config.continuations, "surprise_after", score=surprise)
                siblings += [_Chain(chain.tree) for _ in range(self.config.continuations)]
            chain.num_forks = 0 if np.isnan(fresh).all() else chain.num_forks - (fork is not None)
            going += [(sibling, chain.tip, None, fork) for sibling in siblings]
        self._arrived = []
        return self._grow(going)

    def _grow(self, going: Sequence[_New]) -> Sequence[Grow]:
        """Grow each chain from a node, or from a position on its branch."""
        chains = [chain for chain, *_ in going]
        self._chains += [chain for chain in chains if chain.tip == ROOT]
        grows = [
            Grow(node, at=at, until=Tokens(1) if chain.num_forks else "end", fork=fork, why=_why(node, fork))
            for chain, node, at, fork in going
        ]
        return self._in_flight.book(grows, chains)

    def _surprisals(self, tree: Tree, chain: _Chain) -> Surprisals:
        """(T,) on the branch of a chain: the surprisal of its own tokens before which a fork is allowed."""
        config = self.config
        branch = tree.branch(chain.tip)
        return surprisals(
            branch,
            chain.start,
            config.words,
            reading=config.published.reading,
            max_position=config.published.max_position,
        )


def _is_observed(tree: Tree, node: int, at: int) -> bool:
    """Whether there is an observation before `at`. If there is none, the tree may move a fork to the bare prompt."""
    return not tree.branch(node).is_sampled[tree.length(ROOT) : at].all()


def _why(node: int, fork: Fork | None) -> tuple[Option, ...]:
    """What the viewer shows about a fork."""
    return () if fork is None or fork.score is None else (Option(node, fork.score, (("surprisal", fork.score),)),)
