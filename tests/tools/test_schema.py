import json
import time
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.tools.schema import misfit

POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer"}, "y": {"type": "integer", "minimum": 0}},
    "required": ["x"],
    "additionalProperties": False,
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 1, "maxLength": 5},
        "days": {"type": "integer", "minimum": 1, "exclusiveMaximum": 8},
        "share": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
        "is_dry": {"type": "boolean"},
        "mode": {"enum": ["fast", "slow", 3, None]},
        "only": {"const": "this"},
        "maybe": {"type": ["string", "null"]},
        "place": {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/Point"}]},
        "points": {"type": "array", "items": {"$ref": "#/$defs/Point"}, "minItems": 1, "maxItems": 3},
        "counts": {"type": "object", "additionalProperties": {"type": "integer"}},
        "both": {"allOf": [{"type": "integer"}, {"minimum": 3}]},
    },
    "additionalProperties": False,
    "$defs": {"Point": POINT},
}


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"city": 3}, "city = 3: it must be a text"),
        ({"city": ""}, 'city = "": it must have at least 1 characters, not 0'),
        ({"city": "Antananarivo"}, 'city = "Antananarivo": it must have at most 5 characters, not 12'),
        ({"days": "two"}, 'days = "two": it must be a whole number'),
        ({"days": 2.5}, "days = 2.5: it must be a whole number"),
        ({"days": True}, "days = true: it must be a whole number"),
        ({"days": 0}, "days = 0: it must be at least 1"),
        ({"days": 8}, "days = 8: it must be below 8"),
        ({"share": 0}, "share = 0: it must be above 0"),
        ({"share": 1.5}, "share = 1.5: it must be at most 1"),
        ({"is_dry": 1}, "is_dry = 1: it must be true or false"),
        ({"mode": "fats"}, 'mode = "fats": it must be one of "fast", "slow", 3, null'),
        ({"mode": True}, 'mode = true: it must be one of "fast", "slow", 3, null'),
        ({"only": "that"}, 'only = "that": it must be "this"'),
        ({"maybe": 1}, "maybe = 1: it must be a text or null"),
        ({"place": 7}, "place = 7: it must be a text or an object"),
        ({"place": {"x": "a"}}, 'place.x = "a": it must be a whole number'),
        ({"points": []}, "points = []: it must have at least 1 items, not 0"),
        ({"points": [{"x": 1}, {"y": 1}]}, "points[1].x is missing: it must be a whole number"),
        ({"points": [{"x": 1, "z": 2}]}, "there is no points[0].z; known: x, y"),
        ({"points": {"x": 1}}, 'points = {"x": 1}: it must be an array'),
        ({"counts": {"a": "b"}}, 'counts.a = "b": it must be a whole number'),
        ({"both": 2}, "both = 2: it must be at least 3"),
        ({"cty": "Rome"}, "there is no cty; did you mean 'city'?"),
    ],
)
def test_a_misfit_is_told_with_its_place_what_came_and_what_is_allowed(given: dict[str, Any], fault: str) -> None:
    assert misfit(given, SCHEMA) == f"the arguments do not fit: {fault}"


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"city": "Rome", "days": 3, "share": 1, "is_dry": False, "mode": None, "only": "this", "maybe": None},
        {"place": "here", "points": [{"x": 1}], "counts": {"a": 1}, "both": 3},
        {"place": {"x": 1, "y": 0}, "days": 2.0},
    ],
)
def test_what_fits_is_not_refused(given: dict[str, Any]) -> None:
    assert misfit(given, SCHEMA) is None


def test_many_faults_are_told_up_to_four() -> None:
    told = misfit({f"p{i}": "x" for i in range(6)}, {"properties": {f"p{i}": {"type": "integer"} for i in range(6)}})
    assert told is not None
    assert told.count("must be") == 4
    assert told.endswith("; and 2 more")


