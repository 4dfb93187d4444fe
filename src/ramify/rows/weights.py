"""Weights: how often a token shared by several rows is trained, and in which row (`docs/concepts/rows.md`).

Export weights decide which row carries a token. They never decide how large its coefficient is; the credit does.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

Policy = Literal["once", "fraction", "per_leaf"]
"""once: 1 in the first row that holds the token, 0 in later rows (kept as context). fraction: 1 / number of rows that
hold it, in each of them. per_leaf: 1 in each row, as ARPO, Tree-GRPO, AT2PO, TreeRL and TreePO publish it."""


def row_weights(paths: Sequence[Sequence[int]], policy: Policy) -> list[dict[int, float]]:
    """For each row, given the nodes on its path: node -> weight of the tokens sampled there.

    Over all rows, the weights of a node sum to 1; under per_leaf, to the number of rows that hold it. Source of `once`:
    PrimeIntellect-ai/prime-rl orchestrator/trajectories.py; of `fraction`: arXiv 2511.00413.
    """
    counts = Counter(node for path in paths for node in path)
    seen: set[int] = set()
    rows: list[dict[int, float]] = []
    for path in paths:
        match policy:
            case "once":
                rows.append({node: float(node not in seen) for node in path})
            case "fraction":
                rows.append({node: 1 / counts[node] for node in path})
            case "per_leaf":
                rows.append(dict.fromkeys(path, 1.0))
        seen.update(path)
    return rows


def path_means(paths: Sequence[Sequence[int]], values: Sequence[float]) -> Mapping[int, float]:
    """Node -> mean of the values of the rows that hold it."""
    sums: dict[int, float] = {}
    counts = Counter(node for path in paths for node in path)
    for path, value in zip(paths, values, strict=True):
        for node in path:
            sums[node] = sums.get(node, 0.0) + value
    return {node: total / counts[node] for node, total in sums.items()}
