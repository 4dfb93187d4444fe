"""verifiers before v1: `results.jsonl` of evaluations (checked with 0.1.9).

A line is one sample, with `prompt` and `completion` as chat messages (or texts), `reward` and `metrics` (up to
0.1.9, a column for each metric). Samples of one
`example_id` become one tree.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from ramify.core.command import Score
from ramify.view.readers.chat_messages import SampledMessage, SampleMessages, question_of
from ramify.view.readers.foreign_run import ForeignRun
from ramify.view.readers.opening import Opening
from ramify.view.readers.plain_files import Table, json_lines, number, table
from ramify.view.readers.shared_tree import SampleEnd, SharedTree, SharedTrees, problem_of

KNOWN: Final = frozenset("example_id prompt completion reward task generation_ms scoring_ms total_ms".split())
"""Columns of versions that have no column `metrics`. Any other number is a metric."""
STOPS: Final[Mapping[str, str]] = {
    "max_turns": "turn_limit",
    "max_turns_reached": "turn_limit",
    "max_input_tokens": "length",
    "max_output_tokens": "length",
    "max_total_tokens": "length",
    "max_total_completion_tokens_reached": "length",
    "context_length": "context_full",
    "prompt_too_long": "context_full",
    "compaction_failed": "context_full",
    "has_error": "engine_error",
    "error": "engine_error",
    "timeout_reached": "deadline",
}
"""Stop condition of verifiers, in any version -> stop word. Any other is an environment's own: the model was done."""


def is_mine(start: Opening) -> bool:
    if start.kind in ("torn", "empty"):
        return start.name == "results.jsonl"
    return start.kind == "lines" and start.has("example_id prompt completion")


def read(files: Sequence[Path]) -> ForeignRun:
    trees = SharedTrees()
    skipped: list[str] = []
    for path in files:
        for place, row in json_lines(path, skipped):
            _lay(trees, place, row)
    return ForeignRun("verifiers results", trees.grown(), {"skipped": skipped} if skipped else {})


def stop_of(condition: str, *, is_truncated: bool) -> str:
    """The stop word of a stop condition; '' = the file names none."""
    if condition in STOPS:
        return STOPS[condition]
    if condition.endswith(("_error", "_timeout")):
        return "engine_error" if condition.endswith("_error") else "deadline"
    return "length" if is_truncated else "end_of_sequence"


def _lay(trees: SharedTrees, place: str, row: Table) -> None:
    uid, prompt = str(row.get("example_id", "")), row.get("prompt")
    facts = {name: row[name] for name in ("example_id", "answer", "info", "task") if name in row}
    tree = trees.tree((uid, json.dumps(prompt)), lambda: SharedTree(problem_of(uid, question_of(prompt)), facts=facts))
    sample = SampleMessages(place)
    sample.extend(prompt)
    sample.extend(row.get("completion"), SampledMessage())
    end = _end(place, row)
    tree.lay(sample.messages, lambda _: end)


def _end(place: str, row: Table) -> SampleEnd:
    metrics = table(place, "metrics", row.get("metrics") or {name: row[name] for name in row.keys() - KNOWN})
    parts = tuple((name, known) for name, value in sorted(metrics.items()) if (known := number(value)) is not None)
    condition = str(row.get("stop_condition") or ("error" if row.get("error") else ""))
    return SampleEnd(
        stop=stop_of(condition, is_truncated=row.get("is_truncated") is True),
        scores=(Score("reward", number(row.get("reward")), parts),),
        notes={name: row[name] for name in ("stop_condition", "error", "token_usage", "timing") if row.get(name)},
    )
