"""A resume knows its inputs: what a run read when it began is what it goes on with, or somebody said otherwise."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.cli.commands import Said, ramify

from ramify.engines.shipped import MODELS
from ramify.runner.saved import Saved
from ramify.store.framing import encode, frame
from ramify.store.journal import Reader
from ramify.store.records import ClosedRecord
from ramify.store.store import header_and_config, stream

pytestmark = pytest.mark.hostile

JUDGE = """
class Judge:
    name = "mine"
    is_oracle = False

    async def judge(self, branch, problem):
        return 1.0
"""


def written(folder: Path, order: tuple[int, ...] = (0, 1, 2, 3), **other: object) -> Path:
    rows = [{"question": f"what is {i} and 1?", "gold": str(i + 1), "note": "n", **other} for i in order]
    file = folder / "questions.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return file


def interrupted(run: Path, num_kept: int) -> None:
    """Cut a run's journal back to so many lines, as a kill does."""
    file = run / "journal" / "000000.jsonl"
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:num_kept]))


def begun(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *, engine: str = "scripted", num_kept: int = 13, model: str = ""
) -> Path:
    """A run of four questions with a judge of its own, which was killed when some of its trees were closed."""
    run, judge = tmp_path / "run", tmp_path / "judge.py"
    judge.write_text(JUDGE, "utf-8")
    settings = [f"data.path={written(tmp_path)}", "data.answer=gold", f"judges.mine.kind={judge}:Judge"]
    settings += ["max_trees=1", "strategy.options.n=2", "growth.max_response_tokens=48", f"engine.name={engine}"]
    settings += [f"engine.model={model}"] if model else []
    flags = [word for setting in settings for word in ("--set", setting)]
    said = ramify(capsys, "rollout", "--prompts", 4, "--out", run, *flags)
    assert said.code in (0, 4), said.err
    interrupted(run, num_kept)
    return run


def resumed(capsys: pytest.CaptureFixture[str], run: Path, *flags: str) -> Said:
    return ramify(capsys, "resume", run, *flags)


def reorder(folder: Path) -> None:
    written(folder, (2, 3, 0, 1))


def edit_gold(folder: Path) -> None:
    file = folder / "questions.jsonl"
    file.write_text(file.read_text("utf-8").replace('"gold": "3"', '"gold": "5"'), "utf-8")


def edit_question(folder: Path) -> None:
    file = folder / "questions.jsonl"
    file.write_text(file.read_text("utf-8").replace("what is 2", "what is 7"), "utf-8")


def edit_note(folder: Path) -> None:
    written(folder, note="m")


def edit_judge(folder: Path) -> None:
    (folder / "judge.py").write_text(JUDGE.replace("1.0", "0.5"), "utf-8")


CHANGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "reordered": (reorder, "data"),
    "gold": (edit_gold, "data"),
    "question": (edit_question, "data"),
    "note": (edit_note, "data"),
    "judge": (edit_judge, "plugins"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_run_does_not_go_on_with_other_inputs(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    """Reordered data, edited questions or gold answers and an edited judge are refused with what differs."""
    change, kind = CHANGES[name]
    run = begun(tmp_path, capsys)
    before = (run / "journal" / "000000.jsonl").read_bytes()
    change(tmp_path)
    said = resumed(capsys, run)
    assert said.code == 3 and f"{kind}: " in said.err and f"--accept {kind}" in said.err, said.err
    assert kind != "plugins" or str(tmp_path / "judge.py") in said.err
    assert b'"record":"accepted"' not in b"".join(p.read_bytes() for p in (run / "journal").glob("*.jsonl"))
    assert (run / "journal" / "000000.jsonl").read_bytes().startswith(before)


def test_other_weights_in_the_same_folder_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Other weights in the folder that the run began with are refused."""
    model = Path(shutil.copytree(MODELS["builtin"], tmp_path / "model"))
    run = begun(tmp_path, capsys, engine="builtin", model=str(model))
    file = next(model.glob("*.safetensors"))
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.write_bytes(data)
    said = resumed(capsys, run)
    assert said.code == 3 and str(model) in said.err and "--accept weights" in said.err
    assert resumed(capsys, run, "--accept", "weights").code in (0, 4)


def test_what_is_accepted_is_recorded_and_marks_the_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Accepted inputs are recorded once, and rows of trees that grew with them say so."""
    run = begun(tmp_path, capsys)
    closed = {record.tree for record in stream(run) if isinstance(record, ClosedRecord)}
    uids = [tree.problem.uid for tree in Saved.open(run).trees()]
    assert 0 < len(closed) < 4
    edit_gold(tmp_path)
    edit_judge(tmp_path)
    said = resumed(capsys, run, "--accept", "data")
    assert said.code == 3 and "plugins: " in said.err and "--accept data,plugins" in said.err
    assert resumed(capsys, run, "--accept", "data,weights,plugins").code == 0
    accepted = [record for record in stream(run) if type(record).__name__ == "Accepted"]
    assert [record.what for record in accepted] == [("data", "plugins")]  # pyright: ignore
    for row in Saved.open(run).rows():
        assert any("other data, plugins" in reason for reason in row.reasons) == (row.uid not in uids)
        assert row.uid in uids or not row.is_unbiased
    assert resumed(capsys, run).code == 0, "what is accepted is what the run has now"
    assert len([record for record in stream(run) if type(record).__name__ == "Accepted"]) == 1
    assert ramify(capsys, "check", run).code == 0


def test_no_gold_answer_can_be_guessed_from_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The digest of gold answers is keyed: whoever has the run and every possible answer learns nothing."""
    found = []
    for user in ("one", "other"):
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / user))
        (tmp_path / user / "home").mkdir(parents=True)
        header, _ = header_and_config(begun(tmp_path / user / "home", capsys))
        assert header.inputs is not None
        found.append(header.inputs)
    assert found[0].problems == found[1].problems
    assert found[0].secrets and found[0].secrets != found[1].secrets


def test_the_same_inputs_go_on_without_a_word(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Inputs that are as they were need no flag, also in a file that was written again."""
    run = begun(tmp_path, capsys)
    written(tmp_path)
    (tmp_path / "judge.py").touch()
    said = resumed(capsys, run)
    assert said.code == 0 and "began" not in said.err


def test_another_version_of_the_library_warns_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run that another version began goes on, and says so."""
    import ramify.runner.folder as runner
    from ramify.store import ownership

    run = begun(tmp_path, capsys)
    header, config = header_and_config(run)
    other = msgspec.structs.replace(header, library="0.0.7")
    other = msgspec.structs.replace(other, mac=ownership.header_mac(other, config, ownership.key()))
    file = run / "journal" / "000000.jsonl"
    file.write_bytes(frame(0, None, encode(other)) + b"".join(file.read_bytes().splitlines(keepends=True)[1:]))
    assert Reader(run / "journal").header.library == "0.0.7"
    said = resumed(capsys, run)
    assert said.code == 0 and "0.0.7" in said.err
    assert runner.__version__ in said.err


def test_a_run_of_an_earlier_version_says_that_it_cannot_compare(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run of a version that recorded no inputs goes on, with one line that says so."""
    runs = Path(__file__).parents[1] / "runner" / "runs_before_rooms"
    shutil.copytree(runs / "arpo_as_published", tmp_path / "run")
    said = resumed(capsys, tmp_path / "run")
    assert said.code == 0 and said.err.count("cannot be compared") == 1


def test_a_word_that_accepts_nothing_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--accept takes data, weights and plugins, and names the nearest."""
    said = resumed(capsys, begun(tmp_path, capsys), "--accept", "date")
    assert said.code == 2 and "'data'" in said.err
