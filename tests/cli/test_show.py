"""`ramify show`: totals first, then the trees that were asked for."""

from pathlib import Path

import pytest
from tests.cli.commands import SCRIPTED, Said, ramify

NUM_TREES = 15


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from ramify.cli.main import main

    out = tmp_path_factory.mktemp("show") / "run"
    flags = ["--preset", "offline", "--task", "countdown", "--prompts", str(NUM_TREES), "--seed", "1", "-q"]
    assert main(["rollout", *SCRIPTED, *flags, "--out", str(out)]) == 0
    return out


def numbers(said: Said) -> list[int]:
    """The first column of the table."""
    lines = said.out.splitlines()
    (head,) = (number for number, line in enumerate(lines) if line.split()[:2] == ["tree", "question"])
    return [int(line.split()[0]) for line in lines[head + 1 :]]


def test_the_totals_come_first_and_all_fits_on_a_screen(run: Path, capsys: pytest.CaptureFixture[str]):
    said = ramify(capsys, "show", run)
    lines = said.out.splitlines()
    assert lines[0].startswith(f"{run}: preset offline, strategy offline, task countdown, engine scripted")
    assert lines[1].startswith("15 trees, 75 leaves, ")
    assert lines[4].startswith("reward: mean ")
    assert numbers(said) == list(range(12))
    assert len(lines) + len(said.err.splitlines()) <= 24
    assert said.err == "only the first 12 trees are shown; --limit shows more\n"
    assert numbers(ramify(capsys, "show", run, "--limit", 14)) == list(range(14))


def test_trees_are_filtered_and_sorted(run: Path, capsys: pytest.CaptureFixture[str]):
    every = ramify(capsys, "show", run, "--json").json["trees"]
    most = sorted(tree["tokens"] for tree in every)[-5]
    few = [tree["tree"] for tree in every if tree["tokens"] >= most and "calc" in tree["tool"]]
    said = ramify(capsys, "show", run, "--where", f'tokens >= {most} and tool == "calc"')
    assert numbers(said) == few
    assert said.err == f"{len(few)} of 15 trees match\n"
    by_tokens = sorted(every, key=lambda tree: tree["tokens"])
    assert ramify(capsys, "show", run, "--sort", "tokens", "--json").json["trees"] == by_tokens
    largest = ramify(capsys, "show", run, "--sort", "-tokens", "--json", "--limit", 1).json
    assert largest["trees"][0]["tokens"] == by_tokens[-1]["tokens"]
    assert (largest["matched"], len(largest["trees"])) == (15, 1)
    assert "question" in ramify(capsys, "show", run, "--sort", "-question").out


def test_a_column_that_is_named_is_shown(run: Path, capsys: pytest.CaptureFixture[str]):
    head = next(line for line in ramify(capsys, "show", run).out.splitlines() if line.startswith("tree "))
    assert "depth" not in head.split()
    said = ramify(capsys, "show", run, "--where", "depth > 0", "--sort", "-forks")
    head = next(line for line in said.out.splitlines() if line.startswith("tree "))
    assert head.split()[-2:] == ["depth", "forks"]


def test_json_has_the_totals_and_every_tree(run: Path, capsys: pytest.CaptureFixture[str]):
    told = ramify(capsys, "show", run, "--json").json
    assert (told["schema"], told["run"], told["gaps"], told["matched"]) == ("ramify.show/1", str(run), [], 15)
    assert told["summary"]["leaves"] == sum(tree["leaves"] for tree in told["trees"]) == 75
    assert told["summary"]["decode_tokens"] == sum(tree["tokens"] for tree in told["trees"])
    tree = ramify(capsys, "show", run, 3, "--json").json
    assert (tree["schema"], tree["tree"]) == ("ramify.tree/1", 3)
    assert len(tree["nodes"]) == told["trees"][3]["nodes"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--where", "rewards<1"], "there is no column 'rewards'; did you mean 'reward'"),
        (["--where", "reward<"], "--where 'reward<': invalid syntax"),
        (["--where", "exit()"], "'exit()' is no comparison"),
        (["--sort", "size"], "columns: tree, question, nodes"),
        (["--sort", "-size"], "there is no column 'size'"),
        (["3", "--where", "reward<1"], "--where: it is about the table of all trees"),
        (["3", "--svg", "a.svg", "--json"], "a picture is no JSON"),
    ],
)
def test_what_cannot_be_shown_ends_with_2(flags: list[str], words: str, run: Path, capsys: pytest.CaptureFixture[str]):
    said = ramify(capsys, "show", run, *flags)
    assert said.code == 2
    assert words in said.err
