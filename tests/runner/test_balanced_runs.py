"""Post-hoc forks of the built-in model: exact by name with balanced shares, refused without, published by `auto`."""

from pathlib import Path

import pytest

from ramify.config.configure import resolve
from ramify.config.run_config import RunConfig
from ramify.core.errors import ContractError
from ramify.runner.folder import begin
from ramify.runner.library import Rollout, rollout_sync
from ramify.runner.saved import Saved
from ramify.store.check import row_faults

PRESETS = {
    "tree_grpo": ("credit=balanced_split_tree_loo",),
    "treerl": ("credit=balanced_split", "strategy.options.stems=1"),
}


def config(preset: str, *overrides: str) -> RunConfig:
    return resolve(preset=preset, overrides=["prompts=4", "seed=1", *overrides]).config


def grown(preset: str, *overrides: str) -> Rollout:
    return rollout_sync(config=config(preset, *overrides))


@pytest.mark.slow
@pytest.mark.parametrize("preset", PRESETS)
def test_one_round_is_exact_and_a_saved_run_gives_the_same_rows(preset: str, tmp_path: Path) -> None:
    rollout = grown(preset, *PRESETS[preset])
    begin(config(preset, *PRESETS[preset]), tmp_path / "run")
    rows = rollout.rows()
    assert rows
    assert all(row.is_unbiased for row in rows)
    for tree in rollout.trees:
        assert any(fork.is_post_hoc for fork in tree.forks)
        assert not list(row_faults(tree, [row for row in rows if row.uid == tree.problem.uid]))
    saved = list(Saved.open(tmp_path / "run").rows())
    assert [row.coefficients.tolist() for row in saved] == [row.coefficients.tolist() for row in rows]


def test_two_rounds_are_refused() -> None:
    with pytest.raises(ContractError, match="balanced shares are known for"):
        grown("tree_grpo", *PRESETS["tree_grpo"], "strategy.options.num_rounds=2").rows()


@pytest.mark.slow
@pytest.mark.parametrize("preset", PRESETS)
def test_auto_takes_a_published_credit_and_an_exact_one_by_name_is_refused(preset: str) -> None:
    assert {(row.credit, row.is_unbiased) for row in grown(preset, "credit=auto").rows()} == {("leaf_grpo", False)}
    with pytest.raises(ContractError, match="predictable forks only"):
        grown(preset, "credit=subtree_loo").rows()
