import re
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.core.problem import Problem
from ramify.core.tool import Tool, text_schema
from ramify.testing.notebook import Notebook
from ramify.tools.arguments import faults_of, object_in, read_arguments
from ramify.tools.calculator import Calculator

ONE_TEXT = text_schema("look", parameter="thing")["parameters"]
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}


class Adder:
    """A user's tool that describes itself and leaves the checking to us."""

    name = "adder"
    branching = "share"
    schema: ClassVar = {
        "name": "adder",
        "description": "",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    }

    async def open(self, problem: Problem) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("text", "parameters", "read"),
    [
        ("anything at all", ONE_TEXT, {"thing": "anything at all"}),
        ('{"thing": "x"}', ONE_TEXT, {"thing": '{"thing": "x"}'}),
        ('{"city": "Rome", "days": 2.0}', CITY, {"city": "Rome", "days": 2}),
        ("Rome", CITY, {"city": "Rome"}),
        ("3", CITY, {"city": "3"}),
        ("{}", {"type": "object", "properties": {}}, {}),
    ],
)
def test_a_text_stands_for_arguments(text: str, parameters: dict[str, Any], read: dict[str, Any]) -> None:
    assert read_arguments(text, parameters) == read


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('{"city": "Rome"', "the arguments are no JSON: "),
        ('{"city": "Rome", "city": "Oslo"}', "a name is given twice among 'city', 'city'"),
        ('{"city": 7}', "the arguments do not fit: city = 7: it must be a text"),
        ('{"days": 7}', "the arguments do not fit: city is missing: it must be a text"),
        ('{"city": "Rome", "days": NaN}', "NaN is no JSON"),
        ('{"city": "Rome", "days": 1e999}', "1e999 is too large a number"),
        ('{"a":' * 3000, "the arguments "),
        ('{"city": "\\ud800"}', "the arguments hold half of a surrogate pair, which is no character"),
        ('{"city": "Rome", "days": ' + "7" * 5000 + "}", "a number of 5000 digits is too large"),
        ('{"city": "' + "\\ud83d\\ude00" * 3 + '", "days": "x"}', 'days = "x": it must be a whole number'),
    ],
)
def test_what_does_not_fit_is_said(text: str, fault: str) -> None:
    with pytest.raises(ValueError, match=re.escape(fault)):
        read_arguments(text, CITY)


def test_a_fault_is_told_in_few_words() -> None:
    names = ", ".join(f'"{i}{"x" * 500}": {i}' for i in range(1000))
    with pytest.raises(ValueError, match="a name is given twice among '0xxx") as caught:
        object_in(f'{{{names}, "a": 1, "a": 2}}')
    assert len(str(caught.value)) < 1000


def test_a_text_that_is_none_is_made_one_and_may_be_of_any_type() -> None:
    assert read_arguments("a\ud800", ONE_TEXT) == {"thing": "a\ufffd"}
    anything = {"type": "object", "properties": {"what": {}, "more": {"type": "integer"}}, "required": ["what"]}
    assert read_arguments("a\ud800", anything) == {"what": "a\ufffd"}
    assert read_arguments('{"what": [1]}', anything) == {"what": [1]}


BOX = {"type": "object", "properties": {"width": {"type": "integer"}}, "required": ["width"]}


@pytest.mark.parametrize(
    ("parameter", "text", "read"),
    [
        ({"$ref": "#/$defs/Box"}, '{"it": {"width": 3}}', {"width": 3}),
        ({"allOf": [{"$ref": "#/$defs/Box"}], "description": "a box"}, '{"it": {"width": 3}}', {"width": 3}),
        ({}, '{"it": [1, "a"]}', [1, "a"]),
        ({}, "words", "words"),
        ({"$ref": "#/$defs/Twice"}, '{"it": 3}', 3),
        ({"$ref": "#/$defs/Text"}, '{"it": 3}', '{"it": 3}'),
    ],
)
def test_the_one_parameter_of_a_tool_is_a_text_only_where_its_schema_says_so(
    parameter: dict[str, Any], text: str, read: Any
) -> None:
    """As servers write it whose functions take one object of a class."""
    twice = {"anyOf": [{"$ref": "#/$defs/Twice"}, {"$ref": "#/$defs/Twice"}]}
    parameters = {"type": "object", "properties": {"it": parameter}, "required": ["it"]}
    defs = {"$defs": {"Box": BOX, "Twice": twice, "Text": {"type": "string"}}}
    assert read_arguments(text, parameters | defs) == {"it": read}


@pytest.mark.parametrize("text", ["[1]", "3", '"x"', "null", "Rome"])
def test_only_an_object_is_an_object(text: str) -> None:
    with pytest.raises(ValueError, match="the arguments"):
        object_in(text)


@pytest.mark.parametrize(
    ("tool", "arguments", "fault"),
    [
        (Adder(), '{"a": "x", "b": 2}', 'the arguments do not fit: a = "x": it must be a whole number'),
        (Adder(), '{"a": 1, "b": 2}', None),
        (Adder(), "1 + 2", None),
        (Calculator(), '{"expression": 3}', None),
        (Notebook(), "write red", None),
    ],
)
def test_a_tool_that_leaves_checking_to_us_is_checked_where_an_object_came(
    tool: Tool, arguments: str, fault: str | None
) -> None:
    assert faults_of(tool)(arguments) == fault


@given(st.text())
def test_any_text_is_read_or_refused_in_words(text: str) -> None:
    said = ""
    try:
        read_arguments(text, {**CITY, "required": []})
    except ValueError as error:
        said = str(error)
    assert said.startswith(("the arguments", "a name", "NaN", "Infinity", "-Infinity")) or text.strip() == "{}"
