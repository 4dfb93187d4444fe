"""Boxed: the answer that a text puts in LaTeX's box."""

import re
from typing import Final

BOX: Final = "boxed"
"""What marks a step as an answer, wherever it stands in it (microsoft/rStar, branch rStar-math)."""

_MARK = re.compile(r"\\boxed\s*\{|\\.|[{}]", re.DOTALL)


def boxed(text: str) -> str | None:
    r"""What the last `\boxed{…}` with matching braces holds, stripped; None = there is none, or nothing in it.

    Looks at each character once, so that no text takes long.
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
