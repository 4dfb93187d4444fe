"""Searches against real servers."""

import pytest
from bench.real_replicas import Served
from tests.runner.test_whole_searches import CODE, SEARCHES, check_answers, check_code, searched

pytestmark = pytest.mark.engines


@pytest.mark.parametrize("name", SEARCHES)
def test_a_search_answers_by_real_servers(name: str, replicas: Served) -> None:
    check_answers(searched(name, replicas.flags()))


def test_steps_of_code_sampled_by_real_servers_are_run_by_python(replicas: Served) -> None:
    found = searched("rstar_mcts", replicas.flags(**CODE))
    check_answers(found)
    check_code(found)
