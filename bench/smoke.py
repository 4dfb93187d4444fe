"""`--smoke`, which every script here takes: a few seconds of its work, for the form of its figures only.

`make test-bench` runs them all so; no figure of such a run means anything.
"""

import os
import sys
from typing import Final, TypeVar

T = TypeVar("T")

VARIABLE: Final = "RAMIFY_BENCH_SMOKE"
"""Tells the processes that a script starts."""

if "--smoke" in sys.argv:
    sys.argv.remove("--smoke")
    os.environ[VARIABLE] = "1"
IS_SMOKE: Final = VARIABLE in os.environ


def few(whole: T, part: T) -> T:
    """`whole`, or `part` of it with `--smoke`."""
    return part if IS_SMOKE else whole
