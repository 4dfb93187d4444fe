"""A user's function as a judge: its fault is data, its slowness its own, secrets only where it declares itself."""

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.judges.test_exact import response

from ramify.core.branch import Branch
from ramify.core.errors import ConfigError, JudgeError
from ramify.core.judge import Verdict
from ramify.core.problem import Problem
from ramify.judges.function import FunctionJudge

PROBLEM = Problem("p", "q?", {"level": 1})


async def said(function: Callable[..., Any], **options: Any) -> Verdict:
    (verdict,) = await FunctionJudge(function, **options).judge([response("abc")], PROBLEM)
    return verdict


async def test_a_function_reads_the_text_and_the_problem():
    assert await said(lambda text, problem: len(text) + problem.public["level"]) == Verdict(4.0)


async def test_a_function_that_asks_for_the_branch_gets_it():
    def tokens(branch: Branch, problem: Problem) -> int:
        return len(branch)

    assert await said(tokens) == Verdict(3.0)


async def test_coroutines_verdicts_and_no_score_are_taken_as_they_are():
    async def slow(text: str, problem: Problem) -> Verdict:
        return Verdict(0.5, {"length": 3.0})

    assert await said(slow) == Verdict(0.5, {"length": 3.0})
    assert await said(lambda text, problem: None) == Verdict(None)
    assert await said(lambda text, problem: True) == Verdict(1.0)


async def test_a_slow_function_delays_nobody():
    seen: set[int] = set()
    gate = threading.Barrier(3)

    def waits(text: str, problem: Problem) -> float:
        gate.wait(5)
        seen.add(threading.get_ident())
        return 1.0

    judge = FunctionJudge(waits, max_threads=3)
    assert len(await judge.judge([response("x")] * 3, PROBLEM)) == 3
    assert threading.get_ident() not in seen


def raises(error: BaseException) -> Callable[..., Any]:
    def function(text: str, problem: Problem) -> float:
        raise error

    return function


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (raises(ValueError("not today")), "raised ValueError: not today"),
        (raises(SystemExit(3)), "raised RuntimeError: SystemExit"),
        (raises(TimeoutError("of its own")), "raised TimeoutError"),
        (lambda text, problem: "1", "returned '1'; it must return a number"),
        (lambda text, problem: [1.0], "it must return a number"),
        (lambda text, problem: 1j, "it must return a number"),
    ],
)
async def test_whatever_is_no_score_is_a_fault_of_the_judge(function: Callable[..., Any], message: str):
    with pytest.raises(JudgeError, match=message):
        await said(function)


async def test_a_function_that_hangs_is_left_behind_at_its_deadline():
    over = threading.Event()

    def hangs(text: str, problem: Problem) -> float:
        over.wait(30)
        return 1.0

    began = time.monotonic()
    with pytest.raises(JudgeError, match=r"gave nothing in 0\.1 s"):
        await said(hangs, deadline_s=0.1)
    assert time.monotonic() - began < 10
    over.set()


async def test_cancelling_is_no_fault():
    async def hangs(text: str, problem: Problem) -> float:
        await asyncio.Event().wait()
        return 1.0

    task = asyncio.create_task(said(hangs))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        (lambda text: 1.0, {}, "must take two arguments, a response and the problem"),
        (lambda a, b, c: 1.0, {}, "must take two arguments, a response and the problem"),
        (Path, {}, "is not a function"),
        (lambda a, b: 1.0, {"deadline_s": -1}, "above 0"),
        (lambda a, b: 1.0, {"max_threads": 0}, "above 0"),
    ],
)
def test_what_cannot_be_a_judge_is_refused(function: Any, options: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        FunctionJudge(function, **options)
