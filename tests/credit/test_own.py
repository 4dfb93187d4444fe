"""A user's own credit in a run: its numbers are the rows', no row calls it exact, and a fault of it is named."""

import os
from pathlib import Path

import numpy as np
import pytest

import ramify
from ramify.core.errors import ConfigError, ContractError
from ramify.plugins import NotLoaded
from ramify.runner.saved import Saved

FILE = """
import numpy as np

def doubled(forest):
    return 2 * forest.weight * (forest.value - forest.mean)

def raises(forest):
    raise KeyError("advantage")

def infinite(forest):
    return np.full(len(forest), np.inf)

number = 3
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(FILE, "utf-8")
    return path


def grown(credit: str, preset: str = "planned") -> ramify.Rollout:
    return ramify.rollout_sync(preset=preset, prompts=2, engine="scripted", credit=credit)


@pytest.mark.parametrize("preset", ["planned", "tree_grpo"])
def test_rows_say_that_it_is_not_certified(preset: str, file: Path) -> None:
    rows = grown(f"{file}:doubled", preset).rows()
    assert {row.credit for row in rows} == {f"{file}:doubled"}
    assert all(row.reasons[-1] == f"credit {file}:doubled is not certified" for row in rows)
    assert not any(row.is_unbiased for row in rows)


def test_its_coefficients_are_those_of_the_rows(file: Path) -> None:
    """It is twice `split_mean`."""
    own, built_in = grown(f"{file}:doubled").rows(), grown("split_mean").rows()
    for row, other in zip(own, built_in, strict=True):
        np.testing.assert_allclose(row.coefficients, 2 * other.coefficients, rtol=1e-12)


def test_a_fault_of_it_is_named(file: Path) -> None:
    with pytest.raises(ContractError, match=r"mine.py:raises' raised KeyError: 'advantage' \(.*mine.py, line 8\)"):
        grown(f"{file}:raises").rows()
    with pytest.raises(
        ContractError, match=r"mine.py:infinite' gave inf to node 0 of \d+; coefficients must be finite"
    ):
        grown(f"{file}:infinite").rows()


def test_what_cannot_be_a_credit_is_a_fault_of_the_configuration(file: Path) -> None:
    with pytest.raises(ConfigError, match=r"credit: .*mine.py has no 'doubling'; did you mean 'doubled'"):
        grown(f"{file}:doubling")
    with pytest.raises(ConfigError, match=r"unknown credit 'subtree'; did you mean .*Or name a file"):
        grown("subtree")
    with pytest.raises(ConfigError, match=r"mine.py:number"):
        grown(f"{file}:number").rows()


def test_a_saved_run_finds_it_from_another_folder_and_only_if_trusted(file: Path, tmp_path: Path) -> None:
    from ramify.cli.main import main

    here = Path.cwd()
    try:
        os.chdir(tmp_path)
        arguments = ["--preset", "planned", "--engine", "scripted", "--prompts", "2", "--out", "run", "-q"]
        assert main(["rollout", *arguments, "--set", "credit=mine.py:doubled"]) == 0
    finally:
        os.chdir(here)
    rows = list(Saved.trusted(tmp_path / "run").rows())
    assert {row.credit for row in rows} == {f"{file}:doubled"}
    with pytest.raises(NotLoaded, match="--trust loads it"):
        list(Saved.open(tmp_path / "run").rows())
