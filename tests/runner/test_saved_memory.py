"""Reading a run holds few trees, in whatever order they were closed, and whether or not all of them were."""

import gc
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from ramify.config.configure import resolve
from ramify.core.tree import Tree
from ramify.runner import saved
from ramify.runner.folder import begin
from ramify.runner.saved import Saved
from ramify.store.records import ClosedRecord, TreeRecord
from ramify.store.store import FolderStore, load

NUM_TREES, NUM_EARLY = 40, 4
Order = list[TreeRecord]


def late_first(records: dict[int, Order]) -> Order:
    """The first tree is closed behind all others."""
    first, *others = records.values()
    return [*first[:1], *(record for tree in others for record in tree), *first[1:]]


def open_first(records: dict[int, Order]) -> Order:
    """The first tree is never closed, and neither is one in the middle."""
    halted = {0, NUM_TREES // 2}
    return [r for n, tree in records.items() for r in tree if n not in halted or not isinstance(r, ClosedRecord)]


def backwards(records: dict[int, Order]) -> Order:
    return [record for number in sorted(records, reverse=True) for record in records[number]]


def mixed(records: dict[int, Order]) -> Order:
    """Records of all trees in a random order, those of each tree in their own."""
    draws, left = Random(7), {number: list(tree) for number, tree in records.items()}
    made: Order = []
    while left:
        number = draws.choice(list(left))
        made.append(left[number].pop(0))
        if not left[number]:
            del left[number]
    return made


def rewritten(folder: Path, order: Callable[[dict[int, Order]], Order]) -> Saved:
    """A run of many small trees, its records written again in another order."""
    settings = {"engine.name": "scripted", "strategy.options": {"n": 1}, "prompts": NUM_TREES, "durability": "os"}
    begin(resolve(flags=settings).config, folder / "run")
    found, records = load(folder / "run"), dict[int, Order]()
    for record in found.records:
        assert isinstance(record, TreeRecord)
        records.setdefault(record.tree, []).append(record)
    store = FolderStore.create(folder / "other", found.header, found.config)
    for record in order(records):
        store.append(record)
    store.close()
    return Saved.open(store.path)


def num_alive() -> int:
    gc.collect()
    return sum(isinstance(each, Tree) for each in gc.get_objects())


@pytest.mark.parametrize("order", [late_first, open_first, backwards, mixed])
def test_trees_come_in_order_and_few_are_held(
    order: Callable[[dict[int, Order]], Order], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saved, "MAX_EARLY", NUM_EARLY)
    reader = rewritten(tmp_path, order)
    gc.freeze()  # what is there already is neither looked through nor counted
    whole = dict(Saved.open(tmp_path / "run").numbered_trees())
    expected = {number: [whole[number].branch(leaf).text for leaf in whole[number].leaves()] for number in whole}
    del whole
    texts: dict[int, list[str]] = {}
    most = 0
    for number, tree in reader.numbered_trees():
        texts[number] = [tree.branch(leaf).text for leaf in tree.leaves()]
        most = max(most, num_alive())
    wanted = {n: text for n, text in expected.items() if order is not open_first or n not in (0, NUM_TREES // 2)}
    assert list(texts.items()) == list(wanted.items())
    opened = NUM_TREES if order is mixed else 2
    assert most <= NUM_EARLY + opened + 2
