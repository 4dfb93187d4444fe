import asyncio
import threading
import time
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

import pytest

import ramify
from ramify.core.errors import ConfigError
from ramify.core.problem import Problem
from ramify.core.tool import ToolResult
from ramify.edge.daemon_threads import DaemonThreads
from ramify.testing.clock import run_virtual
from ramify.tools.function import FunctionTool, tool

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


class Quit(BaseException):
    """As test runners and servers have them."""


@pytest.mark.parametrize("error", [Quit("enough"), KeyboardInterrupt("enough"), asyncio.CancelledError("enough")])
def test_no_exception_of_a_thread_ends_more_than_its_call(error: BaseException) -> None:
    def leave(arguments: str) -> str:
        raise error

    assert called(FunctionTool(leave), "") == ToolResult(f"RuntimeError: {type(error).__name__}: enough", "error")


def test_no_exception_of_a_coroutine_ends_more_than_its_call() -> None:
    async def leave(arguments: str) -> str:
        raise Quit("enough")

    assert called(FunctionTool(leave), "") == ToolResult("Quit: enough", "error")


def test_what_is_handed_over_to_be_awaited_is_awaited() -> None:
    class Slow:
        """Whose calls are coroutines, which no look at the object itself tells."""

        async def __call__(self, arguments: str) -> str:
            return arguments.upper()

    assert called(FunctionTool(Slow(), name="slow"), "hi") == ToolResult("HI")
    assert called(FunctionTool(lambda seconds: wait(seconds + "0"), name="late"), "3").text == "waited"


def test_threads_without_work_end_and_come_back_when_there_is_some() -> None:
    threads = DaemonThreads(2, idle_s=0.01)
    for number in range(3):
        assert [threads.submit(pow, base, 2).result(10) for base in range(number, number + 5)]
        deadline = time.monotonic() + 20
        while threads.num_threads:
            assert time.monotonic() < deadline
            time.sleep(0.005)


@pytest.mark.slow
def test_every_job_is_done_however_threads_come_and_go() -> None:
    threads = DaemonThreads(3, idle_s=0.0)
    jobs = [threads.submit(lambda n=n: n) for n in range(2000)]
    assert [job.result(20) for job in jobs] == list(range(2000))


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
    with pytest.raises(ConfigError, match="must be an identifier"):
        FunctionTool(lambda arguments: "")
    assert FunctionTool(lambda arguments: "", name="quiet").name == "quiet"


# -- decorated functions ----------------------------------------------------------------------------------------------


class Unit(Enum):
    CELSIUS = "celsius"
    FAHRENHEIT = "fahrenheit"


@dataclass
class Box:
    width: int
    height: int = 1


@tool
def weather(city: str, days: int = 1, unit: Unit = Unit.CELSIUS) -> dict[str, Any]:
    """Say the weather.

    Args:
        city: where
    """
    return {"city": city, "days": days, "unit": unit}


@tool(name="area", deadline_s=5.0)
async def area_of(box: Box, mode: Literal["exact", "rough"] = "exact") -> int:
    return box.width * box.height


@tool
def loud(words: str) -> str:
    return words.upper()


def test_a_decorated_function_is_a_tool_and_still_a_function() -> None:
    assert ramify.tool is tool
    assert weather("Rome", days=2) == {"city": "Rome", "days": 2, "unit": Unit.CELSIUS}
    assert (weather.name, weather.branching, area_of.name) == ("weather", "share", "area")
    assert weather.schema["description"] == "Say the weather."
    assert weather.schema["parameters"]["properties"]["city"] == {"type": "string", "description": "where"}


def test_arguments_are_made_what_the_hints_say() -> None:
    assert called(weather, '{"city": "Rome", "unit": "fahrenheit"}') == ToolResult(
        '{"city": "Rome", "days": 1, "unit": "fahrenheit"}'
    )
    assert called(area_of, '{"box": {"width": 3, "height": 2.0}}') == ToolResult("6")


def test_plain_text_is_the_text_that_must_be_given() -> None:
    assert called(weather, "Rome").text == '{"city": "Rome", "days": 1, "unit": "celsius"}'
    assert called(loud, '{"words": "hi"}') == ToolResult('{"WORDS": "HI"}')


