"""Arguments: read the text of a call by the schema of its tool, or say why the call is not made.

Chat formats pass a JSON object, or the plain text for a tool with one text parameter; tag formats pass the text between
the tags. If the arguments do not fit, the model gets a message and the tool is not called.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from ramify.core.tool import ChecksArguments, Described, Tool, schema_of
from ramify.formats.calls import listed_in, no_constant, only_text, without_repeats
from ramify.tools.output import valid
from ramify.tools.schema import misfit, shown

MAX_WHOLE: Final = 1 << 53
MAX_DIGITS: Final = 4300
"""Most digits of a whole number (Python's own limit)."""

_SURROGATE = re.compile("[\ud800-\udfff]|\\\\u[dD][89a-fA-F]")
"""A lone surrogate, or an escape that may spell one."""


Faults = Callable[[str], str | None]
"""Arguments -> what is wrong with them, in words for the model; None = nothing."""


def faults_of(tool: Tool) -> Faults:
    """A function that says why arguments do not fit `tool`. It returns None if they fit, or if only the tool can tell.

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
    """The arguments in a call's text. Raises `ValueError` with a message for the model if they do not fit.

    The text is a JSON object. A tool with a single text parameter takes the whole text unchanged. If a text is the only
    required parameter, a text that does not look like an object is taken as that parameter.
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
        if name is None or text.lstrip().startswith("{"):  # a broken object is not a text
            raise
        return {name: valid(text)}


def text_parameter(tool: Tool) -> str | None:
    """The name of the only parameter of a tool that takes one text; None = the tool takes something else."""
    return only_text(schema_of(tool)["parameters"])


def _needed_text(parameters: Mapping[str, Any]) -> str | None:
    """The name of the only required parameter, if that is a text."""
    required, known = listed_in(parameters.get("required")), parameters.get("properties")
    if len(required) != 1 or not isinstance(known, Mapping) or not isinstance(required[0], str):
        return None
    schema = known.get(required[0])
    return required[0] if isinstance(schema, Mapping) and schema.get("type", "string") == "string" else None


def object_in(arguments: str) -> dict[str, Any]:
    """Parse a text as a JSON object. Raises `ValueError` with a message for the model if it is not one."""
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
    """JSON schemas count `3.0` as a whole number, so functions get it as one too."""
    value = float(spelling)
    if not math.isfinite(value):
        raise ValueError(f"{spelling:.40} is too large a number")
    return int(value) if value.is_integer() and abs(value) < MAX_WHOLE else value


def _whole(spelling: str) -> int:
    if len(spelling) > MAX_DIGITS:
        raise ValueError(f"a number of {len(spelling)} digits is too large")
    return int(spelling)
