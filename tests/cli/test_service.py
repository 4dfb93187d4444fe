"""`ramify service`, as a process of its own, on engines that ship with ramify."""

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.cli.commands import process, ramify

from ramify.cli.exit_codes import ExitCode
from ramify.rows.sample import Sample
from ramify.service import debug_files

TIMEOUT_S = 60.0
SETTINGS = """
preset = "chains"
prompts = 6
seed = 3

[engine]
name = "scripted"

[growth]
max_response_tokens = 60

[strategy.options]
n = 3

[service]
batch_size = 2
"""
MANY = 10_000
"""More batches than any test waits for."""


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    path = tmp_path / "service.toml"
    path.write_text(SETTINGS)
    return path


def wait_for_a_batch(started: "subprocess.Popen[str]") -> None:
    """Return when the first batch is told; a slow machine tells of its progress before."""
    assert started.stderr is not None
    assert any(line.startswith("batch 0: ") for line in iter(started.stderr.readline, ""))


def service(*arguments: object) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a call that comes to its end."""
    with process("service", *arguments) as started:
        out, err = started.communicate(timeout=TIMEOUT_S)
    return started.returncode, out, err


def told(*arguments: object) -> dict[str, Any]:
    """What a call says in JSON."""
    code, out, err = service(*arguments, "--json", "-q")
    assert (code, err) == (0, "")
    return json.loads(out)


def rows(run: Path) -> dict[int, list[Sample]]:
    """Batch -> its rows, of all batches that are saved."""
    paths = sorted((run / "batches").glob("[0-9]*.jsonl"), key=lambda path: int(path.stem))
    return {int(path.stem): debug_files.load(path) for path in paths}


def texts(run: Path, num: int) -> list[bytes]:
    """The files of the first batches."""
    return [(run / "batches" / f"{number}.jsonl").read_bytes() for number in range(num)]


def whole(settings: Path, tmp_path: Path, num: int) -> list[bytes]:
    """The files of an undisturbed service."""
    assert service("-c", settings, "--out", tmp_path / "whole", "--batches", num)[0] == 0
    return texts(tmp_path / "whole", num)


def batches_of(err: str) -> list[int]:
    """Numbers of the batches that a call told of, in order."""
    return [int(line.split()[1].rstrip(":")) for line in err.splitlines() if line.startswith("batch ")]


@pytest.mark.slow
def test_each_batch_is_a_file_and_a_line(settings: Path, tmp_path: Path):
    code, out, err = service("-c", settings, "--out", tmp_path / "run", "--batches", 2)
    assert code == 0
    saved = rows(tmp_path / "run")
    assert {number: sorted({row.group_index for row in batch}) for number, batch in saved.items()} == {
        0: [0, 1],
        1: [2, 3],
    }
    lines = [line for line in err.splitlines() if line.startswith("batch ")]
    for line, (number, batch) in zip(lines, saved.items(), strict=True):
        tokens = sum(sum(row.mask()) for row in batch)
        reward = sum(row.reward_value() for row in batch) / len(batch)
        assert line.startswith(
            f"batch {number}: {len(batch)} rows of 2 groups, mean reward {reward:.3f}, {tokens} tokens to train, "
        )
        assert line.endswith(" s")
    assert out.startswith(f"2 batches: {sum(map(len, saved.values()))} rows of 4 groups, ")
    assert "trees: growing 0, checking 0, ready 0, handed 4" in out
    assert f"ramify view {tmp_path / 'run'}" in err


@pytest.mark.slow
def test_the_json_has_the_figures_of_each_batch(settings: Path, tmp_path: Path):
    said = told("-c", settings, "--out", tmp_path / "run", "--batches", 2)
    assert (said["schema"], said["run"], said["first"]) == ("ramify.service/1", str(tmp_path / "run"), 0)
    assert said["trees"]["handed"] == 4
    for batch, (number, saved) in zip(said["batches"], rows(tmp_path / "run").items(), strict=True):
        assert batch.pop("seconds") > 0
        assert batch == {
            "batch": number,
            "file": str(tmp_path / "run" / "batches" / f"{number}.jsonl"),
            "rows": len(saved),
            "groups": 2,
            "mean_reward": sum(row.reward_value() for row in saved) / len(saved),
            "trained_tokens": sum(sum(row.mask()) for row in saved),
        }


@pytest.mark.slow
def test_called_again_it_makes_the_batches_that_are_missing(settings: Path, tmp_path: Path):
    expected = whole(settings, tmp_path, 4)
    run = tmp_path / "run"
    assert [b["batch"] for b in told("-c", settings, "--out", run, "--batches", 1)["batches"]] == [0]
    assert [b["batch"] for b in told("-c", settings, "--out", run, "--batches", 3)["batches"]] == [1, 2]
    further = told("--out", run, "--batches", 4)  # the settings of the folder
    assert (further["first"], [b["batch"] for b in further["batches"]]) == (3, [3])
    assert texts(run, 4) == expected


@pytest.mark.slow
def test_batches_that_a_trainer_took_away_are_not_made_again(settings: Path, tmp_path: Path):
    expected = whole(settings, tmp_path, 2)
    run = tmp_path / "run"
    assert service("-c", settings, "--out", run, "--batches", 1)[0] == 0
    (run / "batches" / "0.jsonl").unlink()
    code, out, _ = service("-c", settings, "--out", run, "--batches", 2)
    assert code == 0 and out.startswith("1 batch behind 1 of earlier calls: ")
    assert [path.name for path in (run / "batches").glob("[0-9]*")] == ["1.jsonl"]
    assert (run / "batches" / "1.jsonl").read_bytes() == expected[1]
    code, out, _ = service("-c", settings, "--out", run, "--batches", 2)
    assert (code, out) == (0, "2 batches are there already; a larger --batches makes more\n")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_service_that_is_stopped_goes_on_to_the_same_batches(settings: Path, tmp_path: Path, number: signal.Signals):
    run = tmp_path / "run"
    with process("service", "-c", settings, "--out", run, "--batches", MANY) as started:
        wait_for_a_batch(started)
        started.send_signal(number)
        _, err = started.communicate(timeout=TIMEOUT_S)
    if number == signal.SIGKILL:
        assert started.returncode == -signal.SIGKILL
    else:
        assert started.returncode == ExitCode.INTERRUPTED
        assert err.endswith("error: interrupted\nfinished batches are saved; the same command goes on\n")
    done = len(batches_of(err)) + 1
    code, _, err = service("-c", settings, "--out", run, "--batches", done + 3)
    assert code == 0
    assert set(batches_of(err)) <= set(range(done, done + 3)), "a batch that was told is done"
    assert texts(run, done + 3) == whole(settings, tmp_path, done + 3)


@pytest.mark.slow
def test_the_built_in_model_needs_no_file_of_settings(tmp_path: Path):
    flags = ("--preset", "offline", "--prompts", 4, "--set", "service.batch_size=2", "--budget", "leaves=3")
    said = told(*flags, "--out", tmp_path / "run", "--batches", 1)
    assert said["batches"][0]["rows"] == 6 and said["batches"][0]["groups"] == 2


@pytest.mark.slow
def test_batches_are_where_the_settings_put_them(settings: Path, tmp_path: Path):
    template = tmp_path / "elsewhere" / "{rollout_id}.jsonl"
    said = told("-c", settings, "--set", f"service.save_debug={template}", "--out", tmp_path / "run", "--batches", 1)
    assert said["batches"][0]["file"] == str(tmp_path / "elsewhere" / "0.jsonl")
    assert len(debug_files.load(tmp_path / "elsewhere" / "0.jsonl")) == said["batches"][0]["rows"]
    assert not (tmp_path / "run" / "batches").exists()


@pytest.mark.slow
def test_written_answers_go_on_with_the_next_row(tmp_path: Path):
    questions = tmp_path / "written.jsonl"
    questions.write_text("".join(f'{{"question": "q{n}", "answer": "a{n}"}}\n' for n in range(6)))
    flags = (
        *("--data", questions, "--engine", "scripted", "--set", "service.label_key=answer"),
        *("--set", "service.rollout_function=ramify.service.sft.generate_rollout", "--set", "service.batch_size=2"),
    )
    assert told(*flags, "--out", tmp_path / "whole", "--batches", 3)["batches"][2]["rows"] == 2
    for num in (1, 3):
        assert service(*flags, "--out", tmp_path / "run", "--batches", num)[0] == 0
    assert texts(tmp_path / "run", 3) == texts(tmp_path / "whole", 3)


@pytest.mark.slow
def test_a_file_of_questions_is_told_before_the_first_batch(settings: Path, tmp_path: Path):
    questions = tmp_path / "questions.jsonl"
    questions.write_text('{"question": "1+1", "answer": "2"}\n{"question": "2+2", "answer": "4"}\n')
    code, _, err = service("-c", settings, "--data", questions, "--out", tmp_path / "run", "--batches", 1)
    assert code == 0
    assert err.startswith(f"data: 2 problems of {questions}; question: 'question'; gold answer: 'answer' (secret)")


@pytest.mark.slow
def test_a_service_whose_groups_all_fail_stops_and_says_how_to_go_on(settings: Path, tmp_path: Path):
    (tmp_path / "mine.py").write_text("def keep(args, samples):\n    raise ValueError('not today')\n")
    flags = ("--set", f"service.group_filter={tmp_path / 'mine.py'}:keep", "--out", tmp_path / "run", "--batches", 1)
    code, out, err = service("-c", settings, *flags, "--json")
    assert code == ExitCode.SAVED
    assert "not today" in err and err.endswith("finished batches are saved; the same command goes on\n")
    assert json.loads(out)["schema"] == "ramify.error/1" and json.loads(out)["exit_code"] == 75
    (tmp_path / "mine.py").write_text("def keep(args, samples):\n    return True\n")
    assert service("-c", settings, *flags)[0] == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--out", "new", "--batches", "1"), "new holds no service; give a configuration to begin one, on the command"),
        (("-c", "none.toml", "--out", "new", "--batches", "1"), "none.toml: cannot be read: No such file or directory"),
        (("-c", "service.toml", "--out", "new", "--batches", "0"), "--batches 0: at least 1 is needed"),
        (("-c", "service.toml", "--out", "new", "--batches", "-3"), "--batches -3: at least 1 is needed"),
        (("-c", "service.toml", "--out", "service.toml", "--batches", "1"), "--out service.toml is a file; name a fol"),
        (
            ("-c", "service.toml", "--set", "service.load_debug=b/{rollout_id}.jsonl", "--out", "new", "--batches=1"),
            "service.load_debug = 'b/{rollout_id}.jsonl' reads batches, and `ramify service` makes them: leave it out",
        ),
        (("-c", "service.toml", "--budget", "seconds=3", "--out", "new", "--batches", "1"), "unknown budget 'seconds'"),
        (("-c", "service.toml", "--set", "run_limits.decode=9", "--out", "new", "--batches=1"), "a service has no end"),
    ],
)
def test_what_cannot_begin_is_refused_before_anything_is_written(
    arguments: tuple[str, ...],
    said: str,
    settings: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(tmp_path)
    refused = ramify(capsys, "service", *arguments)
    assert (refused.code, refused.out) == (ExitCode.CONFIG, "")
    assert said in refused.err
    assert list(tmp_path.iterdir()) == [settings]


@pytest.mark.slow
def test_a_batch_that_could_not_be_written_is_made_again(settings: Path, tmp_path: Path):
    run = tmp_path / "run"
    assert service("-c", settings, "--out", run, "--batches", 1)[0] == 0
    (run / "batches" / "1.jsonl").mkdir()
    code, _, err = service("-c", settings, "--out", run, "--batches", 2)
    assert code == ExitCode.CONFIG
    assert f"{run / 'batches' / '1.jsonl'} exists and is no plain file; choose another place" in err
    (run / "batches" / "1.jsonl").rmdir()
    assert service("-c", settings, "--out", run, "--batches", 2)[0] == 0
    assert texts(run, 2) == whole(settings, tmp_path, 2)


@pytest.mark.parametrize("missing", [("--out", "new"), ("--batches", "1"), ("--out", "new", "--batches", "two")])
def test_the_folder_and_the_number_are_needed(missing: tuple[str, ...], capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        ramify(capsys, "service", *missing)
    assert ended.value.code == 2
    assert "usage: ramify service" in capsys.readouterr().err


def test_a_folder_with_something_else_is_refused(settings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "notes.txt").write_text("mine")
    refused = ramify(capsys, "service", "-c", settings, "--out", tmp_path / "taken", "--batches", 1)
    assert refused.code == ExitCode.ENVIRONMENT
    assert "is not empty and no run (it holds 'notes.txt'); choose a new folder" in refused.err
    run = tmp_path / "run"
    assert ramify(capsys, "rollout", "--engine", "scripted", "--prompts", 1, "--out", run, "-q").code == 0
    for flags in (("-c", settings), ()):
        refused = ramify(capsys, "service", *flags, "--out", run, "--batches", 1)
        assert refused.code == ExitCode.CONFIG
        assert refused.err == f"error: {run} holds a run that is no service; name a new folder\n"


@pytest.mark.slow
def test_other_settings_are_refused_where_a_service_was_begun(settings: Path, tmp_path: Path):
    run = tmp_path / "run"
    assert service("-c", settings, "--out", run, "--batches", 1)[0] == 0
    code, _, err = service("-c", settings, "--seed", 4, "--out", run, "--batches", 2)
    assert code == ExitCode.CONFIG
    assert "was begun with another configuration: leave yours out to go on, or choose a new folder" in err


@pytest.mark.slow
def test_two_services_do_not_share_a_folder(settings: Path, tmp_path: Path):
    run = tmp_path / "run"
    with process("service", "-c", settings, "--out", run, "--batches", MANY) as started:
        wait_for_a_batch(started)
        code, _, err = service("-c", settings, "--out", run, "--batches", MANY)
        assert started.poll() is None
    assert code == ExitCode.ENVIRONMENT
    assert "is being written by another run" in err
