"""`ramify compare` and `ramify plan` on an endpoint of messages: tokens are those that it bills, and nothing else."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.cli.commands import Said, ramify
from tests.engines.endpoint import Endpoint, Reply, said

FEW = ["--problems", "6", "--seeds", "1"]
LONG = "I add the two numbers, and say what they come to.\n<answer> 3 </answer>"
"""Far more bytes than the tokens that are billed for it."""


def on(endpoint: Endpoint, tmp_path: Path, gold: str = "answer") -> list[str]:
    rows = [{"question": f"what is {i} and 1?", gold: "3"} for i in range(8)]
    file = tmp_path / "questions.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    settings = ["engine.name=openai", "engine.model=m", f"engine.base_url={endpoint.url}", f"data.path={file}"]
    return [word for setting in settings for word in ("--set", setting)]


def compared(capsys: pytest.CaptureFixture[str], endpoint: Endpoint, tmp_path: Path, *flags: str) -> Said:
    return ramify(capsys, "compare", *FEW, "--task", "data", *on(endpoint, tmp_path), *flags)


def test_chains_cost_as_many_chains_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Eight chains are eight chains, whatever an engine's tokens are called."""

    def model(body: Mapping[str, Any]) -> Mapping[str, Any]:
        return said(LONG, usage=(7, 12))

    with Endpoint(model) as endpoint:
        told = compared(capsys, endpoint, tmp_path, "--presets", "chains", "--json").json
    (chains,) = told["presets"]
    assert (told["tokens_a_chain"], chains["tokens"]) == (12, 12 * chains["leaves"])
    assert chains["less_chains"]["solved"]["mean"] == 0.0


def test_an_endpoint_that_counts_nothing_is_said_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Endpoint(lambda body: said(LONG, usage=None)) as endpoint:
        found = compared(capsys, endpoint, tmp_path, "--presets", "chains")
    assert "the engine does not count all tokens" in found.out


def test_all_contenders_are_checked_before_the_first_tree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`arpo` reads logprobs, which this endpoint does not give: two questions find out, and no tree is grown."""
    with Endpoint(lambda body: said(LONG, usage=(7, 12))) as endpoint:
        found = compared(capsys, endpoint, tmp_path, "--presets", "chains,arpo")
        assert len(endpoint.requests) <= 2
    assert found.code == 2 and "logprobs" in found.err


def test_a_contender_that_nothing_judges_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Endpoint(lambda body: said(LONG, usage=(7, 12))) as endpoint:
        given = on(endpoint, tmp_path, gold="note")
        found = ramify(capsys, "compare", *FEW, "--task", "data", *given, "--presets", "chains")
        assert not endpoint.requests
    assert found.code == 2 and "no judge rates its leaves" in found.err


def test_requests_that_fail_count_against_the_contender(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Half of the answers are refused; the trees that are left are compared, and the faults are told."""

    def model(body: Mapping[str, Any]) -> Any:
        asked = str(body["messages"])
        return Reply(b"overheated", status=400) if "is 1 and" in asked or "is 3 and" in asked else said(LONG)

    with Endpoint(model) as endpoint:
        found = compared(capsys, endpoint, tmp_path, "--presets", "chains", "--set", "max_failed_share=1.0")
    assert found.code == 0 and "overheated" in found.err
    assert "2 of 6 problems are left out" in found.out
