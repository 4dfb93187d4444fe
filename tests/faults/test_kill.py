"""A run killed at any record goes on to the bytes of the uninterrupted run."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.faults.dying import died

from ramify.config.configure import resolve
from ramify.config.run_config import RunConfig, StrategyConfig
from ramify.rows.jsonl import write
from ramify.runner.folder import begin, resume
from ramify.runner.saved import Saved

PRESETS = ("chains", "offline", "arpo")
STRIDES = pytest.mark.parametrize(
    "stride", [pytest.param(7, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.endurance)]
)
"""How far apart the places are. Every single one is for before a release."""


def config(preset: str, **flags: Any) -> RunConfig:
    """About 200 records of the scripted random agent, with tools, prunes and a budget that binds."""
    return resolve(
        preset=preset,
        flags={
            "prompts": 6,
            "seed": 3,
            "engine.name": "scripted",
            "growth.max_response_tokens": 160,
            "growth.prune": "task",
            "limits.decode": 700,
            **flags,
        },
    ).config


def exported(path: Path) -> bytes:
    out = path.with_suffix(".jsonl")
    write(Saved.open(path).rows(), out, force=True)
    return out.read_bytes()


def killed(config: RunConfig, path: Path, *, after: int) -> bool:
    """Begin a run in a child process that kills itself after so many records; whether it was killed."""
    return died(lambda: begin(config, path), after=after)


def journal(path: Path) -> Path:
    return path / "journal" / "000000.jsonl"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    shutil.rmtree(tmp_path, ignore_errors=True)


@pytest.fixture(scope="module")
def rows_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], bytes]:
    """The rows of a preset's run that nobody killed."""

    @cache
    def grown(preset: str) -> bytes:
        begin(config(preset), path := tmp_path_factory.mktemp("whole") / preset)
        return exported(path)

    return grown


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("after", [1, 2, 7, 40, 80])
def test_a_killed_run_resumes_to_the_same_bytes(
    folder: Path, preset: str, after: int, rows_of: Callable[[str], bytes]
) -> None:
    assert killed(config(preset), folder / "killed", after=after)
    assert journal(folder / "killed").read_bytes().count(b"\n") == after
    resume(folder / "killed")
    assert exported(folder / "killed") == rows_of(preset)


@pytest.mark.parametrize("preset", ["chains", "planned"])
@pytest.mark.parametrize("after", [2, 40, 80])
def test_coins_fall_the_same_way_in_a_run_that_is_resumed(folder: Path, preset: str, after: int) -> None:
    wanted = config(preset, **{"growth.keep": 0.5})
    if preset == "planned":
        wanted = replace(wanted, strategy=StrategyConfig(name="planned", options={"children": [6, 0.5, 1.5]}))
    begin(wanted, folder / "whole")
    assert killed(wanted, folder / "killed", after=after)
    resume(folder / "killed")
    assert exported(folder / "killed") == exported(folder / "whole")
    rows = list(Saved.open(folder / "whole").rows())
    assert any(row.stop == "roulette" for row in rows)
    assert all(row.is_unbiased for row in rows if "budget" not in " ".join(row.reasons))


@STRIDES
@pytest.mark.parametrize(("preset", "prompts"), [("chains", 12), ("offline", 14), ("arpo", 6)])
def test_every_record_of_a_run_of_200_is_a_safe_place_to_die(
    folder: Path, preset: str, prompts: int, stride: int
) -> None:
    wanted = config(preset, prompts=prompts)
    begin(wanted, folder / "whole")
    expected, number = exported(folder / "whole"), 1
    while killed(wanted, folder / "killed", after=number):
        resume(folder / "killed")
        assert exported(folder / "killed") == expected, f"killed after {number} records"
        shutil.rmtree(folder / "killed")
        number += stride
    assert number >= 200


@STRIDES
def test_a_cut_at_every_byte_of_the_last_two_records_is_resumed(folder: Path, stride: int) -> None:
    begin(config("offline"), folder / "whole")
    expected = exported(folder / "whole")
    assert killed(config("offline"), folder / "killed", after=60)
    data = journal(folder / "killed").read_bytes()
    last_two = data.rstrip(b"\n").rsplit(b"\n", 2)
    for length in range(len(last_two[0]) + 1, len(data), stride):
        again = folder / "again"
        shutil.copytree(folder / "killed", again)
        journal(again).write_bytes(data[:length])
        resume(again)
        assert exported(again) == expected, f"cut at byte {length}"
        shutil.rmtree(again)


def test_acknowledged_work_is_not_generated_again(folder: Path) -> None:
    assert killed(config("chains"), folder / "killed", after=60)
    saved = journal(folder / "killed").read_bytes()
    report = resume(folder / "killed")
    assert journal(folder / "killed").read_bytes().startswith(saved)
    steps = saved.count(b'"record":"grown"')
    again = journal(folder / "killed").read_bytes().count(b'"record":"grown"') - steps
    assert report.turns <= steps + again
    assert steps > 20
