"""Boxed: reads the answer in a text's LaTeX box."""

import re
from typing import Final

BOX: Final = "boxed"
"""Marks a step as an answer, anywhere in the step (microsoft/rStar, branch rStar-math)."""

_MARK = re.compile(r"\\boxed\s*\{|\\.|[{}]", re.DOTALL)


def boxed(text: str) -> str | None:
    r"""Content of the last `\boxed{…}` with matching braces, stripped; None = there is no such box, or it is empty.

    It looks at each character once, so it is fast on any text.
    """
    open_braces: list[int | None] = []
    found: tuple[int, int] | None = None
    for mark in _MARK.finditer(text):
        match mark[0][0], mark[0][-1]:
            case _, "{" if len(mark[0]) != 2:
                open_braces.append(mark.end() if len(mark[0]) > 1 else None)
            case "}", _ if open_braces:
                start = open_braces.pop()
                if start is not None and (found is None or start > found[0]):
                    found = (start, mark.start())
            case _:
                pass
    return (text[slice(*found)].strip() or None) if found else None
