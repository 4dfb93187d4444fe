"""`--track`: one log for every finished tree, under the names of the rollout service, by trackers that end no run."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.commands import SCRIPTED, ramify
from tests.engines.endpoint import Endpoint, said
from tests.trackers import tracked

from ramify.cli.track import TrackedRun
from ramify.rows.slime import samples
from ramify.runner.saved import Saved
from ramify.service.evaluate import rollout_metrics

TREES = ("--preset", "offline", *SCRIPTED, "--prompts", 4, "--seed", 1)


def steps(folder: Path) -> list[int]:
    assert {line["step_key"] for line in tracked.lines(folder)} == {"rollout/step"}
    return [line["step"] for line in tracked.lines(folder)]


# -- what is logged -------------------------------------------------------------------------------------------------


def test_every_tree_is_a_log_with_the_metrics_that_the_service_makes_of_its_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / "run"
    told = ramify(capsys, "rollout", *TREES, "--out", out, "--track", "jsonl", "--track", "jsonl")
    assert told.code == 0
    assert told.err.count(f"track jsonl: {out / 'metrics.jsonl'}") == 1
    saved = Saved.open(out)
    rows = {index: samples(saved.rows_of(tree)) for index, tree in saved.numbered_trees()}
    found = {line["step"]: line["metrics"] for line in tracked.lines(out)}
    assert found == {index: rollout_metrics(of_tree) for index, of_tree in rows.items()}
    assert sorted(steps(out)) == [0, 1, 2, 3]
    assert ramify(capsys, "check", out).code == 0


def test_several_trackers_get_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    told = ramify(capsys, "rollout", *TREES, "--out", tmp_path / "run", "--track", "jsonl", "--track", "tensorboard")
    assert told.code == 0
    lines = tracked.lines(tmp_path / "run")
    logged = [(line["step"], name, value) for line in lines for name, value in line["metrics"].items()]
    events = tracked.events(tmp_path / "run")
    assert [event[:2] for event in events] == [log[:2] for log in logged]
    assert [event[2] for event in events] == pytest.approx([log[2] for log in logged])


def test_without_the_flag_nothing_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    told = ramify(capsys, "rollout", *TREES, "--out", tmp_path / "run")
    assert "track" not in told.err
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_an_engine_of_text_gives_no_lengths_in_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with Endpoint(lambda body: said("<answer>3</answer>")) as endpoint:
        flags = ("--engine", "openai", "--model", "m", "--base-url", endpoint.url, "--set", "format=messages")
        told = ramify(
            capsys, "search", "2 + 1?", "--preset", "chains", *flags, "--out", tmp_path / "run", "--track", "jsonl"
        )
    assert told.code == 0
    (line,) = tracked.lines(tmp_path / "run")
    assert line["metrics"] == {"rollout/unjudged_ratio": 1.0, "rollout/truncated_ratio": 0.0}


@pytest.mark.slow
def test_every_line_of_an_evaluation_is_a_run_of_its_own_and_its_seeds_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    few = ("--presets", "chains,offline", "--problems", 3, "--seeds", 2, *SCRIPTED)
    for number in (1, 2):
        told = ramify(capsys, "eval", *few, "--budget", "decode_tokens=50,90", "--track", "jsonl")
        assert told.code == 0
        folders = {path.name: path for path in Path("runs", f"eval-{number}").iterdir()}
        assert set(folders) == {f"{preset}-decode-{n}" for preset in ("chains", "offline") for n in (50, 90)}
        assert all(sorted(steps(folder)) == list(range(6)) for folder in folders.values())
    assert ramify(capsys, "eval", *few, "--track", "jsonl").code == 0
    assert sorted(path.name for path in Path("runs", "eval-3").iterdir()) == ["chains", "offline"]


def test_an_evaluation_without_the_flag_makes_no_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    assert ramify(capsys, "eval", "--presets", "chains", "--problems", 2, "--seeds", 1, *SCRIPTED).code == 0
    assert not Path("runs").exists()


@pytest.mark.slow
def test_wandb_keeps_the_trees_of_a_search_offline_and_writes_no_line(tmp_path: Path):
    question = ("search", "make 24 from 4 6 8 2", "--preset", "chains", *SCRIPTED)
    command = [sys.executable, "-m", "ramify.cli.main", *question, "--out", str(tmp_path / "run"), "--track", "wandb"]
    told = subprocess.run(command, capture_output=True, text=True, check=True)
    ((_, (row,), axes),) = tracked.runs(tmp_path / "run")
    assert row["rollout/step"] == 0 and "rollout/response_len/mean" in row
    assert axes["rollout/*"] == "rollout/step"
    assert f"send it: wandb sync {tmp_path / 'run'}/wandb/offline-run-*" in told.stderr
    assert not [line for line in told.stderr.splitlines() if line.startswith("wandb")]


# -- a resumed run --------------------------------------------------------------------------------------------------

SLOW_TO_END = ("--preset", "offline", *SCRIPTED, "--prompts", "40", "--set", "max_trees=1", "-v")


@pytest.mark.slow
def test_a_resumed_run_logs_the_trees_that_are_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "run"
    command = [sys.executable, "-m", "ramify.cli.main", "rollout", *SLOW_TO_END, "--out", str(out), "--track", "jsonl"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("tree 3: done"):
                process.send_signal(signal.SIGINT)
                break
        process.stderr.read()
    assert process.returncode == 130
    before = steps(out)
    assert 4 <= len(before) < 40
    assert ramify(capsys, "resume", out, "--track", "jsonl").code == 0
    assert steps(out)[: len(before)] == before
    assert sorted(steps(out)) == list(range(40))
    assert ramify(capsys, "resume", out, "--track", "jsonl").code == 0
    assert len(steps(out)) == 40


def test_a_resumed_run_is_joined_by_the_names_of_its_first_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for name in ("one", "two"):
        ramify(capsys, "rollout", *TREES, "--out", tmp_path / name)
    one, again, two = (TrackedRun.of_folder(tmp_path / name) for name in ("one", "one", "two"))
    assert one == again
    assert one.config("wandb").run_id != two.config("wandb").run_id
    assert re.fullmatch(r"one \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", one.config("trackio").name or "")
    part = TrackedRun.of_part(Path("runs/eval-1"), "a/plan.toml", 0.0)
    assert part.config("tensorboard").folder == "runs/eval-1/a-plan.toml"
    assert part.config("trackio").name == "a/plan.toml 1970-01-01 00:00:00 UTC"
    assert part.config("trackio").group == part.config("wandb").group == "eval-1 1970-01-01 00:00:00 UTC"


# -- what is refused before the start -------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["rollout", "search", "eval"])
@pytest.mark.parametrize(
    ("kind", "library"), [("wandb", "wandb"), ("tensorboard", "tensorboardX"), ("trackio", "trackio")]
)
def test_a_missing_package_is_said_before_any_request(
    command: str,
    kind: str,
    library: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.chdir(tmp_path)
    for name in [library, *(name for name in sys.modules if name.startswith(f"{library}."))]:
        monkeypatch.setitem(sys.modules, name, None)
    of_command = {"rollout": (), "search": ("2 + 1?",), "eval": ("--presets", "chains")}[command]
    with Endpoint(lambda body: said("3")) as endpoint:
        flags = ("--engine", "openai", "--model", "m", "--base-url", endpoint.url)
        told = ramify(capsys, command, *of_command, *flags, "--track", "jsonl", "--track", kind)
    assert (told.code, told.out) == (2, "")
    assert told.err == f"error: tracker {kind} needs {library}: pip install 'ramify[{kind}]'\n"
    assert not endpoint.requests
    assert not list(tmp_path.iterdir())


def test_workers_of_ray_are_not_tracked(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "run"
    told = ramify(capsys, "rollout", *SCRIPTED, "--ray", "--track", "jsonl", "--out", out)
    assert (told.code, out.exists()) == (2, False)
    assert "--track jsonl: the trees of --ray end in other processes" in told.err
    ramify(capsys, "rollout", *TREES, "--out", out)
    told = ramify(capsys, "resume", out, "--ray", "--track", "jsonl")
    assert told.code == 2
    assert "leave out one of the two" in told.err


def test_an_unknown_tracker_is_refused_with_the_known_ones(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit, match="2"):
        ramify(capsys, "rollout", "--track", "wand")
    assert "invalid choice: 'wand' (choose from 'jsonl', 'wandb', 'tensorboard', 'trackio')" in capsys.readouterr().err


# -- a tracker that fails ends no run -------------------------------------------------------------------------------

BREAKS = """
class UsageError(Exception):
    pass

