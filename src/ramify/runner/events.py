"""Events of a run, passed in order to its observers: the recorder, the report, the log, the progress bar.

Observers are plain functions called in the run's own task, and they must not block. The recorder comes first, so an
event is recorded before anything shows it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from ramify.core.growth import Asked
from ramify.core.ledger import Spend
from ramify.core.limits import Limits
from ramify.core.quick_init import quick_init
from ramify.core.strategy import Phase
from ramify.core.tree import Step, Tree
from ramify.runner.driver import Delivered


@dataclass(frozen=True, slots=True)
class TreeOpened:
    """A tree has its root. `index` is the place of the problem in its source."""

    index: int
    tree: Tree
    is_resumed: bool = False
    limits: Limits = Limits()
    """What the tree may spend: its own limits, and its share of the run's."""


@dataclass(frozen=True, slots=True)
class CommandsAsked:
    """The strategy asked for commands. `index` is that of the tree."""

    index: int
    asked: Asked


@quick_init
@dataclass(frozen=True, slots=True)
class StepGrown:
    """A step is complete. It joins the tree when the outcome of its command is delivered."""

    index: int
    command_id: int
    number: int
    """Place of the step within its command."""
    step: Step


@quick_init
@dataclass(frozen=True, slots=True)
class OutcomeTold:
    """The strategy was told the outcome of a command. `index` is that of the tree."""

    index: int
    delivered: Delivered


@dataclass(frozen=True, slots=True)
class EngineFault:
    """A try of a request failed at an engine."""

    engine: str
    """Its name in the configuration; `policy` for `engine`."""
    kind: str
    """The short word of the fault, such as `http_401`."""
    said: str
    """What happened, with the server's own words and without keys."""
    request_id: str
    pause_s: float | None = None
    """Seconds until the next try; 0 = as soon as the server is found; None = the request is given up."""
    is_last: bool = False
    """Whether the run stops for it."""
    index: int = -1
    """-1: the event belongs to no tree."""


@dataclass(frozen=True, slots=True)
class PhaseBegan:
    """A tree's strategy entered a phase, or a new round of one."""

    index: int
    phase: Phase
    num_active: int
    """Commands in flight at that moment."""


@dataclass(frozen=True)
class TreeClosed:
    """The tree is finished. It leaves memory unless an observer keeps it."""

    index: int
    tree: Tree
    reason: str = "done"
    """`done`, or the fault that ended it."""

    @property
    def is_whole(self) -> bool:
        return self.reason == "done"

    @cached_property
    def spent(self) -> Mapping[str, Spend]:
        """What the tree billed, by role. Computed once for all observers."""
        return self.tree.spent()


@dataclass(frozen=True, slots=True)
class TailCut:
    """A crash had left an incomplete record at the end of the journal. It was cut off before the run resumed."""

    what: str
    index: int = -1
    """-1: the event belongs to no tree."""


@dataclass(frozen=True, slots=True)
class Noticed:
    """Something about the run that people should know."""

    what: str
    index: int = -1
    """-1: the event belongs to no tree."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """The run was resumed. `num_closed` trees were finished before; there are no other events about them."""

    num_closed: int
    index: int = -1
    """-1: the event belongs to no tree."""


Event = (
    TailCut
    | Noticed
    | Resumed
    | TreeOpened
    | CommandsAsked
    | StepGrown
    | OutcomeTold
    | EngineFault
    | PhaseBegan
    | TreeClosed
)
Observer = Callable[[Event], None]
