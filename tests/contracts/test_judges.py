"""What every judge that scores branches by itself keeps to; add one here and it is held to it."""

from collections.abc import Callable

import pytest

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


@pytest.mark.parametrize("rule", JUDGE_RULES)
@pytest.mark.parametrize("name", JUDGES)
def test_every_judge_keeps_the_contract(name: str, rule: str) -> None:
    keep(JUDGE_RULES, rule, JudgeCase(JUDGES[name]), f"judge {name}")
