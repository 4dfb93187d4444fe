"""`ramify train` without TRL says how to get it, before anything is grown."""

import importlib.util
from pathlib import Path

import pytest

from ramify.cli.main import main


@pytest.mark.skipif(importlib.util.find_spec("trl") is not None, reason="TRL is installed: see tests/trainers")
def test_without_trl(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--task", "herds", "--out", str(tmp_path / "out")]) == 2
    assert "pip install 'ramify[train]'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
