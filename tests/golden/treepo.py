"""Checks of the TreePO goldens: a case's input -> what the arithmetic and the credit of the library make of it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from tests.credit.trees import bare, end, fork

from ramify.core.tree import ROOT
from ramify.credit import Forest
from ramify.credit.forest import STEM
from ramify.credit.treepo import published_advantages
from ramify.rows import rows_of
from ramify.rows.batch import whitened
from ramify.strategies.parts import allotment

Input = Mapping[str, Any]


def divergence(given: Input, mode: str | None) -> dict[str, object]:
    total = allotment.total_allotment(
        given["width"] - given["finished"],
        finished_now=given["finished_now"],
        active=given["active"],
        divergence=given["div"],
    )
    return {"total": total, "per_path": allotment.even_allotment(total, given["active"], remainder="last")}


def weighted_allotment(given: Input, mode: str | None) -> list[int]:
    return allotment.weighted_allotment(given["weights"], given["total"])


def fallback_index(given: Input, mode: str | None) -> int:
    names = ("segment", "max_depth", "window")
    return allotment.fallback_index(given["output_len"], given["block"], **{name: given[name] for name in names})


def subgroup_advantage(given: Input, mode: str | None) -> dict[str, list[float] | None]:
    """A row alone has an advantage, and no batch to be whitened in."""
    forest, leaves = _forest(given["paths"], given["rewards"])
    found = published_advantages(forest, weighing=given["strategy"], drop_flat=given["drop_flat"])
    by_leaf = dict(zip(forest.leaves.tolist(), found.tolist(), strict=True))
    advantages = [by_leaf[leaf] for leaf in leaves]
    return {
        "advantage": advantages,
        "whitened": _whitened(advantages, given["token_counts"]) if len(advantages) > 1 else None,
    }


def _forest(paths: Sequence[Sequence[str]], rewards: Sequence[float]) -> tuple[Forest, list[int]]:
    """The forest of these paths, and the index of each one's leaf. The first name of a path is the prompt's."""
    prefixes = sorted({tuple(path[:n]) for path in paths for n in range(2, len(path) + 1)}, key=len)
    index = {prefix: i for i, prefix in enumerate(prefixes)}
    leaves = [index[tuple(path)] for path in paths]
    of_leaf = dict(zip(leaves, rewards, strict=True))
    forest = Forest.of_arrays(
        parent=[index.get(prefix[:-1], STEM) for prefix in prefixes],
        share=[1.0] * len(prefixes),
        reward=[of_leaf.get(i) for i in range(len(prefixes))],
    )
    return forest, leaves


def _whitened(advantages: Sequence[float], token_counts: Sequence[int]) -> list[float]:
    """In a batch of one row a leaf, each with as many tokens as the case says."""
    growth = bare()
    fork(growth, ROOT, *[[end("x" * number, 0.0)] for number in token_counts])
    rows = [
        replace(row, advantages=np.where(row.is_sampled, value, 0.0))
        for row, value in zip(rows_of(growth.tree), advantages, strict=True)
    ]
    return [float(row.advantages[row.is_sampled][0]) for row in whitened(rows)]
