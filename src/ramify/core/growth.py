"""Growth: a tree and its commands in flight. Events change them.

Only this class writes to a tree. The driver feeds it live events, and a replay feeds it recorded ones, so a tree is a
pure function of its record. What a command grew is kept aside until its outcome is delivered, and only then becomes
nodes. So what a strategy sees depends only on the order of delivery.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ramify.core.codec import Codec
from ramify.core.command import (
    Cancel,
    Close,
    Closed,
    Command,
    Edge,
    Failed,
    Fork,
    Grow,
    Grown,
    Judge,
    Judged,
    Outcome,
    Score,
    Tokens,
)
from ramify.core.errors import ContractError
from ramify.core.quick_init import quick_init
from ramify.core.stop import ROULETTE
from ramify.core.tree import Place, Step, Tree


@dataclass(frozen=True, slots=True)
class Done:
    """A Grow, Close or Cancel was carried out."""


@quick_init
@dataclass(frozen=True, slots=True)
class Scored:
    """A Judge was carried out: one score per node of the command."""

    scores: tuple[Score, ...]


@dataclass(frozen=True, slots=True)
class Failure:
    """A command could not be carried out."""

    reason: str
    is_retryable: bool = False


Ending = Done | Scored | Failure


@quick_init
@dataclass(frozen=True, slots=True)
class Asked:
    """The strategy asked for commands. The first has this id; the others follow in order."""

    first_id: int
    commands: tuple[Command, ...]


@quick_init
@dataclass(frozen=True, slots=True)
class Ended:
    """A recorded outcome."""

    command_id: int
    ending: Ending


Recorded = Asked | Ended
"""What a tree's record holds about its strategy, in order: what it asked, and what it was told."""


@dataclass(slots=True)
class Flight:
    """One command in flight: where it began and the steps it has grown so far."""

    command: Command
    place: Place | None
    steps: list[Step] = field(default_factory=list[Step])


@dataclass(frozen=True, slots=True)
class GrowthRules:
    """What the format and actions of a run say about where growths may begin."""

    words: tuple[str, ...] = ()
    """Stop words that a fork must not cut."""
    quoting: frozenset[str] = frozenset()
    """Actions that begin a fresh context. They may quote paths that have ended."""
    codecs: Mapping[str, Codec] = field(default_factory=dict[str, Codec])
    """Judge's action -> its tokenizer, where it is not the tree's; see `Tree.codecs`."""


