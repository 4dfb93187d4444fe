"""ToolMetrics: figures of tool calls, in total and by tool, with the keys of RUC-NLPIR/ARPO (requirement S0.5)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ramify.core.segment import ToolCall

TURNS = "turns"
"""Stands for the name of the tool in figures of turns without a call, which an environment answered."""
LARGEST = frozenset({"max_execution_time", "max_retries"})
MEANS = frozenset({"avg_execution_time", "success_rate", "avg_time"})


@dataclass(slots=True)
class CallFigures:
    """Figures of some calls. Mutated by `add` only. Times are seconds of tools, with retries and pauses."""

    num_calls: int = 0
    num_ok: int = 0
    """Calls with a non-empty result; ARPO also counts an empty result as failed."""
    total_s: float = 0.0
    max_s: float = 0.0
    num_retries: int = 0
    max_retries: int = 0

    def add(self, call: ToolCall) -> None:
        self.num_calls += 1
        self.num_ok += call.status == "ok"
        self.total_s += call.duration_s
        self.max_s = max(self.max_s, call.duration_s)
        self.num_retries += call.num_retries
        self.max_retries = max(self.max_retries, call.num_retries)

    @property
    def average_s(self) -> float:
        return self.total_s / self.num_calls if self.num_calls else 0.0

    @property
    def success_rate(self) -> float:
        return self.num_ok / self.num_calls if self.num_calls else 0.0


@dataclass(slots=True)
class ToolMetrics:
    """Figures of all calls of a run. A tool that was never called has zeros."""

    total: CallFigures = field(default_factory=CallFigures)
    by_tool: dict[str, CallFigures] = field(default_factory=dict)
    num_refused: int = 0
    """Calls answered without running a tool."""
    num_limits_reached: int = 0

    @classmethod
    def of(cls, tools: Iterable[str]) -> "ToolMetrics":
        return cls(by_tool={name or TURNS: CallFigures() for name in tools})

    def add(self, call: ToolCall) -> None:
        """Count one call."""
        if not call.is_executed:
            self.num_refused += 1
            return
        self.total.add(call)
        self.by_tool[call.tool or TURNS].add(call)

    def as_dict(self) -> dict[str, float]:
        total = self.total
        figures = {
            "total_calls": total.num_calls,
            "successful_calls": total.num_ok,
            "failed_calls": total.num_calls - total.num_ok,
            "total_execution_time": total.total_s,
            "avg_execution_time": total.average_s,
            "max_execution_time": total.max_s,
            "total_retries": total.num_retries,
            "max_retries": total.max_retries,
            "call_limit_reached_count": self.num_limits_reached,
            "refused_calls": self.num_refused,
        }
        for name, of_tool in self.by_tool.items():
            figures[f"{name}/calls"] = of_tool.num_calls
            figures[f"{name}/success_rate"] = of_tool.success_rate
            figures[f"{name}/avg_time"] = of_tool.average_s
        return {f"tools/{key}": float(value) for key, value in figures.items()}


def merged_figures(figures: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The figures of several processes as one: sums, largest values, and means over all calls."""
    return {key: _merged(key, figures) for key in dict.fromkeys(key for each in figures for key in each)}


def _merged(key: str, figures: Sequence[Mapping[str, float]]) -> float:
    scope, _, name = key.rpartition("/")
    values = [each.get(key, 0.0) for each in figures]
    if name in LARGEST:
        return max(values)
    if name not in MEANS:
        return sum(values)
    counts = [each.get(f"{scope}/{'total_calls' if scope == 'tools' else 'calls'}", 0.0) for each in figures]
    return sum(v * n for v, n in zip(values, counts, strict=True)) / sum(counts) if sum(counts) else 0.0
