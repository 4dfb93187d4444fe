"""Progress of a run: a bar where stderr is a terminal, else a line every few seconds. With -v a line for each phase and
fault, with -q nothing.

Both say how far the run is, in the order of what people ask first: the share that is done, the time left, the rate, the
best score. They have as many of these as fit into their width. If no answer comes, they say how long they have waited
and for how many requests. A thread looks at the clock for this: a run that waits has no events.
"""

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from types import TracebackType

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from ramify.cli.terminal import Terminal, shortened, visible
from ramify.core.command import Failed
from ramify.runner.events import (
    EngineFault,
    Event,
    Noticed,
    OutcomeTold,
    PhaseBegan,
    Resumed,
    StepGrown,
    TailCut,
    TreeClosed,
)
from ramify.runner.remedies import remedy
from ramify.runner.tally import Tally, Tallying, amount

BUSY = "busy"
"""The kind of fault that a server's own limit is. One alone is nothing to tell people."""
BUSY_EVERY_S = 1.0
"""Time between two lines about a busy server."""
LINE_EVERY_S = 5.0
"""Least time between two lines of progress, and before the first."""
BAR_EVERY_S = 0.1
"""Least time between two updates of the bar by steps, which may be many."""
TICK_S = 1.0
"""Time between two looks at the clock."""
WAITED_S = 3.0
"""Least time without an answer that is told."""
LINE_WIDTH = 80
BAR_WIDTH = 12
TITLE_WIDTH = 20
SURE_SHARE = 0.02
"""Share of the run that must be done before the time left is estimated from it."""
FEW_TREES = 10
"""Of fewer trees than these, the parts of trees that are done are told."""
TOLD = Resumed | TreeClosed | PhaseBegan | OutcomeTold
"""Events that move the bar at once."""


