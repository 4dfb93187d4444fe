"""Run timeline: the end of a run's log as points over time. The log is untrusted: bad lines are skipped and counted."""

import math
import os
from collections import Counter
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from ramify.store.framing import UNREADABLE
from ramify.store.plain_file import open_plain

MAX_BYTES: Final = 4 * 2**20
"""What is read of a log, from its end."""
MAX_LOG_BYTES: Final = 2**50
MAX_POINTS: Final = 600
MAX_TEXT: Final = 200
SUMMED: Final = frozenset({"active_branches", "tool_calls"})
"""Counts of one process, which are added up where several processes share a run."""
NAMES: Final = (
    "event", "tree", "phase", "round", "command", "reason", "engine", "kind", "nodes", "leaves", "active_branches",
    "tool_calls", "max_rss_mb",
)  # fmt: skip
"""What is kept of a line, besides its time."""

Point = dict[str, Any]


class Timeline(NamedTuple):
    """Points in the order of their time, which is in seconds after the first."""

    points: list[Point]
    num_skipped: int
    """Lines that are no events."""


def timeline(paths: list[Path]) -> Timeline:
    """The events of one or several logs, at most `MAX_POINTS` of them, evenly chosen. A log that is not there has
    none. Several logs are those of processes that share a run."""
    read = [[_point(line) for line in _lines(path, MAX_BYTES // len(paths))] for path in paths]
    num_skipped = sum(points.count(None) for points in read)
    points = _merged([[point for point in points if point is not None] for points in read])
    began = points[0]["time"] if points else 0.0
    return Timeline([{**point, "time": round(point["time"] - began, 3)} for point in _chosen(points)], num_skipped)


def _merged(logs: list[list[Point]]) -> list[Point]:
    """The points of all logs in the order of their time, with the counts of all processes together."""
    ordered = sorted(((point["time"], log, point) for log, points in enumerate(logs) for point in points), key=_when)
    latest = [Counter[str]() for _ in logs]
    totals = Counter[str]()
    merged: list[Point] = []
    for _, log, point in ordered:
        for name in point.keys() & SUMMED:
            totals[name] += point[name] - latest[log][name]
            latest[log][name] = point[name]
        merged.append({name: totals[name] if name in SUMMED else value for name, value in point.items()})
    return merged


def _when(each: tuple[float, int, Point]) -> tuple[float, int]:
    return each[:2]


def _lines(path: Path, max_bytes: int) -> list[bytes]:
    """The whole lines at the end of a file."""
    try:
        with open_plain(path, max_bytes=MAX_LOG_BYTES) as file:
            start = max(0, os.fstat(file.fileno()).st_size - max_bytes)
            file.seek(start)
            lines = file.read(max_bytes).split(b"\n")
    except OSError:
        return []
    return lines[start > 0 : -1]


def _point(line: bytes) -> Point | None:
    try:
        event = msgspec.json.decode(line, type=dict[str, Any])
    except UNREADABLE:
        return None
    at = event.get("time")
    if isinstance(at, bool) or not isinstance(at, int | float) or not math.isfinite(at):
        return None
    point = {"time": float(at), **{name: _short(event[name]) for name in NAMES if name in event}}
    return {name: value for name, value in point.items() if name not in SUMMED or isinstance(value, int)}


def _short(value: object) -> object:
    """A value of a log, if it is a plain one."""
    match value:
        case str():
            return value[:MAX_TEXT]
        case bool() | None:
            return value
        case int() | float() if abs(value) < 2**53:
            return value
        case _:
            return None


def _chosen(points: list[Point]) -> list[Point]:
    """At most `MAX_POINTS` of them, the first and the last included."""
    if len(points) <= MAX_POINTS:
        return points
    step = (len(points) - 1) / (MAX_POINTS - 1)
    return [points[round(number * step)] for number in range(MAX_POINTS)]
