"""The tree rollouts of S0 on the built-in model: real tokens, a real stateful tool, nothing scripted."""

from pathlib import Path

import numpy as np
import pytest

import ramify
from ramify.config.configure import resolve
from ramify.core.tree import ROOT, Tree
from ramify.engines.builtin import Builtin
from ramify.rows.arrays import padded
from ramify.runner.folder import begin
from ramify.runner.library import Rollout, rollout_sync

OFFLINE_LEAVES = 5


def grown(preset: str, *overrides: str) -> Rollout:
    return rollout_sync(config=resolve(preset=preset, overrides=["prompts=3", "seed=1", *overrides]).config)


@pytest.fixture(scope="module")
def offline() -> Rollout:
    return grown("offline")


def sampled_text(tree: Tree, node: int) -> str:
    return tree.codec.decode(int(i) for s in tree.segments(node) if s.is_sampled for i in s.ids)


def given_text(tree: Tree, node: int) -> str:
    return tree.codec.decode(int(i) for s in tree.segments(node) if s.origin == "given" for i in s.ids)


@pytest.mark.covers("S0.1", "S0.5", engine="builtin")
def test_what_the_model_wrote_is_masked_in_and_what_the_tool_said_is_masked_out(offline: Rollout):
    for tree in offline.trees:
        for node in tree.subtree()[1:]:
            assert sampled_text(tree, node).startswith("<")
            assert given_text(tree, node) == "" or given_text(tree, node).startswith(" <result>\n")
        for leaf in tree.leaves():
            branch = tree.branch(leaf)
            told = "".join(given_text(tree, node) for node in tree.path(leaf))
            assert branch.codec.decode(branch.ids[~branch.is_sampled][branch.num_prompt :]) == told
            assert np.isfinite(branch.logprobs[branch.is_sampled]).all()
            assert np.isnan(branch.logprobs[~branch.is_sampled]).all()


@pytest.mark.covers("S0.1", engine="builtin")
def test_a_path_of_calls_says_what_its_tool_holds(offline: Rollout):
    tree = offline.trees[0]
    leaf = max(tree.leaves(), key=tree.depth)
    path = tree.path(leaf)
    assert path[0] == ROOT
    assert [tree.parent(node) for node in path[1:]] == path[:-1]
    assert len(tree.branch(leaf).tool_calls) == len(path) - 2
    assert leaf not in tree.expandable()


@pytest.mark.covers("S0.2", engine="builtin")
def test_chains_to_start_with_are_a_number_or_follow_from_entropy(offline: Rollout):
    for tree in offline.trees:
        first = tree.fork(tree.stems()[0])
        assert first is not None
        assert first.num_siblings == 3
    dynamic = grown("arpo", "strategy.options.n=6", "strategy.options.initial_rollouts=dynamic")
    for tree in dynamic.trees:
        assert 1 <= len(tree.stems()) <= 6


@pytest.mark.covers("S0.3", engine="builtin")
def test_every_path_keeps_to_what_is_left_of_its_response(offline: Rollout):
    short = grown("chains", "growth.max_response_tokens=24")
    for tree in short.trees:
        for leaf in tree.leaves():
            assert tree.length(leaf) - tree.num_prompt(leaf) <= 24
            assert tree.stop(leaf) in ("answer", "length", "end_of_sequence")
    assert "length" in short.report.stop_words
    assert all(tree.stop(leaf) == "answer" for tree in offline.trees for leaf in tree.leaves())


@pytest.mark.covers("S0.3", engine="builtin")
def test_sampling_can_be_overridden_for_an_action():
    cold = grown("chains", "actions.policy.sampling.temperature=0.0")
    for tree in cold.trees:
        assert len({tree.branch(leaf).text for leaf in tree.leaves()}) == 1


