"""Searches against real servers."""

import pytest
from bench.real_replicas import Served
from tests.runner.test_whole_searches import SEARCHES, check_answers, searched

pytestmark = pytest.mark.engines


@pytest.mark.parametrize("name", SEARCHES)
def test_a_search_answers_by_real_servers(name: str, replicas: Served) -> None:
    check_answers(searched(name, replicas.flags()))
