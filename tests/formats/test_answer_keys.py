"""What an answer in free words says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.formats.answer_keys import answer_key, is_same_key

SAME = [
    ("The answer is 42.", "6 * 7 = 42"),
    ("**Answer:** $1,000$", "1000.0"),
    ("So x is 3.\n\nTotal: **3**", "The total is 3"),
    ("It is \\boxed{\\frac{1}{2}}.", "Hence $\\boxed{ \\frac{1}{2} }$, as was asked."),
    ("\\boxed{7}", "thus the answer is 7"),
    ('{"a": 1, "b": [2, 3]}', '```json\n{ "b": [2,3], "a": 1 }\n```'),
    ("Paris.", "  paris "),
    ("Yes", "yes."),
    (
        '<tool_call>\n{"name": "f", "arguments": {"x": 1, "y": 2}}\n</tool_call>',
        'Let me see.\n<tool_call>\n{"name": "f", "arguments": {"y": 2, "x": 1}}\n</tool_call>',
    ),
]
OTHER = [
    ("The answer is 42.", "The answer is 43."),
    ("Apollo 11", "Apollo 12"),
    ("Apollo 11", "11"),
    ("It was in 2024.", "2024"),
    ("Paris", "London"),
    ('{"a": 1}', '{"a": 2}'),
    (
        '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>',
        '<tool_call>\n{"name": "g", "arguments": {"x": 1}}\n</tool_call>',
    ),
    ("Take 3 of them. The rest stays.", "3"),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_answers_that_say_the_same_have_one_key(one: str, other: str) -> None:
    assert is_same_key(one, other)
    assert answer_key(one) == answer_key(other)


@pytest.mark.parametrize(("one", "other"), OTHER)
def test_answers_that_say_something_else_have_other_keys(one: str, other: str) -> None:
    assert not is_same_key(one, other)


def test_arguments_that_are_no_json_are_compared_as_they_are() -> None:
    broken = '<tool_call>\n{"name": "f", "arguments": {x: 1}\n</tool_call>'
    assert is_same_key(broken, broken)
    assert answer_key(broken) == '{"name": "f", "arguments": {x: 1}'


@pytest.mark.parametrize("text", ["[" * 100_000, "{" * 5_000 + "1", "= " * 5_000, "1," * 100_000, "is " * 50_000 + "1"])
def test_hostile_texts_are_read_at_once(text: str) -> None:
    assert answer_key(text)


@given(st.text(max_size=60))
def test_any_text_has_a_key_and_equals_itself(text: str) -> None:
    assert is_same_key(text, text)
    assert isinstance(answer_key(text), str)
