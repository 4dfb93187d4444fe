"""`ramify export` for trainers: every format by name, its options, exactly n rows a tree."""

import inspect
import json
from collections import Counter
from pathlib import Path

import pytest
from safetensors.numpy import load_file
from tests.cli.commands import SCRIPTED, ramify

from ramify import plugins

FILES = {"arrays": "rows.npz", "search_r1": "rows.safetensors", "verl": "rows.npz"}
"""Format -> the file it writes, where that is no `rows.jsonl`."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from ramify.cli.main import main

    path = tmp_path_factory.mktemp("runs") / "run"
    assert main(["rollout", *SCRIPTED, "--preset", "offline", "--prompts", "3", "--out", str(path), "-q"]) == 0
    return path


def takes_rows(name: str) -> bool:
    return next(iter(inspect.signature(plugins.find("export", name)).parameters)) == "rows"


@pytest.mark.parametrize("name", [name for name in plugins.known("export") if takes_rows(name)])
def test_every_format_writes_all_rows(name: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = FILES.get(name, "rows.jsonl")
    said = ramify(capsys, "export", run, "--to", name, "--out", tmp_path / file, "--json")
    assert (said.code, said.json["rows"]) == (0, 15)
    assert (tmp_path / file).exists()


def test_n_rows_of_every_tree_for_trainers_that_count_them(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = ramify(capsys, "export", run, "--to", "slime", "--out", tmp_path / "s.jsonl", "--per-tree", 4)
    assert said.code == 0
    lines = [json.loads(line) for line in (tmp_path / "s.jsonl").read_text("utf-8").splitlines()]
    assert Counter(line["group_index"] for line in lines) == {0: 4, 1: 4, 2: 4}
    said = ramify(capsys, "export", run, "--to", "slime", "--out", tmp_path / "t.jsonl", "--per-tree", 6)
    assert said.code == 2
    assert "5 leaves that may be trained, 6 rows are wanted; set rows.min_leaves = 6" in said.err
    assert not (tmp_path / "t.jsonl").exists()


def test_what_is_left_out_and_why_rows_are_not_exact_is_said(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = ramify(capsys, "export", run, "--to", "jsonl", "--out", tmp_path / "all.jsonl", "--json")
    lengths = sorted(len(json.loads(line)["ids"]) for line in (tmp_path / "all.jsonl").read_text("utf-8").splitlines())
    limit = lengths[len(lengths) // 2]
    kept = sum(length <= limit for length in lengths)
    assert all(number == 15 for number in said.json["reasons"].values())
    out = ("--to", "jsonl", "--out", tmp_path / "some.jsonl", "--max-tokens", limit)
    said = ramify(capsys, "export", run, *out)
    assert f"{kept} rows in" in said.out
    assert f"left out: more than rows.max_tokens = {limit} tokens" in said.err
    said = ramify(capsys, "export", run, "--to", "jsonl", "--out", tmp_path / "none.jsonl", "--max-tokens", 1)
    assert "0 rows in" in said.out
    assert "warning: 3 of 3 finished trees make no row" in said.err


def test_min_leaves_tops_trees_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--strategy", "chains", "--set", "strategy.options.n=2", "--set", "rows.min_leaves=4", "--prompts", 2)
    assert ramify(capsys, "rollout", *SCRIPTED, *options, "--out", tmp_path / "run").code == 0
    ramify(capsys, "export", tmp_path / "run", "--to", "jsonl", "--out", tmp_path / "r.jsonl", "--per-tree", 4)
    lines = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text("utf-8").splitlines()]
    assert len(lines) == 8
    assert not any(line["is_unbiased"] for line in lines)
    assert ramify(capsys, "check", tmp_path / "run").code == 0


def test_a_format_takes_its_options(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "rows.safetensors"
    assert ramify(capsys, "export", run, "--to", "search_r1", "--out", target, "--set", "pad_id=7").code == 0
    assert load_file(target)["responses"].max() > 7
    assert (load_file(target)["responses_with_info_mask"] == 7).any()


@pytest.mark.parametrize(("leaves", "number"), [("kept", 15), ("best", 3), ("written", 0)])
def test_leaves_become_supervised_examples(
    leaves: str, number: int, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "sft.jsonl"
    said = ramify(capsys, "export", run, "--to", "sft", "--out", target, "--set", f"leaves={leaves}")
    assert (said.code, len(target.read_bytes().splitlines())) == (0, number)


def test_supervised_examples_are_of_the_leaves_that_the_run_keeps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--preset", "offline", "--prompts", 3, "--set", "rows.leaves=2", "--out", tmp_path / "run")
    assert ramify(capsys, "rollout", *SCRIPTED, *options).code == 0
    kept: list[list[tuple[str, int]]] = []
    for name in ("jsonl", "sft"):
        assert ramify(capsys, "export", tmp_path / "run", "--to", name, "--out", tmp_path / name).code == 0
        lines = [json.loads(line) for line in (tmp_path / name).read_text("utf-8").splitlines()]
        kept.append(sorted((line["uid"], line["leaf"]) for line in lines))
    assert kept[0] == kept[1]
    assert len(kept[0]) == 6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("slime", "--set", "rolouts=tree"), "unknown key 'rolouts'; did you mean 'rollouts'?"),
        (("slime", "--set", "rollouts=trees"), "rollouts = 'trees'"),
        (("verl", "--set", "pad_id=many"), "pad_id = 'many'"),
        (("verl", "--set", "pad_id"), "--set pad_id"),
        (("verl", "--per-tree", "0"), "--per-tree 0"),
        (("sft", "--per-tree", "2"), "made of trees, not of rows"),
        (("sft", "--normaliser", "2"), "--normaliser 2: 'sft' is made of trees, not of rows"),
        (("verl", "--normaliser", "0"), "--normaliser 0: a finite number above 0 is needed"),
        (("sft", "--max-tokens", "2"), "--max-tokens 2: 'sft' is made of trees, not of rows"),
        (("verl", "--max-tokens", "0"), "--max-tokens 0: at least 1 is needed"),
    ],
)
def test_a_wrong_option_is_said_before_the_run_is_read(
    arguments: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = ramify(capsys, "export", tmp_path / "none", "--to", *arguments, "--out", tmp_path / "rows.npz")
    assert said.code == 2
    assert message in said.err


@pytest.mark.covers("S1.1")
def test_the_older_layout_of_two_numbers_is_read_said_and_stored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--set", "strategy.options.n_agent=3", "--set", "strategy.options.n=2", "--prompts", 1)
    said = ramify(capsys, "rollout", *SCRIPTED, *options, "--out", tmp_path / "run")
    reading = "n_agent x n = 3 x 2: one group of 6"
    assert reading in said.err
    assert f'reading = "{reading}"' in (tmp_path / "run" / "config.toml").read_text("utf-8")
    assert "6 rows" in ramify(capsys, "export", tmp_path / "run", "--to", "jsonl", "--out", tmp_path / "r.jsonl").out
    said = ramify(capsys, "rollout", *SCRIPTED, "--set", "strategy.options.n_agent=0", "--out", tmp_path / "other")
    assert said.code == 2
    assert "n_agent = 0" in said.err


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return len(rows)", "raised: line 2: TypeError: object of type 'generator' has no len()"),
        ("path.touch()", "returned None; it must return the number of rows it wrote"),
    ],
)
def test_a_broken_exporter_is_named_with_its_line(
    body: str, message: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text(f"def write(rows, path):\n    {body}\n", "utf-8")
    said = ramify(capsys, "export", run, "--to", tmp_path / "mine.py:write", "--out", tmp_path / "r.txt")
    assert said.code == 2
    assert f"mine.py:write' {message}" in said.err
