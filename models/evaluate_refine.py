"""Measures what a model's critiques, rewrites and grades are worth, about its own attempts at held-out problems.

A grade is measured within problems, where a judge has to choose; a rewrite against another attempt at the same
problem, which is what its tokens could have bought instead.
"""

import argparse
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from models.attempts import own_attempts
from models.evaluate import sample
from models.exams import refine_exam
from models.refine_episodes import Attempt, Kind, critique
from models.value_data import auc_within

from ramify.engines.tokenizer import TokenizerFile

_INTEGER = re.compile(r"-?[0-9]{1,3}")
_STEP = re.compile(r"wrong step ([1-9])$")


def evaluate_refinement(folder: Path, *, num_problems: int, num_samples: int, seed: int) -> dict[str, Any]:
    """Figures at temperature 1, one reply to each attempt."""
    torch.set_num_threads(1)
    attempts = own_attempts(folder, seed=seed, num_problems=num_problems, num_samples=num_samples, split="heldout")
    by_problem = np.array([attempt.is_right for attempt in attempts]).reshape(num_problems, num_samples)
    said = _replies(folder, "critique", attempts, seed=seed)
    grades = [
        float(reply) if _INTEGER.fullmatch(reply) else None
        for reply in _replies(folder, "grade", attempts, seed=seed + 1)
    ]
    wrong = [i for i, attempt in enumerate(attempts) if not attempt.is_right]
    rewrites = _replies(
        folder, "rewrite", [attempts[i] for i in wrong], critiques=[said[i] for i in wrong], seed=seed + 2
    )
    rewritten = [Attempt(attempts[i].problem, text).is_right for i, text in zip(wrong, rewrites, strict=True)]
    others = [by_problem[i // num_samples].sum() / (num_samples - 1) for i in wrong]
    named = [(_step(said[i]), _step(critique(attempts[i]))) for i in wrong]
    return {
        "attempts": len(attempts),
        "attempts right": _mean(by_problem),
        "critiques whose verdict is right": _mean(
            [said[i].endswith("right") == attempt.is_right for i, attempt in enumerate(attempts)]
        ),
        "wrong attempts whose lost step is named": _mean([ours is not None and ours == true for ours, true in named]),
        "wrong attempts lost at the first step": _mean([true == 1 for _, true in named]),
        "grades that are integers": _mean([grade is not None for grade in grades]),
        "auc of grades within problems": _auc(grades, attempts, num_samples, lambda attempt: attempt.is_right),
        "the same among wrong attempts, for a good first step": _auc(
            [None if attempt.is_right else grade for grade, attempt in zip(grades, attempts, strict=True)],
            attempts,
            num_samples,
            lambda attempt: attempt.num_good > 0,
        ),
        "rewrites of wrong attempts right": _mean(rewritten),
        "other attempts at the same problems right": _mean(others),
    }


def _replies(
    folder: Path, kind: Kind, attempts: Sequence[Attempt], *, seed: int, critiques: Sequence[str] | None = None
) -> list[str]:
    """One reply to each attempt."""
    tokenizer = TokenizerFile(folder / "tokenizer.json")
    exam = refine_exam(kind, attempts, critiques)
    return [
        tokenizer.decode(row.said_ids(tokenizer.eos_id)) for (row,) in sample(folder, exam, num_samples=1, seed=seed)
    ]


def _step(said: str) -> int | None:
    """The step that a critique names."""
    match = _STEP.search(said)
    return int(match[1]) if match else None


def _mean(values: object) -> float:
    return round(float(np.mean(np.asarray(values, float))), 4)


def _auc(
    grades: Sequence[float | None],
    attempts: Sequence[Attempt],
    num_samples: int,
    is_good: Callable[[Attempt], bool],
) -> float | None:
    """Area under the curve within problems, of the attempts that have a grade."""
    pairs = [
        (grade, float(is_good(attempt))) if grade is not None else None
        for grade, attempt in zip(grades, attempts, strict=True)
    ]
    groups = [
        [pair for pair in pairs[start : start + num_samples] if pair is not None]
        for start in range(0, len(pairs), num_samples)
    ]
    area = auc_within(groups)
    return None if area is None else round(area, 4)


def main() -> None:
    """Command line: print the figures of a model folder."""
    parser = argparse.ArgumentParser(description="measure what a model's refinement of its own attempts is worth")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--problems", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    figures = evaluate_refinement(options.folder, num_problems=options.problems, num_samples=8, seed=options.seed)
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
