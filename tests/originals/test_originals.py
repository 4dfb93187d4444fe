"""The control code of the originals and ours, on the same replies and the same random numbers, give the same trees.

`make test-originals` runs it. Scenarios are drawn by `RAMIFY_ORIGINALS_SEED` (0), `RAMIFY_ORIGINALS_SCENARIOS` (200) of
each system. Scenarios in which the original does otherwise, as the documents say, are rows of their own in the table of
results: `but` of a scenario says what is compared instead.
"""

import os
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from tests.golden import mctsr
from tests.golden.files import differences
from tests.originals import arpo, mathblackbox, mcts_llm, search_r1

Given = Mapping[str, Any]
Played = Callable[[Given], Mapping[str, object]]
TOLERANCE = 1e-9


@dataclass(frozen=True)
class System:
    """One original, how its scenarios are drawn, and the check of ours that plays them."""

    original: Callable[[], Played]
    """Its control code on a scenario; skips the test where its source is absent."""
    scenario: Callable[[random.Random], Given]
    ours: Played


SYSTEMS = {
    "ARPO": System(arpo.original, arpo.scenario, arpo.ours),
    "MathBlackBox": System(mathblackbox.original, mathblackbox.scenario, mathblackbox.ours),
    "Search-R1": System(search_r1.original, search_r1.scenario, search_r1.ours),
    "mcts-llm": System(mcts_llm.original, mcts_llm.scenario, lambda given: mctsr.trace(given, "as_published")),
}


@pytest.mark.originals
@pytest.mark.parametrize("name", SYSTEMS)
def test_ours_is_as_published(name: str, record_property: Callable[[str, object], None]) -> None:
    system = SYSTEMS[name]
    played = system.original()
    rng = random.Random(f"{os.environ.get('RAMIFY_ORIGINALS_SEED', '0')} {name}")
    scenarios = [system.scenario(rng) for _ in range(int(os.environ.get("RAMIFY_ORIGINALS_SCENARIOS", "200")))]
    found = [(given, differences(system.ours(given), played(given), TOLERANCE)) for given in scenarios]
    different = [(given, faults) for given, faults in found if faults]
    for but in sorted({given.get("but", "") for given, _ in found}):
        of_these = [not faults for given, faults in found if given.get("but", "") == but]
        record_property("original", (f"{name}, {but}" if but else name, len(of_these), sum(of_these)))
    assert not different, f"{name}: {len(different)} of {len(found)} scenarios differ; the first: {different[0]}"
