"""What tokens cost: exact sums, bounds that hold whatever a cache holds, and prices that are none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.core.errors import ConfigError
from ramify.core.ledger import Spend
from ramify.core.limits import Limits
from ramify.core.prices import PICODOLLARS, UNPRICED, Prices
from ramify.core.segment import Usage

PRICES = Prices(prompt=2.5, cached=1.25, output=10.0)
COUNTS = st.integers(0, 10**6)
PRICE = st.floats(0, 1000)


def test_each_kind_of_token_has_its_price() -> None:
    million = 10**6
    assert PRICES.cost(Usage(1, num_prefilled=million)) == 2.5 * PICODOLLARS
    assert PRICES.cost(Usage(1, num_cached=million)) == 1.25 * PICODOLLARS
    assert PRICES.cost(Usage(1, num_billed=million)) == 10 * PICODOLLARS
    assert Prices(prompt=2.5, output=10.0).cost(Usage(1, num_cached=million)) == 2.5 * PICODOLLARS
    assert UNPRICED.cost(Usage(1, 5, 5, 5)) == 0 and not UNPRICED.is_known


def test_sums_are_exact() -> None:
    cents = Prices(prompt=0.1, output=0.3)
    spend = Spend()
    for _ in range(10):
        spend.bill(Usage(1, 1, 0, 1, picodollars=cents.cost(Usage(1, 1, 0, 1))))
    assert spend.dollars == 4e-6


@given(COUNTS, COUNTS, COUNTS, PRICE, PRICE, PRICE)
def test_nothing_costs_more_than_the_most_it_may(
    prefilled: int, cached: int, sampled: int, prompt: float, read: float, output: float
) -> None:
    prices = Prices(prompt=prompt, cached=read, output=output)
    most = prices.most(prefilled + cached, sampled)
    assert prices.cost(Usage(1, sampled, cached, prefilled)) <= most
    affordable = prices.num_affordable(most, prefilled + cached)
    assert affordable is None or affordable >= sampled


def test_a_context_that_is_too_dear_leaves_nothing_to_sample() -> None:
    assert PRICES.num_affordable(PRICES.most(100, 7), 100) == 7
    assert PRICES.num_affordable(PRICES.most(100, 0) - 1, 100) == 0


@pytest.mark.parametrize(
    "values",
    [{"prompt": -1.0, "output": 1.0}, {"prompt": 1.0}, {"cached": 1.0}, {"prompt": 1.0, "output": float("inf")}],
)
def test_what_is_no_price_list_is_refused(values: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="prices"):
        Prices(**values)


def test_dollars_are_shared_among_trees_to_the_last_picodollar() -> None:
    shares = [Limits(dollars=0.01).share(3, part) for part in range(3)]
    assert sum(share.counted()["picodollars"] for share in shares) == PICODOLLARS // 100
    assert Limits(dollars=0.5).within(Limits(dollars=0.25)).dollars == 0.25
