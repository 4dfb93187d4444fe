"""A task: write a word backwards, with a tool that does it, judged by exact match.

ramify rollout --task examples/words_task.py:Words --engine scripted --prompts 2
python examples/words_task.py           (checks it against the contract of a task)
"""

from random import Random

from ramify import ConfigError, Problem
from ramify.formats.tags import TagFormat
from ramify.judges.exact import Exact
from ramify.tools.function import FunctionTool

SPLITS = {"train": "bcdfgh", "heldout": "klmnpr"}
"""Consonants that a word of each split begins with: no word is in both."""


def backwards(text):
    return text[::-1]


class Words:
    def __init__(self, length: int = 8):
        self.length = length
        self.format = TagFormat(tags={"backwards": "rev"}, template="{question}\n")
        self.tools = (FunctionTool(backwards),)
        self.judges = (Exact(self.format),)

    def problems(self, split, num_problems, seed):
        if split not in SPLITS:
            raise ConfigError(f"split {split!r}: there are 'train' and 'heldout'")
        draws, words = Random(seed), {}
        while len(words) < num_problems:
            letters = [draws.choice(SPLITS[split]), *draws.choices("aeioustl", k=self.length - 1)]
            words["".join(letters)] = None
        return [Problem(w, f"write {w} backwards", {"length": len(w)}, {"answer": w[::-1]}, split) for w in words]

    def prune(self, branch):
        return None

    def is_same_answer(self, one, other):
        return one.strip() == other.strip()


if __name__ == "__main__":
    from ramify.testing import check_format, check_task

    check_task(Words)
    check_format(lambda: Words().format)
