"""What every registered credit keeps to, and the exactness that the table claims for it."""

import pytest

from ramify.credit import CREDITS
from ramify.testing.contracts.credits import check_credit

NAMES = [name for name in CREDITS if name != "vine"]
"""`vine` reads rollouts of share 0 beside a trunk: tests/credit/test_exact_gradients.py grows forests for it."""


@pytest.mark.parametrize("name", NAMES)
def test_every_credit_keeps_the_contract(name: str) -> None:
    check_credit(name)
