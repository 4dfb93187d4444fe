"""RunLog: what happened in a run, one JSON object a line: phases and rounds, faults, trees as they close.

For people and dashboards; the journal is the truth. Wall-clock times are data here and nowhere else.
"""

import resource
import time
from pathlib import Path
from typing import Any

import msgspec

from ramify.core.command import Failed
from ramify.core.errors import StoreError
from ramify.runner.events import Event, OutcomeTold, PhaseBegan, StepGrown, TreeClosed, TreeOpened

JsonLine = dict[str, Any]


def log_line(event: Event, *, num_active: int, num_tool_calls: int) -> JsonLine | None:
    """What is worth a line of the log; None for the rest."""
    match event:
        case PhaseBegan(index, phase):
            line = {"event": "phase", "tree": index, "phase": phase.name, "round": phase.round}
        case OutcomeTold(index, told) if isinstance(told.outcome, Failed):
            line = {"event": "fault", "tree": index, "command": told.command_id, "reason": told.outcome.reason}
        case TreeClosed(index, tree, reason):
            line = {"event": "closed", "tree": index, "reason": reason, "nodes": len(tree), "leaves": tree.num_leaves}
        case _:
            return None
    rss_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return line | {"active_branches": num_active, "tool_calls": num_tool_calls, "max_rss_mb": rss_mb}


class RunLog:
    """Appends lines to a file; to be closed. `observe` is an observer."""

    def __init__(self, path: Path) -> None:
        try:
            self._file = path.open("ab")
        except OSError as error:
            raise StoreError(f"cannot write the log {path}: {error.strerror}") from error
        self._active: dict[int, int] = {}
        self._num_tool_calls = 0

    def observe(self, event: Event) -> None:
        self._count(event)
        line = log_line(event, num_active=sum(self._active.values()), num_tool_calls=self._num_tool_calls)
        if line is not None:
            self._file.write(msgspec.json.encode({"time": round(time.time(), 3)} | line) + b"\n")

    def close(self) -> None:
        self._file.close()

    def _count(self, event: Event) -> None:
        match event:
            case TreeOpened(index):
                self._active[index] = 0
            case PhaseBegan(index, _, num_active):
                self._active[index] = num_active
            case StepGrown(_, _, _, step):
                self._num_tool_calls += any(s.tool_call is not None for s in step.segments)
            case TreeClosed(index):
                self._active.pop(index, None)
            case _:
                pass
