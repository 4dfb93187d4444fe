"""Checks of the goldens of segment trees: SPO-tree, TreeRPO and DeepSearch."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ramify.core.backup import backed_up, backup_weight, terminal_choice
from ramify.credit.forest import STEM, Forest
from ramify.credit.segments import child_values
from ramify.credit.spo import advantages as spo_advantages
from ramify.credit.spo import is_kept
from ramify.credit.treerpo import advantages as treerpo_advantages
from ramify.strategies.parts.frontier import FrontierWeights, frontier_score
from ramify.strategies.parts.ucb import uct
from ramify.strategies.segments import full_size

Input = Mapping[str, Any]


def spo_edges(given: Input, mode: str | None) -> dict[str, object]:
    grown = forest(given)
    kept = is_kept(grown, given["method"]) if given["drop_zero"] else np.ones(len(grown), bool)
    return {
        "value": values(grown),
        "advantage": by_id(grown, spo_advantages(grown, given["method"])),
        "kept": sorted(grown.nodes[kept].tolist()),
    }


def spo_sizes(given: Input, mode: str | None) -> dict[str, int]:
    leaves, edges = full_size(given["branch_factors"])
    return {"leaves": leaves, "edges": edges}


def treerpo_siblings(given: Input, mode: str | None) -> dict[str, object]:
    grown = forest(given)
    return {"value": values(grown), "advantage": by_id(grown, treerpo_advantages(grown, given["denominator"]))}


def forest(given: Input) -> Forest:
    """The case's nodes without its root, parents first."""
    root, *nodes = breadth_first(given["nodes"])
    index = {root["id"]: STEM, **{node["id"]: i for i, node in enumerate(nodes)}}
    num_children = {parent: sum(n["parent"] == parent for n in nodes) for parent in index}
    return Forest(
        parent=np.array([index[node["parent"]] for node in nodes], np.int32),
        share=np.array([1 / num_children[node["parent"]] for node in nodes]),
        reward=np.array([node.get("reward", np.nan) for node in nodes], np.float64),
        num_tokens=np.ones(len(nodes), np.int32),
        nodes=np.array([node["id"] for node in nodes], np.int32),
    )


def breadth_first(nodes: list[Input]) -> list[Input]:
    found = [node for node in nodes if node["parent"] is None]
    for above in found:
        found.extend(node for node in nodes if node["parent"] == above["id"])
    return found


def values(grown: Forest) -> dict[str, float]:
    """Of every node, and of the root, whose id the cases have as 0."""
    found = child_values(grown)
    return {**by_id(grown, found), "0": float(found[grown.stems].mean())}


def by_id(grown: Forest, numbers: Any) -> dict[str, float]:
    return {str(node): float(x) for node, x in zip(grown.nodes, numbers, strict=True)}


def backup(given: Input, mode: str | None) -> dict[str, object]:
    """Visits of one segment; a visit of value 0 has no path and brings nothing."""
    stored, visits = [0.0], given["visits"]
    for visit in visits:
        length = visit["traj_len"] or 1
        weight = backup_weight(given["depth"], length, floor=given["floor"])
        stored.append(backed_up(stored[-1], visit["value"], weight))
    return {"stored": stored[1:], "visit_count": len(visits), "q": stored[-1] / len(visits)}


def uct_score(given: Input, mode: str | None) -> float:
    q = given["value"] / given["visits"] if given["visits"] else 0.0
    return uct(q, given["visits"], given["parent_visits"], exploration=given["lambda"])


def frontier(given: Input, mode: str | None) -> float:
    parent_quality, surprisal, depth, own_quality = given["lambdas"]
    return frontier_score(
        FrontierWeights(
            parent_quality=parent_quality,
            own_quality=own_quality,
            surprisal=surprisal if given["use_surprisal"] else 0.0,
            depth=depth,
            depth_bonus=given["depth_bonus"],
        ),
        parent_q=given["q_parent"],
        q=given["q"],
        surprisal=given["mean_surprisal"],
        depth=given["depth"],
        max_depth=given["max_depth"],
    )


def choice(given: Input, mode: str | None) -> int:
    finished = given["finished"]
    return terminal_choice([path["value"] for path in finished], [path["mean_surprisal"] for path in finished])
