"""Thoughts: what a model says between `<think>` and `</think>` before its answer, and text without it."""

import re
from typing import Final

THINK: Final = "<think>"
THINK_END: Final = "</think>"
"""Appears alone if a template wrote the start tag; then the start tag is not part of what the model said."""
THOUGHT: Final = re.compile(rf"{THINK}.*?({THINK_END}|\Z)", re.DOTALL)
"""A thought. One that never ends goes to the end of the text."""


def without_thoughts(text: str) -> str:
    """The text after the thinking, even if a template wrote the thinking's start tag."""
    return THOUGHT.sub("", text).rpartition(THINK_END)[2]
