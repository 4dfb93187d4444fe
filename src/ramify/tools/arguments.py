"""Arguments: read the text of a call by the schema of its tool, or say why no call is made.

Chat formats pass a JSON object, or the text itself for a tool with one text parameter; tag formats pass the text
between the tags. Arguments that do not fit get an answer in words for the model, and no tool is called.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from ramify.core.tool import ChecksArguments, Described, Tool
from ramify.formats.calls import listed_in, no_constant, only_text, without_repeats
from ramify.tools.output import valid
from ramify.tools.schema import misfit, shown

MAX_WHOLE: Final = 1 << 53
MAX_DIGITS: Final = 4300
"""Of a whole number (Python's own limit)."""

_SURROGATE = re.compile("[\ud800-\udfff]|\\\\u[dD][89a-fA-F]")
"""Or what may be spelt to mean one."""


Faults = Callable[[str], str | None]
"""Arguments -> what is wrong with them, in words for the model; None = nothing."""


def faults_of(tool: Tool) -> Faults:
    """A function that says why arguments do not fit `tool`; it says nothing if they fit or only the tool can tell.

    A tool that checks its own arguments is asked. For any other tool a JSON object is checked by the schema. The text
    of a tag format is not, because only the tool knows its meaning.
    """
    if isinstance(tool, ChecksArguments):
        return tool.fault
    if not isinstance(tool, Described) or only_text(tool.schema["parameters"]) is not None:
        return lambda arguments: None
    return partial(_misfit, tool.schema["parameters"])


def _misfit(parameters: Mapping[str, Any], arguments: str) -> str | None:
    try:
        given = object_in(arguments)
    except ValueError:
        return None
    return misfit(given, parameters)


def read_arguments(text: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that a call's text stands for. Raises `ValueError` with words for the model where they do not fit.

    The text is a JSON object, but for a tool of one text, which takes it as it is; where a text is all that must be
    given, what does not look like an object is that text.
    """
    given = _given(text, parameters)
    if (fault := misfit(given, parameters)) is not None:
        raise ValueError(fault)
    return given


def _given(text: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    if (only := only_text(parameters)) is not None:
        return {only: valid(text)}
    try:
        return object_in(text)
    except ValueError:
        name = _needed_text(parameters)
        if name is None or text.lstrip().startswith("{"):  # an object that went wrong is no text
            raise
        return {name: valid(text)}


def _needed_text(parameters: Mapping[str, Any]) -> str | None:
    """The text that is all that must be given."""
    required, known = listed_in(parameters.get("required")), parameters.get("properties")
    if len(required) != 1 or not isinstance(known, Mapping) or not isinstance(required[0], str):
        return None
    schema = known.get(required[0])
    return required[0] if isinstance(schema, Mapping) and schema.get("type", "string") == "string" else None


def object_in(arguments: str) -> dict[str, Any]:
    """The JSON object that a text is. Raises `ValueError` with words for the model where it is none."""
    try:
        given = json.loads(
            arguments,
            object_pairs_hook=without_repeats,
            parse_constant=no_constant,
            parse_float=_number,
            parse_int=_whole,
        )
    except json.JSONDecodeError as error:
        raise ValueError(f"the arguments are no JSON: {error}") from error
    except RecursionError as error:
        raise ValueError("the arguments are nested too deeply") from error
    if not isinstance(given, dict):
        raise ValueError(f"the arguments must be a JSON object, not {shown(given)}")
    if _SURROGATE.search(arguments):
        _refuse_half_characters(given)
    return given


def _refuse_half_characters(given: Mapping[str, Any]) -> None:
    try:
        json.dumps(given, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError("the arguments hold half of a surrogate pair, which is no character") from error


def _number(spelling: str) -> int | float:
    """`3.0` is a whole number to JSON schemas, so that it is one to functions as well."""
    value = float(spelling)
    if not math.isfinite(value):
        raise ValueError(f"{spelling:.40} is too large a number")
    return int(value) if value.is_integer() and abs(value) < MAX_WHOLE else value


def _whole(spelling: str) -> int:
    if len(spelling) > MAX_DIGITS:
        raise ValueError(f"a number of {len(spelling)} digits is too large")
    return int(spelling)
