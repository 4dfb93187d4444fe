"""verl: rollout dumps, `trainer.rollout_data_dir` -> `{step}.jsonl` (checked with verl 0.9.1).

A line is a sample: `input` and `output` as text without special tokens, `gts` (the gold answer), `score`, `step`, and
further columns: what a reward function returned beside its score, `uid` or `request_id`. Both ids name a sample, not
its prompt, so samples are grouped by step and text of the prompt. Turns of a tool are inside `output`.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ramify.core.command import Score
from ramify.view.readers.chat_messages import SampledMessage, SampleMessages
from ramify.view.readers.foreign_run import ForeignRun
from ramify.view.readers.opening import Opening
from ramify.view.readers.plain_files import Table, damaged, json_lines, number
from ramify.view.readers.shared_tree import SampleEnd, SharedTree, SharedTrees, problem_of

CAVEAT: Final = "the file does not say how samples ended: each is shown as ended by the model"
KNOWN: Final = frozenset({"input", "output", "gts", "score", "step"})
_NAME: Final = re.compile(r"\d+\.jsonl")


def is_mine(start: Opening) -> bool:
    is_dump = start.kind == "lines" and start.has("input output score") and bool({"gts", "step"} & start.names)
    return is_dump or (start.kind == "torn" and _NAME.fullmatch(start.name) is not None)


def read(files: Sequence[Path]) -> ForeignRun:
    trees = SharedTrees()
    skipped: list[str] = []
    for path in files:
        for place, row in json_lines(path, skipped):
            _lay(trees, place, row)
    return ForeignRun("verl rollouts", trees.grown(), {"skipped": skipped} if skipped else {})


def _lay(trees: SharedTrees, place: str, row: Table) -> None:
    for name in ("input", "output"):
        if not isinstance(row.get(name), str):
            raise damaged(place, name, row.get(name), "text")
    step, prompt = str(row.get("step", "")), row["input"]
    problem = problem_of(f"step {step}, prompt {len(trees) + 1}", prompt)
    facts = {name: row[name] for name in ("step", "gts") if name in row}
    tree = trees.tree((step, prompt), lambda: SharedTree(problem, facts=facts, caveats=[CAVEAT]))
    sample = SampleMessages(place)
    sample.extend(prompt)
    sample.extend(row["output"], SampledMessage())
    others = {name: value for name, value in row.items() if name not in KNOWN}
    parts = tuple((name, known) for name, value in others.items() if (known := number(value)) is not None)
    end = SampleEnd(scores=(Score("score", number(row.get("score")), parts),), notes=others)
    tree.lay(sample.messages, lambda _: end)