@pytest.mark.parametrize(
    ("made", "arguments", "fault"),
    [
        (weather, '{"city": 3}', "the arguments do not fit: city = 3: it must be a text"),
        (weather, '{"city": "Rome", "unit": "kelvin"}', 'it must be one of "celsius", "fahrenheit"'),
        (weather, '{"city": "Rome", "day": 3}', "there is no day; did you mean 'days'?"),
        (weather, '{"city": "Rome"', "the arguments are no JSON"),
        (area_of, "3 by 2", "the arguments are no JSON"),
        (area_of, '{"mode": "exact"}', "box is missing: it must be an object"),
    ],
)
def test_arguments_that_do_not_fit_are_told_and_are_no_call(made: FunctionTool, arguments: str, fault: str) -> None:
    assert fault in (made.fault(arguments) or "")
    assert called(made, arguments).status == "error"


def test_arguments_that_fit_are_no_fault() -> None:
    assert [weather.fault("Rome"), area_of.fault('{"box": {"width": 3}}'), FunctionTool(shout).fault("{")] == [None] * 3


@pytest.mark.parametrize(
    ("value", "result"),
    [
        ("text", ToolResult("text")),
        (None, ToolResult("")),
        (3, ToolResult("3")),
        ([1.5, None, "é"], ToolResult('[1.5, null, "é"]')),
        (Box(1), ToolResult('{"width": 1, "height": 1}')),
        (Unit.CELSIUS, ToolResult('"celsius"')),
        (b"bytes", ToolResult("bytes")),
        (ToolResult("seen", metadata={"a": 1}, attachments=("f",)), ToolResult("seen", "ok", {"a": 1}, ("f",))),
    ],
)
def test_what_a_function_returns_is_text_or_data(value: Any, result: ToolResult) -> None:
    @tool
    def give(words: str) -> Any:
        return value

    assert called(give, "x") == result


@pytest.mark.parametrize("value", [object(), float("nan"), {1: object()}, {"a": float("inf")}])
def test_what_is_no_data_is_a_crash(value: Any) -> None:
    @tool
    def give(words: str) -> Any:
        return value

    result = called(give, "x")
    assert result.status == "crashed"
    assert result.text.startswith(f"it returned {type(value).__name__}, which is no text and no JSON data")


def test_a_function_that_is_late_is_a_timeout_and_its_own_time_out_is_not() -> None:
    @tool(deadline_s=2.0)
    async def sleep(seconds: float) -> str:
        await asyncio.sleep(seconds)
        raise TimeoutError("the server is slow")

    assert called(sleep, '{"seconds": 3}') == ToolResult("", "timeout")
    assert called(sleep, '{"seconds": 1}') == ToolResult("TimeoutError: the server is slow", "error")


def test_a_thread_that_hangs_delays_nobody() -> None:
    released = threading.Event()

    @tool(deadline_s=0.05)
    def hang(words: str) -> str:
        released.wait(30)
        return words

    async def main() -> ToolResult:
        return await hang.call("x")

    assert asyncio.run(main()).status == "timeout"
    released.set()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"branching": "fork"}, "branching = 'fork'; allowed are 'share', 'replay', 'refuse'"),
        ({"deadline_s": 0.0}, "must be above 0"),
        ({"max_threads": 0}, "must be above 0"),
        ({"name": "two words"}, "must be an identifier"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        tool(**settings)(shout)
    assert message in str(caught.value)


def words(text: str) -> Any:
    yield from text.split()


async def words_in_time(text: str) -> Any:
    yield text


def test_only_a_function_is_made_a_tool() -> None:
    with pytest.raises(ConfigError, match="makes a tool of a function"):
        tool(Box)
    for made in (words, words_in_time):
        with pytest.raises(ConfigError, match=r"cannot make a tool of the generator .*: return a list"):
            tool(made)


def test_the_same_function_can_be_used_under_other_settings() -> None:
    other = weather.configured(name="forecast", branching="refuse")
    assert (other.name, other.schema["name"], other.branching) == ("forecast", "forecast", "refuse")
    assert (weather.name, weather.branching) == ("weather", "share")
    assert called(other, "Rome") == called(weather, "Rome")
