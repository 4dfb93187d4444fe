"""Progress: a run while it grows: a bar of trees with the phases they are in, and with -v a line a phase and fault."""

from collections import Counter
from types import TracebackType

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ramify.cli.terminal import Terminal, visible
from ramify.core.command import Failed
from ramify.core.strategy import Phase
from ramify.core.tree import Step
from ramify.runner.events import Event, OutcomeTold, PhaseBegan, StepGrown, TailCut, TreeClosed, TreeOpened


class RunProgress:
    """Shows a run's events. A context manager; `observe` is an observer."""

    def __init__(self, terminal: Terminal, *, title: str, num_trees: int) -> None:
        self._terminal = terminal
        self._title = title
        self._phases: dict[int, Phase] = {}
        self._num_leaves = self._num_tokens = self._num_tool_calls = self._num_closed = 0
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
        self._count(event)
        if isinstance(event, TailCut):
            self._terminal.say(f"the last record was not written whole and is cut off: {event.what}")
        if self._terminal.verbosity > 0 and (line := phase_line(event)) is not None:
            self._terminal.say(line)
        self._num_closed += isinstance(event, TreeClosed)
        if isinstance(event, TreeClosed | PhaseBegan | OutcomeTold):
            self._bar.update(self._task, completed=self.completed(), state=self.state())

    def completed(self) -> float:
        """Trees that have closed, and the part that is done of those whose searches know how many rounds they have."""
        open_trees = (phase.round / phase.num_rounds for phase in self._phases.values() if phase.num_rounds)
        return self._num_closed + sum(open_trees)

    def state(self) -> str:
        """What is going on, in one line."""
        is_single = len(self._phases) == 1
        phases = Counter((rounds(phase) if is_single else "") or phase.name for phase in self._phases.values())
        counts = f"{self._num_leaves} leaves, {self._num_tokens} tokens, {self._num_tool_calls} tool calls"
        shown = [name if is_single else f"{name}: {number}" for name, number in sorted(phases.items())]
        return " | ".join([counts, *shown])

    def _count(self, event: Event) -> None:
        match event:
            case TreeOpened(index, tree):
                self._phases[index] = Phase("build")
                self._num_leaves += tree.num_leaves
            case PhaseBegan(index, phase):
                self._phases[index] = phase
            case StepGrown(_, _, _, step):
                self._count_step(step)
            case TreeClosed(index):
                self._phases.pop(index, None)
            case _:
                pass

    def _count_step(self, step: Step) -> None:
        self._num_leaves += step.stop is not None
        self._num_tokens += sum(segment.usage.num_billed for segment in step.segments)
        self._num_tool_calls += sum(segment.tool_call is not None for segment in step.segments)


def rounds(phase: Phase) -> str:
    """`expansion 5 of 16`; empty where nobody knows how many there are."""
    return f"{phase.name} {phase.round} of {phase.num_rounds}" if phase.num_rounds else ""


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
