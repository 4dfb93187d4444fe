"""Conditions of `--where`: what they mean, and that nothing but comparisons gets in."""

import pytest

from ramify.cli.where import MAX_LENGTH, condition
from ramify.core.errors import ConfigError

COLUMNS = {"reward": "number", "tokens": "number", "tool": "words", "question": "text"}
ROW = {"reward": 0.25, "tokens": 300, "tool": ("python", "search"), "question": "make 24 from 4 6 8 2"}
EMPTY = {"reward": None, "tokens": 0, "tool": (), "question": ""}


def holds(text, row=None):
    return condition(text, COLUMNS).holds(ROW if row is None else row)


@pytest.mark.parametrize(
    "text",
    [
        'reward<0.3 and tool=="python" and tokens>200',
        "0.2 <= reward < 0.3",
        "not reward >= 0.3",
        "(reward > 0.5 or tokens == 300) and tokens != 0",
        "reward > -1",
        'tool != "browse"',
        '"search" in tool',
        'tool in ("browse", "python")',
        "tokens not in [1, 2]",
        '"24" in question',
        'question < "n"',
        "reward != None",
        "  tokens > 1  ",
    ],
)
def test_a_condition_that_is_true(text):
    assert holds(text)


@pytest.mark.parametrize(
    "text", ["reward > 0.3", 'tool != "python"', 'tool == "pyth"', '"25" in question', "reward == None", "tool == None"]
)
def test_a_condition_that_is_false(text):
    assert not holds(text)


def test_a_missing_value_fulfils_no_comparison_but_that_with_none():
    assert not holds("reward < 1", EMPTY)
    assert not holds("reward >= 1", EMPTY)
    assert holds("reward == None and tool == None", EMPTY)
    assert holds("reward != 1", EMPTY)


def test_a_condition_says_which_columns_it_names():
    assert condition("tokens > 1 or reward < 1 or tokens < 0", COLUMNS).names == ("tokens", "reward")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rewards < 1", r"no column 'rewards'; did you mean 'reward'.*; columns: reward, tokens, tool, question"),
        ("x > 1", "columns: reward, tokens, tool, question"),
        ("reward <", "invalid syntax; write it as"),
        ("reward = 1", "--where 'reward = 1': "),
        ("", "--where ''"),
        ("reward", "'reward' is no comparison"),
        ("True", "is no comparison"),
        ("reward == True", "'True' is no column, number or text"),
        ("__import__('os').system('true')", "is no comparison"),
        ("len(question) > 1", r"'len\(question\)' is no column"),
        ("question.upper() == 'A'", "is no column, number or text"),
        ("tokens + 1 > 2", r"'tokens \+ 1' is no column"),
        ("tokens > 10 ** 9", "is no column, number or text"),
        ("(lambda: 1)() == 1", "is no column, number or text"),
        ("reward is None", "`is` is not allowed"),
        ("[x for x in (1,)] == 1", "is no column"),
        ("f'{reward}' == 'a'", "is no column"),
        ('reward < "a"', "number cannot be compared so with text; numbers are reward, tokens; texts"),
        ("question == 3", "text cannot be compared so with number"),
        ('tool < "b"', "words cannot be compared so with text"),
        ("tokens in 3", "cannot be compared"),
        ("tokens == 1j", "is no column"),
        ("reward\0 < 1", "--where"),
        ("(" * 300 + "1" + ")" * 300, "at most 500"),
        ("(" * 240 + "1" + ")" * 240, "--where"),
        ("not " * 120 + "reward", "is no comparison"),
        ("-" * 400 + "1 < reward", "nested too deeply"),
        ("a" * (MAX_LENGTH + 1), "at most 500"),
    ],
)
def test_what_is_no_condition_is_refused_with_what_is_allowed(text, words):
    with pytest.raises(ConfigError, match=words):
        condition(text, COLUMNS)
