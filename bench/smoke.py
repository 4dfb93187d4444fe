"""Sizes of the scripts here: `few` gives the whole of a size, or a part of it.

With `--smoke`, which every script takes, it is a few seconds of work, for the form of its figures only: `make
test-bench` runs them all so, and no figure of such a run means anything. In a chapter of the book (`book.py`) it is as
much as the book has room for.
"""

import os
import sys
from typing import Final, TypeVar

T = TypeVar("T")

VARIABLE: Final = "RAMIFY_BENCH_SMOKE"
"""Tells the processes that a script starts."""
BOOK: Final = "RAMIFY_BENCH_BOOK"
"""Tells a script that it is a chapter."""

if "--smoke" in sys.argv:
    sys.argv.remove("--smoke")
    os.environ[VARIABLE] = "1"
IS_SMOKE: Final = VARIABLE in os.environ
IS_BOOK: Final = BOOK in os.environ


def few(whole: T, part: T, *, book: T | None = None) -> T:
    """`whole`, or `part` of it with `--smoke`, or `book` in a chapter if it is given."""
    if IS_SMOKE:
        return part
    return book if IS_BOOK and book is not None else whole
