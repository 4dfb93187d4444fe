"""Samples of trees: the samples that a finished tree gives a trainer, and how the samples of a batch are numbered."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from ramify.core.errors import ExportError
from ramify.core.tree import Tree
from ramify.rows.row import Row
from ramify.rows.sample import Sample
from ramify.rows.slime import samples, was_ended_by_coin
from ramify.runner.rows import tree_rows
from ramify.runner.run import Run

STALE = "tokens of weights too far behind are not trained"


def group_samples(index: int, tree: Tree, run: Run, *, floor: int) -> list[Sample]:
    """One sample per row of the tree with the number `index`, not numbered yet. Raises `ExportError` if the tree has no
    row.

    Under `on_stale = "mask"`, tokens of weights older than version `floor` are not trained.
    """
    config, service = run.prepared.config, run.prepared.config.service
    assert service is not None
    rows = tree_rows(tree, config, run.prepared.traits, per_tree=service.rows_per_group)
    if not rows:
        raise ExportError(f"tree {tree.problem.uid!r} has no leaf that was judged and may be trained")
    if service.on_stale == "mask":
        rows = [without_stale(row, floor) for row in rows]
    made = samples(rows, reward_key=service.reward_key, codec=tree.codec)
    for sample in made:
        sample.group_index = index
    return made


def without_stale(row: Row, floor: int) -> Row:
    """The row with weight 0 on tokens of versions older than `floor`."""
    is_stale = (row.versions >= 0) & (row.versions < floor) & (row.weights > 0)
    if not is_stale.any():
        return row
    return replace(row, weights=np.where(is_stale, 0.0, row.weights), reasons=(*row.reasons, STALE))


def numbered(groups: Iterable[Sequence[Sample]], first: int) -> None:
    """Number the samples of a batch from `first` on, each as a rollout of its own. Mutates them."""
    for number, sample in enumerate((sample for group in groups for sample in group), first):
        sample.index = sample.rollout_id = number


def rewards_differ(group: Sequence[Sample], reward_key: str | None) -> bool:
    """Whether the group's rewards differ, so that it has a training signal. Paths that ended by random termination (the
    coin) have no reward and are left out."""
    return len({sample.reward_value(reward_key) for sample in group if not was_ended_by_coin(sample)}) > 1
