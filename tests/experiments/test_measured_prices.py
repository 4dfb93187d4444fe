"""What an engine's tokens take, from timed answers."""

import numpy as np
import pytest

from ramify.config.configure import resolve
from ramify.core.engine import Generation
from ramify.core.errors import ConfigError
from ramify.core.segment import Finish, token_array
from ramify.experiments.measured_prices import TimedGeneration, measured_prices, prices_of


def timed(new: int, cached: int, sampled: int, seconds: float) -> TimedGeneration:
    ids = token_array([1] * sampled)
    made = Generation(ids, Finish("length"), num_billed=sampled, num_cached=cached, num_prefilled=new)
    return made, seconds


def test_prices_are_the_fit_of_the_seconds() -> None:
    asked = [(192, 0, 1), (1, 191, 1), (1, 191, 32), (100, 50, 7)]
    prices = prices_of([timed(*counts, float(np.dot(counts, (1e-4, 1e-6, 2e-3)))) for counts in asked])
    assert prices.prompt == pytest.approx(100)
    assert prices.cached == pytest.approx(1)
    assert prices.output == pytest.approx(2000)


def test_no_token_takes_less_than_nothing() -> None:
    prices = prices_of([timed(10, 0, 1, 0.001), timed(0, 10, 1, 0.002), timed(0, 10, 9, 0.001)])
    assert min(prices.prompt or 0, prices.cached or 0, prices.output or 0) >= 0


def test_an_engine_that_counts_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="does not report how many tokens"):
        prices_of([timed(10, 0, 0, 0.1)])


def test_the_built_in_model_samples_dearer_than_it_reads() -> None:
    prices = measured_prices(resolve(preset="chains", flags={"prompts": 4}).config)
    assert prices.output is not None and prices.prompt is not None
    assert prices.output > prices.prompt > 0
