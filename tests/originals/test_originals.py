"""The code of the originals and ours, on the same replies and the same random numbers, give the same trees and data.

`make test-originals` runs it. Scenarios are drawn by `RAMIFY_ORIGINALS_SEED` (0), `RAMIFY_ORIGINALS_SCENARIOS` (200) of
each system. Scenarios in which an original does otherwise, as the documents say, are rows of their own in the table of
results. `but` of a scenario says what is compared instead; the key `DIFFERS` of what an original played names a cause
that nothing can be compared behind: those scenarios are counted and need not be identical.
"""

import os
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from tests.golden import mctsr
from tests.golden.files import differences
from tests.originals import (
    arpo,
    mathblackbox,
    mcts_llm,
    rstar,
    rstar_runs,
    rstar_world,
    search_and_learn,
    search_r1,
    slime_sft,
)
from tests.originals.sources import DIFFERS

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
    "slime SFT": System(slime_sft.original, slime_sft.scenario, slime_sft.ours),
    "mcts-llm": System(mcts_llm.original, mcts_llm.scenario, lambda given: mctsr.trace(given, "as_published")),
    "rStar MCTS": System(rstar.original_mcts, rstar_world.mcts_scenario, rstar_runs.ours_mcts),
    "rStar beam": System(rstar.original_beam, rstar_world.beam_scenario, rstar_runs.ours_beam),
    "search-and-learn beam": System(
        search_and_learn.original_beam, search_and_learn.steps_scenario, search_and_learn.ours_beam
    ),
    "search-and-learn DVTS": System(
        search_and_learn.original_dvts, search_and_learn.steps_scenario, search_and_learn.ours_dvts
    ),
    "search-and-learn votes": System(
        search_and_learn.original_votes, search_and_learn.votes_scenario, search_and_learn.ours_votes
    ),
}


@pytest.mark.originals
@pytest.mark.parametrize("name", SYSTEMS)
def test_ours_is_as_published(name: str, record_property: Callable[[str, object], None]) -> None:
    system = SYSTEMS[name]
    played = system.original()
    rng = random.Random(f"{os.environ.get('RAMIFY_ORIGINALS_SEED', '0')} {name}")
    scenarios = [system.scenario(rng) for _ in range(int(os.environ.get("RAMIFY_ORIGINALS_SCENARIOS", "200")))]
    rows: dict[str, list[bool]] = {}
    different: list[tuple[Given, list[str]]] = []
    for given in scenarios:
        expected = dict(played(given))
        cause, but = str(expected.pop(DIFFERS, "")), given.get("but", "")
        faults = differences(system.ours(given), expected, TOLERANCE)
        row = f"{name}, {but}" if but else f"{name}: {cause}" if cause else name
        rows.setdefault(row, []).append(not faults)
        different += [(given, faults)] if faults and not cause else []
    for row in sorted(rows):
        record_property("original", (row, len(rows[row]), sum(rows[row])))
    assert not different, f"{name}: {len(different)} of {len(scenarios)} scenarios differ; the first: {different[0]}"
