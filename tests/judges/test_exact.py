import numpy as np
import pytest

from ramify.core.branch import Branch, Piece
from ramify.core.codec import ByteCodec
from ramify.core.errors import JudgeError
from ramify.core.problem import Problem
from ramify.core.segment import Segment
from ramify.formats.tags import TagFormat
from ramify.judges.exact import Exact, is_same_answer

CODEC = ByteCodec()


def response(text: str) -> Branch:
    ids = np.array(CODEC.encode(text), np.int32)
    return Branch(CODEC, 0, (Piece(0, Segment("sampled", ids)),))


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("Paris", " paris ", True),
        ("new  york", "New\nYork", True),
        ("1,000", "1000.0", True),
        ("-3", "-3.00", True),
        ("1,00", "100", False),
        ("1", "one", False),
        ("", "", True),
        ("10", "1e1", False),
    ],
)
def test_answers_are_the_same_text_or_the_same_number(one: str, other: str, is_same: bool):
    assert is_same_answer(one, other) is is_same


async def test_the_answer_is_compared_with_every_gold_alternative():
    problem = Problem("p", "q?", secret={"answer": ["4", "four"]})
    branches = [response("so <answer>Four</answer>"), response("<answer>5</answer>"), response("4")]
    verdicts = await Exact(TagFormat()).judge(branches, problem)
    assert [v.value for v in verdicts] == [1.0, 0.0, 0.0]
    assert [v.parts["answered"] for v in verdicts] == [1.0, 1.0, 0.0]


async def test_a_problem_without_a_gold_answer_is_a_fault_and_no_zero():
    with pytest.raises(JudgeError, match="no secret 'answer'"):
        await Exact(TagFormat()).judge([response("x")], Problem("p", "q?"))
