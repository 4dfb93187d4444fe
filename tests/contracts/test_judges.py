"""What every judge that scores branches by itself keeps to; a registered one is found by its name."""

from collections.abc import Callable
from functools import partial

import pytest

from ramify import plugins
from ramify.core.judge import BranchJudge
from ramify.formats.arpo import arpo
from ramify.judges.exact import Exact
from ramify.judges.function import FunctionJudge
from ramify.judges.math import MathJudge
from ramify.testing.contracts.judges import JUDGE_RULES, JudgeCase
from ramify.testing.contracts.rules import keep

JUDGES: dict[str, Callable[[], BranchJudge]] = {
    "exact": lambda: Exact(arpo({})),
    "function": lambda: FunctionJudge(lambda text, problem: float(len(text) % 7)),
    "math": lambda: MathJudge(arpo({})),
}
ELSEWHERE = {
    "agreement": "tests/judges/test_agreement.py: its verdicts compare the branches with one another",
    "llm": "tests/judges/test_llm.py: it asks a model, and scores nothing by itself",
    "process": "tests/judges/test_process.py: it needs a model of steps",
    "value": "tests/judges/test_value.py: it reads tokens of the shipped model",
}
"""Registered judges that are not built here -> where they are held to what they promise."""
JUDGES |= {
    name: partial(plugins.build, "judge", name)
    for name in plugins.known("judge")
    if name not in JUDGES and name not in ELSEWHERE
}


@pytest.mark.parametrize("rule", JUDGE_RULES)
@pytest.mark.parametrize("name", JUDGES)
def test_every_judge_keeps_the_contract(name: str, rule: str) -> None:
    keep(JUDGE_RULES, rule, JudgeCase(JUDGES[name]), f"judge {name}")
