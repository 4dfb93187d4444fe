"""What every task that makes its own problems promises; a task of the plug-in table is held to it."""

import pytest

from ramify import plugins
from ramify.testing.contracts.rules import keep
from ramify.testing.contracts.tasks import TASK_RULES, TaskCase

NAMES = [name for name in plugins.known("task") if name != "data"]


@pytest.mark.parametrize("rule", TASK_RULES)
@pytest.mark.parametrize("name", NAMES)
def test_every_task_keeps_the_contract(name: str, rule: str) -> None:
    keep(TASK_RULES, rule, TaskCase(lambda: plugins.build("task", name)), f"task {name}")
