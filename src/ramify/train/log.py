"""Log: the file of a training: a line for each update, evaluation and plan, in order.

A line has the number of updates (`step`), the tokens sampled so far, and its own figures.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

LOG: Final = "log.jsonl"
EVALUATED: Final = "eval_step"
"""A figure that every evaluation has, and nothing else."""
PLANNED: Final = "plan"
"""A key that every plan has, and nothing else."""
Line = Mapping[str, Any]


class TrainingLog:
    """Mutable: every change is written to the file at `path` at once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        whole = path.read_text("utf-8").rpartition("\n")[0] if path.exists() else ""  # a kill may cut the last line
        self._lines: list[Line] = [json.loads(line) for line in whole.splitlines()]

    @property
    def lines(self) -> Sequence[Line]:
        return self._lines

    @property
    def tokens(self) -> int:
        """Decode tokens of all trees so far, those of pilots included."""
        return self._lines[-1]["tokens"] if self._lines else 0

    @property
    def plans(self) -> Sequence[Line]:
        return [line for line in self._lines if PLANNED in line]

    @property
    def evaluations(self) -> Sequence[Line]:
        return [line for line in self._lines if EVALUATED in line]

    def evaluation(self, step: int) -> Line | None:
        """The last one of the policy after so many updates."""
        return next((line for line in reversed(self.evaluations) if line["step"] == step), None)

    def append(self, line: Line) -> None:
        self._lines.append(line)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def go_back(self, step: int | None) -> None:
        """Drop what comes after so many updates. None = the training has no checkpoint: only its plan stays."""
        self._lines = [line for line in self._lines if (PLANNED in line if step is None else line["step"] <= step)]
        if self._path.exists():
            draft = self._path.with_suffix(".draft")
            draft.write_text("".join(f"{json.dumps(line)}\n" for line in self._lines), "utf-8")
            draft.replace(self._path)
