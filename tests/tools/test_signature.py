import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from functools import partial
from typing import Annotated, Any, Literal, NewType, NotRequired, Optional, TypedDict

import jsonschema
import pytest

from ramify.core.errors import ConfigError
from ramify.tools.signature import Signature


class Unit(Enum):
    CELSIUS = "celsius"
    FAHRENHEIT = "fahrenheit"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


@dataclass
class Point:
    x: int
    y: int = 0
    marks: list[str] = field(default_factory=list)


class Page(TypedDict):
    title: str
    number: NotRequired[int]


@dataclass
class Loop:
    inner: "list[Loop]"


@dataclass
class Other:
    n: int


City = NewType("City", str)
INTEGER = {"type": "integer"}
POINT = {
    "type": "object",
    "properties": {"x": INTEGER, "y": INTEGER, "marks": {"type": "array", "items": {"type": "string"}}},
    "required": ["x"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("hint", "schema", "given", "made"),
    [
        (str, {"type": "string"}, "a", "a"),
        (int, INTEGER, 3, 3),
        (float, {"type": "number"}, 3, 3.0),
        (bool, {"type": "boolean"}, True, True),
        (list, {"type": "array"}, [1, "a"], [1, "a"]),
        (dict, {"type": "object"}, {"a": 1}, {"a": 1}),
        (Any, {}, {"a": 1}, {"a": 1}),
        (typing.List, {"type": "array"}, [1, "a"], [1, "a"]),  # noqa: UP006 - as users write it
        (Sequence, {"type": "array"}, [1], [1]),
        (Mapping, {"type": "object"}, {"a": 1}, {"a": 1}),
        (typing.Dict, {"type": "object"}, {"a": 1}, {"a": 1}),  # noqa: UP006 - as users write it
        (list[int], {"type": "array", "items": INTEGER}, [1], [1]),
        (Sequence[int], {"type": "array", "items": INTEGER}, [1], [1]),
        (tuple[int, ...], {"type": "array", "items": INTEGER}, [1], (1,)),
        (dict[str, int], {"type": "object", "additionalProperties": INTEGER}, {"a": 1}, {"a": 1}),
        (Mapping[str, int], {"type": "object", "additionalProperties": INTEGER}, {"a": 1}, {"a": 1}),
        (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}, "b", "b"),
        (Literal["a", 1], {"type": ["string", "integer"], "enum": ["a", 1]}, 1, 1),
        (Optional[int], {"anyOf": [INTEGER, {"type": "null"}]}, None, None),  # noqa: UP045 - as users write it
        (int | str, {"anyOf": [INTEGER, {"type": "string"}]}, "a", "a"),
        (Unit, {"type": "string", "enum": ["celsius", "fahrenheit"]}, "celsius", Unit.CELSIUS),
        (Level, {"type": "integer", "enum": [1, 2]}, 2, Level.HIGH),
        (Point, POINT, {"x": 1}, Point(1)),
        (list[Point] | None, {"anyOf": [{"type": "array", "items": POINT}, {"type": "null"}]}, [{"x": 1}], [Point(1)]),
        (Annotated[int, "how many"], {"type": "integer", "description": "how many"}, 3, 3),
        (City, {"type": "string"}, "Rome", "Rome"),
        (
            Page,
            {
                "type": "object",
                "properties": {"title": {"type": "string"}, "number": INTEGER},
                "required": ["title"],
                "additionalProperties": False,
            },
            {"title": "a"},
            {"title": "a"},
        ),
    ],
)
def test_a_hint_is_a_schema_and_makes_a_value(hint: Any, schema: Any, given: Any, made: Any) -> None:
    import json

    def function(value, other=0): ...

    function.__annotations__ = {"value": hint, "other": int}
    signature = Signature.of(function, name="f")
    assert signature.parameters["properties"]["value"] == schema
    assert signature.parameters["required"] == ["value"]
    jsonschema.Draft202012Validator.check_schema(signature.parameters)
    assert signature.read(json.dumps({"value": given})) == {"value": made}