class RunProgress:
    """Shows a run's events. A context manager; `observe` is an observer. `now` is a clock in seconds."""

    def __init__(
        self, terminal: Terminal, *, title: str, num_trees: int, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._terminal = terminal
        self._title = shortened(title, TITLE_WIDTH)
        self._num_trees = num_trees
        self._now = now
        self._tallying = Tallying(now)
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=BAR_WIDTH),
            TimeElapsedColumn(),
            TextColumn("{task.fields[state]}", markup=False),
            console=terminal.err,
            transient=True,
            disable=terminal.verbosity < 0 or not terminal.err.is_terminal,
            get_time=now,
        )
        self._begun = self._shown = now()
        self._line = ""
        self._faults: Counter[tuple[str, str]] = Counter()
        self._busy_told = -math.inf
        self._task = self._bar.add_task(self._title, total=num_trees, state="")
        self._told: Tally | None = None
        """The last counts of other processes; None = the run grows here."""
        self._lock = threading.RLock()
        self._ended = threading.Event()
        self._ticking = threading.Thread(target=self._tick_on, name="progress", daemon=True)

    def __enter__(self) -> "RunProgress":
        self._bar.start()
        if self._terminal.verbosity >= 0:
            self._ticking.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._ticking.is_alive():
            self._ticking.join()
        self._bar.stop()

    def observe(self, event: Event) -> None:
        """Take one event of the run."""
        with self._lock:
            self._observe(event)

    def tick(self) -> None:
        """Show the present counts, with the time that has passed."""
        with self._lock:
            self._show(self.tally() if self._told is None else self._told)

    def _tick_on(self) -> None:
        """Tick until the end. If nobody reads stderr any more, the run itself finds out."""
        with suppress(BrokenPipeError):
            while not self._ended.wait(TICK_S):
                self.tick()

    def _observe(self, event: Event) -> None:
        self._tallying.observe(event)
        if isinstance(event, TailCut):
            self._terminal.say(f"cut off the last record, which was incomplete: {event.what}")
        if isinstance(event, Noticed):
            self.say(event.what)
        if isinstance(event, EngineFault):
            self._tell_fault(event)
        if self._terminal.verbosity > 0 and (line := phase_line(event)) is not None:
            self._terminal.say(line)
        is_due = self._now() - self._shown >= (LINE_EVERY_S if self._bar.disable else BAR_EVERY_S)
        if is_due if isinstance(event, StepGrown) or self._bar.disable else isinstance(event, TOLD):
            self._show(self.tally())

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
        """Show the counts of other processes: on the bar at once, or as a line if it is time and says a new thing."""
        with self._lock:
            self._told = tally
            self._show(tally)

    def _show(self, tally: Tally) -> None:
        now = self._now()
        parts = list(self._parts(tally, now - self._begun))
        if not self._bar.disable:
            width = self._terminal.err.width - len(self._title) - BAR_WIDTH - len("0:00:00") - 3
            self._bar.update(self._task, completed=tally.completed, state=fitted(parts, width))
            self._shown = now
        elif now - self._shown >= LINE_EVERY_S:
            line = f"{self._title}: {fitted(parts, LINE_WIDTH - len(self._title) - 2)}"
            if line != self._line:
                self._terminal.say(line)
                self._line, self._shown = line, now

    def _parts(self, tally: Tally, elapsed_s: float) -> Iterator[str]:
        """What the counts say, the most important first."""
        is_single = self._num_trees == 1
        yield from self._done(tally)
        if (waiting := self._waiting(tally, elapsed_s)) is not None:
            yield waiting
        if (left_s := self._left_s(tally, elapsed_s)) is not None:
            yield f"{duration(left_s)} left"
        if is_single:
            yield from tally.phases
        bound = tally.bound if is_single else None
        if bound is not None:
            yield amount(bound)
        rate = f"{tally.num_tokens / elapsed_s:.3g}/s" if elapsed_s > 0 else ""
        has_tokens = bound is not None and bound.name == "decode"
        yield f"{rate}" if has_tokens else f"{tally.num_tokens} tokens{rate and f' ({rate})'}"
        if is_single and tally.best is not None:
            yield f"best {tally.best:.3g}"
        if bound is None or bound.name != "leaves":
            yield f"{tally.num_leaves} leaves"
        if tally.num_tool_calls:
            yield f"{tally.num_tool_calls} tool calls"
        if not is_single:
            yield from (f"{name}: {number}" for name, number in sorted(tally.phases.items()))

    def _done(self, tally: Tally) -> Iterator[str]:
        """How much is done; nothing if that is not known."""
        if self._num_trees != 1:
            done = f"{tally.completed:.1f}" if self._num_trees < FEW_TREES and tally.part_done else tally.num_closed
            yield f"{done} of {self._num_trees} trees"
        elif tally.part_done:
            yield f"{tally.part_done:.0%}"

    def _waiting(self, tally: Tally, elapsed_s: float) -> str | None:
        """For how long nothing has come, and how much is awaited; None = something came a short time ago."""
        if tally.num_in_flight and tally.waited_s >= WAITED_S:
            requests = "1 request" if tally.num_in_flight == 1 else f"{tally.num_in_flight} requests"
            return f"waited {duration(tally.waited_s)} for {requests} in flight"
        is_begun = self._told is not None or tally.phases or tally.num_closed
        if not is_begun and elapsed_s >= WAITED_S:
            return f"waited {duration(elapsed_s)} for engines and tools to start"
        return None

    def _left_s(self, tally: Tally, elapsed_s: float) -> float | None:
        """Estimated seconds until the end, if all goes on as it did; None = too little is done to tell."""
        done = tally.completed - tally.before
        left = self._num_trees - tally.completed
        return None if done < SURE_SHARE * self._num_trees or left <= 0 else left * elapsed_s / done

    def say(self, text: str) -> None:
        """A line for people beside the bar."""
        self._terminal.say(visible(text, keep="\n"))


def fitted(parts: Sequence[str], width: int) -> str:
    """The first parts, as many as fit into `width` characters; never less than one."""
    shown = parts[0] if parts else ""
    for part in parts[1:]:
        if len(shown) + 2 + len(part) > width:
            break
        shown += f", {part}"
    return shown


def duration(seconds: float) -> str:
    """`40 s`, `7 min`, `2.5 h`."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


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
