"""How many rollouts a prompt gets, from either layout of settings."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.core.errors import ConfigError
from ramify.strategies.parts.repeats import Repeats, repeats


@pytest.mark.covers("S1.1")
@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"n": 5}, Repeats(5, "n = 5: one group of 5")),
        ({"n_agent": 5, "n": 1}, Repeats(5, "n_agent x n = 5 x 1: one group of 5")),
        ({"n_agent": 5}, Repeats(5, "n_agent x n = 5 x 1: one group of 5")),
        ({"n_agent": 1, "n": 8, "temperature": 1.0}, Repeats(8, "n_agent x n = 1 x 8: one group of 8")),
        ({"n_agent": 3, "n": 2}, Repeats(6, "n_agent x n = 3 x 2: one group of 6")),
    ],
)
def test_both_layouts_come_to_one_group(settings: dict[str, Any], expected: Repeats) -> None:
    assert repeats(settings) == expected


@given(st.integers(1, 100), st.integers(1, 100))
def test_copies_outside_and_completions_inside_multiply(n_agent: int, n: int) -> None:
    assert repeats({"n_agent": n_agent, "n": n}).n == n_agent * n
    assert repeats({"n_agent": n_agent, "n": n}, group=n_agent * n).n == n_agent * n


def test_another_size_asked_for_elsewhere_is_refused_with_both() -> None:
    with pytest.raises(ConfigError, match="a group of 8 was asked for, but n_agent x n = 5 x 2: one group of 10"):
        repeats({"n_agent": 5, "n": 2}, group=8)


@pytest.mark.parametrize("value", [0, -1, 2.0, "5", True, None])
def test_what_is_no_number_of_rollouts_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match="n_agent = "):
        repeats({"n": 2, "n_agent": value})


def test_settings_without_a_number_are_refused() -> None:
    with pytest.raises(ConfigError, match="'n' or 'n_agent' is needed"):
        repeats({"temperature": 1.0})
