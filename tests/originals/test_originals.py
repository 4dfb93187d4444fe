"""The control code of the originals and ours, on the same replies and the same random numbers, give the same trees.

`make test-originals` runs it. Scenarios are drawn by `RAMIFY_ORIGINALS_SEED` (0), `RAMIFY_ORIGINALS_SCENARIOS` (200) of
each system. Those in which an original met what is known to differ are counted apart, with their cause.
"""

import os
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from tests.golden import mctsr
from tests.golden.files import differences
from tests.originals import mcts_llm, rstar, rstar_runs, rstar_world, search_and_learn
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
    causes: dict[str, list[bool]] = {"": []}
    different: list[tuple[Given, list[str]]] = []
    for given in scenarios:
        expected = dict(played(given))
        cause = str(expected.pop(DIFFERS, ""))
        faults = differences(system.ours(given), expected, TOLERANCE)
        causes.setdefault(cause, []).append(not faults)
        different += [(given, faults)] if faults and not cause else []
    for cause, found in causes.items():
        record_property("original", (f"{name}: {cause}" if cause else name, len(found), sum(found)))
    assert not different, f"{name}: {len(different)} of {len(scenarios)} scenarios differ; the first: {different[0]}"
