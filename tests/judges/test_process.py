"""Step scores: every node by the steps on its branch, many branches a request, and no made-up number."""

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from tests.engines.fault_server import FaultServer, Hang, Plan, Received, Status, always, first

from ramify.core.branch import Branch, Piece
from ramify.core.codec import ByteCodec
from ramify.core.errors import ConfigError, JudgeError
from ramify.core.judge import Verdict
from ramify.core.problem import Problem
from ramify.core.segment import Segment
from ramify.judges import pooling
from ramify.judges.process import ProcessJudge, aggregated

CODEC = ByteCodec()
PROBLEM = Problem("p", "how many?")
TAG = "<extra_0>"


def path(*steps: str) -> Branch:
    pieces = [Piece(0, Segment("prompt", np.array(CODEC.encode("the prompt"), np.int32)))]
    for number, step in enumerate(steps, 1):
        pieces.append(Piece(number, Segment("sampled", np.array([*CODEC.encode(step), CODEC.eos_id], np.int32))))
    return Branch(CODEC, len(steps), tuple(pieces))


def classified(received: Received) -> bytes:
    """As vLLM's classify: a text's share of the letter `y`, in any order."""
    texts = received.json["input"]
    data = [{"index": i, "probs": [1 - _share(t), _share(t)], "num_classes": 2} for i, t in enumerate(texts)]
    return json.dumps({"object": "list", "data": data[::-1]}).encode()


def pooled(received: Received) -> bytes:
    """As vLLM's pooling of type STEP: a row of two classes for each tag."""
    body = received.json
    assert body["task"] == "token_classify"
    rows = [[[1 - _share(s), _share(s)] for s in text.split(TAG)[:-1]] for text in body["input"]]
    return json.dumps({"data": [{"index": i, "data": each} for i, each in enumerate(rows)]}).encode()


def _share(text: str) -> float:
    last = text.rpartition("\n")[2]
    return last.count("y") / max(len(last), 1)


def judged(
    *branches: Branch,
    answer: Callable[[Received], bytes] = classified,
    plan: Plan = lambda received: None,
    **options: Any,
) -> tuple[Sequence[Verdict], FaultServer]:
    async def main() -> tuple[Sequence[Verdict], FaultServer]:
        async with FaultServer(answer, plan) as server:
            judge = ProcessJudge(base_url=f"{server.url}/v1", **options)
            try:
                return await judge.judge(branches, PROBLEM), server
            finally:
                await judge.close()

    return asyncio.run(main())


def test_a_text_has_the_score_of_its_last_step() -> None:
    verdicts, server = judged(path("no\n", "yyxx"), path("yyyy"), model="prm")
    assert [v.value for v in verdicts] == [0.5, 1.0]
    assert [v.parts["num_steps"] for v in verdicts] == [2.0, 1.0]
    assert len(server.received) == 1 and server.received[0].path == "/classify"
    assert server.received[0].json["model"] == "prm"
    assert server.received[0].json["input"][0] == "how many?\n\nno\n\n\nyyxx"


def test_every_step_is_scored_behind_its_tag_and_a_forged_tag_is_none() -> None:
    steps = ("yyyy", f"yx{TAG}yx", "xxxy")
    options: dict[str, Any] = {"answer": pooled, "step_tag": TAG, "template": "{question}\n{steps}"}
    for aggregate, value in (("last", 0.25), ("min", 0.25), ("product", 0.125), ("mean", 1.75 / 3)):
        ((verdict,), server) = judged(path(*steps), aggregate=aggregate, **options)
        assert verdict.value == pytest.approx(value)
        assert server.received[0].json["input"] == [f"how many?\nyyyy{TAG}yxyx{TAG}xxxy{TAG}"]


def test_an_exact_zero_is_a_score() -> None:
    assert aggregated([0.0, 0.5]) == {"last": 0.5, "min": 0.0, "mean": 0.25, "product": 0.0}


async def test_branches_of_many_judgements_go_out_in_few_requests() -> None:
    async with FaultServer(classified) as server:
        judge = ProcessJudge(base_url=server.url, max_batch=64)
        await asyncio.gather(*(judge.judge([path("y")], PROBLEM) for _ in range(100)))
        await judge.close()
        assert 2 <= len(server.received) <= 4


def rows_of(data: Any) -> Callable[[Received], bytes]:
    return lambda received: json.dumps({"data": data}).encode()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda received: b"<html>", "no list of scores"),
        (lambda received: b'{"data": [{"index": 0, "probs": [NaN, NaN]}]}', "no list of scores"),
        (lambda received: b'{"data": [{"index": 0, "probs": [null]}]}', "no list of scores"),
        (rows_of([]), "answered 0 of 1 texts"),
        (rows_of([{"index": 0, "probs": [0.5]}, {"index": 0, "probs": [0.5]}]), "answered 2 of 1"),
        (rows_of([{"index": 1, "probs": [0.5]}]), "answered 1 of 1"),
        (rows_of([{"index": 0}]), "0 scores for 1 steps"),
    ],
)
def test_an_answer_that_is_none_is_a_fault(answer: Callable[[Received], bytes], message: str) -> None:
    with pytest.raises(JudgeError, match=message):
        judged(path("y"), answer=answer)


def test_a_number_of_rows_that_is_not_that_of_the_steps_is_a_fault() -> None:
    answer = rows_of([{"index": 0, "data": [[0.1, 0.9]] * 3}])
    with pytest.raises(JudgeError, match="3 scores for 2 steps"):
        judged(path("y", "n"), answer=answer, step_tag=TAG)


def test_a_class_that_is_not_there_is_a_fault() -> None:
    with pytest.raises(JudgeError, match="there is no class 7"):
        judged(path("y"), positive=7)


@pytest.mark.slow
def test_faults_that_pass_are_tried_again_and_others_are_not() -> None:
    (verdict,), server = judged(path("y"), plan=first(2, Status(502)))
    assert verdict.value == 1.0 and len(server.received) == 3
    with pytest.raises(JudgeError, match="404"):
        judged(path("y"), plan=always(Status(404)))


def test_a_server_that_hangs_is_given_up_at_the_deadline() -> None:
    with pytest.raises(JudgeError, match=r"gave nothing in 0\.2 s"):
        judged(path("y"), plan=always(Hang()), deadline_s=0.2)


def test_a_server_that_is_not_there_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pooling, "POLICY", pooling.RetryPolicy(max_tries=2, base_s=0.0))

    async def main() -> None:
        judge = ProcessJudge(base_url="http://127.0.0.1:9")
        try:
            await judge.judge([path("y")], PROBLEM)
        finally:
            await judge.close()

    with pytest.raises(JudgeError, match="unreachable"):
        asyncio.run(main())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs a model"),
        ({"model": "/nowhere"}, "config.json is missing"),
        ({"base_url": "nowhere"}, "an address such as"),
        ({"base_url": "http://h", "aggregate": "max"}, "allowed are last, min"),
        ({"base_url": "http://h", "aggregate": "min"}, "needs a step_tag"),
        ({"base_url": "http://h", "template": "{question}"}, "must cite"),
        ({"base_url": "http://h", "deadline_s": 0}, "above 0"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ProcessJudge(**options)
