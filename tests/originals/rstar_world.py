"""What rStar's searches are played on: a scripted policy, reward model and interpreter.

Each is a function of the text that it is given, so a search that asks for something else is told something else. Steps
are what the published parser reads in odd ways: empty ones, answers that are empty, open or beside their box, code on
the line of a tag, and steps without a tag. The parser takes every text, so no step is unparsable. No step writes
`<end_of_output>` itself.
"""

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

Given = Mapping[str, Any]
QUESTION: Final = "What is 2 + 3?"
GOLD: Final = "5"
UNTAGGED: Final = "a step without a tag"
JOINED: Final = "a step joined to another path"
STEP, CODE, ANSWER = "<end_of_step>", "<end_of_code>", "<end_of_answer>"
WORDS: Final = ("Let us think {d}.", "So {d}", "", " \n", "It is {d}.", "Let us\nthink {d}.")
PROGRAMS: Final = (
    "<code>\nx = {d}",
    "<code>\nprint({d})\n",
    "<code>print({d})",
    "y = {d}",
    "y = {d}\n",
    "print(x, {d})\n",
    "print(x, {d})",
    "Now <code>\nz = {d}\n",
    "<code>\n",
    "<code>",
    "# a\n<code>\nx = {d}\n# b",
)
ANSWERS: Final = (
    "It is \\boxed{{{d}}}.",
    "\\boxed{{{d}}}",
    "So \\boxed{{\\frac{{1}}{{{d}}}}} it is",
    "\\boxed{{\\text{{ five }}}}.",
    "\\boxed{{{d}}}, no, \\boxed{{5}}",
)
ODD: Final = (
    "\\boxed{{}}",
    "\\boxed{{{d}",
    "It is at last the \\boxed{{{d}",
    "It is, and this was not easy to see, the \\boxed{{{d}",
    "\\boxed{{\\text{{ and }}}}",
    "\\boxed{{\\text{{five}}",
    "It is {d}.\nSo \\boxed{{6}}",
    "boxed {d}",
    ".\nboxed {d}",
    "<code>\nprint('boxed')\n",
    "<code>print('\\boxed{{}}')",
)
"""Answers that are empty, open or not where the box is."""
KINDS: Final = ((WORDS, (STEP,)), (PROGRAMS, (STEP, CODE)), (ANSWERS, (STEP, ANSWER)), (ODD, (STEP, ANSWER)))
"""Texts, and the tags that most of them end at."""


@dataclass(frozen=True)
class World:
    """The policy, the reward model and the interpreter of a scenario."""

    given: Given

    def says(self, prompt: str, index: int) -> tuple[str, str]:
        """Text of the sample of this number at a prompt, and the tag that it ended at; '' = none."""
        rng = self._rng("says", prompt, index)
        texts, tags = rng.choices(KINDS, self.given["weights"])[0]
        tag = rng.choice((STEP, CODE, ANSWER) if rng.random() < 0.15 else tags)
        return rng.choice(texts).format(d=rng.randint(3, 7)), "" if rng.random() < self.given["share_untagged"] else tag

    def value(self, prompt: str) -> float:
        """What the reward model says of a prompt with steps. The output of the last step is not read: that of a step
        that went wrong is framed twice by the original."""
        rng = self._rng("value", re.sub(r"(<end_of_code>)*\n(<output>)+[^<]*(<end_of_output>)+$", "", prompt))
        return rng.choice(self.given["values"]) if self.given["values"] else rng.uniform(-1, 1)

    def runs(self, program: str) -> str:
        """What a program prints; nothing if it is empty."""
        rng = self._rng("runs", program)
        if not program or rng.random() >= self.given["share_errors"]:
            return rng.choice(("1", "5", "", "[1, 2]\n3")) if program else ""
        return rng.choice(("NameError: name 'x' is not defined", "the mean squared error is 0.5"))

    def _rng(self, *parts: object) -> random.Random:
        return random.Random(repr((self.given["seed"], *parts)))


def scenario(rng: random.Random) -> Given:
    """Values of one number, of few, or all different."""
    return {
        "seed": rng.randrange(10**9),
        "width": rng.choice((1, 2, 3, 4, 6, 8)),
        "max_depth": rng.randint(1, 8),
        "weights": (1, 4, rng.choice((0.1, 0.3, 1)), rng.choice((0, 0.2, 0.5))),
        "values": rng.choice(((), (), (-1.0, 0.0, 1.0), (0.0,), (0.5, 0.25))),
        "share_errors": rng.choice((0.0, 0.1, 0.3)),
        "share_untagged": rng.choice((0.0, 0.0, 0.0, 0.05)),
    }


def mcts_scenario(rng: random.Random) -> Given:
    """`mode`: evaluation, or collection by the ground truth without and with a reward model."""
    return {
        **scenario(rng),
        "iterations": rng.randint(1, 12),
        "exploration": rng.choice((0.0, 0.5, 2.0, 2.0)),
        "mode": rng.choice(("evaluation", "evaluation", "sampling", "sampling_judged")),
        "errors_threshold": rng.choice((0, 1, 1, 2, 3)),
        "positive_reward": rng.choice((1.0, 1.0, 0.5)),
        "negative_reward": rng.choice((-1.0, -1.0, -0.5)),
    }


def beam_scenario(rng: random.Random) -> Given:
    return {**scenario(rng), "beams": rng.randint(1, 5)}


def shown(text: str, answer: str | None) -> str:
    """The text of a step; of one that went wrong without its output, which the original frames twice."""
    return text.partition("\n<output>")[0].removesuffix(CODE) if answer == "too_many_code_errors" else text
