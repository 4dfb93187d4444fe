"""Checks of the TreeRL goldens: a case's input -> what the strategy and the credit of the library make of it."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tests.strategies.token_world import TokenWorld
from tests.strategies.world import ListDraws, journey

from ramify.core.tree import ROOT
from ramify.credit import Forest
from ramify.credit.forest import STEM
from ramify.credit.treerl import leaf_means, leave_one_out, process_rewards, published_rewards, published_values
from ramify.strategies.parts.surprise import fork_positions
from ramify.strategies.treerl import TreeRL, TreeRLConfig, TreeRLPublished

Input = Mapping[str, Any]


def _forest(nodes: Sequence[Input], selected: Sequence[int] | None = None) -> tuple[list[Input], Forest]:
    """The nodes below the root, parents first, and their forest."""
    parents = {node["id"]: node["parent"] for node in nodes}
    (root,) = (node for node, parent in parents.items() if parent is None)

    def depth(node: int) -> int:
        return 0 if node == root else 1 + depth(parents[node])

    below = sorted((node for node in nodes if node["id"] != root), key=lambda node: depth(node["id"]))
    index = {node["id"]: i for i, node in enumerate(below)} | {root: STEM}
    forest = Forest(
        parent=np.array([index[node["parent"]] for node in below], np.int32),
        share=np.ones(len(below)),
        reward=np.array([node.get("reward", np.nan) for node in below], np.float64),
        num_tokens=np.ones(len(below), np.int32),
        nodes=np.array([node["id"] for node in below], np.int32),
        selected=None if selected is None else np.array([node["id"] in selected for node in below]),
    )
    return below, forest


def process_reward_paper(given: Input, mode: str | None) -> dict[str, dict[str, float]]:
    _, forest = _forest(given["nodes"])
    root = {str(node["id"]): float(forest.rewards.mean()) for node in given["nodes"] if node["parent"] is None}
    return {"value": _by_id(forest, leaf_means(forest)) | root, "reward": _by_id(forest, process_rewards(forest))}


def process_reward_as_published(given: Input, mode: str | None) -> dict[str, Any]:
    below, forest = _forest(given["nodes"], given["selected_leaves"])
    values, overall = published_values(forest)
    root = {str(node["id"]): overall for node in given["nodes"] if node["parent"] is None}
    rewards, parents = _by_id(forest, published_rewards(forest)), {n["id"]: n["parent"] for n in below}

    def path(node: int) -> list[int]:
        return [*path(parents[node]), node] if node in parents else []

    return {
        "leave_one_out": {
            str(node): value
            for node, value in zip(forest.nodes[forest.leaves].tolist(), leave_one_out(forest).tolist(), strict=True)
        },
        "v": _by_id(forest, values) | root,
        "path_rewards": {str(leaf): [rewards[str(n)] for n in path(leaf)] for leaf in given["selected_leaves"]},
    }


def _by_id(forest: Forest, values: Any) -> dict[str, float]:
    return {str(node): value for node, value in zip(forest.nodes.tolist(), values.tolist(), strict=True)}


def positions(given: Input, mode: str | None) -> list[list[int]]:
    """Of the published rule, whose order of ties and repeats the cases show."""
    surprisals = [
        np.where(node["masked"], np.nan, -np.array(node["logprobs"], np.float64)) for node in given["tree_nodes"]
    ]
    found = fork_positions(surprisals, given["n"], shortage="repeat", ties="later")
    return [list(pair) for pair in found]


def tree_sizes(given: Input, mode: str | None) -> dict[str, int]:
    """Counted on a tree that the strategy grew."""
    config = TreeRLConfig(
        stems=given["m"],
        forks=given["n"],
        rounds=given["l"],
        continuations=given["t"],
        published=TreeRLPublished(shortage="repeat"),
    )
    tree = journey(TreeRL(config, ListDraws()), TokenWorld()).tree
    initial = sum(fork.num_siblings for fork in tree.forks if fork.rule == "initial")
    assert sum(tree.fork(stem) is tree.forks[0] for stem in tree.children(ROOT)) == initial
    return {"leaves": tree.num_leaves, "continuations": tree.num_leaves - initial}
