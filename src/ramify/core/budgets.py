"""Budgets: the names by which users bound what a question may use. Values only, and nothing heavy is imported."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

BUDGETS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "decode_tokens": "decode",
        "new_context_tokens": "prefill_uncached",
        "calls": "engine_calls",
        "turns": "turns",
        "leaves": "leaves",
        "tool_calls": "tool_calls",
        "judge_calls": "judge_calls",
        "dollars": "dollars",
    }
)
"""Name of a budget -> the field of `Limits` that it sets."""
