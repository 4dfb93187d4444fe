"""Prompts: the default prompt of a model judge in each of its modes.

Sources: MCTSr, BrendanGraham14/mcts-llm src/mcts_llm/mctsr.py (a strict grade); the value and vote prompts of
princeton-nlp/tree-of-thought-llm src/tot/prompts; the value prompt of lapisrocks/LanguageAgentTreeSearch
hotpot/hotpot.py. The wording is ours, for any task and without their examples.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, Literal

from ramify.judges.replies import CHOICE, SCORE

Mode = Literal["rubric", "self_reward", "labels", "tenths", "vote", "pairwise"]

RUBRIC: Final = (
    "Problem:\n{{question}}\n\nAnswer:\n{{previous}}\n\nJudge this answer by these criteria: {rubric}. Think it "
    'through, then write on the last line "Score: " and a number from {low:g} to {high:g}.'
)
SELF_REWARD: Final = (
    "Problem:\n{question}\n\nAnswer:\n{previous}\n\nGrade this answer very strictly: look for every flaw and take "
    "points off for each, and never give a full grade. The grade is an integer from -100 to 100. Reply with that "
    "integer and nothing else."
)
LABELS: Final = (
    "Problem:\n{{question}}\n\nAn answer, or how one begins:\n{{previous}}\n\nIs it right, or can it still become so? "
    "Think it through, then write on the last line one of these words and nothing else: {labels}."
)
TENTHS: Final = (
    "Problem:\n{question}\n\nWhat was done about it so far:\n{previous}\n\nHow likely does this lead to a right "
    "answer? Think it through, then write on the last line "
    f'"Thus the correctness {SCORE} " and an integer from 1 to 10.'
)
VOTE: Final = (
    "Problem:\n{question}\n\n{choices}\n\nWhich of these is best? Compare them, then write on the last line "
    f'"The {CHOICE}" and its number.'
)
TEMPERATURES: Final[Mapping[Mode, float]] = MappingProxyType(
    {"self_reward": 1.0, "labels": 0.7, "tenths": 1.0, "vote": 1.0}
)
"""Temperatures of modes that sample repeatedly, as published: 0.7 in tree-of-thought-llm run.py, 1 in
LanguageAgentTreeSearch hotpot/lats.sh. The other modes are greedy."""


def prompt(mode: Mode, *, rubric: str, low: float, high: float, labels: Iterable[str]) -> str:
    """The prompt template of a mode."""
    match mode:
        case "rubric":
            return RUBRIC.format(rubric=_literal(rubric), low=low, high=high)
        case "self_reward":
            return SELF_REWARD
        case "labels":
            return LABELS.format(labels=_literal(", ".join(labels)))
        case "tenths":
            return TENTHS
        case "vote" | "pairwise":
            return VOTE


def _literal(text: str) -> str:
    """The text with its braces escaped, so that they cite nothing."""
    return text.replace("{", "{{").replace("}", "}}")
