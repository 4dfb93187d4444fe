# pyright: reportMissingImports=false
"""Inspect scores: the value of a scorer as numbers. Source: inspect_ai 0.3.285, inspect_ai/scorer/_metric.py."""

from collections.abc import Mapping
from typing import Any

from ramify.core.errors import JudgeError


def numbers_of(name: str, value: Any) -> dict[str, float]:
    """A score's value as numbers: one, or one for each entry of a dict. Raises `JudgeError`."""
    if isinstance(value, Mapping):
        return {f"{name}.{key}": _number(f"{name}.{key}", each) for key, each in value.items() if each is not None}
    return {name: _number(name, value)}


def _number(name: str, value: Any) -> float:
    """As Inspect's `value_to_float`, which gives 0 for what it does not know; here that is an error."""
    from inspect_ai.scorer import CORRECT, INCORRECT, NOANSWER, PARTIAL, value_to_float

    known = {CORRECT, INCORRECT, PARTIAL, NOANSWER, "yes", "no", "true", "false"}
    is_known = isinstance(value, int | float) or (isinstance(value, str) and (value in known or value.lower() in known))
    if not is_known:
        try:
            return float(value)
        except (TypeError, ValueError):
            raise JudgeError(f"scorer {name!r} gave {value!r:.100}; a number or one of {sorted(known)}") from None
    return value_to_float()(value)
