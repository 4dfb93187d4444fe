"""Trackers: each really writes, joins what is there, and none stops its caller."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping

import pytest
from tests.trackers import tracked

from ramify.config.tracker_config import TrackerConfig
from ramify.core.errors import ConfigError
from ramify.trackers.tracker import in_json
from ramify.trackers.trackers import Trackers, tracker_of, trackers_of
from ramify.trackers.wandb import options

EVAL = "eval/step"


def logged(tracker, *values, key=EVAL, first=0):
    for step, value in enumerate(values, first):
        tracker.log({"eval/aime": value}, step_key=key, step=step)
    return tracker


def jsonl(folder, **fields):
    return tracker_of(TrackerConfig(kind="jsonl", folder=str(folder), **fields))


# The configuration.


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"kind": "wand"}, "no tracker 'wand'; did you mean 'wandb'"),
        ({"kind": "jsonl"}, "needs folder"),
        ({"kind": "tensorboard", "folder": ""}, "needs folder"),
        ({"kind": "wandb"}, "needs project"),
        ({"kind": "trackio"}, "needs project and name"),
        ({"kind": "trackio", "project": "p", "name": "n", "folder": "f"}, "TRACKIO_DIR"),
        ({"kind": "wandb", "project": "p", "mode": "disabled"}, "mode = 'disabled'"),
        ({"kind": "jsonl", "folder": "f", "mode": "online"}, "only wandb has this mode"),
    ],
)
def test_a_tracker_that_cannot_be_is_refused(fields, words):
    with pytest.raises(ConfigError, match=words):
        TrackerConfig(**fields)


@pytest.mark.parametrize("kind", ["jsonl", "tensorboard"])
def test_a_folder_that_cannot_be_written_is_refused_before_the_start(kind, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=f"tracker {kind} cannot be opened: .*file"):
        tracker_of(TrackerConfig(kind=kind, folder=str(tmp_path / "file" / "below")))


@pytest.mark.parametrize(
    ("kind", "library"), [("wandb", "wandb"), ("tensorboard", "tensorboardX"), ("trackio", "trackio")]
)
def test_a_missing_extra_says_how_to_install_it(kind, library, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, library, None)
    for name in [name for name in sys.modules if name.startswith(f"{library}.")]:
        monkeypatch.setitem(sys.modules, name, None)
    folder = None if kind == "trackio" else str(tmp_path)
    with pytest.raises(ConfigError, match=rf"pip install 'ramify\[{kind}\]'"):
        tracker_of(TrackerConfig(kind=kind, project="p", name="n", folder=folder))


def test_trackers_that_were_opened_before_one_that_cannot_be_are_closed(tmp_path):
    (tmp_path / "file").write_text("")
    good = TrackerConfig(kind="tensorboard", folder=str(tmp_path / "good"))
    bad = TrackerConfig(kind="jsonl", folder=str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="jsonl"):
        trackers_of({"good": good, "bad": bad}, warn=print)


# JSONL.


@pytest.mark.covers("S3.7")
def test_a_line_is_one_log_with_its_step(tmp_path):
    tracker = jsonl(tmp_path / "run", run_id="r7")
    tracker.log({"eval/aime": 0.5, "eval/aime-pass@2": 1.0}, step_key=EVAL, step=3)
    (line,) = tracked.lines(tmp_path / "run")
    assert line.pop("time") > 1e9
    assert line == {
        "run_id": "r7",
        "step_key": "eval/step",
        "step": 3,
        "metrics": {"eval/aime": 0.5, "eval/aime-pass@2": 1.0},
    }


@pytest.mark.covers("S3.7")
def test_a_file_that_exists_is_joined_and_steps_may_go_back(tmp_path):
    logged(jsonl(tmp_path), 0.1, 0.2, 0.3)
    logged(jsonl(tmp_path), 0.25, first=1)
    lines = tracked.lines(tmp_path)
    assert [(line["step"], line["metrics"]["eval/aime"]) for line in lines] == [(0, 0.1), (1, 0.2), (2, 0.3), (1, 0.25)]
    assert "run_id" not in lines[0]


def test_two_trackers_of_one_file_take_turns(tmp_path):
    first, second = jsonl(tmp_path), jsonl(tmp_path)
    for step in range(3):
        logged(first, 1.0, first=step)
        logged(second, 2.0, first=step)
    assert [line["metrics"]["eval/aime"] for line in tracked.lines(tmp_path)] == [1.0, 2.0] * 3


def test_a_line_that_a_kill_cut_stands_alone(tmp_path):
    logged(jsonl(tmp_path), 0.5)
    path = tmp_path / "metrics.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:20])
    logged(jsonl(tmp_path), 0.75)
    first, cut, last = path.read_bytes().splitlines()
    assert first + b"\n" == whole and cut == whole[:20]
    assert json.loads(last)["metrics"] == {"eval/aime": 0.75}


def test_a_file_that_was_taken_away_is_made_again(tmp_path):
    tracker = logged(jsonl(tmp_path), 0.5)
    (tmp_path / "metrics.jsonl").unlink()
    logged(tracker, 0.75)
    assert [line["metrics"]["eval/aime"] for line in tracked.lines(tmp_path)] == [0.75]


def test_numbers_that_are_not_finite_are_words_in_json(tmp_path):
    tracker = jsonl(tmp_path)
    tracker.log({"a": math.nan, "b": math.inf, "c": -math.inf, "d": 0}, step_key="rollout/step", step=0)
    assert tracked.lines(tmp_path)[0]["metrics"] == {"a": "NaN", "b": "Infinity", "c": "-Infinity", "d": 0.0}
    with pytest.raises(TypeError):
        in_json({"a": "high"})  # type: ignore[dict-item]


CUT_SHORT = """
import resource, sys
from ramify.config.tracker_config import TrackerConfig
from ramify.trackers.trackers import Trackers, tracker_of
kind, folder = sys.argv[1:]
kept = Trackers({kind: tracker_of(TrackerConfig(kind=kind, folder=folder))}, warn=lambda line: print(line))
for step, most in enumerate([4096, 300, 4096]):
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
    kept.log({"eval/" + "x" * 150: 0.5}, step_key="eval/step", step=step)
