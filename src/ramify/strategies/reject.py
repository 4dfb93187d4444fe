"""Reject: chains are stopped early, by a rule or by a value, and restarted from the question.

A step with a score below `threshold` ends its chain, so no tokens are spent on the rest of it. The run's prune rule
(`growth.prune`) also ends chains. With `judge = "reward"`, which no step has, only the prune rule ends them: restart at
dead ends. A finished answer with a value of `accept` or more ends the search; the other chains stop at the end of their
current step. Without such an answer the search continues until `max_chains` or the end of the budget. Draws nothing.

There are no forks: where the first steps decide the outcome and are cheap, the question is the best place to restart
(`docs/choose/measured-trees.md`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ramify.core.command import Candidate, Close, Command, Failed, Fork, Grow, Grown, Judge, Outcome
from ramify.core.errors import ConfigError
from ramify.core.stop import GIVEN_UP
from ramify.core.strategy import Phase, Vote
from ramify.core.tree import ROOT, Tree
from ramify.strategies.parts.draws import Draws
from ramify.strategies.parts.flight import InFlight
from ramify.strategies.parts.steering import REWARD, Oracle, steering_value

Stage = Literal["grow", "judge", "other"]


@dataclass(frozen=True, slots=True)
class RejectConfig:
    """Which judge rejects steps, and when an answer is good enough."""

    judge: str = REWARD
    """Judge of the steps. Only ended paths have a reward, so by default only the run's prune rule rejects."""
    threshold: float = 0.05
    """A step with a score below it ends its chain. The default is that of the prototype in
    `docs/choose/measured-trees.md`; no other value was tried."""
    outcome: str = REWARD
    """Judge of the answers."""
    accept: float | None = 1.0
    """An answer with this value or more ends the search; None = no answer does."""
    in_flight: int = 1
    """Chains grown at once. With more than one, the others still cost tokens after one was accepted."""
    max_chains: int = 64
    """Maximum number of chains."""
    oracle: Oracle = "refused"

    def __post_init__(self) -> None:
        if not 1 <= self.in_flight <= self.max_chains:
            raise ConfigError(
                f"reject: need 1 <= in_flight <= max_chains, got in_flight={self.in_flight!r}, "
                f"max_chains={self.max_chains!r}"
            )

    @property
    def planned_leaves(self) -> int:
        return self.max_chains


class Reject:
    """Grow chains step by step as long as the judge scores their steps high enough."""

    Config = RejectConfig
    measures: frozenset[str] = frozenset()
    is_order_free = False
    post_hoc_reason = "which chains are given up, and how many there are, depends on values of their steps"
    vote: Vote = "best"

    def __init__(self, config: RejectConfig, rng: Draws) -> None:
        self.config = config
        self._in_flight: InFlight[tuple[Stage, int]] = InFlight()
        """What each command does, and at which node; for a growth, the node it starts at."""
        self._next: list[Command] = []
        self._num_begun = 0
        self._num_open = 0
        """Chains that have neither ended nor been stopped."""
        self._answers: list[int] = []
        self._is_over = False

    def ask(self, tree: Tree) -> Sequence[Command]:
        commands, self._next = self._next, []
        if not self._is_over:
            number = min(self.config.in_flight - self._num_open, self.config.max_chains - self._num_begun)
            fork = Fork(number, "restart" if self._num_begun else "chains") if number > 0 else None
            commands += [Grow(ROOT, until=self._until, fork=fork) for _ in range(number)]
            self._num_begun += max(0, number)
            self._num_open += max(0, number)
        return self._in_flight.book(commands, map(_note, commands))

    def tell(self, tree: Tree, outcome: Outcome) -> None:
        stage, node = self._in_flight.take(outcome)
        if stage == "other":
            return
        if isinstance(outcome, Failed):
            self._num_open -= 1
            self._is_over |= outcome.reason == "budget"
        elif isinstance(outcome, Grown):
            self._weigh(tree, outcome.tip)
        else:
            self._go_on(tree, node)

    def is_done(self, tree: Tree) -> bool:
        is_spent = self._is_over or self._num_begun >= self.config.max_chains
        return is_spent and not self._num_open and not self._in_flight and not self._next

    def phase(self, tree: Tree) -> Phase:
        if not self._num_begun:
            return Phase("build")
        name = "collection" if self.is_done(tree) else "expansion"
        return Phase(name, self._num_begun, self.config.max_chains)

    def candidates(self, tree: Tree) -> Sequence[Candidate]:
        """The answers that finished and have a value."""
        values = [(tip, self._value(tree, tip, self.config.outcome)) for tip in self._answers]
        return [Candidate(tip, value) for tip, value in values if value is not None]

    @property
    def _until(self) -> Literal["step", "end"]:
        return "end" if self.config.judge == REWARD else "step"

    def _weigh(self, tree: Tree, tip: int) -> None:
        """Ask the judge for the score of a step or an answer, if it has none yet."""
        judge = self.config.outcome if tree.is_ended(tip) else self.config.judge
        if judge != REWARD and self._value(tree, tip, judge) is None and tree.stop(tip) not in GIVEN_UP:
            self._next.append(Judge((tip,), judge))
        else:
            self._go_on(tree, tip)

    def _go_on(self, tree: Tree, tip: int) -> None:
        """Continue from a step whose score is high enough; otherwise end its chain. A good answer ends the search."""
        if tree.is_ended(tip):
            self._finish(tree, tip)
            return
        value = self._value(tree, tip, self.config.judge)
        if value is not None and value < self.config.threshold:
            self._num_open -= 1
            self._next.append(Close(tip, f"judged {value:.3g}, below {self.config.threshold:g}"))
        elif not self._is_over:
            self._next.append(Grow(tip, until=self._until))
        else:
            self._num_open -= 1

    def _finish(self, tree: Tree, tip: int) -> None:
        self._num_open -= 1
        if tree.stop(tip) in GIVEN_UP:
            return
        self._answers.append(tip)
        value, accept = self._value(tree, tip, self.config.outcome), self.config.accept
        is_accepted = accept is not None and value is not None and value >= accept
        self._is_over |= is_accepted or tree.stop(tip) in ("budget", "deadline")

    def _value(self, tree: Tree, node: int, judge: str) -> float | None:
        return steering_value(tree, node, judge, oracle=self.config.oracle)


def _note(command: Command) -> tuple[Stage, int]:
    match command:
        case Grow(node):
            return "grow", node
        case Judge(nodes):
            return "judge", nodes[0]
        case _:
            return "other", ROOT
