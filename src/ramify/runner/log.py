"""RunLog: the events of a run, one JSON object per line: phases and rounds, faults, closed trees.

For people and dashboards. The journal is the authoritative record. Only this file has the wall-clock times of events.
"""

import os
import resource
import time
from pathlib import Path
from typing import Any

import msgspec

from ramify.core.command import Failed
from ramify.runner.events import EngineFault, Event, OutcomeTold, PhaseBegan, StepGrown, TreeClosed, TreeOpened
from ramify.store.journal import store_errors
from ramify.store.plain_file import writable

JsonLine = dict[str, Any]


def log_line(event: Event, *, num_active: int, num_tool_calls: int) -> JsonLine | None:
    """The log line of an event; None if the event is not logged."""
    match event:
        case PhaseBegan(index, phase):
            line = {"event": "phase", "tree": index, "phase": phase.name, "round": phase.round}
        case OutcomeTold(index, told) if isinstance(told.outcome, Failed):
            line = {"event": "fault", "tree": index, "command": told.command_id, "reason": told.outcome.reason}
        case EngineFault(engine, kind, said, request_id, pause_s):
            line = {"event": "engine_fault", "engine": engine, "kind": kind, "said": said, "request": request_id}
            line |= {"again_in_s": pause_s}
        case TreeClosed(index, tree, reason):
            line = {"event": "closed", "tree": index, "reason": reason, "nodes": len(tree), "leaves": tree.num_leaves}
        case _:
            return None
    rss_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return line | {"active_branches": num_active, "tool_calls": num_tool_calls, "max_rss_mb": rss_mb}


class RunLog:
    """Appends lines to a file, unbuffered, so that it can be followed live. Must be closed. `observe` is an
    observer."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with store_errors("write the log", path):
            self._file = os.fdopen(writable(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab", buffering=0)
        self._active: dict[int, int] = {}
        self._num_tool_calls = 0

    def observe(self, event: Event) -> None:
        """Write the event if it is logged. Raises `StoreError` if the write fails."""
        self._count(event)
        line = log_line(event, num_active=sum(self._active.values()), num_tool_calls=self._num_tool_calls)
        if line is not None:
            with store_errors("write the log", self._path):
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