"""


def test_a_line_for_which_there_is_no_room_leaves_nothing_behind(tmp_path):
    said = told(CUT_SHORT, "jsonl", tmp_path)
    assert "tracker jsonl did not take eval/step 1" in said and "works again" in said
    assert [line["step"] for line in tracked.lines(tmp_path)] == [0, 2]


def test_an_event_for_which_there_is_no_room_is_written_with_the_next(tmp_path):
    said = told(CUT_SHORT, "tensorboard", tmp_path)
    assert "tracker tensorboard did not take eval/step 1" in said and "works again" in said
    assert [step for step, _, _ in tracked.events(tmp_path)] == [0, 1, 2]


def told(script: str, *arguments: object, **environment: str) -> str:
    """What a script prints, run by a new process."""
    command = [sys.executable, "-W", "error", "-c", script, *map(str, arguments)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


# Several, and faults.


class Flaky:
    """Takes what it is given but for the steps at which it fails."""

    def __init__(self, *failing: int, closes: bool = True) -> None:
        self.failing, self.closes = set(failing), closes
        self.steps: list[int] = []

    def log(self, metrics: Mapping[str, float], *, step_key: str, step: int) -> None:
        if step in self.failing:
            raise RuntimeError(f"no room at {step}")
        self.steps.append(step)

    def close(self) -> None:
        if not self.closes:
            raise OSError("gone")


@pytest.mark.covers("S3.7")
def test_a_tracker_that_fails_is_told_of_once_counted_and_tried_again():
    said: list[str] = []
    flaky, sound = Flaky(1, 2, 3, 6), Flaky()
    kept = Trackers({"wandb": flaky, "jsonl": sound}, warn=said.append)
    logged(kept, *[0.5] * 7)
    assert flaky.steps == [0, 4, 5] and sound.steps == list(range(7))
    assert said == [
        "tracker wandb did not take eval/step 1 and is tried again at the next log: RuntimeError: no room at 1",
        "tracker wandb works again; it did not take 3 logs",
        "tracker wandb did not take eval/step 6 and is tried again at the next log: RuntimeError: no room at 6",
    ]
    assert kept.num_failed == {"wandb": 4, "jsonl": 0}
    kept.close()
    assert said[3:] == ["tracker wandb did not take 4 logs"]


def test_a_tracker_that_cannot_be_closed_is_told_of_and_the_others_are_closed(tmp_path):
    said: list[str] = []
    board = tracker_of(TrackerConfig(kind="tensorboard", folder=str(tmp_path)))
    kept = Trackers({"a": Flaky(closes=False), "tensorboard": board}, warn=said.append)
    kept.close()
    assert said == ["tracker a could not be closed, its last figures may be missing: OSError: gone"]
    with pytest.raises(ValueError, match="closed"):
        logged(board, 0.5)


def test_a_full_disk_stops_nobody(tmp_path):
    said: list[str] = []
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    kept = trackers_of({"jsonl": TrackerConfig(kind="jsonl", folder=str(tmp_path))}, warn=said.append)
    logged(kept, 0.1, 0.2)
    assert len(said) == 1 and "No space left" in said[0]
    (tmp_path / "metrics.jsonl").unlink()
    logged(kept, 0.3, first=2)
    assert said[1:] == ["tracker jsonl works again; it did not take 2 logs"]
    assert [line["step"] for line in tracked.lines(tmp_path)] == [2]


def test_several_trackers_of_one_kind_have_names_of_their_own(tmp_path):
    configs = {name: TrackerConfig(kind="jsonl", folder=str(tmp_path / name)) for name in "abc"}
    kept = logged(trackers_of(configs, warn=print), 0.5)
    assert list(kept.num_failed) == ["a", "b", "c"]
    assert all(tracked.lines(tmp_path / name) for name in "abc")


def test_what_is_no_number_stops_nobody(tmp_path):
    said: list[str] = []
    kept = trackers_of({"jsonl": TrackerConfig(kind="jsonl", folder=str(tmp_path))}, warn=said.append)
    kept.log({"mine": "high"}, step_key=EVAL, step=0)  # type: ignore[dict-item]
    assert len(said) == 1 and "TypeError" in said[0]


# TensorBoard.


@pytest.mark.covers("S3.7")
def test_tensorboard_keeps_figures_over_their_step(tmp_path):
    board = tracker_of(TrackerConfig(kind="tensorboard", folder=str(tmp_path)))
    logged(board, 0.5, math.inf, first=4)
    assert tracked.events(tmp_path) == [(4, "eval/aime", 0.5), (5, "eval/aime", math.inf)]  # before it is closed
    board.close()


@pytest.mark.covers("S3.7")
def test_tensorboard_joins_a_folder_and_replaces_nothing(tmp_path):
    first, second = (tracker_of(TrackerConfig(kind="tensorboard", folder=str(tmp_path))) for _ in range(2))
    logged(first, 0.5, 0.75)
    logged(second, 0.25, first=1)
    first.close()
    second.close()
    assert sorted(tracked.events(tmp_path)) == [(0, "eval/aime", 0.5), (1, "eval/aime", 0.25), (1, "eval/aime", 0.75)]


# W&B: always in a process of its own, as wandb starts another that outlives the test.

ROWS = """
import sys
from ramify.config.tracker_config import TrackerConfig
from ramify.trackers.trackers import tracker_of
tracker = tracker_of(TrackerConfig(kind="wandb", project="p", group="g", name="n", folder=sys.argv[1]))
tracker.log({"eval/aime": 0.5}, step_key="eval/step", step=3)
tracker.log({"eval/aime": float("nan")}, step_key="eval/step", step=4)
tracker.log({"rollout/raw_reward": 0.25, "loss": 2.0}, step_key="rollout/step", step=1)
tracker.log({"eval/aime": 0.75}, step_key="eval/step", step=2)
tracker.close()
"""
JOINS = """
import sys
from ramify.config.tracker_config import TrackerConfig
from ramify.trackers.trackers import tracker_of
tracker = tracker_of(TrackerConfig(kind="wandb", project="p", run_id="abc", folder=sys.argv[1]))
tracker.log({"eval/aime": 0.5}, step_key="eval/step", step=3)
tracker.close()
"""
TRAINS = f"""
import subprocess, sys, wandb
run = wandb.init(project="p", id="abc", dir=sys.argv[1], mode="offline")
subprocess.run([sys.executable, "-c", {JOINS!r}, sys.argv[1]], check=True)
run.log({{"train/loss": 2.0}})
{JOINS.replace("0.5", "0.25")}
run.log({{"train/loss": 1.0}})
tracker_of(TrackerConfig(kind="wandb", project="p", folder=sys.argv[1])).close()
run.log({{"train/loss": 0.5}})
run.finish()
"""


@pytest.mark.slow
@pytest.mark.covers("S3.7")
def test_wandb_keeps_figures_offline_over_their_own_steps(tmp_path):
    told(ROWS, tmp_path / "new")
    ((_, rows, axes),) = tracked.runs(tmp_path / "new")
    assert rows == [
        {"eval/aime": 0.5, "eval/step": 3},
        {"eval/aime": pytest.approx(math.nan, nan_ok=True), "eval/step": 4},
        {"rollout/raw_reward": 0.25, "loss": 2.0, "rollout/step": 1},
        {"eval/aime": 0.75, "eval/step": 2},  # as after a resume
    ]
    assert axes["eval/*"] == "eval/step" and axes["rollout/*"] == axes["loss"] == "rollout/step"


@pytest.mark.slow
@pytest.mark.covers("S3.7")
def test_wandb_joins_the_run_of_its_process_and_of_the_one_that_started_it_and_leaves_it_open(tmp_path):
    told(TRAINS, tmp_path)
    (rows,) = [rows for run_id, rows, _ in tracked.runs(tmp_path) if run_id == "abc"]
    assert rows == [
        {"eval/aime": 0.5, "eval/step": 3},
        {"train/loss": 2.0},
        {"eval/aime": 0.25, "eval/step": 3},
        {"train/loss": 1.0},
        {"train/loss": 0.5},
    ]


@pytest.mark.slow
@pytest.mark.covers("S3.7")
def test_wandb_joins_a_run_of_another_process_by_its_id(tmp_path):
    """As a folder that `wandb sync` sends as part of that run."""
    told(JOINS, tmp_path)
    ((run_id, rows, _),) = tracked.runs(tmp_path)
    assert (run_id, rows) == ("abc", [{"eval/aime": 0.5, "eval/step": 3}])


def test_wandb_is_told_the_shared_mode_online():
    import wandb as library

    joined = options(TrackerConfig(kind="wandb", project="p", entity="e", run_id="abc", mode="online"))
    begun = options(TrackerConfig(kind="wandb", project="p", name="n", mode="online"))
    assert joined["id"] == "abc" and joined["resume"] == "allow" and joined["entity"] == "e"
    assert begun["settings"]["x_primary"] and "id" not in begun and "resume" not in begun
    settings = library.Settings(**joined["settings"])
    assert (settings.mode, settings.x_primary, settings.x_update_finish_state) == ("shared", False, False)


# The network.

WITHOUT_NETWORK = """
import sys
reached = []
def hook(event, arguments):
    if event in ("socket.getaddrinfo", "socket.gethostbyname") or (
        event == "socket.connect" and isinstance(arguments[1], tuple) and arguments[1][0] != "127.0.0.1"
    ):
        reached.append((event, arguments[1:]))
