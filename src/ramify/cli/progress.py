"""Progress of a run: a bar of trees and their phases; with -v a line for each phase and fault."""

from types import TracebackType

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ramify.cli.terminal import Terminal, visible
from ramify.core.command import Failed
from ramify.runner.events import Event, Noticed, OutcomeTold, PhaseBegan, Resumed, TailCut, TreeClosed
from ramify.runner.tally import Tally, Tallying


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
        if self._terminal.verbosity > 0 and (line := phase_line(event)) is not None:
            self._terminal.say(line)
        if isinstance(event, Resumed | TreeClosed | PhaseBegan | OutcomeTold):
            self.show(self.tally())

    def tally(self) -> Tally:
        """The counts of the observed events."""
        return self._tallying.tally()

    def show(self, tally: Tally) -> None:
        """Show counts from elsewhere."""
        self._bar.update(self._task, completed=tally.completed, state=tally.state)

    def say(self, text: str) -> None:
        """A line for people beside the bar."""
        self._terminal.say(visible(text, keep="\n"))


def phase_line(event: Event) -> str | None:
    """A line about a phase, a fault or a finished tree; None for other events."""
    match event:
        case PhaseBegan(index, phase, num_active):
            number = f" {phase.round}" if phase.round else ""
            return f"tree {index}: {phase.name}{number}, {num_active} active"
        case OutcomeTold(index, told) if isinstance(told.outcome, Failed):
            return f"tree {index}: command {told.command_id} failed: {visible(told.outcome.reason)}"
        case TreeClosed(index, tree, reason):
            return f"tree {index}: {visible(reason)}, {len(tree)} nodes, {tree.num_leaves} leaves"
        case _:
            return None
