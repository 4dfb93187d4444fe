"""The shipped model of herds is the one its report speaks of, and within the gate it was held to."""

import json
from typing import Any

import pytest
from models.report import herds_markdown

from ramify.engines.shipped import MODELS
from ramify.engines.tokenizer import TokenizerFile

FOLDER = MODELS["herds"]


@pytest.fixture
def report() -> dict[str, Any]:
    return json.loads((FOLDER / "report.json").read_text("utf-8"))


def test_the_model_is_small() -> None:
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= 3_000_000


def test_its_tokenizer_and_network_are_those_of_the_built_in_model() -> None:
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "config.json"):
        assert (FOLDER / name).read_bytes() == (MODELS["builtin"] / name).read_bytes()


def test_held_out_figures_are_within_the_gate(report: dict[str, Any]) -> None:
    figures = report["heldout"]["tasks"]["herds"]["all"]
    assert 0.3 <= figures["pass@1"] <= 0.6
    assert figures["pass@16"] >= 0.85


def test_training_took_no_more_than_it_may(report: dict[str, Any]) -> None:
    assert report["training"]["cpu_minutes"] <= 20


def test_the_report_names_the_shipped_tokenizer(report: dict[str, Any]) -> None:
    assert report["tokenizer_sha256"] == TokenizerFile(FOLDER / "tokenizer.json").sha256


def test_the_page_is_that_of_the_report(report: dict[str, Any]) -> None:
    assert (FOLDER / "report.md").read_text("utf-8") == herds_markdown(report)
