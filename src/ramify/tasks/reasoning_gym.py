"""The task `reasoning_gym`: puzzles that a set of reasoning_gym makes, scored by its own scorer.

An entry of a set depends on the seed of the set and its index alone, so a problem is made again from both when it is
scored. Scores are from 0 to 1; some scorers give nonsense more than 0. A scorer that raises, as some do for an answer
that they cannot read, is a fault of the judge. Checked with reasoning_gym 0.1.25.
"""

import asyncio
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from ramify.core.branch import Branch
from ramify.core.errors import ConfigError, JudgeError
from ramify.core.format import Format
from ramify.core.judge import BranchJudge, Verdict
from ramify.core.problem import Problem
from ramify.core.tool import Tool
from ramify.formats.tags import TagFormat
from ramify.judges.exact import ANSWER, is_same_answer

INSTALL: Final = "pip install 'ramify[reasoning]'"
SPLITS: Final[Mapping[str, int]] = {"train": 0, "heldout": 1 << 30}
"""Split -> its first seed. A set adds index and seed, so runs and splits must be far apart."""
RUN_STRIDE: Final = 100_003
"""Distance between the seeds of two runs; a prime, so that runs of round sizes overlap little."""


@dataclass(frozen=True, slots=True)
class ReasoningGymJudge:
    """The score of the answer by the set's own scorer; parts `answered`. An oracle."""

    format: Format
    set: str
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    name: str = "reasoning_gym"
    is_oracle: bool = True

    async def judge(self, branches: Sequence[Branch], problem: Problem) -> Sequence[Verdict]:
        """One verdict per branch; without an answer it is 0.0. Raises `JudgeError` if the scorer raises."""
        answers = [self.format.answer(branch.said) for branch in branches]
        return await asyncio.to_thread(lambda: [self._verdict(answer, problem) for answer in answers])

    def _verdict(self, answer: str | None, problem: Problem) -> Verdict:
        if answer is None:
            return Verdict(0.0, {"answered": 0.0})
        seed, index = problem.public["seed"], problem.public["index"]
        try:
            made = _set(self.set, seed, index + 1, tuple(sorted(self.options.items())))
            return Verdict(float(made.score_answer(answer, made[index])), {"answered": 1.0})
        except Exception as error:
            told = f"{type(error).__name__}: {error}"
            raise JudgeError(f"the scorer of {self.set!r} raised for the answer {answer[:80]!r}: {told}") from error


class ReasoningGym:
    """The task: puzzles of one set.

    - `set`: name of a set, as in `reasoning_gym.create_dataset`.
    - `size`: most problems of a run; None = no limit.
    - `options`: further arguments of the set, such as its difficulty.
    """

    def __init__(self, set: str, size: int | None = None, options: Mapping[str, Any] | None = None) -> None:
        self.set = set
        self.size = size
        self.options: Mapping[str, Any] = options or {}
        self.format: Format = TagFormat()
        self.tools: Sequence[Tool] = ()
        self.judges: Sequence[BranchJudge] = (ReasoningGymJudge(self.format, set, self.options),)

    def problems(self, split: str, num_problems: int, seed: int) -> Sequence[Problem]:
        """Entries of the set. Public: `set`, `seed` and `index`; secret: `answer`, which is None for some sets."""
        if split not in SPLITS:
            raise ConfigError(f"split {split!r}: reasoning_gym has {' and '.join(map(repr, SPLITS))}")
        if self.size is not None and num_problems > self.size:
            raise ConfigError(f"task 'reasoning_gym': {num_problems} problems asked for; size = {self.size}")
        first = SPLITS[split] + seed * RUN_STRIDE % (1 << 30)
        try:
            made = _set(self.set, first, num_problems, tuple(sorted(self.options.items())))
        except (ValueError, TypeError, AssertionError) as error:
            raise ConfigError(f"task 'reasoning_gym': set {self.set!r} cannot be made: {error}") from error
        return [self._problem(made[index], split, first, index) for index in range(num_problems)]

    def _problem(self, entry: Mapping[str, Any], split: str, seed: int, index: int) -> Problem:
        public = {"set": self.set, "seed": seed, "index": index}
        return Problem(f"{self.set}-{seed}-{index}", entry["question"], public, {ANSWER: entry["answer"]}, split)

    def prune(self, branch: Branch) -> str | None:
        return None

    def is_same_answer(self, one: str, other: str) -> bool:
        return is_same_answer(one, other)


@lru_cache(maxsize=64)
def _set(name: str, seed: int, size: int, options: tuple[tuple[str, Any], ...]) -> Any:
    try:
        library: Any = importlib.import_module("reasoning_gym")
    except ImportError as error:
        raise ConfigError(f"the task 'reasoning_gym' needs the package reasoning_gym: {INSTALL}") from error
    return library.create_dataset(name, seed=seed, size=size, **dict(options))
