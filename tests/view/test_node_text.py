import pytest
from tests.strategies.world import CODEC, sampled_step, text_step

from ramify.view.node_text import NodeText, step_text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<calc>4-3</calc>", "calc 4-3"),
        (" <answer>\n16\n</answer>\n", "answer 16"),
        ("I add. <calc>4-3</calc>", "I add. <calc>4-3</calc>"),
        ("<a>1</a><a>2</a>", "<a>1</a><a>2</a>"),
        ("<a>1</b>", "<a>1</b>"),
        ("<calc></calc>", "calc "),
        ("", ""),
        (" two  words ", " two  words "),
    ],
)
def test_a_text_that_is_one_element_loses_its_tags(text: str, said: str) -> None:
    assert step_text(text_step(text).segments, CODEC) == NodeText(said)


def test_what_a_tool_answered_stands_apart() -> None:
    step = sampled_step(3, entropy=0.5, stop=None)
    said = CODEC.decode(step.segments[0].ids.tolist())
    assert step_text(step.segments, CODEC) == NodeText(said, "=")


def test_a_long_text_is_read_in_linear_time() -> None:
    text = "<a>" + "</a" * 300_000
    assert step_text(text_step(text).segments, CODEC).said == text
