"""Events of a run, passed in order to its observers: the recorder, the report, the log, the progress bar.

Observers are plain functions called in the run's own task; they must not block. The recorder is the first, so that
nothing is shown before it is recorded.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from ramify.core.growth import Asked
from ramify.core.ledger import Spend
from ramify.core.strategy import Phase
from ramify.core.tree import Step, Tree
from ramify.runner.driver import Delivered


@dataclass(frozen=True, slots=True)
class TreeOpened:
    """A tree has its root. `index` is the problem's place in its source."""

    index: int
    tree: Tree
    is_resumed: bool = False


@dataclass(frozen=True, slots=True)
class CommandsAsked:
    index: int
    asked: Asked


@dataclass(frozen=True, slots=True)
class StepGrown:
    """A step is complete; it joins the tree when its command's outcome is delivered."""

    index: int
    command_id: int
    number: int
    """Of the step within its command."""
    step: Step


@dataclass(frozen=True, slots=True)
class OutcomeTold:
    index: int
    delivered: Delivered


@dataclass(frozen=True, slots=True)
class PhaseBegan:
    """A tree's strategy entered a phase or a round of it."""

    index: int
    phase: Phase
    num_active: int
    """Commands in flight then."""


@dataclass(frozen=True)
class TreeClosed:
    """Nothing more will happen to this tree; it leaves memory unless an observer keeps it."""

    index: int
    tree: Tree
    reason: str = "done"
    """`done`, or the fault that ended it."""

    @property
    def is_whole(self) -> bool:
        return self.reason == "done"

    @cached_property
    def spent(self) -> Mapping[str, Spend]:
        """What the tree billed, by role; worked out once for all observers."""
        return self.tree.spent()


@dataclass(frozen=True, slots=True)
class TailCut:
    """A crash had left half a record at the journal's end; it was cut off before the run went on."""

    what: str
    index: int = -1
    """No tree's."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """A run goes on in which trees had been finished before: nothing else is said of those."""

    num_closed: int
    index: int = -1
    """No tree's."""


Event = TailCut | Resumed | TreeOpened | CommandsAsked | StepGrown | OutcomeTold | PhaseBegan | TreeClosed
Observer = Callable[[Event], None]
