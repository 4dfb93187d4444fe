"""What every task that makes its own problems promises; a task of the plug-in table is held to it."""

import pytest

from ramify import plugins
from ramify.testing.contracts.rules import keep
from ramify.testing.contracts.tasks import TASK_RULES, TaskCase

ELSEWHERE = {
    "data": "tests/tasks/test_data.py: its problems are a user's",
    "states": "tests/runner/test_search.py: it has one problem, the search of a user's functions",
}
"""Registered tasks that make no problems -> where they are tested."""
NAMES = [name for name in plugins.known("task") if name not in ELSEWHERE]
LIBRARIES = {"reasoning_gym": "reasoning_gym"}
"""Task -> the library that it needs, an extra."""


@pytest.mark.parametrize("rule", TASK_RULES)
@pytest.mark.parametrize("name", NAMES)
def test_every_task_keeps_the_contract(name: str, rule: str) -> None:
    if name in LIBRARIES:
        pytest.importorskip(LIBRARIES[name])
    keep(TASK_RULES, rule, TaskCase(lambda: plugins.build("task", name)), f"task {name}")