class Run:
    id = "x"
    def define_metric(self, name, **options):
        pass
    def log(self, row):
        raise OSError("full")
    def finish(self):
        raise OSError("full")

run = None

def init(**options):
    if {has_no_start}:
        raise OSError("no service")
    return Run()
"""


@pytest.mark.parametrize(
    ("has_no_start", "lines"),
    [
        (
            True,
            ["warning: --track wandb: tracker wandb cannot be opened: OSError: no service; the run goes on without it"],
        ),
        (
            False,
            [
                "warning: tracker wandb did not take rollout/step 0 and is tried again at the next log: OSError: full",
                "warning: tracker wandb could not be closed, its last figures may be missing: OSError: full",
                "warning: tracker wandb did not take 4 logs",
            ],
        ),
    ],
)
def test_a_tracker_that_fails_is_said_once_and_the_run_goes_on(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    has_no_start: bool,
    lines: list[str],
):
    (tmp_path / "wandb.py").write_text(BREAKS.replace("{has_no_start}", str(has_no_start)))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    out = tmp_path / "run"
    one_by_one = ("--set", "max_trees=1")
    told = ramify(capsys, "rollout", *TREES, *one_by_one, "--out", out, "--track", "wandb", "--track", "jsonl")
    del sys.modules["wandb"]  # For good: what monkeypatch takes out comes back.
    assert told.code == 0
    assert [line for line in told.err.splitlines() if line.startswith("warning: ")] == lines
    assert steps(out) == [0, 1, 2, 3]


def test_nothing_is_written_through_a_link_in_the_run_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out, other = tmp_path / "run", tmp_path / "other"
    ramify(capsys, "rollout", *TREES, "--out", out)
    journal = next((out / "journal").glob("*.jsonl"))
    journal.write_bytes(journal.read_bytes()[: journal.stat().st_size // 2])
    other.write_text("mine\n")
    (out / "metrics.jsonl").symlink_to(other)
    told = ramify(capsys, "resume", out, "--track", "jsonl")
    assert told.code == 0
    assert f"warning: --track jsonl: {out / 'metrics.jsonl'} is a link, through which nothing is written" in told.err
    assert other.read_text() == "mine\n"
