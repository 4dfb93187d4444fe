"""Progress of a training: a live curve of its rewards where stderr is a terminal, else a line for each update.

The curve shows the mean reward of every batch, and every held-out evaluation with its standard error.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from rich.live import Live
from rich.text import Text

from ramify.cli.plan import advice, pilot_bar
from ramify.cli.progress import duration
from ramify.cli.terminal import Terminal, shortened
from ramify.train.log import EVALUATED, LOG, PLANNED, TrainingLog

if TYPE_CHECKING:
    from ramify.cli.track import RunTracker
    from ramify.experiments.pilot import PilotRun
    from ramify.planner.plan import Plan
    from ramify.runner.events import Observer
    from ramify.train.loop import Figures

BARS: Final = "▁▂▃▄▅▆▇█"
HELD_OUT: Final = "eval_"
STEP: Final = "train/step"
"""Under which trackers have the number of updates."""
BATCH, POINT, ERROR = "·", "●", "┆"
MAX_COLUMNS: Final = 72
NUM_LINES: Final = 9
"""Of the curve; terminals have 24 at least, and messages appear above it."""
REFRESHES_PER_S: Final = 2


@dataclass(frozen=True, slots=True)
class Mark:
    """A mean reward after so many updates."""

    step: int
    value: float
    error: float = 0.0
    """Its standard error, if that is known."""


class TrainProgress:
    """Tells and tracks every update, evaluation and plan of the training in `folder`. A context manager.

    Mutable: call it with the number of updates and the figures of each update and evaluation, after they are in the
    log. The training ends after `steps` updates or, if that is first, when `tokens` are sampled.
    """

    def __init__(
        self,
        terminal: Terminal,
        tracker: "RunTracker",
        folder: Path,
        *,
        title: str,
        steps: int,
        tokens: int | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._terminal = terminal
        self._tracker = tracker
        self._path = folder / LOG
        self._title = shortened(title, MAX_COLUMNS // 2)
        self._steps = steps
        self._tokens = tokens
        self._now = now
        self._begun = now()
        self._first: tuple[float, float] | None = None
        """Time of the first call, and the part of the training that was done then."""
        self._log = TrainingLog(self._path)
        self._live: Live | None = None

    def __enter__(self) -> "TrainProgress":
        self._show()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hide(is_kept=True)

    def __call__(self, step: int, figures: "Figures") -> None:
        self._log = TrainingLog(self._path)
        if self._first is None:
            self._first = self._now(), self._part()
        self._tracker.log(figures, step_key=STEP, step=step)
        if self._live is not None:
            self._live.refresh()
        elif EVALUATED not in figures:
            self._terminal.say(update_text(step, self._steps, figures))
        else:
            for line in evaluated(self._log):
                self._terminal.say(f"{'':8}{line}")

    def plan(self, step: int, plan: "Plan", flown: "PilotRun") -> None:
        """Tell a plan that was made after `step` updates."""
        when = "before the first update" if not step else f"the policy has moved: planned again after {step} updates"
        self._terminal.say(f"{when}, from {plan.num_problems} problems, {flown.decode:,} tokens")
        for line in (*flown.caveats, *advice(plan)):
            self._terminal.say(f"{'':8}{line}")

    @contextmanager
    def watch(self, title: str, number: int) -> "Iterator[Observer]":
        """Show the trees of a pilot in place of the curve."""
        self._hide(is_kept=False)
        try:
            with pilot_bar(self._terminal, title, number) as observe:
                yield observe
        finally:
            self._show()

    def _show(self) -> None:
        if self._terminal.verbosity >= 0 and self._terminal.err.is_terminal:
            self._live = Live(get_renderable=self._view, console=self._terminal.err, refresh_per_second=REFRESHES_PER_S)
            self._live.start()

    def _hide(self, *, is_kept: bool) -> None:
        if self._live is not None:
            self._live.transient = not is_kept
            self._live.stop()
            self._live = None

    def _view(self) -> Text:
        width = min(self._terminal.err.width - 1, MAX_COLUMNS)
        lines = [self._head(), *training_curve(self._log, width=width, last=self._last())]
        lines += evaluated(self._log)
        if updates := _updates(self._log):
            lines.append(update_text(updates[-1]["step"], self._steps, updates[-1]))
        return Text("\n".join(lines), no_wrap=True, overflow="ellipsis")

    def _head(self) -> str:
        """What is trained, how far, for how long."""
        step = _step(self._log)
        of = f"{step} of {self._steps} updates" if self._tokens is None else f"{step} updates"
        tokens = "" if self._tokens is None else f", {self._log.tokens:,} of {self._tokens:,} tokens"
        left_s = self._left_s()
        left = "" if left_s is None else f", {duration(left_s)} left"
        return f"{self._title}: {of}{tokens}, {duration(self._now() - self._begun)}{left}"

    def _left_s(self) -> float | None:
        """Estimated seconds until the end, if all goes on as it did; None = that cannot be told, or nothing is left."""
        if self._first is None:
            return None
        since, before = self._first
        part = self._part()
        return (self._now() - since) * (1 - part) / (part - before) if before < part < 1 else None

    def _part(self) -> float:
        """How much of the training is done."""
        by_tokens = 0.0 if self._tokens is None else self._log.tokens / self._tokens
        return min(1.0, max(_step(self._log) / self._steps, by_tokens))

    def _last(self) -> int:
        """At which update the training ends, by what is known."""
        step = _step(self._log)
        return self._steps if not step or self._tokens is None else max(step, round(step / self._part()))


def training_curve(log: TrainingLog, *, width: int, last: int) -> Iterator[str]:
    """The curve of a log from update 0 to `last`; nothing before the first figure."""
    name = next(iter(_names(log.evaluations[-1])), "") if log.evaluations else ""
    error = f"{HELD_OUT}{name}-stderr"
    points = [replace(mark, error=line.get(error, 0.0)) for line, mark in _marks(log.evaluations, HELD_OUT + name)]
    batches = [mark for _, mark in _marks(_updates(log), "reward")]
    if points or batches:
        yield from curve(points, batches, last=last, width=width)
        said = [f"{POINT} {name}, {ERROR} its standard error"] if points else []
        yield f"{'':8}{', '.join([*said, f'{BATCH} reward of a batch'])}"


def _marks(lines: Sequence[Mapping[str, Any]], key: str) -> Iterator[tuple[Mapping[str, Any], Mark]]:
    """Those lines that have a finite figure, with its mark."""
    for line in lines:
        if math.isfinite(line.get(key, math.nan)):
            yield line, Mark(line["step"], line[key])


def curve(
    points: Sequence[Mark], batches: Sequence[Mark], *, last: int, width: int, num_lines: int = NUM_LINES
) -> Iterator[str]:
    """Lines of at most `width` characters: rewards over updates, with the ends of both axes as numbers.

    A mark of `points` covers its error, and both cover `batches`.
    """
    marks = [*points, *batches]
    low = min(mark.value - mark.error for mark in marks)
    high = max(mark.value + mark.error for mark in marks)
    labels = [f"{high:.3f}", f"{low:.3f}"]
    margin = max(map(len, labels))
    num_columns = max(2, width - margin - 2)
    columns_a_step = (num_columns - 1) / max(1, last)

    def line_of(value: float) -> int:
        return round((high - value) / (high - low) * (num_lines - 1)) if high > low else num_lines // 2

    cells = [[" "] * num_columns for _ in range(num_lines)]
    for mark in batches:
        cells[line_of(mark.value)][min(round(mark.step * columns_a_step), num_columns - 1)] = BATCH
    for mark in points:
        column = min(round(mark.step * columns_a_step), num_columns - 1)
        for line in range(line_of(mark.value + mark.error), line_of(mark.value - mark.error) + 1):
            cells[line][column] = ERROR
        cells[line_of(mark.value)][column] = POINT
    left = [labels[0], *[""] * (num_lines - 2), labels[1]]
    for label, row in zip(left, cells, strict=True):
        yield f"{label:>{margin}} │{''.join(row)}".rstrip()
    yield f"{'':{margin}} └{'─' * num_columns}"
    yield f"{'':{margin}}  0{last:>{num_columns - 1}}"


def update_text(step: int, steps: int, figures: Mapping[str, Any]) -> str:
    """A line about one update of `steps`."""
    parts = {part: figures.get(f"seconds/{part}", 0.0) for part in ("rollout", "weights")}
    rest = figures.get("step_time", 0.0) - sum(parts.values())
    return (
        f"{step:>4}/{steps}  reward {figures.get('reward', float('nan')):.3f}, "
        f"{figures.get('completions/trained_tokens', 0):,.0f} tokens to train, "
        f"{parts['rollout']:.1f} s of rollouts, {rest:.1f} s of training, {parts['weights']:.1f} s of weights"
    )


def evaluated(log: TrainingLog) -> Iterator[str]:
    """The first and the last evaluation of each data set, with a bar for each evaluation."""
    last: Mapping[str, float] = log.evaluations[-1] if log.evaluations else {}
    for name in _names(last):
        found = [each[HELD_OUT + name] for each in log.evaluations if HELD_OUT + name in each]
        error = last.get(f"{HELD_OUT}{name}-stderr")
        margin = "" if error is None else f" ± {error:.3f}"
        first = "" if len(found) == 1 else f"{found[0]:.3f} -> "
        yield f"{name}: {first}{found[-1]:.3f}{margin}  {bars(found)}"


def bars(values: Sequence[float]) -> str:
    """A bar for each value, from the least to the greatest."""
    low, high = min(values), max(values)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((value - low) * scale)] for value in values)


def _updates(log: TrainingLog) -> list[Mapping[str, Any]]:
    return [line for line in log.lines if EVALUATED not in line and PLANNED not in line]


def _step(log: TrainingLog) -> int:
    return int(log.lines[-1]["step"]) if log.lines else 0


def _names(figures: "Figures") -> list[str]:
    """Names of the data sets of an evaluation."""
    names = [name.removeprefix(HELD_OUT) for name in figures if name.startswith(HELD_OUT)]
    return [name for name in names if "-" not in name and "/" not in name and name != "step"]
