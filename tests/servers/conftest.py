"""Tests of servers look at the processes that they began, whatever others this one has begun before."""

import os
from collections.abc import Callable

import pytest
from tests.servers.programs import children_of


@pytest.fixture
def begun() -> Callable[[], list[int]]:
    """Children of this process that were not there when the test began."""
    before = set(children_of(os.getpid()))
    return lambda: [pid for pid in children_of(os.getpid()) if pid not in before]
