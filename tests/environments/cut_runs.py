"""Saved runs whose journals are cut, and resumed."""

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from ramify.core.tree import Tree
from ramify.runner.folder import resume
from ramify.runner.saved import Saved


def resumed_at_cuts(run: Path, cuts: Iterable[int]) -> list[Tree]:
    """The first tree of `run`, resumed from copies whose journal has so many bytes. Each must say, hold and bill what
    the uncut one does."""
    whole, trees = Saved.open(run).tree(0), list[Tree]()
    assert whole is not None
    for cut in cuts:
        copy = run.with_name(f"cut-{cut}")
        shutil.copytree(run, copy)
        journal = _journal(copy)
        journal.write_bytes(journal.read_bytes()[:cut])
        resume(copy, is_trusted=True)
        tree = Saved.open(copy).tree(0)
        assert tree is not None
        then, now = ([each.branch(leaf).text for leaf in each.leaves()] for each in (whole, tree))
        assert now == then
        assert len(tree) == len(whole) and _bill(tree) == _bill(whole), f"cut at byte {cut}"
        trees.append(tree)
    return trees


def tenths(run: Path, numbers: Iterable[int]) -> list[int]:
    """Bytes of so many tenths of the journal of `run`."""
    num_bytes = _journal(run).stat().st_size
    return [num_bytes * number // 10 for number in numbers]


def record_ends(run: Path) -> Iterator[int]:
    """Bytes up to the end of each record of the journal of `run`: of its header first."""
    end = 0
    for line in _journal(run).read_bytes().splitlines(keepends=True):
        end += len(line)
        yield end


def _bill(tree: Tree) -> dict[str, dict[str, int]]:
    """What each role was billed. A resumed run's caches are cold, so what was prefilled is one number."""
    bills = {role: spend.as_dict() for role, spend in tree.spent().items()}
    for bill in bills.values():
        bill["prefill"] = bill.pop("prefill_cached", 0) + bill.pop("prefill_uncached", 0)
    return bills


def _journal(run: Path) -> Path:
    return max((run / "journal").iterdir(), key=lambda path: path.stat().st_size)
