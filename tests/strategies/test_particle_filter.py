import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies.step_world import found, played
from tests.strategies.world import ListDraws, path_text

from ramify.core.errors import ConfigError
from ramify.strategies.particle_filter import (
    AS_PUBLISHED,
    ParticleFilter,
    ParticleFilterConfig,
    effective_number,
    log_odds,
    systematic,
)
from ramify.strategies.parts.allotment import softmax

SAID = {"": ["a", "b", "c.", "d!"], "a": ["1.", "2."], "b": ["1.", "2."]}
VALUES = {"a": 0.6, "b": 0.5, "c.": 0.5, "d!": 0.5, "a1.": 0.7, "a2.": 0.8, "b1.": 0.2, "b2.": 0.3}


def test_odds_are_held_away_from_certainty() -> None:
    assert log_odds(0.5) == 0.0
    assert log_odds(1.0) == pytest.approx(-log_odds(0.0)) == pytest.approx(math.log((1 - 1e-7) / 1e-7))
    assert log_odds(7.0) == log_odds(1.0)


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=20).filter(any),
    st.integers(1, 40),
    st.floats(0, 1, exclude_max=True),
)
def test_systematic_resampling_gives_each_its_share_to_less_than_one(shares: list[float], n: int, u: float) -> None:
    weights = [share / math.fsum(shares) for share in shares]
    counts = Counter(systematic(weights, n, u))
    assert sum(counts.values()) == n
    assert all(abs(counts[i] - n * weight) < 1 + 1e-6 for i, weight in enumerate(weights))


def test_systematic_resampling_is_right_on_average() -> None:
    weights = [0.5, 0.3, 0.2]
    counts = Counter(i for u in np.arange(1000) / 1000 for i in systematic(weights, 4, float(u)))
    assert [counts[i] / 1000 for i in range(3)] == pytest.approx([2.0, 1.2, 0.8], abs=0.01)


def test_the_effective_number_is_that_of_equal_weights() -> None:
    assert effective_number(softmax([1.0] * 5, 1.0)) == pytest.approx(5)
    assert effective_number(softmax([0.0, -800.0], 1.0)) == 1.0


def test_corrected_nothing_is_drawn_while_the_weights_are_even() -> None:
    draws = ListDraws()
    strategy = ParticleFilter(ParticleFilterConfig(n=3, max_depth=3), draws)
    trip = played(strategy, SAID, VALUES)
    assert draws.num_uniforms == 0
    assert found(strategy, trip) == {"a1.": 0.7, "b1.": 0.2, "c.": 0.5}


def test_corrected_paths_are_drawn_anew_where_few_carry_the_weight() -> None:
    draws = ListDraws([0.5])
    values = {**VALUES, "a": 0.999, "b": 0.01, "c.": 0.01}
    strategy = ParticleFilter(ParticleFilterConfig(n=3, max_depth=3), draws)
    trip = played(strategy, SAID, values)
    assert draws.num_uniforms == 1
    assert [path_text(trip.tree, p.tip) for p in strategy.particles] == ["a1.", "a2.", "a1."]


def test_corrected_a_weight_is_what_the_steps_since_the_last_resampling_did() -> None:
    class Watched(ParticleFilter):
        """A filter that remembers what it resampled by."""

        def ancestors(self, weights: object) -> list[int]:
            self.weights = weights
            return super().ancestors(weights)  # type: ignore[arg-type]

    config = ParticleFilterConfig(n=2, max_depth=3, resample="always")
    said = {"": ["a", "b"], "a": ["1", "2"], "a1": ["."], "a2": ["."]}
    values = {"a": 0.9, "b": 0.1, "a1": 0.6, "a2": 0.8, "a1.": 0.5, "a2.": 0.5}
    strategy = Watched(replace(config, max_depth=2), ListDraws([0.1, 0.1]))
    played(strategy, said, values)
    ratios = [0.6 / 0.4, 0.8 / 0.2]
    assert strategy.weights == pytest.approx([ratio / sum(ratios) for ratio in ratios])


def test_a_stopped_path_keeps_its_weight() -> None:
    strategy = ParticleFilter(ParticleFilterConfig(n=3, max_depth=3), ListDraws())
    played(strategy, SAID, VALUES)
    assert strategy._log_weights == pytest.approx([log_odds(0.7), log_odds(0.2), 0.0])  # pyright: ignore


def test_as_published_n_are_drawn_after_every_level() -> None:
    draws = ListDraws([0.99, 0.0, 0.5] * 2)
    strategy = ParticleFilter(replace(AS_PUBLISHED, n=3), draws)
    played(strategy, SAID, VALUES)
    assert draws.num_uniforms == 6


def test_a_path_that_a_limit_cut_off_is_no_particle() -> None:
    strategy = ParticleFilter(ParticleFilterConfig(n=4, max_depth=3), ListDraws())
    assert "d!" not in found(strategy, played(strategy, SAID, VALUES))


def test_when_every_particle_is_lost_the_search_ends() -> None:
    strategy = ParticleFilter(replace(AS_PUBLISHED, n=3), ListDraws())
    trip = played(strategy, SAID, dict.fromkeys(VALUES))
    assert trip.driver.is_finished
    assert found(strategy, trip) == {}


def test_a_filter_without_particles_is_refused() -> None:
    with pytest.raises(ConfigError):
        ParticleFilterConfig(n=0)
