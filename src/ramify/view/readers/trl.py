"""TRL: `log_completions` of GRPO and RLOO, `completions/completions_{step}.parquet` (checked with trl 1.16.0).

A row is a sample: `step`, `prompt` and `completion` (text, or chat messages), one column for each reward function,
columns that reward functions logged, and `advantage`. Every column of numbers before `advantage` counts as a reward
function. Samples are grouped by step and prompt.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from ramify.core.command import Score
from ramify.view.readers.chat_messages import SampledMessage, SampleMessages, question_of
from ramify.view.readers.foreign_run import ForeignRun
from ramify.view.readers.opening import Opening
from ramify.view.readers.parquet_rows import rows
from ramify.view.readers.plain_files import Table, number
from ramify.view.readers.shared_tree import SampleEnd, SharedTree, SharedTrees, problem_of

CAVEATS: Final = (
    "the file does not say how samples ended: each is shown as ended by the model",
    "a reward is the plain sum of the reward functions: the file does not say their weights",
)
KNOWN: Final = frozenset({"step", "prompt", "completion", "advantage"})


def is_mine(start: Opening) -> bool:
    return start.kind == "parquet" and start.has("step prompt completion") and len(start.names) > len(KNOWN) - 1


def read(files: Sequence[Path]) -> ForeignRun:
    trees = SharedTrees()
    for path in files:
        for place, row in rows(path):
            _lay(trees, place, row)
    return ForeignRun("TRL completions", trees.grown())


def _lay(trees: SharedTrees, place: str, row: dict[str, Any]) -> None:
    step, prompt = str(row["step"]), _without_none(row["prompt"])
    problem = problem_of(f"step {step}, prompt {len(trees) + 1}", question_of(prompt))
    facts = {"step": _plain(row["step"])}
    key = (step, json.dumps(prompt, default=str))
    tree = trees.tree(key, lambda: SharedTree(problem, facts=facts, caveats=CAVEATS))
    advantage = number(row.get("advantage"))
    measures = {} if advantage is None else {"advantage": advantage}
    sample = SampleMessages(place)
    sample.extend(prompt)
    sample.extend(_without_none(row["completion"]), SampledMessage(measures=measures))
    end = _end(row)
    tree.lay(sample.messages, lambda _: end)


def _end(row: Table) -> SampleEnd:
    others = {name: value for name, value in row.items() if name not in KNOWN}
    functions = {name: value for name, value in others.items() if isinstance(value, float)}
    parts = tuple((name, known) for name, value in functions.items() if (known := number(value)) is not None)
    value = math.fsum(part for _, part in parts) if parts else None
    notes = {name: _plain(value) for name, value in others.items() if name not in functions and value is not None}
    return SampleEnd(
        scores=(Score("reward", value, parts),), notes={**notes, "advantage": number(row.get("advantage"))}
    )


def _without_none(value: Any) -> Any:
    """A conversation without the fields that only other rows have: every row of a column of structs has them all."""
    if isinstance(value, dict):
        return {name: _without_none(each) for name, each in value.items() if each is not None}
    return [_without_none(each) for each in value] if isinstance(value, list) else value


def _plain(value: Any) -> Any:
    """A value as JSON can hold it: times, bytes and other types of columns become text."""
    return json.loads(json.dumps(value, default=str))
