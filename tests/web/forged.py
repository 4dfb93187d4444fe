"""Runs that are written record by record: with hostile texts, or at the pace of a test."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
from tests.store.growths import CODEC, Live

from ramify.core.command import Grow
from ramify.core.tree import ROOT, Step
from ramify.store.layout import parts, records
from ramify.store.records import FORMAT, GrownRecord, OpenedRecord, RunRecord, WeightsValue
from ramify.store.store import FolderStore, header_and_config

HOSTILE = (
    "<script>window.hacked=1</script></script><img src=x onerror=window.hacked=1>"
    "\x00\x07\x1b[31m\u202eevil\u202c\u200b\u2066\ufeff&amp;\"'`${window.hacked=1}`{{policy}}\\u003cscript>"
)
"""Markup, control and direction characters, and what a template or an escape might read."""


def records_of(run: Path) -> list[RunRecord]:
    """All records of a run."""
    return [record for part in parts(run) for record in records(part)]


def begin(path: Path, like: Path) -> FolderStore:
    """A new run that began as `like` did. The caller must close it."""
    header, config = header_and_config(like)
    return FolderStore.create(path, header, config)


def copied(path: Path, like: Path, change: Any = lambda record: record) -> Path:
    """A copy of a run with changed records."""
    store = begin(path, like)
    for record in records_of(like):
        store.append(change(record))
    store.close()
    return path


def with_hostile_texts(record: RunRecord) -> RunRecord:
    """The record with `HOSTILE` in its question, its prompt of a step, tool calls, judges, notes and measures."""
    if isinstance(record, OpenedRecord):
        return msgspec.structs.replace(
            record, question=HOSTILE, uid=f"{record.tree} {HOSTILE}", public={HOSTILE: HOSTILE}
        )
    if isinstance(record, GrownRecord):
        step = record.step
        segments = tuple(_hostile_segment(segment) for segment in step.segments)
        scores = tuple(msgspec.structs.replace(s, judge=HOSTILE, parts=((HOSTILE, 1.0),)) for s in step.scores)
        step = msgspec.structs.replace(step, segments=segments, scores=scores, notes={HOSTILE: HOSTILE})
        return msgspec.structs.replace(record, step=step)
    return record


def _hostile_segment(segment: Any) -> Any:
    if segment.tool_call is None:
        return segment
    call = msgspec.structs.replace(
        segment.tool_call, tool=HOSTILE, arguments=HOSTILE, result=HOSTILE, metadata={HOSTILE: HOSTILE}
    )
    return msgspec.structs.replace(segment, tool_call=call)


def slices(found: list[RunRecord], number: int) -> Iterator[list[RunRecord]]:
    """The records in `number` slices."""
    size = -(-len(found) // number)
    return (found[i : i + size] for i in range(0, len(found), size))


def path_of(number: int, *steps: Step) -> list[RunRecord]:
    """The records of a finished tree of one path."""
    live = Live(number)
    (command,) = live.ask(Grow(ROOT))
    for step in steps:
        live.grow(command, step)
    live.end(command)
    live.shut()
    return [*live.records]


def written(
    path: Path, like: Path, *trees: list[RunRecord], codec_sha256: str = CODEC.sha256, format: int = FORMAT
) -> Path:
    """A run of these trees that began as `like` did, with a tokenizer of bytes; another SHA-256 names one that nobody
    has. `like` must be a run of the scripted agent."""
    header, config = header_and_config(like)
    weights = (WeightsValue(engine="scripted", codec="bytes", codec_sha256=codec_sha256),)
    store = FolderStore.create(path, msgspec.structs.replace(header, weights=weights, format=format), config)
    for each in chain.from_iterable(trees):
        is_first = isinstance(each, OpenedRecord)
        store.append(msgspec.structs.replace(each, codec_sha256=codec_sha256) if is_first else each)
    store.close()
    return path
