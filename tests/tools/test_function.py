import asyncio
import threading

import pytest

from ramify.core.errors import ConfigError
from ramify.core.problem import Problem
from ramify.core.tool import ToolResult
from ramify.runner.clock import run_virtual
from ramify.tools.function import FunctionTool

PROBLEM = Problem("p", "q")


def shout(arguments: str) -> str:
    """A user's function."""
    if not arguments:
        raise ValueError("say something")
    return arguments.upper()


async def wait(arguments: str) -> ToolResult:
    await asyncio.sleep(float(arguments))
    return ToolResult("waited", metadata={"seconds": float(arguments)})


def called(tool: FunctionTool, arguments: str) -> ToolResult:
    async def main() -> ToolResult:
        session = await tool.open(PROBLEM)
        result = await session.call(arguments)
        await session.close()
        return result

    return run_virtual(main())


def test_a_function_is_a_tool_named_after_it_and_without_state() -> None:
    tool = FunctionTool(shout)
    assert (tool.name, tool.branching) == ("shout", "share")
    assert called(tool, "hi") == ToolResult("HI")


def test_what_a_function_raises_is_for_the_model_to_read() -> None:
    assert called(FunctionTool(shout), "") == ToolResult("ValueError: say something", "error")
    assert called(FunctionTool(lambda arguments: exit(3), name="leave"), "").status == "error"


def test_a_coroutine_function_runs_in_the_loop() -> None:
    assert called(FunctionTool(wait), "30") == ToolResult("waited", metadata={"seconds": 30.0})


def test_functions_run_in_threads_of_which_there_are_only_so_many() -> None:
    running, most, lock = 0, 0, threading.Lock()
    together = threading.Barrier(3, timeout=10)

    def count(arguments: str) -> str:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        together.wait()
        with lock:
            running -= 1
        return threading.current_thread().name

    async def main() -> list[ToolResult]:
        tool = FunctionTool(count, max_threads=3)
        return list(await asyncio.gather(*(tool.call(str(n)) for n in range(9))))

    results = asyncio.run(main())
    assert {r.text for r in results} == {"ramify-tool"}
    assert most == 3


def test_a_function_without_a_name_needs_one() -> None:
    with pytest.raises(ConfigError, match="needs a name"):
        FunctionTool(lambda arguments: "")
    assert FunctionTool(lambda arguments: "", name="quiet").name == "quiet"
