"""Groups go by the problem's own id, whatever the order of rows; two trees in one group are refused."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.credit.trees import nested, wild
from tests.rows.batches import SEEDS, batch_of

from ramify.core.errors import ExportError
from ramify.rows import Row, padded, rows_of
from ramify.rows.groups import group_keys, numbered
from ramify.rows.search_r1 import batch as search_r1_batch
from ramify.rows.slime import samples
from ramify.rows.verl import batch as verl_batch


@pytest.mark.slow
@pytest.mark.covers("S1.4")
@given(SEEDS, st.randoms())
def test_groups_go_by_uid_in_any_order(seeds: list[int], random) -> None:
    rows = batch_of(seeds)
    random.shuffle(rows)
    keys = group_keys(rows)
    assert keys == [row.uid for row in rows]
    assert padded(rows).uids.tolist() == keys
    assert search_r1_batch(rows).columns["uid"] == keys
    assert verl_batch(rows).non_tensors["uid"] == keys
    assert [sample.group_index for sample in samples(rows)] == numbered(keys)


def test_groups_are_numbered_as_they_come() -> None:
    assert numbered(["b", "a", "b", "c"]) == [0, 1, 0, 2]


BATCHES: tuple[Callable[[list[Row]], object], ...] = (group_keys, padded, search_r1_batch, verl_batch, samples)


@pytest.mark.covers("S1.4")
@pytest.mark.parametrize("make", BATCHES)
def test_two_trees_of_one_uid_are_refused_and_named(make: Callable[[list[Row]], object]) -> None:
    with pytest.raises(ExportError, match="two trees of uid 'p'"):
        make([*rows_of(nested()), *rows_of(wild(3))])
    with pytest.raises(ExportError, match="two trees of uid 'p'"):
        make([*rows_of(nested()), *rows_of(nested())])


def test_epochs_are_groups_of_their_own_when_asked() -> None:
    one = rows_of(nested())
    other = [replace(row, tree_seed=8) for row in one]
    with pytest.raises(ExportError, match="two trees"):
        group_keys([*one, *other])
    assert numbered(group_keys([*one, *other], by="tree")) == [0] * 5 + [1] * 5
    with pytest.raises(ExportError, match="two trees"):
        group_keys([*one, *one], by="tree")


def test_copies_of_a_leaf_as_published_are_one_tree() -> None:
    tree = nested()
    leaf = tree.leaves()[0]
    copies = rows_of(tree, credit="leaf_grpo", kept=[leaf, leaf], policy="per_leaf")
    assert group_keys(copies) == ["p", "p"]
    with pytest.raises(ExportError, match="two trees"):
        group_keys([copies[0], replace(copies[1], ids=np.append(copies[1].ids, np.int32(1)))])
