"""Progress of a training: a live curve on a terminal, lines elsewhere."""

from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ramify.cli.terminal import Terminal
from ramify.cli.track import RunTracker
from ramify.cli.train_progress import Mark, TrainProgress, bars, curve, training_curve
from ramify.train.log import LOG, TrainingLog

UPDATE: Mapping[str, Any] = {"seconds/rollout": 2.0, "seconds/weights": 0.5, "step_time": 4.0, "tokens": 100}


def evaluation(step: int, reward: float) -> dict[str, Any]:
    figures = {"eval_heldout": reward, "eval_heldout-stderr": 0.02, "eval_heldout/pass@4": 0.9}
    return {"step": step, "tokens": step * 100, "eval_step": float(step), **figures}


def update(step: int, reward: float) -> dict[str, Any]:
    return {**UPDATE, "step": step, "tokens": step * 100, "reward": reward}


class Screen:
    """A training that tells `lines`, as `train` does: into the log, then to the progress."""

    def __init__(self, folder: Path, *, is_terminal: bool, verbosity: int = 0, **limits: Any) -> None:
        self.written = StringIO()
        console = Console(file=self.written, force_terminal=is_terminal, width=90, color_system=None)
        self.log = TrainingLog(folder / LOG)
        self.now = 0.0
        terminal = Terminal(console, console, verbosity)
        tracker = RunTracker((), lambda: pytest.fail("nothing is tracked"), terminal)
        told = {"title": "herds", "steps": 20, **limits}
        self.progress = TrainProgress(terminal, tracker, folder, **told, now=lambda: self.now)

    def tell(self, *lines: Mapping[str, Any]) -> str:
        """What is written while these lines are told, 10 s apart."""
        before = len(self.written.getvalue())
        for line in lines:
            self.now += 10
            self.log.append(line)
            self.progress(line["step"], line)
        return self.written.getvalue()[before:]


def test_bars_go_from_the_least_to_the_greatest() -> None:
    assert bars([0.5]) == "▁"
    assert bars([0.1, 0.3, 0.2]) == "▁█▅"


def test_a_curve_has_points_with_errors_and_the_rewards_of_batches() -> None:
    points = [Mark(0, 0.2, 0.1), Mark(10, 0.4, 0.1)]
    assert list(curve(points, [Mark(5, 0.3)], last=20, width=28, num_lines=5)) == [
        "0.500 │          ┆",
        "      │          ●",
        "      │┆    ·    ┆",
        "      │●",
        "0.100 │┆",
        "      └─────────────────────",
        "       0                  20",
    ]


@pytest.mark.parametrize("width", [9, 20, 72])
@pytest.mark.parametrize("value", [0.0, -3.5, 1e6, 0.25])
def test_one_figure_is_a_curve_too(width: int, value: float) -> None:
    lines = list(curve([Mark(0, value)], [], last=1, width=width))
    assert sum(line.count("●") for line in lines) == 1
    assert len({*map(len, lines[-2:])}) == 1


def test_a_step_behind_the_end_stays_in_the_picture() -> None:
    assert sum(line.count("●") for line in curve([Mark(30, 1.0)], [Mark(40, 0.5)], last=20, width=40)) == 1


def test_without_figures_there_is_no_curve(tmp_path: Path) -> None:
    assert list(training_curve(TrainingLog(tmp_path / LOG), width=40, last=10)) == []


def test_without_evaluations_the_curve_is_of_batches(tmp_path: Path) -> None:
    log = TrainingLog(tmp_path / LOG)
    for step in range(3):
        log.append(update(step, 0.1 * step))
    lines = list(training_curve(log, width=40, last=10))
    assert lines[-1].strip() == "· reward of a batch"
    assert sum(line.count("·") for line in lines[:-1]) == 3


def test_figures_that_are_no_numbers_or_missing_are_left_out(tmp_path: Path) -> None:
    screen = Screen(tmp_path, is_terminal=True)
    with screen.progress:
        screen.tell({**evaluation(0, 0.25), "eval_other": 0.5}, update(1, float("nan")), update(2, 0.3))
        shown = screen.tell({"step": 3, "tokens": 1, "eval_step": 3.0, "eval_other": 0.75})
    assert "other: 0.500 -> 0.750  ▁█" in shown


def test_a_terminal_shows_the_curve_and_what_is_left(tmp_path: Path) -> None:
    screen = Screen(tmp_path, is_terminal=True)
    with screen.progress:
        shown = screen.tell(evaluation(0, 0.25), update(1, 0.3), update(2, 0.31), evaluation(2, 0.35))
    assert "herds: 2 of 20 updates, 40 s, 4 min left" in shown
    assert "● heldout, ┆ its standard error, · reward of a batch" in shown
    assert "heldout: 0.250 -> 0.350 ± 0.020  ▁█" in shown
    assert "2/20  reward 0.310" in shown
    assert "0.370 │" in shown and "0.230 │┆" in shown


def test_the_end_may_be_one_of_tokens(tmp_path: Path) -> None:
    screen = Screen(tmp_path, is_terminal=True, steps=1000, tokens=400)
    with screen.progress:
        shown = screen.tell(update(1, 0.3), update(2, 0.31))
    last = shown[shown.rindex("herds:") :]
    assert last.startswith("herds: 2 updates, 200 of 400 tokens, 20 s, 20 s left")
    assert "       0" in last and last[last.index("└") :].splitlines()[1].split() == ["0", "4"]


def test_elsewhere_each_update_and_evaluation_is_a_line(tmp_path: Path) -> None:
    screen = Screen(tmp_path, is_terminal=False)
    with screen.progress:
        assert screen.tell(evaluation(0, 0.25)) == "        heldout: 0.250 ± 0.020  ▁\n"
        line = "   1/20  reward 0.300, 0 tokens to train, 2.0 s of rollouts, 1.5 s of training, 0.5 s of weights\n"
        assert screen.tell(update(1, 0.3)) == line


@pytest.mark.parametrize("is_terminal", [True, False])
def test_quiet_is_quiet(tmp_path: Path, is_terminal: bool) -> None:
    screen = Screen(tmp_path, is_terminal=is_terminal, verbosity=-1)
    with screen.progress:
        screen.tell(update(1, 0.3), evaluation(1, 0.2))
    assert screen.written.getvalue() == ""


def test_a_pilot_has_the_place_of_the_curve(tmp_path: Path) -> None:
    screen = Screen(tmp_path, is_terminal=True)
    with screen.progress as progress:
        screen.tell(update(1, 0.3))
        with progress.watch("a pilot", 3):
            assert "a pilot" in screen.written.getvalue()
        assert "2 of 20 updates" in screen.tell(update(2, 0.3))
