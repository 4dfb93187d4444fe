"""Supervised examples train what the agent said on leaves that a run keeps, or on those named; observations never."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.credit.trees import CODEC, bare, end, fork, nested, step, wild

from ramify.core.codec import ByteCodec
from ramify.core.command import Score
from ramify.core.growth import Growth
from ramify.core.segment import Segment, token_array
from ramify.core.tree import ROOT, Step, Tree
from ramify.rows.select import mark_not_selected
from ramify.rows.sft import Example, examples, record, write
from ramify.rows.slime import sft_samples


def written(text: str, **fields: object) -> Segment:
    return Segment("written", token_array(CODEC.encode(text)), **fields)  # type: ignore[arg-type]


def demonstrated(growth: Growth | None = None) -> Tree:
    """A demonstration of two turns, and another that leaves it behind the first; then a rollout."""
    growth = growth or bare()
    observation = step("").segments[1]
    (tip,) = fork(growth, ROOT, [Step((written("ab"), observation))])
    fork(growth, tip, [Step((written("c"),), stop="answer")], [Step((written("d"),), stop="answer")])
    fork(growth, ROOT, [step("xx"), end("y", 1.0)])
    return growth.tree


def trained(example: Example) -> str:
    assert example.ids is not None and example.mask is not None
    return CODEC.decode(example.ids[example.mask])


@pytest.mark.covers("S3.9")
def test_written_tokens_are_trained_once_and_sampled_ones_not_at_all() -> None:
    made = examples(demonstrated(), leaves="written")
    assert [trained(example) for example in made] == ["abc", "d"]
    assert [CODEC.decode(example.ids) for example in made if example.ids is not None] == ["go: ab=c", "go: ab=d"]


@pytest.mark.covers("S3.9")
def test_the_best_leaves_are_trained_when_asked_for() -> None:
    tree = nested()
    (best,) = examples(tree, leaves="best")
    assert (best.reward, trained(best)) == (1.0, "abde")
    assert [e.reward for e in examples(tree, leaves="best", num_leaves=3)] == [0.25, 1.0, 0.5]
    assert [e.reward for e in examples(tree, leaves="best", num_leaves=9, min_reward=0.4)] == [1.0, 0.5]
    assert examples(tree, leaves="written") == []


@pytest.mark.covers("S3.9")
def test_every_leaf_that_a_run_keeps_is_trained_unless_others_are_named() -> None:
    tree = demonstrated()
    assert [trained(example) for example in examples(tree)] == ["abc", "d", "xxy"]
    judged = nested()
    made = examples(judged)
    assert [example.reward for example in made] == [judged.reward(leaf) for leaf in judged.leaves()]
    mark_not_selected(judged, judged.leaves()[1:2])
    assert [example.leaf for example in examples(judged)] == [made[1].leaf]
    assert len(examples(judged, leaves="best", num_leaves=9)) == len(made)


def test_of_equal_leaves_the_first_is_best() -> None:
    growth = bare()
    fork(growth, ROOT, [end("a", 1.0)], [end("b", 1.0)])
    assert [trained(example) for example in examples(growth.tree, leaves="best")] == ["a"]


@given(st.integers(0, 10_000), st.integers(1, 6))
def test_only_sampled_tokens_of_leaves_that_may_be_trained_are_best(seed: int, num_leaves: int) -> None:
    tree = wild(seed)
    numbers = tree.subtree()
    for example in examples(tree, leaves="best", num_leaves=num_leaves):
        leaf = numbers[example.leaf]
        assert tree.stop(leaf) in ("answer", "length", "tool_limit")
        assert example.mask is not None and example.mask.any()
        assert not example.mask[~tree.branch(leaf).is_sampled].any()


@pytest.mark.covers("S3.9")
def test_trees_of_text_alone_give_messages_alone() -> None:
    made = examples(demonstrated(bare(codec=ByteCodec())), leaves="written")
    assert [example.ids for example in made] == [None, None]
    assert made[0].messages == (
        {"role": "user", "content": "go: "},
        {"role": "assistant", "content": "ab"},
        {"role": "tool", "content": "="},
        {"role": "assistant", "content": "c"},
    )
    assert [m.get("weight") for m in made[1].messages] == [None, 0, None, None]
    assert set(record(made[0])) == {"uid", "leaf", "reward", "messages", "public"}
    with pytest.raises(Exception, match="no tokens, which slime trains"):
        sft_samples(made)


def test_messages_that_segments_render_are_kept_as_they_are() -> None:
    growth = bare()
    asked = Segment("given", token_array([1]), message={"role": "user", "content": "Q"})
    answer = written("raw", message={"role": "assistant", "content": "A", "tool_calls": []})
    fork(growth, ROOT, [Step((asked, answer), stop="answer", scores=(Score("j", 1.0),))])
    (example,) = examples(growth.tree)
    assert example.messages == (asked.message, answer.message)


def test_lines_hold_tokens_and_messages(tmp_path: Path) -> None:
    assert write([demonstrated(), nested()], tmp_path / "sft.jsonl", leaves="written") == 2
    first, _ = [json.loads(line) for line in (tmp_path / "sft.jsonl").read_text("utf-8").splitlines()]
    assert first["input_ids"] == [*b"go: ab=c"]
    assert first["loss_mask"] == [0, 0, 0, 0, 1, 1, 0, 1]
    assert (first["uid"], first["reward"]) == ("p", None)
    assert write([nested()], tmp_path / "sft.jsonl", leaves="best", num_leaves=2, force=True) == 2