@pytest.mark.covers("S0.4", engine="builtin")
def test_a_stop_is_named_and_a_step_knows_its_entropy():
    limited = grown("arpo", "growth.max_tool_calls=1", "strategy.options.n=4")
    assert set(limited.report.stop_words) <= {"tool_limit", "answer"}
    assert limited.report.stop_words["tool_limit"] > 0
    for tree in limited.trees:
        entropies = [tree.measure(node, "step_entropy_topk") for node in tree.subtree()[1:]]
        assert all(value is not None and 0 <= value < 20 for value in entropies)


@pytest.mark.covers("S0.5", engine="builtin")
def test_calls_are_counted_for_each_tool(offline: Rollout):
    tools = offline.report.tools
    assert tools["tools/total_calls"] == tools["tools/calculator/calls"] == offline.report.tool_calls > 0
    assert tools["tools/calculator/success_rate"] > 0.5


@pytest.mark.covers("S0.6", engine="builtin")
def test_expansion_grows_new_continuations_from_nodes_of_the_tree(offline: Rollout):
    assert offline.report.leaves == 3 * OFFLINE_LEAVES
    forked = [node for tree in offline.trees for node in tree.subtree() if len(tree.children(node)) > 1]
    assert len(forked) > 3
    assert offline.report.prefill_cached > offline.report.prefill_uncached


@pytest.mark.covers("S0.7", engine="builtin")
def test_the_kept_leaves_become_padded_arrays():
    result = grown("offline", "rows.leaves=4")
    rows = result.rows()
    arrays = padded(rows, num_rows=14)
    assert arrays.is_padding.tolist() == [False] * len(rows) + [True] * (14 - len(rows))
    assert len(rows) <= 12
    assert arrays.responses.shape == arrays.response_mask.shape
    for row, ids, mask in zip(rows, arrays.responses, arrays.response_mask, strict=False):
        response = row.ids[row.num_prompt :]
        assert ids[: len(response)].tolist() == response.tolist()
        assert mask.sum() == row.is_sampled.sum()


@pytest.mark.covers("S0.8", engine="builtin")
def test_online_trees_fork_behind_tool_results_and_keep_to_their_paths():
    result = grown("arpo", "strategy.options.n=6", "strategy.options.initial_rollouts=2")
    forks = 0
    for tree in result.trees:
        assert len(tree.leaves()) == 6
        for record in tree.forks:
            if record.node != ROOT and record.num_siblings > 1:
                forks += 1
                assert record.probability is not None
                assert not record.is_post_hoc
                assert given_text(tree, record.node)
    assert forks


@pytest.mark.covers("S0.9", engine="builtin")
def test_the_log_says_phases_rounds_and_active_branches(tmp_path: Path):
    begin(resolve(preset="offline", overrides=["prompts=2"]).config, tmp_path / "run")
    log = (tmp_path / "run" / "log.jsonl").read_text()
    for phase in ('"initial chains","round":0', '"expansion","round":2', '"collection"', '"active_branches"'):
        assert phase in log


@pytest.mark.covers("S0.10", engine="builtin")
def test_a_rule_of_the_user_chooses_what_is_expanded(tmp_path: Path):
    path = tmp_path / "rule.py"
    path.write_text("def deepest(tree, candidates, k, rng):\n    return sorted(candidates, key=tree.depth)[-k:]\n")
    result = grown("offline", f"strategy.options.choose={path}:deepest")
    for tree in result.trees:
        assert len(tree.stems()) == 3
        assert len(tree.leaves()) == OFFLINE_LEAVES


def test_the_same_seed_gives_the_same_tokens_alone_and_in_company():
    together = grown("offline").trees
    apart = grown("offline", "max_trees=1").trees
    assert [[t.branch(leaf).ids.tolist() for leaf in t.leaves()] for t in together] == [
        [t.branch(leaf).ids.tolist() for leaf in t.leaves()] for t in apart
    ]


async def test_an_engine_that_is_handed_in_answers_plain_questions():
    result = await ramify.rollout(["make 12 from 3 4 5"], engine=Builtin(), strategy__options__n=2)
    assert result.report.leaves == 2
    assert result.report.stop_words == {"answer": 2}
