"""The shipped model is the one its report speaks of, small enough, and within the gate it was held to."""

import json
from pathlib import Path
from typing import Any

import pytest
from models.report import report_markdown

from ramify.engines.builtin import FOLDER
from ramify.engines.tokenizer import TokenizerFile


@pytest.fixture
def report() -> dict[str, Any]:
    return json.loads((FOLDER / "report.json").read_text("utf-8"))


def test_the_model_and_its_tokenizer_are_small() -> None:
    assert sum(path.stat().st_size for path in Path(FOLDER).iterdir()) <= 5_000_000


@pytest.mark.parametrize("task", ["countdown", "hops"])
def test_held_out_figures_are_within_the_gate(report: dict[str, Any], task: str) -> None:
    figures = report["heldout"]["tasks"][task]["all"]
    assert 0.3 <= figures["pass@1"] <= 0.6
    assert figures["pass@16"] >= 0.85


def test_training_took_no_more_than_it_may(report: dict[str, Any]) -> None:
    assert report["training"]["cpu_minutes"] <= 90


def test_the_report_names_the_shipped_tokenizer(report: dict[str, Any]) -> None:
    assert report["tokenizer_sha256"] == TokenizerFile(FOLDER / "tokenizer.json").sha256


def test_the_page_is_that_of_the_report(report: dict[str, Any]) -> None:
    assert (FOLDER / "report.md").read_text("utf-8") == report_markdown(report)
