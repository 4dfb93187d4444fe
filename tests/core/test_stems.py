"""Stems belong to trees: their own, or the one that their decision names."""

from tests.credit.trees import bare, end, failed, fork

from ramify.core.stems import joining, tree_number
from ramify.core.tree import ROOT


def test_a_stem_is_a_tree_of_its_own_unless_its_rule_joins_another() -> None:
    growth = bare()
    first = fork(growth, ROOT, [end("a", 1.0)], [failed()], [end("b", 0.0)])
    joined = fork(growth, ROOT, [end("c", 1.0)], rule=joining("tree_grpo", 1))
    own = fork(growth, ROOT, [end("d", 1.0)], rule="rules/mine.py:choose")
    assert [tree_number(growth.tree, stem) for stem in (*first, *joined, *own)] == [0, 1, 2, 1, 4]
