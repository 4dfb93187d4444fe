"""Check: tests a saved run against everything that must be true of it.

Each function yields a description of each fault; if it yields nothing, all is well. The trees come from a replay, so
whoever replays them has already checked that they can be replayed.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from ramify.core.command import EDGES
from ramify.core.ledger import Spend
from ramify.core.tree import Tree
from ramify.rows.row import Row

TOLERANCE = 1e-9


def tree_faults(tree: Tree) -> Iterator[str]:
    """Faults in ids, parents, positions, order of siblings, sampled numbers, forks and counts."""
    reached = tree.subtree()
    if sorted(reached) != list(range(len(tree))):
        yield f"{len(tree)} nodes, of which {len(set(reached))} hang on the root, {len(reached)} times"
        return
    for node in reached[1:]:
        yield from (f"node {node}: {fault}" for fault in _node_faults(tree, node))
    for node in reached:
        yield from (f"node {node}: {fault}" for fault in _children_faults(tree, node))
    for record in tree.forks:
        if not (record.is_post_hoc or record.is_shared_out):
            yield f"decision {record.decision_id}: planned shares sum to {sum(record.shares)!r}, not to 1"
    if tree.num_leaves != len(tree.leaves()):
        yield f"{tree.num_leaves} leaves are counted, {len(tree.leaves())} are there"


def ledger_faults(tree: Tree, recorded: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    """Differences between the recorded spending and what the tree's segments, calls and scores say."""
    recomputed = {role: spend.as_dict() for role, spend in tree.spent().items()}
    for role in sorted({*recorded, *recomputed}):
        was, now = recorded.get(role, {}), recomputed.get(role, Spend().as_dict())
        for name, value in now.items():
            if was.get(name, 0) != value:
                yield f"ledger of {role!r}: {name} is {was.get(name, 0)}, the tree says {value}"


def row_faults(tree: Tree, rows: Sequence[Row]) -> Iterator[str]:
    """Faults of rows: each must be a path of the tree, tokens that were not sampled must have weight 0, and sampled
    tokens must have the weight that the row policy gives them."""
    totals: dict[int, npt.NDArray[np.float64]] = {}
    holders: dict[int, int] = {}
    for row in rows:
        if not np.array_equal(row.ids, tree.branch(row.leaf_id).ids):
            yield f"the row of leaf {row.leaf}: its ids are not those of its path"
        is_sampled = row.is_sampled
        if row.weights[~is_sampled].any():
            yield f"the row of leaf {row.leaf}: tokens that nobody sampled are trained"
        for node, weights in _by_node(row.nodes[is_sampled], row.weights[is_sampled]):
            totals[node] = totals.get(node, np.zeros(len(weights))) + weights
            holders[node] = holders.get(node, 0) + 1
    for node, total in totals.items():
        wanted = holders[node] if rows[0].policy == "per_leaf" else 1
        if np.abs(total - wanted).max() > TOLERANCE:
            yield f"node {node} (canonical): its tokens weigh {total.min():g} to {total.max():g} in all, not {wanted}"


def _by_node(
    nodes: npt.NDArray[np.int32], weights: npt.NDArray[np.float64]
) -> Iterator[tuple[int, npt.NDArray[np.float64]]]:
    """Each node with the weights of its tokens, in their order."""
    order = np.argsort(nodes, kind="stable")
    found, starts = np.unique(nodes[order], return_index=True)
    yield from zip(found.tolist(), np.split(weights[order], starts[1:]), strict=False)  # no node: one empty part


def _children_faults(tree: Tree, node: int) -> Iterator[str]:
    """Each kind of children must be in the order of their requests."""
    for edge in EDGES:
        siblings = tree.children(node, edge=edge)
        indices = [tree.index(sibling) for sibling in siblings]
        if indices != sorted(indices):
            yield f"its children are out of order: {siblings}"


def _node_faults(tree: Tree, node: int) -> Iterator[str]:
    parent = tree.parent(node)
    if parent is None:
        yield "it has no parent and is not the root"
        return
    own = sum(len(segment) for segment in tree.segments(node))
    start = tree.length(parent) if tree.edge(node) == "continues" else 0
    if tree.length(node) != start + own:
        yield f"it ends at {tree.length(node)}, but its {own} tokens begin at {start}"
    for segment in tree.segments(node):
        if segment.logprobs is not None and not np.isfinite(segment.logprobs).all():
            yield "a logprob is not finite"
    if tree.stop(parent) not in (None, "closed") and tree.edge(node) == "continues":
        yield f"its parent had ended with {tree.stop(parent)!r}"
