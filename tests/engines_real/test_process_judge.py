"""The judge `process` by real vLLM servers that pool: it says what the same scorer says in numpy."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pytest
from bench.real_replicas import scorer
from tests.runner.test_whole_searches import check_answers, searched

from ramify.core.branch import Branch
from ramify.core.judge import Verdict
from ramify.core.problem import Problem
from ramify.core.tree import Tree
from ramify.engines.builtin import FOLDER
from ramify.engines.tokenizer import TokenizerFile
from ramify.engines.value_model import ValueModel
from ramify.judges.process import ProcessJudge, aggregated
from ramify.judges.value import Value

pytestmark = pytest.mark.engines

CODEC: Final = TokenizerFile(FOLDER / "tokenizer.json")
TAG: Final = "<|pad|>"
"""No step says it, and it is one token."""
POOLER: Final = {
    "task": "token_classify",
    "tok_pooling_type": "STEP",
    "step_tag_id": CODEC.encode(TAG, allow_special=True)[0],
}
SPOKEN: Final = {"model": "value", "template": "<|user|>{question}<|end|><|assistant|>{steps}", "separator": ""}
"""As the scorer was trained: the branch, word by word."""
CLOSE: Final = 1e-4
"""Both compute in float32, with sums in another order; the weights are bfloat16 on both sides."""


@pytest.fixture(scope="module")
def classifier() -> Iterator[str]:
    with scorer("/classify") as url:
        yield url


@pytest.fixture(scope="module")
def step_tagger() -> Iterator[str]:
    with scorer("/pooling", "--pooler-config", json.dumps(POOLER)) as url:
        yield url


@pytest.fixture(scope="module")
def trees() -> Sequence[Tree]:
    return searched("rstar_mcts").trees


def paths(tree: Tree) -> list[Branch]:
    """Every step of a tree that has not ended its sequence: the judge leaves out what is no text."""
    branches = [tree.branch(node) for node in tree.subtree()[1:]]
    return [branch for branch in branches if branch.ids[-1] != CODEC.eos_id]


def judged(options: dict[str, Any], of: Sequence[tuple[Problem, list[Branch]]]) -> list[Sequence[Verdict]]:
    async def main() -> list[Sequence[Verdict]]:
        judge = ProcessJudge(**SPOKEN, **options)
        try:
            return await asyncio.gather(*(judge.judge(branches, problem) for problem, branches in of))
        finally:
            await judge.close()

    return asyncio.run(main())


def test_a_server_that_classifies_says_what_the_scorer_says_in_numpy(classifier: str, trees: Sequence[Tree]) -> None:
    of = [(tree.problem, paths(tree)) for tree in trees]
    theirs = judged({"base_url": classifier}, of)
    num_judged = 0
    for (problem, branches), verdicts in zip(of, theirs, strict=True):
        ours = asyncio.run(Value().judge(branches, problem))
        assert [v.value for v in verdicts] == pytest.approx([v.value for v in ours], abs=CLOSE)
        num_judged += len(ours)
    assert num_judged > 200


def test_a_search_steered_by_a_server_grows_the_same_trees(classifier: str, trees: Sequence[Tree]) -> None:
    options = {"base_url": classifier, **SPOKEN}
    found = searched("rstar_mcts", {"judges.process.kind": "process", "judges.process.options": options})
    check_answers(found)
    assert [ids(tree) for tree in found.trees] == [ids(tree) for tree in trees]


def ids(tree: Tree) -> list[list[int]]:
    return [tree.branch(node).ids.tolist() for node in tree.subtree()]


def test_a_server_that_pools_scores_each_step_at_its_tag(step_tagger: str, trees: Sequence[Tree]) -> None:
    of = [(tree.problem, [tree.branch(leaf) for leaf in tree.leaves()]) for tree in trees]
    theirs = judged({"base_url": step_tagger, "step_tag": TAG, "aggregate": "min"}, of)
    model = ValueModel()
    for (_, branches), verdicts in zip(of, theirs, strict=True):
        for branch, verdict in zip(branches, verdicts, strict=True):
            values = model.values(tagged(branch))
            ours = {**aggregated(values), "num_steps": len(values)}
            assert verdict.parts == pytest.approx(ours, abs=CLOSE)
            assert verdict.value == verdict.parts["min"]


def tagged(branch: Branch) -> list[np.ndarray[Any, Any]]:
    """The path up to the tag behind each of its steps."""
    steps: dict[int, str] = {}
    for piece in branch.pieces[1:]:
        said = CODEC.decode(i for i in piece.segment.ids.tolist() if i != CODEC.eos_id)
        steps[piece.node] = steps.get(piece.node, "") + said
    text, prefixes = branch.prompt_text, list[np.ndarray[Any, Any]]()
    for step in steps.values():
        text += step + TAG
        prefixes.append(np.array(CODEC.encode(text, allow_special=True), np.int32))
    return prefixes