sys.addaudithook(hook)
from ramify.config.tracker_config import TrackerConfig
from ramify.trackers.trackers import trackers_of
configs = {kind: TrackerConfig(kind=kind, project="p", name="n", folder=folder or None) for kind, _, folder in
           (each.partition("=") for each in sys.argv[1:])}
trackers = trackers_of(configs, warn=lambda line: reached.append(line))
trackers.log({"eval/aime": 0.5}, step_key="eval/step", step=3)
trackers.log({"eval/aime": 0.25}, step_key="eval/step", step=1)
trackers.close()
print(reached)
"""


@pytest.mark.slow
@pytest.mark.covers("S3.7")
def test_nothing_reaches_for_the_network_offline(tmp_path):
    said = told(
        WITHOUT_NETWORK, f"jsonl={tmp_path}", f"tensorboard={tmp_path}", f"wandb={tmp_path}", WANDB_MODE="online"
    )
    assert said.splitlines()[-1] == "[]"
    assert len(tracked.lines(tmp_path)) == len(tracked.events(tmp_path)) == len(tracked.runs(tmp_path)[0][1]) == 2


# trackio.

READ = """
import json
from trackio.sqlite_storage import SQLiteStorage
rows = [[row["step"], str(row["eval/aime"]), row["eval/step"]] for row in SQLiteStorage.get_logs("p", "n")]
print(json.dumps([SQLiteStorage.get_runs("p"), rows]))
"""
NOT_FINITE = """
from ramify.config.tracker_config import TrackerConfig
from ramify.trackers.trackers import tracker_of
tracker = tracker_of(TrackerConfig(kind="trackio", project="p", name="n"))
tracker.log({"eval/aime": float("nan")}, step_key="eval/step", step=9)
"""


@pytest.mark.hf
@pytest.mark.covers("S3.7")
def test_trackio_keeps_figures_joins_by_name_and_stays_offline(tmp_path):
    folder = {"TRACKIO_DIR": str(tmp_path), "HF_TOKEN": "hf_none"}
    for _ in range(2):
        assert told(WITHOUT_NETWORK, "trackio=", **folder).splitlines()[-1] == "[]"
    told(NOT_FINITE, **folder)
    names, rows = json.loads(told(READ, **folder))
    assert names == ["n"]
    assert sorted(rows) == [[1, "0.25", 1.0], [1, "0.25", 1.0], [3, "0.5", 3.0], [3, "0.5", 3.0], [9, "nan", 9.0]]


@pytest.mark.hf
def test_a_project_that_trackio_refuses_is_refused():
    with pytest.raises(ConfigError, match=r"tracker trackio cannot be opened: .*registry-"):
        tracker_of(TrackerConfig(kind="trackio", project="registry-x", name="n"))


def test_a_tracker_needs_no_library_of_another():
    imported = told("import sys; import ramify.trackers.trackers, ramify.trackers.wandb; print(*sys.modules)")
    assert not {"wandb", "tensorboardX", "trackio", "google"} & set(imported.split())
