"""A judge's fault is data: a missing score, never a 0, and never the end of a tree."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from tests.runner.parts import Plan, Right, Small, grown, only_leaf, tip

from ramify.core.branch import Branch
from ramify.core.codec import ByteCodec
from ramify.core.command import Command, Failed, Grow, Judge, Score
from ramify.core.errors import ContractError, EngineError, JudgeError
from ramify.core.judge import Verdict
from ramify.core.problem import Problem
from ramify.core.tree import ROOT, Tree
from ramify.runner.judging import Judging
from ramify.testing.clock import run_virtual
from ramify.testing.policies import chains
from ramify.testing.scripted import Scripted

PROBLEM = Problem("p", "how many?", {"level": 1}, {"gold": "42"})
BRANCH = Branch(ByteCodec(), 1, ())


@dataclass
class Says:
    """A judge that returns, raises or awaits what it is made with."""

    said: Any
    name: str = "says"
    is_oracle: bool = False
    seconds: float = 0.0

    async def judge(self, branches: Sequence[Branch], problem: Problem) -> Any:
        await asyncio.sleep(self.seconds)
        if isinstance(self.said, BaseException):
            raise self.said
        return self.said


def judged(judge: Says, *, num_branches: int = 1) -> tuple[Score, ...]:
    judging = Judging({judge.name: judge}, (judge.name,))
    return run_virtual(judging.scores(judge.name, [BRANCH] * num_branches, PROBLEM, attempt=4))


def test_a_verdict_becomes_a_score_with_its_parts_and_attempt() -> None:
    verdict = Verdict(np.float32(0.5), {"format": 1, "answer": 0.25})  # type: ignore[arg-type]
    (score,) = judged(Says([verdict]))
    assert score == Score("says", 0.5, (("format", 1.0), ("answer", 0.25)), attempt=4)
    assert type(score.value) is float


def test_a_missing_value_stays_missing() -> None:
    assert judged(Says([Verdict(None)]))[0].value is None


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (ValueError("not today"), "raised ValueError: not today"),
        (EngineError("engine_500", "down"), "raised EngineError: engine_500: down"),
        (TimeoutError("of its own"), "raised TimeoutError: of its own"),
        (JudgeError("cannot be parsed"), "cannot be parsed"),
        (asyncio.CancelledError(), "judge 'says' cancelled itself"),
        ([], "it must return 1 verdicts"),
        ([Verdict(1.0), Verdict(1.0)], "it must return 1 verdicts"),
        (None, "it must return 1 verdicts"),
        (Verdict(1.0), "it must return 1 verdicts"),
        ([1.0], "must return a Verdict"),
        ([Verdict(float("nan"))], "gave nan; a score is a finite number"),
        ([Verdict(float("inf"))], "gave inf; a score is a finite number"),
        ([Verdict("1")], "gave '1'; a score is a finite number"),  # type: ignore[arg-type]
        ([Verdict(1.0, {"part": None})], "gave None; a score is a finite number"),  # type: ignore[dict-item]
        ([Verdict(1.0, {"part": float("nan")})], "gave nan; a score is a finite number"),
        ([Verdict(1.0, ("part", 1.0))], "must return a Verdict"),  # type: ignore[arg-type]
    ],
)
def test_whatever_is_no_verdict_is_a_fault_of_the_judge(said: object, message: str) -> None:
    with pytest.raises(JudgeError, match=message):
        judged(Says(said))


def test_a_judge_that_hangs_is_given_up_at_its_deadline() -> None:
    async def main() -> float:
        judging = Judging({"says": Says([Verdict(1.0)], seconds=1e9)}, ("says",), deadline_s=7.0)
        with pytest.raises(JudgeError, match="'says' gave nothing in 7 s"):
            await judging.scores("says", [BRANCH], PROBLEM)
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == 7.0


def test_cancelling_is_no_fault_of_the_judge() -> None:
    async def main() -> None:
        judging = Judging({"says": Says([Verdict(1.0)], seconds=5.0)}, ("says",))
        task = asyncio.create_task(judging.leaf_scores(BRANCH, PROBLEM))
        await asyncio.sleep(1.0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run_virtual(main())


def test_a_fault_of_one_leaf_judge_leaves_the_others_their_say() -> None:
    judges = {"odd": Says(ValueError("no"), "odd", is_oracle=True), "says": Says([Verdict(1.0)])}
    scores, fault = run_virtual(Judging(judges, ("odd", "says")).leaf_scores(BRANCH, PROBLEM))
    assert scores == (Score("odd", None, is_oracle=True), Score("says", 1.0))
    assert fault == "judge 'odd' raised ValueError: no"


def test_only_an_oracle_is_handed_the_secret() -> None:
    seen: list[Problem] = []

    class Curious(Says):
        async def judge(self, branches: Sequence[Branch], problem: Problem) -> list[Verdict]:
            seen.append(problem)
            return [Verdict(1.0)]

    judges = {"plain": Curious(None, "plain"), "oracle": Curious(None, "oracle", is_oracle=True)}
    scores, _ = run_virtual(Judging(judges, ("plain", "oracle")).leaf_scores(BRANCH, PROBLEM))
    assert [dict(p.secret) for p in seen] == [{}, {"gold": "42"}]
    assert [p.public for p in seen] == [{"level": 1}] * 2
    assert [score.is_oracle for score in scores] == [False, True]


def test_an_unknown_judge_is_a_broken_contract() -> None:
    with pytest.raises(ContractError, match="there is no judge 'sayz'; did you mean 'says'"):
        run_virtual(Judging({"says": Says([])}, ()).scores("sayz", [BRANCH], PROBLEM))


@dataclass(frozen=True)
class Moody(Right):
    """A judge that raises on every second leaf."""

    async def judge(self, branches: Sequence[Branch], problem: Problem) -> list[Verdict]:
        if branches[0].transcript.count("1/2"):
            raise ValueError("not this one")
        return await super().judge(branches, problem)


def test_a_leaf_without_a_reward_is_a_leaf_that_no_row_is_made_of() -> None:
    class Chains(Plan):
        def wanted(self, tree: Tree) -> Sequence[Command] | None:
            return None if self.told else [Grow(ROOT)] * 8

    result = grown(Chains, Scripted(chains(1, 2)), task=Small(judges=(Moody(),)))
    (tree,) = result.trees
    unjudged = [leaf for leaf in tree.leaves() if tree.reward(leaf) is None]
    assert 0 < len(unjudged) < len(tree.leaves()) == 8
    assert all("not this one" in tree.notes(leaf)["judge"] for leaf in unjudged)
    assert result.report.failed_trees == 0
    rows = result.rows()
    assert len(rows) == 8 - len(unjudged)
    assert all(not row.is_unbiased for row in rows)


def test_a_failed_judgement_is_a_failed_command() -> None:
    class Hopeful(Plan):
        def wanted(self, tree: Tree) -> Sequence[Command] | None:
            match len(self.told):
                case 0:
                    return [Grow(ROOT)]
                case 1:
                    return [Judge((tip(self.told[0]),), "moody", attempt=3)]
            return None

        def tell(self, tree: Tree, outcome: object) -> None:
            told.append(outcome)
            super().tell(tree, outcome)  # type: ignore[arg-type]

    told: list[object] = []

    @dataclass(frozen=True)
    class Named(Moody):
        name: str = "moody"

    result = grown(Hopeful, Scripted(chains(2)), task=Small(judges=(Named(), Right())))
    assert Failed(1, "judge: judge 'moody' raised ValueError: not this one") in told
    tree, leaf = only_leaf(result)
    assert [score.judge for score in tree.scores(leaf)] == ["moody", "right"]
