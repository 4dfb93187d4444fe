"""DeepSearch: a tree search over token segments that ends after n finished paths are backed up.

One expansion runs at a time: a segment grows `width` children at once, and the search chooses the next segment when all
have ended. Only one of the finished children is backed up. If none finished, the search descends to the child with the
highest UCT score; otherwise it takes the best segment anywhere that is not expanded yet. Children of the last level
grow to their end, so a path of `max_depth` segments is a leaf with a reward. Two expansions at once would change the
order of backups, and the stored values depend on this order. Other trees keep the engine busy meanwhile. A failed child
is dropped.

Draws nothing; the tree does not depend on the order of outcomes. Rewards steer the search. In training they come from a
judge that knows the answer; `oracle` declares this. Source: smiles724/DeepSearch deepsearch/utils/mcts.py, round0.sh.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

from ramify.core.backup import backed_up, backup_weight, final_value, terminal_choice
from ramify.core.command import SHOWN, Failed, Fork, Grow, Grown, Option, Outcome, Tokens, siblings
from ramify.core.errors import ConfigError, ContractError
from ramify.core.stop import STOP_WORDS
from ramify.core.strategy import Phase
from ramify.core.tree import ROOT, Tree
from ramify.strategies.parts.draws import Draws
from ramify.strategies.parts.entropy import LOGPROBS, mean_surprisal
from ramify.strategies.parts.flight import InFlight
from ramify.strategies.parts.frontier import Divisor, FrontierSegment, FrontierWeights, frontier_score
from ramify.strategies.parts.steering import REWARD, Oracle, steering_value
from ramify.strategies.parts.ucb import uct


@dataclass(frozen=True, slots=True)
class DeepSearchConfig:
    """Defaults are the corrected ones; numbers are those of round0.sh and of the code's defaults."""

    n: int = 8
    """Finished paths to back up. An expansion whose finished paths have no value also counts as one."""
    width: int = 8
    """Children of an expansion."""
    segment_tokens: int = 256
    """Sampled tokens of a segment."""
    max_depth: int = 64
    """Maximum number of segments of a path; those of the last level grow to their end."""
    exploration: float = 2.0
    """Weight of the exploration bonus in the UCT score."""
    frontier: FrontierWeights = FrontierWeights()  # noqa: RUF009 - frozen
    """Weights of the score that chooses among segments that are not expanded yet."""
    divisor: Divisor = "valued"
    oracle: Oracle = "refused"

    def __post_init__(self) -> None:
        if min(self.n, self.width, self.segment_tokens, self.max_depth) < 1:
            raise ConfigError(f"deepsearch: n, width, segment_tokens and max_depth must be at least 1, got {self!r}")

    @property
    def planned_leaves(self) -> int:
        return self.n * self.width


AS_PUBLISHED: Final = DeepSearchConfig(divisor="all", oracle="declared")


