"""Results that are worth the same, compared in processes that may hang, crash and be killed."""

import asyncio
import os
import signal
from typing import Any

import pytest
from tests.judges.test_exact import response

from ramify.core.errors import ConfigError, JudgeError
from ramify.core.problem import Problem
from ramify.formats.tags import TagFormat
from ramify.judges import math
from ramify.judges.math import MathJudge


def said(answer: str) -> Any:
    return response(f"so <answer>{answer}</answer>")


async def values(gold: Any, *answers: str) -> list[float | None]:
    judge = MathJudge(TagFormat())
    try:
        verdicts = await judge.judge([said(answer) for answer in answers], Problem("p", "q?", secret={"answer": gold}))
        return [verdict.value for verdict in verdicts]
    finally:
        await judge.close()


@pytest.mark.slow
async def test_answers_that_are_worth_the_same_are_the_same():
    assert await values("1/2", "0.5", r"\frac{1}{2}", r"$\frac12$", "50%", "2", "") == [1, 1, 1, 1, 0, 0]
    assert await values(r"\frac{\sqrt{2}}{2}", r"\frac{1}{\sqrt{2}}", "1/2") == [1, 0]
    assert await values(r"\boxed{x^2+2x+1}", "(x+1)^2", "x^2") == [1, 0]
    assert await values(["3", "4"], "x = 4", "4.0", "5") == [1, 1, 0]


@pytest.mark.slow
async def test_words_are_compared_as_words():
    assert await values("listen", "Listen", "silent") == [1, 0]
    assert await values("B", "b", "C") == [1, 0]


async def test_no_answer_is_none_and_says_so():
    judge = MathJudge(TagFormat())
    (verdict,) = await judge.judge([response("it is 4")], Problem("p", "q?", secret={"answer": "4"}))
    assert verdict.value == 0.0 and verdict.parts == {"answered": 0.0, "correct": 0.0}
    with pytest.raises(JudgeError, match="no secret 'answer'"):
        await judge.judge([said("4")], Problem("p", "q?"))
    await judge.close()


WORKER = """
import json, os, sys, time
print("{}", flush=True)
for line in sys.stdin:
    answer = json.loads(line)["answer"]
    if answer == "hang":
        time.sleep(1e9)
    if answer == "die":
        os._exit(3)
    if answer == "stammer":
        sys.stdout.write("{")
        sys.stdout.flush()
        os._exit(0)
    if answer == "raise":
        print(json.dumps({"fault": "ValueError: no"}), flush=True)
        continue
    print(json.dumps({"is_same": answer == "same", "is_read": True, "pid": os.getpid()}), flush=True)
"""


@pytest.fixture
def odd_worker(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "worker.py"
    path.write_text(WORKER)
    monkeypatch.setattr(math, "WORKER", path)


@pytest.mark.usefixtures("odd_worker")
@pytest.mark.parametrize(
    ("answer", "message"),
    [("hang", "gave nothing in 0.3 s"), ("die", "worker died"), ("stammer", "worker died"), ("raise", "ValueError")],
)
async def test_a_worker_that_does_not_answer_is_replaced_and_scores_nothing(answer: str, message: str):
    judge = MathJudge(TagFormat(), deadline_s=0.3, max_workers=1)
    problem = Problem("p", "q?", secret={"answer": "1"})
    with pytest.raises(JudgeError, match=message):
        await judge.judge([said(answer)], problem)
    assert [v.value for v in await judge.judge([said("same"), said("other")], problem)] == [1.0, 0.0]
    assert judge.num_killed == (answer == "hang")
    await judge.close()


@pytest.mark.usefixtures("odd_worker")
async def test_a_cancelled_comparison_leaves_no_worker_behind():
    judge = MathJudge(TagFormat(), max_workers=1)
    problem = Problem("p", "q?", secret={"answer": "1"})
    await judge.judge([said("same")], problem)
    (worker,) = judge._idle
    task = asyncio.create_task(judge.judge([said("hang")], problem))  # type: ignore[arg-type]
    while judge._idle:  # noqa: ASYNC110 - the worker leaves the pool without a word
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(worker.wait(), 5)
    assert worker.returncode == -signal.SIGKILL


@pytest.mark.usefixtures("odd_worker")
async def test_a_worker_killed_while_idle_is_replaced():
    judge = MathJudge(TagFormat(), max_workers=1)
    problem = Problem("p", "q?", secret={"answer": "1"})
    await judge.judge([said("same")], problem)
    (worker,) = judge._idle
    os.kill(worker.pid, signal.SIGKILL)
    await worker.wait()
    assert [v.value for v in await judge.judge([said("same")], problem)] == [1.0]
    await judge.close()


def test_impossible_options_are_refused():
    with pytest.raises(ConfigError, match="above 0"):
        MathJudge(TagFormat(), deadline_s=0)
