import sys
from dataclasses import replace
from types import FrameType
from typing import Any

import numpy as np
import pytest
from tests.credit.trees import bare, end, fork, step

from ramify.config.configure import resolve
from ramify.config.run_config import RunConfig
from ramify.core.tree import ROOT, Tree
from ramify.rows.row import Row, rows_of
from ramify.runner.library import rollout_sync
from ramify.runner.rows import tree_rows
from ramify.runner.run_strategy import StrategyTraits
from ramify.store.check import ledger_faults, row_faults, tree_faults

SETTINGS = ["engine.name=scripted", "prompts=1", "seed=3"]


def config(*overrides: str) -> RunConfig:
    return resolve(preset="offline", overrides=[*SETTINGS, *overrides]).config


def rows_by(tree: Tree, *overrides: str) -> list[Row]:
    return tree_rows(tree, config(*overrides), StrategyTraits())


@pytest.fixture(scope="module")
def tree() -> Tree:
    (grown,) = rollout_sync(config=config()).trees
    return grown


@pytest.mark.parametrize("policy", ["once", "fraction", "per_leaf"])
def test_a_grown_tree_its_ledger_and_its_rows_hold(tree: Tree, policy: str):
    recorded = {role: spend.as_dict() for role, spend in tree.spent().items()}
    assert not list(tree_faults(tree))
    assert not list(ledger_faults(tree, recorded))
    assert not list(row_faults(tree, rows_by(tree, f"rows.policy={policy}")))


def test_checking_a_row_takes_as_many_steps_for_each_of_its_nodes():
    def steps(num: int) -> int:
        """Lines run by the library while the row of one path of `num` turns is checked."""
        growth = bare()
        fork(growth, ROOT, [*[step("ab")] * num, end("c", 1.0)])
        rows, count = rows_of(growth.tree), 0

        def trace(frame: FrameType, event: str, _: object) -> Any:
            nonlocal count
            count += event == "line"
            return trace

        was = sys.gettrace()
        sys.settrace(trace)
        try:
            assert not list(row_faults(growth.tree, rows))
        finally:
            sys.settrace(was)
        return count

    assert steps(400) / steps(100) < 5


def test_a_tree_whose_paths_coins_end_holds():
    coins = ("growth.prune=task", "growth.keep=0.4", "strategy.options.children=[6.0, 0.5, 2.0]", "prompts=6")
    for tree in rollout_sync(config=resolve(preset="planned", overrides=[*SETTINGS, *coins]).config).trees:
        assert not list(tree_faults(tree))
        assert not list(row_faults(tree, tree_rows(tree, config(), StrategyTraits())))


def test_rows_can_be_fewer_than_leaves(tree: Tree):
    rows = rows_by(tree, "rows.leaves=2")
    assert len(rows) == 2
    assert not list(row_faults(tree, rows))


def test_a_ledger_of_another_role_is_found(tree: Tree):
    assert list(ledger_faults(tree, {"policy": {}}))
    recorded = {role: spend.as_dict() for role, spend in tree.spent().items()}
    faults = list(ledger_faults(tree, {**recorded, "critique": {"decode": 3}}))
    assert faults == ["ledger of 'critique': decode is 3, the tree says 0"]


def changed(rows: list[Row], **fields: object) -> list[Row]:
    return [replace(rows[0], **fields), *rows[1:]]


def test_a_token_trained_twice_is_found(tree: Tree):
    rows = rows_by(tree)
    faults = list(row_faults(tree, changed(rows, weights=rows[0].weights * 2)))
    assert faults
    assert all("its tokens weigh 2 to 2 in all, not 1" in fault for fault in faults)


def test_a_token_nobody_sampled_that_is_trained_is_found(tree: Tree):
    rows = rows_by(tree)
    weights = np.where(rows[0].is_sampled, rows[0].weights, 1.0)
    assert any("nobody sampled are trained" in f for f in row_faults(tree, changed(rows, weights=weights)))


def test_ids_that_are_not_the_paths_are_found(tree: Tree):
    rows = rows_by(tree)
    assert any("not those of its path" in f for f in row_faults(tree, changed(rows, ids=rows[0].ids + 1)))
