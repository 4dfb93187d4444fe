"""Tally: the progress of a run in counts, for the progress bar and for processes that share a run."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ramify.core.strategy import Phase
from ramify.core.tree import Step
from ramify.runner.events import Event, PhaseBegan, Resumed, StepGrown, TreeClosed, TreeOpened


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts of a run at one moment."""

    num_closed: int = 0
    part_done: float = 0.0
    """Sum of the finished shares of open trees, for searches that know their number of rounds."""
    num_leaves: int = 0
    num_tokens: int = 0
    """Sampled tokens."""
    num_tool_calls: int = 0
    phases: Mapping[str, int] = field(default_factory=dict[str, int])
    """Name of a phase -> number of open trees in it."""

    @property
    def completed(self) -> float:
        """Closed trees, plus the finished parts of open trees."""
        return self.num_closed + self.part_done

    @property
    def state(self) -> str:
        """What the run is doing, in one line."""
        counts = f"{self.num_leaves} leaves, {self.num_tokens} tokens, {self.num_tool_calls} tool calls"
        is_single = sum(self.phases.values()) == 1
        shown = [name if is_single else f"{name}: {number}" for name, number in sorted(self.phases.items())]
        return " | ".join([counts, *shown])

    @classmethod
    def total(cls, tallies: Iterable["Tally"]) -> "Tally":
        """The tallies of several processes as one."""
        every = list(tallies)
        return cls(
            num_closed=sum(tally.num_closed for tally in every),
            part_done=sum(tally.part_done for tally in every),
            num_leaves=sum(tally.num_leaves for tally in every),
            num_tokens=sum(tally.num_tokens for tally in every),
            num_tool_calls=sum(tally.num_tool_calls for tally in every),
            phases=sum((Counter(tally.phases) for tally in every), Counter[str]()),
        )


class Tallying:
    """Counts a run's events. `observe` is an observer."""

    def __init__(self) -> None:
        self._phases: dict[int, Phase] = {}
        self._num_leaves = self._num_tokens = self._num_tool_calls = self._num_closed = 0

    def observe(self, event: Event) -> None:
        """Count one event of the run."""
        match event:
            case Resumed(num_closed):
                self._num_closed += num_closed
            case TreeOpened(index, tree):
                self._phases[index] = Phase("build")
                self._num_leaves += tree.num_leaves
            case PhaseBegan(index, phase):
                self._phases[index] = phase
            case StepGrown(_, _, _, step):
                self._count_step(step)
            case TreeClosed(index):
                self._phases.pop(index, None)
                self._num_closed += 1
            case _:
                pass

    def tally(self) -> Tally:
        """The counts so far."""
        is_single = len(self._phases) == 1
        return Tally(
            num_closed=self._num_closed,
            part_done=sum(phase.round / phase.num_rounds for phase in self._phases.values() if phase.num_rounds),
            num_leaves=self._num_leaves,
            num_tokens=self._num_tokens,
            num_tool_calls=self._num_tool_calls,
            phases=Counter((rounds(phase) if is_single else "") or phase.name for phase in self._phases.values()),
        )

    def _count_step(self, step: Step) -> None:
        self._num_leaves += step.stop is not None
        self._num_tokens += sum(segment.usage.num_billed for segment in step.segments)
        self._num_tool_calls += sum(segment.tool_call is not None for segment in step.segments)


def rounds(phase: Phase) -> str:
    """`expansion 5 of 16`; empty if the number of rounds is not known."""
    return f"{phase.name} {phase.round} of {phase.num_rounds}" if phase.num_rounds else ""
