"""Files: what a run and its exports may write, and what is said when a file is not what it was."""

import json
import shutil
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from random import Random
from threading import Barrier
from types import FrameType
from typing import Any

import numpy as np
import pytest
from tests.cli.commands import SCRIPTED, ramify

from ramify.cli.main import main
from ramify.cli.progress import RunProgress
from ramify.cli.rollout import new_folder
from ramify.core.codec import ByteCodec
from ramify.core.command import Edge
from ramify.core.problem import Problem
from ramify.core.segment import Segment, token_array
from ramify.core.tree import NONE, ROOT, Place, Step, Tree
from ramify.runner.events import Event, TreeClosed
from ramify.store.check import tree_faults

pytestmark = pytest.mark.hostile


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three trees, of problems in a file of the user's."""
    folder = tmp_path_factory.mktemp("runs")
    questions = [{"question": f"What is {i} + {i}?", "answer": str(2 * i)} for i in range(3)]
    (folder / "q.jsonl").write_text("".join(json.dumps(each) + "\n" for each in questions), "utf-8")
    options = ("--data", str(folder / "q.jsonl"), "--preset", "offline", "--prompts", "3", "-q")
    assert main(["rollout", *SCRIPTED, *options, "--out", str(folder / "run")]) == 0
    return folder / "run"


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four trees with rows."""
    path = tmp_path_factory.mktemp("runs") / "run"
    assert main(["rollout", *SCRIPTED, "--preset", "offline", "--prompts", "4", "--out", str(path), "-q"]) == 0
    return path


@pytest.mark.parametrize("force", [(), ("--force",)])
@pytest.mark.parametrize("name", ["q.npz", "q.jsonl"])
def test_an_export_never_replaces_the_data_of_its_run(
    name: str, force: tuple[str, ...], run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An export never replaces the data file of its run, not even as the file of columns beside its own."""
    data = run.parent / "q.jsonl"
    before = data.read_bytes()
    form = "search_r1" if name.endswith("npz") else "jsonl"
    said = ramify(capsys, "export", run, "--to", form, "--out", run.parent / name, *force)
    assert said.code == 2
    assert f"{data} " in said.err
    assert "belongs to the data of this run" in said.err
    assert data.read_bytes() == before
    assert not (run.parent / "q.npz").exists()