def test_a_long_value_is_cut() -> None:
    told = misfit({"n": "x" * 10_000}, {"properties": {"n": {"type": "integer"}}})
    assert told is not None
    assert len(told) < 200


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"n": {"$ref": "#/$defs/Loop"}}, "$defs": {"Loop": {"$ref": "#/$defs/Loop"}}},
        {"properties": {"n": {"$ref": "http://127.0.0.1/elsewhere"}}},
        {"properties": {"n": {"$ref": "#/nowhere/at/all"}}},
        {"properties": {"n": {"anyOf": [{"$ref": "#"}]}}},
        {"properties": {"n": {"type": "date"}}},
        {"properties": {"n": {"type": [["integer"]], "enum": "x", "minimum": "y", "items": 3}}},
        {"properties": "none", "required": 3},
        {"patternProperties": {"^n": {}}, "additionalProperties": False},
        {"required": [["n"], 1]},
        {"type": "object", "properties": {"n": {"$ref": "#anchor"}}},
        {},
    ],
)
def test_a_schema_that_says_nothing_we_know_refuses_nothing(schema: dict[str, Any]) -> None:
    assert misfit({"n": {"n": 3}}, schema) is None


TWICE = {"$ref": "#/$defs/Twice"}


@pytest.mark.parametrize("key", ["allOf", "anyOf", "oneOf"])
def test_a_schema_that_holds_itself_twice_is_left_to_the_tool_in_no_time(key: str) -> None:
    schema = {"properties": {"n": TWICE}, "$defs": {"Twice": {key: [TWICE, TWICE]}}}
    began = time.process_time()
    assert misfit({"n": 3}, schema) is None
    assert time.process_time() - began < 5


def test_a_deep_value_of_a_schema_of_ways_is_looked_at_once() -> None:
    node = {"anyOf": [{"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}}, {"type": "integer"}]}
    value: Any = "deep"
    for _ in range(25):
        value = {"next": value}
    began = time.process_time()
    told = misfit({"n": value}, {"properties": {"n": {"$ref": "#/$defs/Node"}}, "$defs": {"Node": node}})
    assert told is not None
    assert told.endswith('.next = "deep": it must be an object or a whole number')
    assert time.process_time() - began < 5


def test_the_first_items_of_an_array_may_have_schemas_of_their_own() -> None:
    pair = {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "items": False}
    assert misfit({"pair": ["a", 1]}, {"properties": {"pair": pair}}) is None
    told = misfit({"pair": ["a", "b", 3]}, {"properties": {"pair": pair}})
    assert told == (
        'the arguments do not fit: pair[1] = "b": it must be a whole number; pair[2] = 3: it is not allowed'
    )


@pytest.mark.parametrize(
    "given",
    [{"n" * 100_000: 1}, {"choice": "x"}, {f"name{i}": i for i in range(20_000)}, {"deep": {"x" * 9999: {"y": 1}}}],
    ids=["a long name", "many choices", "many names", "a long name inside"],
)
def test_what_is_told_is_short_and_soon_told(given: dict[str, Any]) -> None:
    known = {f"known{i}": {"type": "integer"} for i in range(500)}
    known["choice"] = {"enum": [f"choice {i}" for i in range(50_000)]}
    known["deep"] = {"additionalProperties": {"additionalProperties": False}}
    began = time.process_time()
    told = misfit(given, {"properties": known, "additionalProperties": False})
    assert told is not None
    assert len(told) < 2000
    assert time.process_time() - began < 5


def test_a_schema_inside_itself_is_followed_as_deep_as_the_value() -> None:
    tree = {"properties": {"left": {"$ref": "#"}, "n": {"type": "integer"}}}
    value: dict[str, Any] = {"n": "deep"}
    for _ in range(20):
        value = {"left": value}
    told = misfit(value, tree)
    assert told is not None
    assert told.endswith('.n = "deep": it must be a whole number')


values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 9) | st.floats(-3, 9) | st.sampled_from(["", "fast", "this", "Rome"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["x", "y", "z"]), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from([*SCHEMA["properties"], "other"]), values, max_size=3))
def test_it_agrees_with_the_reference_checker(arguments: dict[str, Any]) -> None:
    is_valid = jsonschema.Draft202012Validator(SCHEMA).is_valid(json.loads(json.dumps(arguments)))
    assert (misfit(arguments, SCHEMA) is None) == is_valid
