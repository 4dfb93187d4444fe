"""Driver: one tree, its strategy, its ledger and its order of delivery. No asyncio, no clock, no I/O.

The caller calls `pump` to learn what to start, reports steps with `grew` and endings with `ended`, and calls `pump`
again. The driver asks the strategy after every single outcome, so a recorded sequence of outcomes leads to the same
commands. To resume a run, feed the record to a fresh driver and compare its events with the record.

Invariants: every command has exactly one outcome. Nothing starts before the ledger has room for all it may use. If the
strategy is not done, asks for nothing and nothing is in flight, the driver raises `ContractError`. It also does so if a
strategy asks again and again for what starts nothing: after its budget is spent, no progress is possible.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

from ramify.core.command import Cancel, Candidate, Close, Command, Failed, Fork, Grow, Judge, Outcome
from ramify.core.errors import ContractError, RamifyError
from ramify.core.growth import Asked, Done, Ending, Failure, Growth, GrowthRules
from ramify.core.ledger import Ledger, Spend
from ramify.core.limits import Limits
from ramify.core.protocols import follows
from ramify.core.quick_init import quick_init
from ramify.core.stop import stop_word
from ramify.core.strategy import SearchStrategy, Strategy
from ramify.core.tree import Place, Step, Tree

T = TypeVar("T")
Delivery = Literal["ordered", "eager"]
Need = Callable[[Tree, Command, Place | None], Spend]
"""The most a command may use."""
MAX_IDLE_ASKS = 1000
"""Most asks in a row that start nothing, besides one for each node: a strategy may try or close every node."""


@quick_init
@dataclass(frozen=True, slots=True)
class Delivered:
    """The outcome of a command is on the tree, and the strategy was told."""

    command_id: int
    ending: Ending
    outcome: Outcome
    num_steps: int
    """Number of steps the command had grown."""


DriverEvent = Asked | Delivered


@quick_init
@dataclass(frozen=True, slots=True)
class Start:
    """A command to carry out now, and the most it may use."""

    command_id: int
    command: Grow | Judge
    place: Place | None
    allotment: Spend


@dataclass(slots=True)
class Pumped:
    """What the caller has to do now."""

    starts: list[Start] = field(default_factory=list)
    cancels: list[int] = field(default_factory=list)
    events: list[DriverEvent] = field(default_factory=list)


class Driver:
    """Drives one tree. `twin`, if given, is a second strategy built the same way; it must ask for the same commands."""

    def __init__(
        self,
        tree: Tree,
        strategy: Strategy,
        *,
        delivery: Delivery = "ordered",
        limits: Limits | None = None,
        need: Need | None = None,
        rules: GrowthRules = GrowthRules(),
        twin: Strategy | None = None,
    ) -> None:
        self.tree = tree
        self.strategy = strategy
        self.ledger = Ledger(limits or Limits())
        self.growth = Growth(tree, rules=rules)
        self.num_failed = 0
        is_free = strategy.is_order_free and not self.ledger.limits.counted()
        self._is_ordered = delivery == "ordered" and not is_free
        self._need = need or (lambda tree, command, place: Spend())
        self._twin = twin
        self._waiting: deque[int] = deque()
        self._reserved: dict[int, Spend] = {}
        self._endings: dict[int, Ending] = {}
        self._recorded_order: deque[int] = deque()
        self._next_told = 0
        self._has_asked = False
        self._last: Outcome | None = None
        """The latest outcome that the strategy was told."""
        self._num_idle_asks = 0
        """Asks since something was started or has ended by itself."""

    @property
    def is_finished(self) -> bool:
        """Whether the strategy is done and nothing is in flight."""
        return self._has_asked and not self.growth.flights and self._is_done()

    def pump(self, into: Pumped | None = None) -> Pumped:
        """Ask, deliver what has ended, ask again after each outcome, and return what to start and cancel.

        `into`, if given, is filled in place. It also holds what happened before a `ContractError`.
        """
        pumped = Pumped() if into is None else into
        if not self._has_asked:
            self._has_asked = True
            self._ask(pumped)
        while (command_id := self._next_delivery()) is not None:
            self._deliver(command_id, pumped)
            self._ask(pumped)
        self._refuse_stall()
        return pumped

    def grew(self, command_id: int, step: Step) -> None:
        """A command has completed a step."""
        self.growth.grow(command_id, step)

    def ended(self, command_id: int, ending: Ending) -> None:
        """A command has ended; its outcome is delivered by a later `pump`."""
        if command_id not in self.growth.flights or command_id in self._endings:
            raise ContractError(f"command {command_id} has ended already or was never asked")
        self._endings[command_id] = ending
        self._num_idle_asks = 0

    def has_ended(self, command_id: int) -> bool:
        """Whether a command has ended; its outcome may not be delivered yet."""
        return command_id not in self.growth.flights or command_id in self._endings

    @property
    def limited(self) -> frozenset[str]:
        """Names of the amounts that are limited."""
        return frozenset(self.ledger.limits.counted())

    def candidates(self) -> tuple[Candidate, ...]:
        """The current answers of a search; empty if the strategy is no search. Raises `ContractError`."""
        strategy = self.strategy
        if not follows(strategy, SearchStrategy):
            return ()
        found = tuple(self._call(lambda: strategy.candidates(self.tree), "candidates"))
        for candidate in found:
            if not (0 <= candidate.node < len(self.tree) and math.isfinite(candidate.score)):
                raise ContractError(f"{self._name}: {candidate!r} is no node of its tree with a finite score")
        return found

    # -- asking -----------------------------------------------------------------------------------------------------

    def _ask(self, pumped: Pumped) -> None:
        if not self._is_done():
            commands = self._commands()
            if commands:
                self._refuse_idling()
                self._register(commands, pumped)
        self._start_waiting(pumped)

    def _commands(self) -> Sequence[Command]:
        commands = self._call(lambda: self.strategy.ask(self.tree), "ask")
        if not isinstance(commands, Sequence):
            raise ContractError(f"{self._name}.ask returned {commands!r}; it must return a sequence of commands")
        if self._twin is not None:
            again = self._twin.ask(self.tree)
            if list(again) != list(commands):
                raise ContractError(
                    f"{self._name} drew randomness of its own: built and told alike, it asked {list(commands)!r} and "
                    f"then {list(again)!r}; draw only from the generator handed in"
                )
        return commands

    def _register(self, commands: Sequence[Command], pumped: Pumped) -> None:
        """Put the commands of one ask on the tree. Commands that share a Fork share its record."""
        first = self.growth.num_asked
        decisions: dict[int, int] = {}
        asked: list[Command] = []
        try:
            for wanted in grouped(commands):
                fork = wanted.fork if isinstance(wanted, Grow) else None
                is_known = isinstance(wanted, Grow) and id(fork) in decisions
                command = replace(wanted, fork=decisions[id(fork)]) if is_known else wanted
                command_id = self.growth.ask(command)
                asked.append(command)
                flight = self.growth.flights[command_id]
                if isinstance(fork, Fork) and flight.place is not None:
                    decisions.setdefault(id(fork), flight.place.decision_id)
                self._dispatch(command_id, command, pumped)
        finally:
            if asked:
                pumped.events.append(Asked(first, tuple(asked)))

    def _dispatch(self, command_id: int, command: Command, pumped: Pumped) -> None:
        match command:
            case Grow() | Judge():
                self._waiting.append(command_id)
            case Close(node):
                pumped.cancels.extend(self._in_flight_below(node))
                self._endings[command_id] = Done()
            case Cancel(target):
                pumped.cancels.append(target)
                self._endings[command_id] = Done()

    def _in_flight_below(self, node: int) -> list[int]:
        return [
            command_id
            for command_id, flight in self.growth.flights.items()
            if flight.place is not None and node in self.tree.path(flight.place.parent)
        ]

    # -- the budget ---------------------------------------------------------------------------------------------------

    def _start_waiting(self, pumped: Pumped) -> None:
        """Start waiting commands in order, each only when the ledger has room for the most it may use.

        A command that does not fit waits until commands in flight return what they did not use. If nothing is in
        flight, it gets what is left, or fails with reason `budget`.
        """
        while self._waiting:
            command_id = self._waiting[0]
            if self.has_ended(command_id):
                self._waiting.popleft()
                continue
            flight = self.growth.flights[command_id]
            need = self._need(self.tree, flight.command, flight.place)
            missing = self.ledger.missing(need)
            if missing and self._reserved:
                return
            self._waiting.popleft()
            if any(room < 1 for room in missing.values()) or "judge_calls" in missing:
                self._endings[command_id] = Failure("budget")
                continue
            allotment = replace(need, **missing) if missing else need
            self.ledger.reserve(allotment)
            self._reserved[command_id] = allotment
            assert isinstance(flight.command, Grow | Judge)
            self._num_idle_asks = 0
            pumped.starts.append(Start(command_id, flight.command, flight.place, allotment))

    # -- delivery -----------------------------------------------------------------------------------------------------

    def follow(self, order: Iterable[int]) -> None:
        """Deliver these commands next, in this order, whatever else has ended. Used to replay a recorded run."""
        self._recorded_order.extend(order)

    def _next_delivery(self) -> int | None:
        if self._recorded_order:
            return self._recorded_order[0] if self._recorded_order[0] in self._endings else None
        if not self._is_ordered:
            return next(iter(self._endings), None)
        return self._next_told if self._next_told in self._endings else None

    def _deliver(self, command_id: int, pumped: Pumped) -> None:
        ending = self._endings.pop(command_id)
        if self._recorded_order:
            self._recorded_order.popleft()
        self._next_told += 1
        num_steps = len(self.growth.flights[command_id].steps)
        num_billed = self._settle(command_id, ending)
        num_before = self.tree.num_leaves
        outcome = self.growth.end(command_id, ending)
        num_unbilled = self.tree.num_leaves - num_before - num_billed
        if num_unbilled:
            # A Close makes a leaf, and growth below a closed path removes one: no step bills these leaves.
            self.ledger.bill("policy", Spend(leaves=num_unbilled))
        self.num_failed += isinstance(outcome, Failed) and outcome.is_fault
        pumped.events.append(Delivered(command_id, ending, outcome, num_steps))
        self._last = outcome
        self._call(lambda: self.strategy.tell(self.tree, outcome), "tell")
        if self._twin is not None:
            self._twin.tell(self.tree, outcome)

    def _settle(self, command_id: int, ending: Ending) -> int:
        """Release the reservation and bill what the steps and scores used. Returns the number of leaves billed."""
        flight = self.growth.flights[command_id]
        used: dict[str, Spend] = {}
        for step in (each for whole in flight.steps for each in whole.with_asides):
            spend = spend_of(step)
            used[step.role] = used[step.role].add(spend) if step.role in used else spend
        if isinstance(flight.command, Judge) and not isinstance(ending, Failure):
            for node in flight.command.nodes:
                used.setdefault(self.tree.role(node), Spend()).judge_calls += 1
        self.ledger.settle(self._reserved.pop(command_id, Spend()), used)
        return sum(spend.leaves for spend in used.values())

    def _refuse_stall(self) -> None:
        if not self.growth.flights and not self._is_done():
            raise ContractError(
                f"{self._name} asked for nothing with nothing in flight and is not done. Its tree has {len(self.tree)} "
                f"nodes and {self.tree.num_leaves} leaves; expandable: {self.tree.expandable()[:8]}; told "
                f"{self._next_told} outcomes"
            )

    def _refuse_idling(self) -> None:
        self._num_idle_asks += 1
        if self._num_idle_asks > MAX_IDLE_ASKS + len(self.tree):
            last = "" if self._last is None else f"; the last outcome was {self._last!r}"
            raise ContractError(
                f"{self._name} asked {self._num_idle_asks} times in a row for what starts nothing{last}. A command "
                "that fails with 'budget' fails again: be done, or ask for something smaller"
            )

    # -- the strategy -----------------------------------------------------------------------------------------------

    @property
    def _name(self) -> str:
        return f"strategy {type(self.strategy).__name__}"

    def _is_done(self) -> bool:
        return bool(self._call(lambda: self.strategy.is_done(self.tree), "is_done"))

    def _call(self, method: Callable[[], T], what: str) -> T:
        """Boundary to plug-in code: whatever a strategy raises becomes a `ContractError` that names it."""
        try:
            return method()
        except RamifyError:
            raise
        except Exception as error:
            raise ContractError(f"{self._name}.{what} raised {type(error).__name__}: {error}") from error


def grouped(commands: Sequence[Command]) -> list[Command]:
    """Bare Grows at the same place in one ask are one decision: give them one Fork."""
    places: dict[tuple[int, int | None], int] = {}
    for command in commands:
        if isinstance(command, Grow) and command.fork is None:
            places[command.node, command.at] = places.get((command.node, command.at), 0) + 1
    forks = {place: Fork(count, "ask") for place, count in places.items() if count > 1}
    return [
        replace(c, fork=forks[c.node, c.at])
        if isinstance(c, Grow) and c.fork is None and (c.node, c.at) in forks
        else c
        for c in commands
    ]


def spend_of(step: Step) -> Spend:
    """What one step billed, without its asides."""
    spend = Spend()
    for segment in step.segments:
        spend.bill(segment.usage)
        if segment.tool_call is not None and segment.tool_call.is_executed:
            spend.tool_calls += 1
            spend.tool_retries += segment.tool_call.num_retries
    spend.turns += any(s.is_sampled for s in step.segments)
    if step.stop is not None:
        is_failure = stop_word(step.stop).is_failure
        spend.failed_leaves += is_failure
        spend.leaves += not is_failure and step.role == "policy" and step.edge == "continues"
    spend.judge_calls += len(step.scores)
    return spend
