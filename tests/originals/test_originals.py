"""The code of the originals and ours, on the same replies and the same random numbers, give the same trees and data.

`make test-originals` runs it. Scenarios are drawn by `RAMIFY_ORIGINALS_SEED` (0), `RAMIFY_ORIGINALS_SCENARIOS` (200) of
each system.
"""

import os
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from tests.golden import mctsr
from tests.golden.files import differences
from tests.originals import mcts_llm, slime_sft

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
    "mcts-llm": System(mcts_llm.original, mcts_llm.scenario, lambda given: mctsr.trace(given, "as_published")),
    "slime-sft": System(slime_sft.original, slime_sft.scenario, slime_sft.ours),
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
    record_property("original", (name, len(found), len(found) - len(different)))
    assert not different, f"{name}: {len(different)} of {len(found)} scenarios differ; the first: {different[0]}"
