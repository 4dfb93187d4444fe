"""Checks of the row goldens: a case's input -> what the library's rows of such a tree are."""

from collections.abc import Mapping, Sequence
from typing import Any

from tests.strategies.world import CODEC

from ramify.core.command import Grow, Score
from ramify.core.growth import Done, Growth
from ramify.core.problem import Problem
from ramify.core.segment import Segment, ToolCall, token_array
from ramify.core.tree import Step, Tree
from ramify.rows import Row, rows_of
from ramify.rows.weights import path_means
from ramify.strategies.parts import sample

Input = Mapping[str, Any]


def too_few_leaves(given: Input, mode: str | None) -> list[int | None]:
    return sample.too_few_leaves(given["leaves"], given["n"], given["rule"])


def training_rows(given: Input, mode: str | None) -> dict[str, Any]:
    """Rows of a tree of the case's shape; a leaf that becomes no row, or no further one, is padding."""
    tree = _tree_of(given["nodes"])
    wanted, policy = given["rows"], given["policy"]
    rows = rows_of(tree, credit="leaf_mean", policy=policy, kept=[leaf for leaf in wanted if leaf is not None])
    found = _placed(wanted, rows)
    totals = _totals(tree, rows)
    expected: dict[str, Any] = {
        "rows": [_row(tree, leaf, row) for leaf, row in zip(wanted, found, strict=True)],
        "total_weight_per_sampled_token": {str(node): weight for node, weight in totals.items()},
        "distinct_sampled_tokens": sum(tree.num_sampled(node) for node in totals),
        "weighted_tokens": sum(weight * tree.num_sampled(node) for node, weight in totals.items()),
    }
    if given["advantages"] is not None:
        leaves = [row.leaf_id for row in rows]
        paths = [[node for node in tree.path(leaf) if tree.num_sampled(node)] for leaf in leaves]
        means = path_means(paths, [given["advantages"][str(leaf)] for leaf in leaves])
        expected["trunk_advantage_mean"] = {str(node): value for node, value in means.items()}
    return expected


def _tree_of(nodes: Sequence[Input]) -> Tree:
    """Nodes with the ids, parents and token counts of the case."""
    growth = Growth(Tree(Problem("p", "q"), CODEC, [Segment("prompt", token_array([1]))], seed=1))
    parents = {node["parent"] for node in nodes}
    for node in nodes[1:]:
        command = growth.ask(Grow(node["parent"]))
        segments = [Segment("sampled", token_array([2] * node["num_sampled"]))]
        if node["num_observed"]:
            segments.append(Segment("given", token_array([3] * node["num_observed"]), tool_call=ToolCall("t", "")))
        is_leaf = node["id"] not in parents
        scores = (Score("j", float(node["id"])),) if is_leaf else ()
        growth.grow(command, Step(tuple(segments), stop="answer" if is_leaf else None, scores=scores))
        growth.end(command, Done())
    return growth.tree


def _placed(wanted: Sequence[int | None], rows: Sequence[Row]) -> list[Row | None]:
    """Rows in the places of the leaves they were asked for."""
    left = list(rows)
    return [left.pop(0) if left and left[0].leaf_id == leaf else None for leaf in wanted]


def _row(tree: Tree, leaf: int | None, row: Row | None) -> dict[str, Any]:
    if row is None:
        return {"leaf": leaf, "is_padding": True, "node_weights": {}, "trained_tokens": 0}
    weights = dict.fromkeys(map(str, tree.path(row.leaf_id)), 0.0)
    weights |= {str(node): weight for node, weight in _weights(tree, row).items()}
    return {
        "leaf": leaf,
        "is_padding": False,
        "node_weights": weights,
        "trained_tokens": int((row.weights > 0).sum()),
    }


def _weights(tree: Tree, row: Row) -> dict[int, float]:
    """Node -> weight of its sampled tokens in a row, all of them the same."""
    order = tree.subtree()
    found: dict[int, float] = {}
    for number, weight, is_sampled in zip(row.nodes, row.weights, row.is_sampled, strict=True):
        if is_sampled:
            assert found.setdefault(order[number], float(weight)) == weight
        else:
            assert weight == 0
    return found


def _totals(tree: Tree, rows: Sequence[Row]) -> dict[int, float]:
    """Node -> total weight of its tokens over all rows."""
    totals: dict[int, float] = {}
    for row in rows:
        for node, weight in _weights(tree, row).items():
            totals[node] = totals.get(node, 0.0) + weight
    return totals