class Growth:
    """A tree and its commands in flight."""

    def __init__(self, tree: Tree, *, rules: GrowthRules = GrowthRules()) -> None:
        self.tree = tree
        self.flights: dict[int, Flight] = {}
        self.num_asked = 0
        self._rules = rules

    def ask(self, command: Command) -> int:
        """Register one command and return its id. Raises `ContractError` if it is impossible."""
        command_id = self.num_asked
        self._check(command)
        is_quote = isinstance(command, Grow) and command.action in self._rules.quoting
        edge: Edge = "quotes" if is_quote else "continues"
        place = self.tree.begin(command_id, command, edge=edge, words=self._rules.words)
        self.flights[command_id] = Flight(command, place)
        self.num_asked += 1
        return command_id

    def grow(self, command_id: int, step: Step) -> None:
        """Keep a complete step of a command until its outcome is delivered."""
        self._flight(command_id).steps.append(step)

    def end(self, command_id: int, ending: Ending) -> Outcome:
        """Deliver: put what the command grew on the tree and return its outcome."""
        flight = self._flight(command_id)
        nodes = self._plant(flight)
        del self.flights[command_id]
        self.tree.end(command_id)
        match ending:
            case Failure(reason, is_retryable):
                return Failed(command_id, reason, is_retryable, nodes)
            case Scored(scores):
                self._score(flight.command, scores)
                return Judged(command_id, scores, nodes)
            case Done():
                return self._done(command_id, flight, nodes)

    def _done(self, command_id: int, flight: Flight, nodes: tuple[int, ...]) -> Outcome:
        if isinstance(flight.command, Close):
            self.tree.close(flight.command.node, flight.command.reason, stop=flight.command.stop)
        if not isinstance(flight.command, Grow):
            return Closed(command_id)
        if not nodes:
            raise ContractError(f"command {command_id} ended well but grew nothing: {flight.command!r}")
        return Grown(command_id, nodes, nodes[-1])

    def _plant(self, flight: Flight) -> tuple[int, ...]:
        if isinstance(flight.command, Grow):
            return self._plant_path(flight)
        nodes: list[int] = []
        place, num_asked = flight.place, 0
        for step in flight.steps:
            if isinstance(flight.command, Judge) and (place is None or step.edge == "quotes"):
                place = self.tree.about(flight.command, num_asked)
                num_asked += 1
            assert place is not None
            nodes.append(self.tree.add(step, place))
            place = self.tree.follow(nodes[-1]) if step is not flight.steps[-1] else place
        return tuple(nodes)

    def _plant_path(self, flight: Flight) -> tuple[int, ...]:
        """Put the steps of a path on the tree, each behind the one before it, and their asides beside them."""
        nodes: list[int] = []
        for step in flight.steps:
            place = self.tree.follow(nodes[-1]) if nodes else flight.place
            assert place is not None
            nodes.append(self.tree.add(step, place))
            for number, aside in enumerate(step.asides):
                self.tree.add(aside, self.tree.aside(nodes[-1], number))
        return tuple(nodes)

    def _score(self, command: Command, scores: tuple[Score, ...]) -> None:
        if not isinstance(command, Judge) or len(scores) != len(command.nodes):
            raise ContractError(
                f"{command!r} ended with {len(scores)} scores; a Judge ends with one score for each of its nodes"
            )
        for node, score in zip(command.nodes, scores, strict=True):
            self.tree.score(node, score)

    def _flight(self, command_id: int) -> Flight:
        if command_id not in self.flights:
            raise ContractError(f"command {command_id} is not in flight; in flight: {sorted(self.flights)}")
        return self.flights[command_id]

    def _check(self, command: Command) -> None:
        """Raise an error for a command that names something that does not exist."""
        match command:
            case Cancel(command_id) if command_id not in self.flights:
                raise ContractError(f"cannot cancel command {command_id}: it is not in flight")
            case Judge(nodes):
                for node in nodes:
                    self.tree.parent(node)
                if not nodes:
                    raise ContractError(f"{command!r} names no node; a Judge names at least one")
            case Close(node):
                self.tree.parent(node)
                _check_stop(command, self.tree)
            case Grow():
                _check_types(command)
            case Cancel():
                pass
            case _:
                raise ContractError(f"{command!r} is no command; a strategy asks for Grow, Judge, Close or Cancel")


def _check_stop(close: Close, tree: Tree) -> None:
    """Raise an error for a Close with a stop word that a strategy may not use, or for a random termination (a coin)
    that could depend on what it ends."""
    if close.stop not in ("closed", ROULETTE):
        raise ContractError(
            f"{close!r}: a strategy closes a path with the stop word 'closed', or {ROULETTE!r} for random termination"
        )
    if close.stop == ROULETTE and (tree.is_ended(close.node) or tree.num_requested(close.node)):
        raise ContractError(
            f"{close!r}: random termination ends a path that goes on, before anything below is asked for; use "
            "'closed' instead"
        )


def _check_types(grow: Any) -> None:
    """Raise an error for a Grow with fields of a wrong type. Otherwise the fault would show only when its record is
    read."""
    is_place = isinstance(grow.node, int) and (grow.at is None or isinstance(grow.at, int))
    if not is_place or not (isinstance(grow.until, Tokens) or grow.until in ("step", "end")):
        raise ContractError(f"{grow!r}: node and at are integers, until is Tokens(n), 'step' or 'end'")
    if not (grow.fork is None or isinstance(grow.fork, Fork | int)):
        raise ContractError(f"{grow!r}: fork is a Fork or the id of a decision")
