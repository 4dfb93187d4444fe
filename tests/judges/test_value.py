"""The judge of the built-in tasks' steps."""

import asyncio

import pytest

from ramify.core.branch import Branch, Piece
from ramify.core.codec import ByteCodec
from ramify.core.errors import JudgeError
from ramify.core.judge import Verdict
from ramify.core.problem import Problem
from ramify.core.segment import Segment, token_array
from ramify.core.tree import Tree
from ramify.judges.value import Value
from ramify.runner.library import rollout_sync

PROBLEM = Problem("p", "make 24 from 4 6 8 2")


def judged(branch: Branch) -> Verdict:
    (verdict,) = asyncio.run(Value().judge([branch], PROBLEM))
    return verdict


@pytest.fixture(scope="module")
def tree() -> Tree:
    return rollout_sync([PROBLEM], preset="chains").trees[0]


def test_every_step_has_a_probability_that_depends_on_what_stands_before_it(tree: Tree) -> None:
    values = [judged(tree.branch(node)).value for node in tree.subtree()[:8]]
    assert all(value is not None and 0 < value < 1 for value in values)
    assert len(set(values)) > 1


def test_ids_of_another_tokenizer_are_refused() -> None:
    branch = Branch(ByteCodec(is_exact=True), 0, (Piece(0, Segment("prompt", token_array([65, 66]))),))
    with pytest.raises(JudgeError, match="ids of the tokenizer"):
        judged(branch)


def test_a_branch_longer_than_the_model_reads_is_refused(tree: Tree) -> None:
    branch = Branch(tree.codec, 0, (Piece(0, Segment("prompt", token_array([65] * 4000))),))
    with pytest.raises(JudgeError, match="not 4000"):
        judged(branch)
