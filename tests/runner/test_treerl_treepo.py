"""TreeRL and TreePO on the built-in model: forks at tokens and at segment ends of turns with a real tool."""

import numpy as np
import pytest

from ramify.config.configure import resolve
from ramify.core.branch import Branch
from ramify.core.tree import Tree
from ramify.runner.library import Rollout, rollout_sync
from ramify.store.check import row_faults, tree_faults

PRESETS = {"treepo": (16, 16), "treepo_as_published": (16, 16), "treerl": (30, 16), "treerl_as_published": (30, 16)}
"""Preset -> leaves and rows of a tree."""


def grown(preset: str, *overrides: str) -> Rollout:
    return rollout_sync(config=resolve(preset=preset, overrides=["prompts=2", "seed=1", *overrides]).config)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_grows_sound_trees_and_rows(preset: str) -> None:
    num_leaves, num_rows = PRESETS[preset]
    rollout = grown(preset)
    for tree in rollout.trees:
        rows = [row for row in rollout.rows() if row.uid == tree.problem.uid]
        assert tree.num_leaves == num_leaves
        assert len(rows) == num_rows
        assert {row.credit for row in rows} == {preset}
        assert not [*tree_faults(tree), *row_faults(tree, rows)]


@pytest.mark.slow
def test_treerl_forks_before_the_tokens_that_it_scored_and_never_inside_a_tag() -> None:
    for tree in grown("treerl").trees:
        for fork in tree.forks[1:]:
            trunk, at = _trunk(tree, fork.node), fork.position
            assert fork.score is not None
            assert not trunk.codec.decode(trunk.ids[:at]).endswith(("</", "</cal", "</answer"))
            moved = np.flatnonzero(np.isclose(-trunk.logprobs[at : at + 8], fork.score, atol=1e-6))
            assert len(moved), "the token that was scored is the first behind the fork, or one of the tag it begins"


def _trunk(tree: Tree, node: int) -> Branch:
    """The branch on through first children: what had been sampled when the fork was made."""
    while children := tree.children(node):
        node = children[0]
    return tree.branch(node)


def test_treepo_forks_inside_turns_and_its_segments_go_on_through_tool_calls() -> None:
    trees = grown("treepo", "strategy.options.segment_tokens=12").trees
    for tree in trees:
        for fork in tree.forks:
            branch = tree.branch(fork.node)
            num_sampled = int(branch.is_sampled.sum())
            assert num_sampled % 12 <= 3, "more than twelve only to finish a tag"
            assert fork.node == 0 or branch.tool_calls
    assert any(not tree.branch(fork.node).is_sampled[-1] for tree in trees for fork in tree.forks)
    assert any(tree.branch(fork.node).is_sampled[-1] for tree in trees for fork in tree.forks)


@pytest.mark.parametrize(
    ("preset", "setting"), [("treerl", "strategy.options.fork=after"), ("treepo", "strategy.options.fallback=none")]
)
def test_decided_before_the_tokens_both_are_exact(preset: str, setting: str) -> None:
    rollout = grown(preset, setting, "credit=auto")
    assert all(row.is_unbiased and row.credit == "subtree_loo" for row in rollout.rows())
    assert any(len(tree.forks) > 1 for tree in rollout.trees)


@pytest.mark.slow
@pytest.mark.parametrize(("sample", "is_said"), [("correct_first", True), ("per_tree", True), ("uniform", False)])
def test_rows_of_leaves_not_drawn_alike_say_that_they_are_not_exact(sample: str, is_said: bool) -> None:
    rollout = grown("treerl", f"rows.sample={sample}", "credit=balanced_split")
    assert all(("chosen by the rule" in " ".join(row.reasons)) == is_said for row in rollout.rows())
