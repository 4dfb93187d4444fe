"""Groups: which rows of a batch belong together. Groups go by the problem's own id, never by position (requirement
S1.4).

A trainer compares the rewards of one group, so two trees in one group would be compared as if they were one. If two
trees cannot be told apart, an `ExportError` names the uid.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from ramify.core.errors import ExportError
from ramify.rows.row import Row

GroupBy = Literal["uid", "tree"]
"""uid: one group per problem. tree: one group per tree, for batches that hold a problem in several epochs, each with
its own seed."""


def group_keys(rows: Sequence[Row], *, by: GroupBy = "uid") -> list[str]:
    """The key of the group of each row: `uid`, or `uid/seed of the tree`.

    Raises `ExportError` if one group would hold rows of two trees.
    """
    trees: dict[str, Row] = {}
    leaves: dict[tuple[str, int], Row] = {}
    keys = [row.uid if by == "uid" else f"{row.uid}/{row.tree_seed}" for row in rows]
    for key, row in zip(keys, rows, strict=True):
        first, same_leaf = trees.setdefault(key, row), leaves.get((key, row.leaf))
        if _of_tree(first) != _of_tree(row) or not (same_leaf is None or _may_be_copy(same_leaf, row)):
            raise ExportError(
                f"two trees of uid {row.uid!r} in one batch would be one group; give each a uid of its own, export "
                "them apart, or, if they grew from different seeds, group by tree"
            )
        leaves[key, row.leaf] = row
    return keys


def numbered(keys: Sequence[str]) -> list[int]:
    """The number of each key, from 0, in the order in which the keys first appear."""
    numbers: dict[str, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]


def _of_tree(row: Row) -> tuple[object, ...]:
    """What all rows of one tree have in common."""
    return row.tree_seed, row.split, row.codec_sha256, row.credit, row.policy, row.normaliser


def _may_be_copy(first: Row, row: Row) -> bool:
    """Whether a second row of a leaf is its copy as published: under `per_leaf`, a leaf that is named twice has two
    rows."""
    return row.policy == "per_leaf" and first.leaf_id == row.leaf_id and np.array_equal(first.ids, row.ids)
