"""Thoughts: what a model says between `<think>` and `</think>` before it speaks, and text without them."""

import re
from typing import Final

THINK: Final = "<think>"
THINK_END: Final = "</think>"
"""Alone where a template has written the beginning, which is then no part of what the model said."""
THOUGHT: Final = re.compile(rf"{THINK}.*?({THINK_END}|\Z)", re.DOTALL)
"""A thought; one that was never ended goes to the end of the text."""


def without_thoughts(text: str) -> str:
    """What is said behind the thinking, also where a template has written its beginning."""
    return THOUGHT.sub("", text).rpartition(THINK_END)[2]
