"""Checks of the goldens of Tree-GRPO and AT2PO: their strategies run in a world, their credits on the cases' trees."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from tests.golden.credits import Nodes, forest
from tests.strategies.world import bare_tree, journey, sampled_step

from ramify.core.command import Fork, Grow
from ramify.core.growth import Done, Growth
from ramify.core.stems import joining, tree_number
from ramify.core.tree import ROOT, Tree
from ramify.credit import Forest
from ramify.credit import tree_grpo as tree_z_scores
from ramify.credit.at2po import turn_advantages, turn_values
from ramify.credit.forest import STEM
from ramify.credit.grown import MEAN_SURPRISAL
from ramify.credit.tree_grpo import tree_advantages
from ramify.strategies.at2po import AS_PUBLISHED as AT2PO_AS_PUBLISHED
from ramify.strategies.at2po import AT2PO
from ramify.strategies.parts.resample import highest, scores
from ramify.strategies.parts.sample import per_tree
from ramify.strategies.tree_grpo import TreeGRPO, TreeGRPOConfig, expansion_candidates

Input = Mapping[str, Any]


def tree_of(nodes: Sequence[Input]) -> Tree:
    """A tree whose nodes have the ids, parents and ends of the case; all stems are of tree 0."""
    growth = Growth(bare_tree())
    for node in nodes[1:]:
        rule = joining("test", 0) if node["parent"] == ROOT else "test"
        command = growth.ask(Grow(node["parent"], until="step", fork=Fork(1, rule)))
        growth.grow(command, sampled_step(1, entropy=0.0, stop="answer" if node["is_leaf"] else None))
        growth.end(command, Done())
    return growth.tree


# -- Tree-GRPO -----------------------------------------------------------------------------------------------------


def tree_grpo(nodes: Nodes, mode: str | None) -> list[float]:
    """The goldens divide by the population's standard deviation."""
    return tree_z_scores(forest(nodes), deviation="population").tolist()


def tree_grpo_advantage(given: Input, mode: str | None) -> dict[str, list[float]]:
    """The rows of each prompt apart: groups are keyed by the prompt, never by position."""
    rewards, prompts = np.array(given["rewards"]), np.array(given["prompt"])
    trees = np.unique(given["tree"], return_inverse=True)[1]
    inter, intra = np.zeros(len(rewards)), np.zeros(len(rewards))
    for prompt in np.unique(prompts):
        rows = prompts == prompt
        inter[rows], intra[rows] = tree_advantages(rewards[rows], trees[rows], mode=mode)  # type: ignore[arg-type]
    return {"inter": inter.tolist(), "intra": intra.tolist(), "advantage": (inter + intra).tolist()}


def tree_grpo_sizes(given: Input, mode: str | None) -> dict[str, object]:
    m, n, rounds, k = (given[name] for name in "mnlk")
    strategy = TreeGRPO(TreeGRPOConfig(m, n, rounds), np.random.default_rng(1))
    tree = journey(strategy).tree
    leaves = tree.leaves()
    of_trees = [tree_number(tree, tree.path(leaf)[1]) for leaf in leaves]
    (leaves_per_tree,) = {of_trees.count(number) for number in range(m)}
    rows = per_tree(tree, leaves, m * k, np.random.default_rng(1))
    ok = None not in rows
    return {
        "leaves_per_tree": leaves_per_tree,
        "leaves_per_prompt": tree.num_leaves,
        "rows": len(rows) if ok else None,
        "ok": ok,
    }


def candidates(given: Input, mode: str | None) -> list[int]:
    return expansion_candidates(tree_of(given["nodes"]), 1)[0]


# -- AT2PO ---------------------------------------------------------------------------------------------------------


def at2po_scores(given: Input) -> dict[int, float]:
    tree = tree_of(given["nodes"])
    surprisal = {node["id"]: node["entropy"] for node in given["nodes"]}
    return scores(tree, tree.expandable(), surprisal=lambda tree, node: surprisal[node])


def node_scores(given: Input, mode: str | None) -> list[list[float]]:
    return [[node, score] for node, score in at2po_scores(given).items()]


def select(given: Input, mode: str | None) -> list[int]:
    return highest(at2po_scores(given), given["k"], "repeat" if mode == "as_published" else "once")


def turn_credit(given: Input, mode: str | None) -> dict[str, dict[str, float]]:
    """The case's root is the bare prompt: its advantage is its value."""
    _, *nodes = given["nodes"]
    index = {0: STEM, **{node["id"]: i for i, node in enumerate(nodes)}}
    bare = Forest.of_arrays(
        parent=[index[node["parent"]] for node in nodes],
        share=[1.0 for _ in nodes],
        reward=[node.get("reward") for node in nodes],
    )
    grown = replace(bare, measures={MEAN_SURPRISAL: np.array([node["entropy"] for node in nodes])})
    values, root = turn_values(grown, value=given["value_mode"], normalise=given["normalise"])
    advantages = turn_advantages(
        grown, value=given["value_mode"], advantage=given["advantage_mode"], normalise=given["normalise"]
    )
    return {
        "value": {"0": root, **{str(node["id"]): values[index[node["id"]]] for node in nodes}},
        "advantage": {"0": root, **{str(node["id"]): advantages[index[node["id"]]] for node in nodes}},
    }


def tree_sizes(given: Input, mode: str | None) -> int:
    config = replace(
        AT2PO_AS_PUBLISHED,
        initial_rollouts=given["initial"],
        expansion_nodes=given["beam"],
        expansion_iterations=given["iterations"],
    )
    return journey(AT2PO(config, np.random.default_rng(1))).tree.num_leaves
