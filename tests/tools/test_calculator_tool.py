import pytest

from ramify.core.errors import ToolError
from ramify.core.problem import Problem
from ramify.core.tool import ToolResult
from ramify.testing.clock import run_virtual
from ramify.tools.calculator import Calculator


def test_the_calculator_begins_with_the_numbers_of_the_question_and_forks() -> None:
    async def main() -> None:
        session = await Calculator().open(Problem("p", "make 99 from 13 7 1 5"))
        assert await session.call("7+1") == ToolResult("8 : 13 5 8")
        fork = await session.fork()
        assert await fork.call("13-5") == ToolResult("8 : 8 8")
        assert await session.call("9+9") == ToolResult("error: 9 is not left", "error")
        assert await session.call("13*5") == ToolResult("65 : 8 65")
        await session.close()

    run_virtual(main())


def test_a_question_without_numbers_is_no_question_for_it() -> None:
    with pytest.raises(ToolError, match="no numbers at the end of 'why'"):
        run_virtual(Calculator().open(Problem("p", "why")))