def no_hint(value): ...
def starred(*values: int): ...
def keywords(**values: int): ...
def positional(value: int, /): ...
def function(value: Callable[[], int]): ...
def numbered(value: dict[int, str]): ...
def pair(value: tuple[int, str]): ...
def loop(value: Loop): ...
def two(value: Point | Other): ...
def later(value: "Nowhere"): ...  # noqa: F821 # pyright: ignore
def fractions(value: Literal[b"x"]): ...


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (no_hint, "parameter 'value' has no type hint; allowed are str, int"),
        (starred, "parameter 'values' has no name that a model could give"),
        (keywords, "parameter 'values' has no name"),
        (positional, "parameter 'value' has no name"),
        (function, "which no JSON value stands for"),
        (numbered, "parameter 'value' has the type dict[int, str]"),
        (pair, "parameter 'value' has the type tuple[int, str]"),
        (loop, "parameter 'value'.inner has a type that holds itself, Loop"),
        (two, "parameter 'value': Type unions may not contain more than one dataclass"),
        (later, "its type hints cannot be read: name 'Nowhere' is not defined"),
        (fractions, "parameter 'value' chooses among [b'x']"),
    ],
)
def test_a_hint_that_json_has_no_values_for_is_refused(made: Callable[..., Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Signature.of(made, name="f")
    assert "tool 'f': " in str(caught.value)
    assert message in str(caught.value)


FUTURE = """
from __future__ import annotations
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from nowhere import Forecast

def weather(city: str, days: int | None = None) -> Forecast:
    "Say the weather."
"""


def test_a_hint_of_the_result_is_not_needed_nor_what_it_names() -> None:
    names: dict[str, Any] = {}
    exec(FUTURE, names)
    signature = Signature.of(names["weather"], name="weather")
    assert signature.read('{"city": "Rome", "days": 2}') == {"city": "Rome", "days": 2}


def test_a_method_is_read_as_what_it_takes_and_a_partial_function_is_refused_in_words() -> None:
    class Stations:
        def nearest(self, city: "City", number: int = 1) -> "Nowhere": ...  # noqa: F821 # pyright: ignore

    assert list(Signature.of(Stations().nearest, name="nearest").hints) == ["city", "number"]
    with pytest.raises(ConfigError, match="parameter 'self' has no type hint"):
        Signature.of(Stations.nearest, name="nearest")
    with pytest.raises(ConfigError, match="parameter 'days' has no type hint"):
        Signature.of(partial(google, "Rome"), name="google")


def test_a_default_that_json_has_no_value_for_is_not_told() -> None:
    def wait(seconds: float = float("inf"), marks: tuple[int, ...] = ()): ...

    properties = Signature.of(wait, name="wait").parameters["properties"]
    assert properties["seconds"] == {"type": "number"}
    assert "default" not in properties["marks"]


def google(city: str, days: int = 1, unit: Unit = Unit.CELSIUS) -> str:
    """Say the weather.

    It is a guess.

    Args:
        city: where it is; the name of a
            town or a village.
        days (int, optional): how many

    Returns:
        The weather: a text.
    """
    return ""


def plain(city: str, days: int = 1) -> str:
    """Say the weather.

    city: where it is
    days: how many
    """
    return ""


def sphinx(city: str, days: int = 1) -> str:
    """Say the weather.

    :param city: where it is
    :param int days: how many
    :returns: the weather
    """
    return ""


@pytest.mark.parametrize("made", [google, plain, sphinx])
def test_a_docstring_describes_the_function_and_its_parameters(made: Callable[..., Any]) -> None:
    signature = Signature.of(made, name="weather")
    assert signature.description == ("Say the weather.\n\nIt is a guess." if made is google else "Say the weather.")
    properties = signature.parameters["properties"]
    assert properties["days"] == {"type": "integer", "description": "how many", "default": 1}
    assert properties["city"]["description"].startswith("where it is")
    assert "Returns" not in str(signature.parameters)


def test_a_default_is_told_as_json() -> None:
    signature = Signature.of(google, name="weather")
    assert signature.parameters["properties"]["unit"]["default"] == "celsius"
    assert signature.parameters["properties"]["city"]["description"].endswith("of a town or a village.")


def test_what_a_class_of_the_user_refuses_is_a_fault_of_the_arguments() -> None:
    @dataclass
    class Even:
        n: int

        def __post_init__(self) -> None:
            if self.n % 2:
                raise ValueError(f"{self.n} is odd")

    def halve(value: Even, times: int = 1) -> int:
        return value.n // 2

    halve.__annotations__ = {"value": Even, "times": int}
    with pytest.raises(ValueError, match="the arguments do not fit: value: 3 is odd"):
        Signature.of(halve, name="halve").read('{"value": {"n": 3}}')
