"""What a run's engines failed is asked for again, when the run has stopped for them."""

from pathlib import Path
from typing import Any

import pytest

from ramify.cli.check import checked_run
from ramify.config.configure import resolve
from ramify.config.run_config import RunConfig
from ramify.core.errors import RamifyError
from ramify.rows.jsonl import lines
from ramify.runner import folder
from ramify.runner.saved import Saved
from ramify.runner.scheduler import TooManyFailures
from ramify.store import rewind
from ramify.store.rewind import finish_rewind
from ramify.store.store import stream
from ramify.store.take_back import take_back_failures

ENGINE = """
import os
from pathlib import Path
from ramify.core.errors import EngineError
from ramify.testing.scripted import Scripted

WELL = Path(__file__).with_name("well")


class Ill(Scripted):
    def __init__(self, period: int, first: int = 0) -> None:
        super().__init__()
        self.period, self.first = period, first

    async def generate(self, request):
        is_hit = request.seed % self.period == 0 and self.num_calls >= self.first
        if not WELL.exists() and is_hit:
            self.num_calls += 1
            raise EngineError("http_404", "no such page")
        return await super().generate(request)
"""


def config(folder: Path, preset: str, *, period: int = 3, **flags: Any) -> RunConfig:
    (folder / "ill.py").write_text(ENGINE)
    settings = {
        "engine.name": f"{folder / 'ill.py'}:Ill",
        "engine.options": {"period": period, "first": 30},
        "prompts": 12,
        "max_trees": 4,
        "seed": 3,
        "growth.max_response_tokens": 120,
        **flags,
    }
    return resolve(preset=preset, flags=settings).config


def rows(path: Path) -> bytes:
    return b"".join(lines(Saved.open(path).rows()))


def stopped(settings: RunConfig, path: Path) -> RamifyError:
    with pytest.raises(TooManyFailures) as caught:
        folder.begin(settings, path)
    return caught.value


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["chains", "offline", "arpo", "treepo", "treerl", "tree_grpo"])
def test_a_run_that_stopped_for_its_engines_comes_to_the_rows_of_an_undisturbed_one(
    tmp_path: Path, preset: str
) -> None:
    settings = config(tmp_path, preset)
    fault = stopped(settings, tmp_path / "cut")
    assert "a resume asks again for the" in str(fault)
    assert checked_run(tmp_path / "cut").breaches == []
    (tmp_path / "well").touch()
    report = folder.resume(tmp_path / "cut")
    folder.begin(settings, tmp_path / "whole")
    assert (report.trees, report.failed_leaves) == (12, 0)
    assert rows(tmp_path / "cut") == rows(tmp_path / "whole") != b""
    assert checked_run(tmp_path / "cut").breaches == []


@pytest.mark.slow
def test_a_run_whose_engines_stay_ill_stops_again_and_loses_nothing(tmp_path: Path) -> None:
    settings = config(tmp_path, "chains")
    stopped(settings, tmp_path / "cut")
    for _ in range(2):
        with pytest.raises(TooManyFailures):
            folder.resume(tmp_path / "cut")
    (tmp_path / "well").touch()
    assert folder.resume(tmp_path / "cut").failed_leaves == 0
    folder.begin(settings, tmp_path / "whole")
    assert rows(tmp_path / "cut") == rows(tmp_path / "whole")


def test_steps_that_were_not_failed_are_not_generated_again(tmp_path: Path) -> None:
    stopped(config(tmp_path, "chains"), tmp_path / "cut")
    taken, kept = (list(stream_of(tmp_path / "cut", name)) for name in ("journal.before-1", "journal"))
    failed = [record for record in taken if b'"engine_error"' in record]
    assert failed
    grown = [record for record in taken if b'"record":"grown"' in record and record not in failed]
    assert [b'"record":"grown"' in record for record in kept].count(True) == len(grown)


def stream_of(path: Path, name: str) -> list[bytes]:
    return [line for file in sorted((path / name).glob("*.jsonl")) for line in file.read_bytes().splitlines()]


def test_a_run_that_ended_by_itself_keeps_its_failures(tmp_path: Path) -> None:
    settings = config(tmp_path, "chains", period=7, max_failed_share=1.0)
    report = folder.begin(settings, tmp_path / "run")
    assert report.failed_leaves > 0
    assert folder.resume(tmp_path / "run").failed_leaves == report.failed_leaves
    assert not (tmp_path / "run" / "journal.before-1").exists()


def test_nothing_to_take_back_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "well").touch()
    folder.begin(config(tmp_path, "chains"), tmp_path / "run")
    before = stream_of(tmp_path / "run", "journal")
    assert take_back_failures(tmp_path / "run") == 0
    assert stream_of(tmp_path / "run", "journal") == before


@pytest.mark.slow
def test_a_kill_between_the_two_renames_is_finished_by_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped(config(tmp_path, "chains"), tmp_path / "cut")
    records = list(stream(tmp_path / "cut"))
    (tmp_path / "cut" / "journal").rename(tmp_path / "cut" / rewind.CUT)
    (tmp_path / "well").touch()
    finish_rewind(tmp_path / "cut")
    assert list(stream(tmp_path / "cut")) == records
    assert folder.resume(tmp_path / "cut").trees == 12
