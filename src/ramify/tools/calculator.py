"""The stateful calculator of countdown: numbers on the table, one step `a OP b` at a time.

Owns the rules of a step: both operands must be among the numbers left, the result must be a whole number from 0 to
`MAX_VALUE`, and the result replaces the operands. A step that breaks the rules changes nothing and returns a text that
begins with `error:`. Pure and safe: the expression is matched by one regex, never evaluated. The text of a good step,
such as `8 : 13 5 8`, has the value and then all numbers left, the new one last. So the text alone holds the whole
state.
"""

import re
from dataclasses import dataclass
from typing import Final

from ramify.core.errors import ToolError
from ramify.core.problem import Problem
from ramify.core.tool import Branching, ToolResult, text_schema

MAX_VALUE: Final = 9999

# ASCII digits only ("\d" also takes other scripts), and few enough that no step is slow.
_STEP = re.compile(r" *([0-9]{1,6}) *([-+*/]) *([0-9]{1,6}) *")
_QUESTION = re.compile(r"from((?: [0-9]{1,6})+)\s*$")
_RESULT = re.compile(r"([0-9]+) :((?: [0-9]+)*)")


@dataclass(frozen=True, slots=True)
class CalculatorState:
    """The numbers left: the question's numbers in order, then results."""

    numbers: tuple[int, ...]


def apply(state: CalculatorState, expression: str) -> tuple[CalculatorState, str, bool]:
    """Take one step `a OP b`. Returns the new state, the text to show and whether the step was allowed."""
    step = _STEP.fullmatch(expression)
    if step is None:
        return state, "error: use the form a+b", False
    left, right = int(step[1]), int(step[3])
    numbers = list(state.numbers)
    for operand in (left, right):
        if operand not in numbers:
            return state, f"error: {operand} is not left", False
        numbers.remove(operand)
    value, fault = value_of(left, step[2], right)
    if value is None:
        return state, f"error: {left}{step[2]}{right} is {fault}", False
    after = CalculatorState((*numbers, value))
    return after, f"{value} : {' '.join(map(str, after.numbers))}", True


def numbers_left(result_text: str) -> tuple[int, ...] | None:
    """The numbers left, read from the text of a good step; None for an error or any other text."""
    result = _RESULT.fullmatch(result_text.strip())
    if result is None or not result[2]:
        return None
    return tuple(map(int, result[2].split()))


def value_of(left: int, operator: str, right: int) -> tuple[int | None, str]:
    """The value of an allowed step, or None and the reason."""
    if operator == "/":
        if right == 0:
            return None, "division by zero"
        return (left // right, "") if left % right == 0 else (None, "not exact")
    value = left + right if operator == "+" else left - right if operator == "-" else left * right
    if value < 0:
        return None, "below zero"
    return (value, "") if value <= MAX_VALUE else (None, f"above {MAX_VALUE}")


class Calculator:
    """The calculator as a tool. Every branch has its own numbers and starts with the numbers at the end of the
    question."""

    name: str = "calculator"
    branching: Branching = "fork"
    schema = text_schema("calculator", "One step a+b, a-b, a*b or a/b on the numbers left.", parameter="expression")

    async def open(self, problem: Problem) -> "CalculatorSession":
        """Raises `ToolError` if the question names no numbers."""
        numbers = _QUESTION.search(problem.question)
        if numbers is None:
            raise ToolError("tool_gave_up", f"no numbers at the end of {problem.question!r}; ask `… from 13 7 1 5`")
        return CalculatorSession(CalculatorState(tuple(map(int, numbers[1].split()))))


@dataclass(slots=True)
class CalculatorSession:
    """The numbers left on one branch."""

    state: CalculatorState

    async def call(self, arguments: str) -> ToolResult:
        """One step `a OP b`. A step that breaks the rules is an error the model can read."""
        self.state, text, is_allowed = apply(self.state, arguments)
        return ToolResult(text, "ok" if is_allowed else "error")

    async def fork(self) -> "CalculatorSession":
        return CalculatorSession(self.state)

    async def close(self) -> None:
        """There is nothing to close."""
