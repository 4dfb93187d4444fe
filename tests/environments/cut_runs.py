"""Saved runs whose journals are cut, and resumed."""

import shutil
from collections.abc import Iterable
from pathlib import Path

from ramify.core.tree import Tree
from ramify.runner.folder import resume
from ramify.runner.saved import Saved


def resumed_at_cuts(run: Path, tenths: Iterable[int]) -> list[Tree]:
    """The first tree of `run`, resumed from copies whose journal is cut to so many tenths. Each must say what the
    uncut one does."""
    whole, trees = Saved.open(run).tree(0), list[Tree]()
    assert whole is not None
    for tenth in tenths:
        copy = run.with_name(f"cut-{tenth}")
        shutil.copytree(run, copy)
        journal = max((copy / "journal").iterdir(), key=lambda path: path.stat().st_size)
        data = journal.read_bytes()
        journal.write_bytes(data[: len(data) * tenth // 10])
        resume(copy, is_trusted=True)
        tree = Saved.open(copy).tree(0)
        assert tree is not None
        then, now = ([each.branch(leaf).text for leaf in each.leaves()] for each in (whole, tree))
        assert now == then
        trees.append(tree)
    return trees
