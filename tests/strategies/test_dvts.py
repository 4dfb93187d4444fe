from dataclasses import replace

import pytest
from tests.strategies.step_world import commands, found, played
from tests.strategies.world import Journey, ListDraws, path_text

from ramify.core.command import Grow
from ramify.core.errors import ConfigError
from ramify.strategies.dvts import AS_PUBLISHED, DVTS, DVTSConfig

SAID = {"": ["a", "b", "c", "d"], "b": ["1.", "2"], "b2": ["x.", "y."], "c": ["1.", "2."]}
VALUES = {
    "a": 0.1,
    "b": 0.5,
    "c": 0.8,
    "d": 0.2,
    "b1.": 0.3,
    "b2": 0.6,
    "b2x.": 0.4,
    "b2y.": 0.7,
    "c1.": 0.9,
    "c2.": 0.2,
}


def grown(config: DVTSConfig) -> tuple[DVTS, Journey]:
    strategy = DVTS(config, ListDraws())
    return strategy, played(strategy, SAID, VALUES)


def test_each_part_goes_on_with_the_best_of_its_own_steps() -> None:
    _, trip = grown(DVTSConfig(width=2, samples=2, max_depth=4))
    grows = [path_text(trip.tree, c.node) for c in commands(trip, Grow)]
    assert grows[:4] == [""] * 4
    assert sorted(grows[4:]) == ["b", "b", "b2", "b2", "c", "c"], "the best of a b, and of c d"


def test_every_answer_is_returned_or_the_last_level_of_each_part_as_published() -> None:
    config = DVTSConfig(width=2, samples=2, max_depth=4)
    assert found(*grown(config)) == {"b1.": 0.3, "b2x.": 0.4, "b2y.": 0.7, "c1.": 0.9, "c2.": 0.2}
    published = replace(AS_PUBLISHED, width=2, samples=2, max_depth=4)
    assert found(*grown(published)) == {"b2x.": 0.4, "b2y.": 0.7, "c1.": 0.9, "c2.": 0.2}
    assert found(*grown(replace(published, max_depth=1, last_level="step"))) == {"a": 0.1, "b": 0.5, "c": 0.8, "d": 0.2}


def test_a_part_ends_when_its_best_step_has_ended() -> None:
    _, trip = grown(DVTSConfig(width=2, samples=2, max_depth=4))
    assert "c2." not in [path_text(trip.tree, c.node) for c in commands(trip, Grow)]


def test_as_published_a_part_ends_at_a_box() -> None:
    """By search-and-learn's `if "boxed{" in beam.current_text`: the path itself has not ended."""
    said = {"": ["\\boxed{1}", "b"], "\\boxed{1}": ["2.", "3."], "b": ["4.", "5."]}
    values = {"\\boxed{1}": 0.9, "\\boxed{1}2.": 0.5, "\\boxed{1}3.": 0.4, "b": 0.1}
    strategy = DVTS(replace(AS_PUBLISHED, width=1, samples=2, max_depth=4), ListDraws())
    trip = played(strategy, said, values)
    ends = [path_text(trip.tree, candidate.node) for candidate in strategy.candidates(trip.tree)]
    assert ends == ["\\boxed{1}", "b"]
    corrected = DVTS(DVTSConfig(width=1, samples=2, max_depth=4), ListDraws())
    assert found(corrected, played(corrected, said, values)) == {"\\boxed{1}2.": 0.5, "\\boxed{1}3.": 0.4}


def test_a_path_that_a_limit_cut_off_does_not_end_a_part() -> None:
    said, values = {"": ["a!", "b"], "b": ["1.", "2."]}, {"a!": 0.9, "b": 0.1, "b1.": 0.2, "b2.": 0.3}
    config = DVTSConfig(width=1, samples=2, max_depth=2)
    strategy, published = DVTS(config, ListDraws()), DVTS(replace(config, finished="any_end"), ListDraws())
    assert found(strategy, played(strategy, said, values)) == {"b1.": 0.2, "b2.": 0.3}
    assert found(published, played(published, said, values)) == {"a!": 0.9}


def test_a_part_without_steps_ends_alone() -> None:
    strategy = DVTS(DVTSConfig(width=2, samples=2, max_depth=4), ListDraws())
    trip = played(strategy, SAID, VALUES, fails=lambda i: "engine_error" if i < 2 else None)
    assert found(strategy, trip) == {"c1.": 0.9, "c2.": 0.2}


def test_a_search_without_parts_is_refused() -> None:
    with pytest.raises(ConfigError):
        DVTSConfig(width=0)