class DeepSearch:
    """Expand a segment, back up one finished child, choose what to expand next."""

    Config = DeepSearchConfig
    measures: frozenset[str] = frozenset({LOGPROBS})
    is_order_free = True
    post_hoc_reason = "which segments are expanded, and which never finish, depends on the rewards of others"

    def __init__(self, config: DeepSearchConfig, rng: Draws) -> None:
        self.config = config
        self.root = FrontierSegment(ROOT)
        self._current = self.root
        """The segment that is being expanded, or is expanded next."""
        self._fork = Fork(config.width, "root")
        self._why: tuple[Option, ...] = ()
        self._in_flight: InFlight[int] = InFlight()
        """Index of each growth among its siblings."""
        self._grown: dict[int, FrontierSegment] = {}
        self._num_finished = 0
        """Expansions in which at least one path finished."""
        self._round = 0
        self._is_over = False

    def ask(self, tree: Tree) -> Sequence[Grow]:
        if self._in_flight or self._is_over:
            return []
        self._round += 1
        segment, config = self._current, self.config
        segment.is_open = False
        until = "end" if segment.depth + 1 >= config.max_depth else Tokens(config.segment_tokens)
        grows = siblings(Grow(segment.tip, until=until, fork=self._fork, why=self._why))
        return self._in_flight.book(grows, count())

    def tell(self, tree: Tree, outcome: Outcome) -> None:
        place = self._in_flight.take(outcome)
        if isinstance(outcome, Grown):
            self._grown[place] = self._segment(tree, outcome)
        if isinstance(outcome, Failed) and outcome.reason == "budget":
            self._is_over = True
        if not self._in_flight:
            self._current.children = [self._grown.pop(place) for place in sorted(self._grown)]
            self._back_up()
            self._choose()

    def is_done(self, tree: Tree) -> bool:
        return self._is_over and not self._in_flight

    def phase(self, tree: Tree) -> Phase:
        if self.is_done(tree):
            return Phase("collection", self._round)
        return Phase("expansion", self._round) if self._round else Phase("build")

    def _segment(self, tree: Tree, grown: Grown) -> FrontierSegment:
        """The segment that a growth added below the current one."""
        above = self._current
        segment = FrontierSegment(
            grown.tip,
            parent=above,
            depth=above.depth + 1,
            is_open=not tree.is_ended(grown.tip),
            path_surprisal=above.path_surprisal,
            path_tokens=above.path_tokens,
        )
        for node in grown.nodes:
            segment.path_surprisal += _surprisal(tree, node)
            segment.path_tokens += tree.num_sampled(node)
        if not segment.is_open:
            segment.value = self._value(tree, grown.tip)
        return segment

    def _value(self, tree: Tree, leaf: int) -> float | None:
        """Value of a finished path; None if it was cut from outside or not judged."""
        if not STOP_WORDS[tree.stop(leaf) or ""].is_trainable:
            return None
        reward = steering_value(tree, leaf, REWARD, oracle=self.config.oracle)
        return None if reward is None else final_value(reward)

    def _back_up(self) -> None:
        """Count a visit for the open children, then back up the chosen finished child along its path."""
        self._num_finished += not all(child.is_open for child in self._current.children)
        for child in self._current.children:
            child.visits += child.is_open
        finished = [(child, child.value) for child in self._current.children if child.value is not None]
        if not finished:
            return
        surprisals = [child.path_surprisal / max(1, child.path_tokens) for child, _ in finished]
        leaf, value = finished[terminal_choice([value for _, value in finished], surprisals)]
        for segment in leaf.path():
            segment.stored = backed_up(segment.stored, value, backup_weight(segment.depth, leaf.depth + 1))
            segment.visits += 1
            segment.num_valued += value != 0

    def _choose(self) -> None:
        """Choose what to expand next; the search is over if nothing is left. Equal scores: the first in depth-first
        order."""
        children = self._current.children
        has_finished = any(child.value is not None for child in children)
        below = [] if has_finished else [child for child in children if child.is_open]
        candidates = below or [segment for segment in self.root.below() if segment.is_open]
        if not candidates or self._num_finished >= self.config.n:
            self._is_over = True
        if self._is_over:
            return
        rule, score = ("uct", self._uct) if below else ("frontier", self._frontier)
        ranked = sorted(((score(segment), segment) for segment in candidates), key=lambda pair: -pair[0])
        best, self._current = ranked[0]
        self._fork = Fork(self.config.width, rule, score=best)
        self._why = tuple(Option(segment.tip, value, self._terms(segment)) for value, segment in ranked[:SHOWN])

    def _uct(self, segment: FrontierSegment) -> float:
        above = segment.parent.visits if segment.parent else 0
        return uct(segment.q(self.config.divisor), segment.visits, above, exploration=self.config.exploration)

    def _frontier(self, segment: FrontierSegment) -> float:
        return frontier_score(
            self.config.frontier,
            parent_q=self._parent_q(segment),
            q=segment.q(self.config.divisor),
            surprisal=segment.surprisal,
            depth=segment.depth,
            max_depth=self.config.max_depth,
        )

    def _parent_q(self, segment: FrontierSegment) -> float:
        return segment.parent.q(self.config.divisor) if segment.parent else 0.0

    def _terms(self, segment: FrontierSegment) -> tuple[tuple[str, float], ...]:
        """The parts of a score, for the viewer."""
        q = segment.q(self.config.divisor)
        return ("parent_q", self._parent_q(segment)), ("q", q), ("depth", float(segment.depth))


def _surprisal(tree: Tree, node: int) -> float:
    """Minus the sum of the logprobs of a node's sampled tokens. It is computed as the credit does it: mean times
    number."""
    logprobs = tree.sampled_logprobs(node)
    if logprobs is None:
        raise ContractError(
            f"node {node} has no logprobs, which this search chooses among finished paths by; use an engine that "
            "returns them"
        )
    return (mean_surprisal(logprobs) or 0.0) * len(logprobs)
