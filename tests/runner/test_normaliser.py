"""One normaliser a run: rows of all its trees are on one scale, whatever each tree has become."""

from pathlib import Path

import numpy as np
import pytest

import ramify
from ramify import plugins
from ramify.core.errors import ConfigError, ExportError
from ramify.runner.folder import begin
from ramify.runner.rows import UNPLANNED
from ramify.runner.saved import Saved

UNEVEN = {"strategy.options.children": [4.0, 0.6, 2.0]}
"""A shape whose trees have 4 to 8 leaves, 6.4 in the mean."""


def grown(preset: str = "planned", **settings: object) -> ramify.Rollout:
    return ramify.rollout_sync(preset=preset, prompts=12, seed=3, engine="scripted", **settings)


def test_uneven_trees_are_divided_by_one_number() -> None:
    rollout = grown(**{name.replace(".", "__"): value for name, value in UNEVEN.items()})
    assert len({tree.num_leaves for tree in rollout.trees}) > 1
    rows = rollout.rows()
    assert {round(row.normaliser, 12) for row in rows} == {6.4}
    assert all(row.is_unbiased for row in rows)


@pytest.mark.slow
def test_a_given_normaliser_scales_advantages_and_no_coefficient() -> None:
    own, given = grown("chains").rows(), grown("chains", rows__normaliser=3.5).rows()
    assert {row.normaliser for row in own} == {8.0} and {row.normaliser for row in given} == {3.5}
    for row, other in zip(own, given, strict=True):
        np.testing.assert_allclose(other.advantages, row.advantages * 3.5 / 8, rtol=1e-15)
        np.testing.assert_allclose(other.coefficients, row.coefficients, rtol=1e-15)


@pytest.mark.slow
def test_rows_that_are_kept_are_the_planned_rows() -> None:
    assert {row.normaliser for row in grown("treerl", rows__leaves=5).rows()} == {5.0}
    assert {row.normaliser for row in grown("chains", rows__leaves=100).rows()} == {8.0}
    topped = grown("chains", strategy__options={"n": 2}, rows__min_leaves=6)
    assert {row.normaliser for row in topped.rows()} == {6.0}


@pytest.mark.slow
def test_runs_that_are_trained_together_get_one_normaliser() -> None:
    rows = [*grown("chains").rows(normaliser=10.0), *grown("treerl").rows(normaliser=10.0)]
    assert {row.normaliser for row in rows} == {10.0}
    with pytest.raises(ExportError, match=r"normaliser = -1: a finite number above 0"):
        grown("chains").rows(normaliser=-1)


@pytest.mark.parametrize("value", [0, -1.0, float("inf"), float("nan")])
def test_a_normaliser_that_is_no_divisor_is_refused(value: float) -> None:
    with pytest.raises(ConfigError, match=r"rows.normaliser = .*: it must be above 0"):
        grown("chains", rows__normaliser=value)


OWN = """
from dataclasses import dataclass
from ramify.strategies.chains import Chains, ChainsConfig


@dataclass(frozen=True)
class Config:
    n: int = 3
    repeat: str = "none"
    max_chains: int = 10


class Own(Chains):
    Config = Config
"""
SAYS = """
    @property
    def planned_leaves(self):
        return {}
"""


def own(tmp_path: Path, planned: str = "") -> str:
    file = tmp_path / f"own_{len(list(tmp_path.iterdir()))}.py"
    file.write_text(
        OWN.replace(
            "    max_chains: int = 10\n",
            f"    max_chains: int = 10\n{SAYS.format(planned)}" if planned else "    max_chains: int = 10\n",
        )
    )
    return f"{file}:Own"


def test_a_strategy_that_does_not_say_how_many_leaves_it_plans_says_so_on_its_rows(tmp_path: Path) -> None:
    rows = grown("chains", strategy=own(tmp_path)).rows()
    assert {row.normaliser for row in rows} == {3.0} and all(UNPLANNED in row.reasons for row in rows)
    given = grown("chains", strategy=own(tmp_path), rows__normaliser=3).rows()
    assert all(row.is_unbiased for row in given)
    said = grown("chains", strategy=own(tmp_path, "self.n")).rows()
    assert all(row.is_unbiased for row in said)


def test_a_plan_that_is_no_number_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"planned_leaves = 'many': a number above 0"):
        grown("chains", strategy=own(tmp_path, "'many'"))


def test_a_saved_run_has_the_same_normaliser_without_its_strategy(tmp_path: Path) -> None:
    from ramify.config.configure import resolve

    flags = {"prompts": 2, "engine.name": "scripted", "strategy.name": own(tmp_path, "self.n + 2")}
    begin(resolve(preset="chains", flags=flags).config, tmp_path / "run")
    assert {row.normaliser for row in Saved.open(tmp_path / "run").rows()} == {5.0}


@pytest.mark.parametrize("name", plugins.known("strategy"))
def test_every_strategy_says_how_many_leaves_it_plans(name: str) -> None:
    assert plugins.config_class(plugins.find("strategy", name))().planned_leaves > 0
