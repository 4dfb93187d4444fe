"""Progress of a run: a bar of trees and their phases; with -v a line for each phase and fault."""

import math
import time
from collections import Counter
from types import TracebackType

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ramify.cli.terminal import Terminal, visible
from ramify.core.command import Failed
from ramify.runner.events import EngineFault, Event, Noticed, OutcomeTold, PhaseBegan, Resumed, TailCut, TreeClosed
from ramify.runner.remedies import remedy
from ramify.runner.tally import Tally, Tallying

BUSY = "busy"
"""The kind of fault that a server's own limit is. One alone is nothing to tell people."""
BUSY_EVERY_S = 1.0
"""Time between two lines about a busy server."""


class RunProgress:
    """Shows a run's events. A context manager; `observe` is an observer."""

    def __init__(self, terminal: Terminal, *, title: str, num_trees: int) -> None:
        self._terminal = terminal
        self._title = title
        self._tallying = Tallying()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[state]}", markup=False),
            console=terminal.err,
            transient=True,
            disable=terminal.verbosity < 0 or not terminal.err.is_terminal,
        )
        self._faults: Counter[tuple[str, str]] = Counter()
        self._busy_told = -math.inf
        self._task = self._bar.add_task(title, total=num_trees, state="")

    def __enter__(self) -> "RunProgress":
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def observe(self, event: Event) -> None:
        """Take one event of the run."""
        self._tallying.observe(event)
        if isinstance(event, TailCut):
            self._terminal.say(f"cut off the last record, which was incomplete: {event.what}")
        if isinstance(event, Noticed):
            self.say(event.what)
        if isinstance(event, EngineFault):
            self._tell_fault(event)
        if self._terminal.verbosity > 0 and (line := phase_line(event)) is not None:
            self._terminal.say(line)
        if isinstance(event, Resumed | TreeClosed | PhaseBegan | OutcomeTold):
            self.show(self.tally())

    @property
    def faults(self) -> dict[str, int]:
        """Kind of fault of an engine -> tries that it ended."""
        kinds: Counter[str] = Counter()
        for (_, kind), number in self._faults.items():
            kinds[kind] += number
        return dict(kinds)

    def _tell_fault(self, fault: EngineFault) -> None:
        """A line about the first fault of each kind, and about every wait for a busy server but the first."""
        of = (fault.engine, fault.kind)
        self._faults[of] += 1
        number = self._faults[of]
        if fault.kind == BUSY:
            now = time.monotonic()
            is_told = number > 1 and now - self._busy_told >= BUSY_EVERY_S
            self._busy_told = now if is_told else self._busy_told
        else:
            is_told = number == 1 and not fault.is_last
        if is_told and self._terminal.verbosity <= 0:
            self._terminal.say(fault_line(fault, number))

    def tally(self) -> Tally:
        """The counts of the observed events."""
        return self._tallying.tally()

    def show(self, tally: Tally) -> None:
        """Show counts from elsewhere."""
        self._bar.update(self._task, completed=tally.completed, state=tally.state)

    def say(self, text: str) -> None:
        """A line for people beside the bar."""
        self._terminal.say(visible(text, keep="\n"))


def fault_line(fault: EngineFault, number: int = 1) -> str:
    """A line about a fault of an engine, the `number`-th of its kind, and one about what helps."""
    again = f"in {fault.pause_s:.1f} s" if fault.pause_s else "when the server is found"
    then = "the request is given up" if fault.pause_s is None else f"tried again {again}"
    times = f" ({number} times)" if number > 1 else ""
    helps = remedy(fault.kind, fault.said, engine=fault.engine)
    line = f"engine {visible(fault.engine)!r}: {visible(fault.kind)}{times}: {visible(fault.said)}; {then}"
    return line if helps is None else f"{line}\n  try: {visible(helps)}"


def phase_line(event: Event) -> str | None:
    """A line about a phase, a fault or a finished tree; None for other events."""
    match event:
        case EngineFault():
            return fault_line(event)
        case PhaseBegan(index, phase, num_active):
            number = f" {phase.round}" if phase.round else ""
            return f"tree {index}: {phase.name}{number}, {num_active} active"
        case OutcomeTold(index, told) if isinstance(told.outcome, Failed):
            return f"tree {index}: command {told.command_id} failed: {visible(told.outcome.reason)}"
        case TreeClosed(index, tree, reason):
            return f"tree {index}: {visible(reason)}, {len(tree)} nodes, {tree.num_leaves} leaves"
        case _:
            return None