@pytest.mark.parametrize("force", [(), ("--force",)])
@pytest.mark.parametrize(("form", "name"), [("jsonl", "mine.jsonl"), ("verl", "mine.npz"), ("arrays", "mine.jsonl")])
def test_an_export_replaces_nothing_that_it_did_not_make(
    form: str, name: str, force: tuple[str, ...], run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that no export made is never replaced, with or without `--force`."""
    (tmp_path / "mine.jsonl").write_text("mine", "utf-8")
    said = ramify(capsys, "export", run, "--to", form, "--out", tmp_path / name, *force)
    assert said.code == 2
    assert "mine.jsonl" in said.err and "nothing was written" in said.err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.jsonl"]
    assert (tmp_path / "mine.jsonl").read_text("utf-8") == "mine"


def test_force_replaces_what_an_export_made(judged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--force` replaces the files of an earlier export, and one of them that was edited since is kept."""
    export = ("export", judged, "--to", "search_r1", "--out", tmp_path / "r.npz")
    assert ramify(capsys, *export).code == 0
    said = ramify(capsys, *export)
    assert (said.code, "add --force if an earlier export made it" in said.err) == (2, True)
    assert ramify(capsys, *export, "--set", "pad_id=7", "--force").code == 0
    assert (np.load(tmp_path / "r.npz")["responses"] == 7).any()
    (tmp_path / "r.jsonl").write_text("my notes", "utf-8")
    said = ramify(capsys, *export, "--force")
    assert (said.code, "was changed since" in said.err) == (2, True)
    assert (tmp_path / "r.jsonl").read_text("utf-8") == "my notes"
    assert (np.load(tmp_path / "r.npz")["responses"] == 7).any()


def test_an_export_of_ones_own_hands_force_on(judged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A plug-in that calls a built-in exporter replaces what an export made under `--force`, and nothing else."""
    call = "    return jsonl.write(rows, path{0})\n"
    for name, taken, given in (("forced", ", *, force: bool = False", ", force=force"), ("plain", "", "")):
        plugin = f"from ramify.rows import jsonl\n\n\ndef write(rows, path{taken}):\n{call.format(given)}"
        (tmp_path / f"{name}.py").write_text(plugin, "utf-8")
        export = ("export", judged, "--to", f"{tmp_path / name}.py:write", "--out", tmp_path / f"{name}.jsonl")
        assert ramify(capsys, *export).code == 0
        assert ramify(capsys, *export).code == 2
        assert ramify(capsys, *export, "--force").code == (0 if taken else 2)
        (tmp_path / f"{name}.jsonl").write_text("mine", "utf-8")
        assert ramify(capsys, *export, "--force").code == 2
        assert (tmp_path / f"{name}.jsonl").read_text("utf-8") == "mine"
    said = ramify(capsys, *export, "--set", "force=true")
    assert said.code == 2 and "--force" in said.err


@pytest.mark.parametrize("inside", ["journal/rows.jsonl", "journal/000000.jsonl", "config.toml", "log.jsonl"])
def test_an_export_writes_no_file_of_a_run(
    inside: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No export writes into the journal of a run, or over its configuration or log."""
    shutil.copytree(run, tmp_path / "run")
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    (tmp_path / "link").symlink_to(tmp_path / "run")
    for folder in ("run", "link"):
        for force in ((), ("--force",)):
            said = ramify(capsys, "export", run, "--to", "jsonl", "--out", tmp_path / folder / inside, *force)
            assert (said.code, "belongs to the run" in said.err) == (2, True)
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before


def test_an_export_goes_through_no_link(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A link or a device in the place of an export is refused."""
    (tmp_path / "to").symlink_to(tmp_path / "nowhere")
    for out in (tmp_path / "to", "/dev/null", tmp_path, "."):
        said = ramify(capsys, "export", run, "--to", "jsonl", "--out", out, "--force")
        assert said.code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["to"]
    assert (tmp_path / "to").is_symlink()


def test_a_part_of_another_export_is_left_alone(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An export writes under a name of its own until it is whole."""
    (tmp_path / ".r.jsonl.part").write_text("of another", "utf-8")
    assert ramify(capsys, "export", run, "--to", "jsonl", "--out", tmp_path / "r.jsonl").code == 0
    assert (tmp_path / ".r.jsonl.part").read_text("utf-8") == "of another"


@pytest.mark.parametrize("kind", ["continues", "quotes"])
def test_check_is_linear_in_siblings(kind: Edge) -> None:
    """Checking a node takes as many steps for each of its children, however many there are and in whatever order they
    came."""

    def steps(num: int) -> int:
        """Lines run by the library while `num` siblings come in a random order and are checked."""
        tree = Tree(Problem("p", "q", {}), ByteCodec(), [Segment("prompt", token_array([1]))], seed=0)
        tree.close(ROOT, "done")
        order = list(range(num))
        Random(0).shuffle(order)
        count = 0

        def trace(frame: FrameType, event: str, _: object) -> Any:
            nonlocal count
            count += event == "line"
            return trace

        was = sys.gettrace()
        sys.settrace(trace)
        try:
            for index in order:
                tree.add(Step((), edge=kind, role="judge"), Place(ROOT, 1, index, index, NONE))
            assert [fault for fault in tree_faults(tree) if "order" in fault] == []
        finally:
            sys.settrace(was)
        assert [tree.index(child) for child in tree.children(ROOT, edge=kind)] == list(range(num))
        return count

    assert steps(1600) / steps(400) < 5


def test_runs_begun_together_get_a_folder_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that begin at the same moment without `--out` get a folder each."""
    monkeypatch.chdir(tmp_path)
    start = Barrier(8)

    def begin(_: int) -> Path:
        start.wait()
        return new_folder(Path(f"runs/chains-{number}") for number in count(1))

    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(begin, range(8)))
    assert sorted(str(path) for path in made) == [f"runs/chains-{number}" for number in range(1, 9)]


def test_a_run_that_cannot_start_leaves_no_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that cannot start leaves no folder in `runs/`."""
    monkeypatch.chdir(tmp_path)
    assert ramify(capsys, "rollout", *SCRIPTED, "--data", tmp_path / "none.jsonl").code == 2
    assert not any(tmp_path.iterdir())
    (tmp_path / "runs").mkdir()
    assert ramify(capsys, "rollout", *SCRIPTED, "--data", tmp_path / "none.jsonl").code == 2
    assert not any((tmp_path / "runs").iterdir())


def deleted(file: Path) -> None:
    file.unlink()


def folder_deleted(file: Path) -> None:
    shutil.rmtree(file.parent)


def replaced(file: Path) -> None:
    shutil.copy(file, file.with_suffix(".new"))
    file.with_suffix(".new").replace(file)


def cut(file: Path) -> None:
    with file.open("r+b") as stream:
        stream.truncate(100)


@pytest.mark.parametrize("durability", ["group", "os"])
@pytest.mark.parametrize("harm", [deleted, folder_deleted, replaced, cut])
def test_a_run_whose_journal_is_gone_stops(
    harm: Callable[[Path], None],
    durability: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A run whose journal is deleted, replaced or cut under it stops with 75 and says so."""
    file = tmp_path / "run" / "journal" / "000000.jsonl"
    observe = RunProgress.observe

    def harming(progress: RunProgress, event: Event) -> None:
        if isinstance(event, TreeClosed) and event.index == 0:
            harm(file)
        observe(progress, event)

    monkeypatch.setattr(RunProgress, "observe", harming)
    options = ("--preset", "chains", "--prompts", 3, "--set", f"durability={durability}", "--set", "max_trees=1")
    said = ramify(capsys, "rollout", *SCRIPTED, *options, "--out", tmp_path / "run")
    assert said.code == 75
    assert "000000.jsonl" in said.err and "records were not saved" in said.err
    assert "finished work is saved" not in said.err


def torn(run: Path, target: Path, *, share: float) -> tuple[Path, int]:
    """A copy of a run whose journal ends inside a record, and the byte where that record begins."""
    shutil.copytree(run, target)
    file = target / "journal" / "000000.jsonl"
    raw = file.read_bytes()
    begins = raw.rindex(b"\n", 0, int(len(raw) * share)) + 1
    file.write_bytes(raw[: begins + 20])
    return file, begins


@pytest.mark.parametrize("share", [0.5, 0.99])
def test_check_names_a_torn_record(
    share: float, judged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`check` names the file, the record and the byte of a torn record, and ends with 5."""
    file, begins = torn(judged, tmp_path / "run", share=share)
    said = ramify(capsys, "check", tmp_path / "run")
    record = file.read_bytes()[:begins].count(b"\n")
    assert said.code == 5
    assert f"journal/000000.jsonl: 20 bytes torn at record {record}, byte {begins}" in said.out


def test_show_and_export_say_what_is_missing(judged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`show` and `export` of a torn or unfinished run say so on stderr and read the finished trees."""
    assert ramify(capsys, "show", judged).err == ""
    torn(judged, tmp_path / "run", share=0.5)
    said = [ramify(capsys, "show", tmp_path / "run", "-q")]
    said += [ramify(capsys, "export", tmp_path / "run", "--to", "jsonl", "--out", tmp_path / "r.jsonl", "-q")]
    for each in said:
        assert each.code == 0
        assert "ends with a torn record" in each.err
        assert "that were begun are not finished" in each.err or "of the 4 asked for" in each.err
    assert "only finished trees were exported" in said[1].err


def test_show_of_one_tree_reads_no_other(judged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`show RUN N` replays tree N alone, under the number that the table and `check` give it."""
    whole = [ramify(capsys, "show", judged, number).out for number in range(4)]
    assert len(set(whole)) == 4
    shutil.copytree(judged, tmp_path / "run")
    file = tmp_path / "run" / "journal" / "000000.jsonl"
    lines = [line for line in file.read_bytes().splitlines(keepends=True) if b'"closed","tree":1' not in line]
    file.write_bytes(b"".join(lines))
    assert [ramify(capsys, "show", tmp_path / "run", number).out for number in (0, 2, 3)] == [
        whole[0],
        whole[2],
        whole[3],
    ]


def test_a_run_whose_first_line_is_damaged_is_shown_whole(
    judged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run whose first line is damaged shows all its trees."""
    hurt = tmp_path / "run"
    shutil.copytree(judged, hurt)
    (journal,) = (hurt / "journal").glob("*.jsonl")
    data = bytearray(journal.read_bytes())
    data[40] ^= 1
    journal.write_bytes(data)
    said, whole = (ramify(capsys, "show", path, "3") for path in (hurt, judged))
    assert (said.code, said.out) == (0, whole.out)
    assert "not finished" not in said.err
    assert "asked for" not in said.err
