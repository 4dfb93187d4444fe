"""The judge that says which answers mean the same."""

import asyncio

import pytest

from ramify.core.format import IsSame
from ramify.core.judge import Verdict
from ramify.core.problem import Problem
from ramify.formats.arpo import arpo
from ramify.formats.conversation import Conversation
from ramify.judges.agreement import Agreement
from ramify.testing.questions import branch_of

PROBLEM = Problem("p", "How many?")


def places(judge: Agreement, *said: str) -> list[float | None]:
    verdicts = asyncio.run(judge.judge([branch_of(text) for text in said], PROBLEM))
    return [verdict.value for verdict in verdicts]


def test_an_answer_has_the_number_of_the_first_that_means_the_same() -> None:
    said = [f"<answer>{text}</answer>" for text in ("4", " 4.0", "five", "FIVE", "4")]
    assert places(Agreement(arpo({})), *said) == [0, 0, 2, 2, 0]


def test_a_branch_without_an_answer_has_no_score() -> None:
    assert places(Agreement(arpo({})), "nothing", "<answer>4</answer>", "") == [None, 1, None]


@pytest.mark.parametrize(("is_same", "expected"), [(None, [0, 1]), (lambda one, other: True, [0, 0])])
def test_answers_are_the_same_where_the_run_says_so(is_same: IsSame | None, expected: list[float]) -> None:
    said = ["<answer>4</answer>", "<answer>5</answer>"]
    assert places(Agreement(arpo({}), is_same=is_same), *said) == expected


def test_answers_of_a_conversation_are_compared_by_what_they_say() -> None:
    format = Conversation()
    judge = Agreement(format, is_same=format.is_same_answer)
    assert places(judge, "The answer is 42.", "So it is **42**", "It equals 41") == [0, 0, 2]


def test_it_sees_no_gold_answer_and_asks_nobody() -> None:
    judge = Agreement(arpo({}))
    assert not judge.is_oracle
    assert asyncio.run(judge.judge([], PROBLEM)) == []
    assert asyncio.run(judge.judge([branch_of("<answer>1</answer>")], PROBLEM)) == [Verdict(0.0)]
