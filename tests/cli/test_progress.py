"""Progress of a run: how far its trees are, on a bar or in a line every few seconds."""

import io
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from rich.console import Console
from tests.engines.endpoint import Endpoint, said
from tests.strategies.world import bare_tree

from ramify.cli.progress import LINE_EVERY_S, LINE_WIDTH, WAITED_S, RunProgress, fitted
from ramify.cli.terminal import Terminal, terminal
from ramify.core.command import Grow, Judged, Score
from ramify.core.growth import Done
from ramify.core.limits import Limits
from ramify.core.segment import Finish, Segment, Usage, token_array
from ramify.core.strategy import Phase
from ramify.core.tree import ROOT, Step, Tree
from ramify.runner.driver import Delivered
from ramify.runner.events import Event, OutcomeTold, PhaseBegan, Resumed, StepGrown, TreeClosed, TreeOpened
from ramify.runner.tally import Tally, Tallying


@dataclass
class Watched:
    """Progress at a clock that stands still, and what it writes to stderr."""

    now_s: float = 100.0
    written: io.StringIO = field(default_factory=io.StringIO)
    verbosity: int = 0
    num_trees: int = 1
    is_terminal: bool = False
    title: str = "mctsr"

    @contextmanager
    def shown(self) -> Iterator[RunProgress]:
        console = Console(file=self.written, force_terminal=self.is_terminal, width=80, color_system=None)
        shown = Terminal(Console(file=io.StringIO()), console, self.verbosity)
        with RunProgress(shown, title=self.title, num_trees=self.num_trees, now=lambda: self.now_s) as progress:
            yield progress

    @property
    def lines(self) -> list[str]:
        return self.written.getvalue().splitlines()


def step(num_tokens: int = 0, *, stop: str | None = None, scores: tuple[Score, ...] = ()) -> Step:
    ids = token_array([97] * num_tokens)
    sampled = Segment("sampled", ids, usage=Usage(1, num_tokens), finish=Finish("length"))
    return Step((sampled,), stop, scores=scores)


def judged(value: float | None, judge: str = "grade") -> OutcomeTold:
    return OutcomeTold(0, Delivered(0, Done(), Judged(0, (Score(judge, value),)), 0))


OPENED = TreeOpened(0, bare_tree())
BOUNDED = TreeOpened(0, bare_tree(), limits=Limits(decode=4000, leaves=16))


# -- how far a tree is ----------------------------------------------------------------------------------------------


@pytest.mark.covers("S2.6")
def test_the_bar_moves_with_the_rounds_of_a_search() -> None:
    progress = RunProgress(terminal(), title="mctsr", num_trees=2)
    progress.observe(TreeOpened(0, bare_tree()))
    assert progress.tally().completed == 0
    progress.observe(PhaseBegan(0, Phase("expansion", 4, 16), 3))
    assert progress.tally().completed == 0.25
    assert progress.tally().phases == {"expansion 4 of 16": 1}
    progress.observe(TreeOpened(1, bare_tree()))
    progress.observe(PhaseBegan(1, Phase("expansion", 2), 3))
    assert progress.tally().completed == 0.25
    assert progress.tally().phases == {"expansion": 2}
    progress.observe(TreeClosed(0, bare_tree()))
    assert progress.tally().completed == 1
    assert progress.tally().phases == {"expansion 2": 1}


def counted(*events: Event, now_s: float = 0.0) -> Tally:
    tallying = Tallying(lambda: now_s)
    for event in events:
        tallying.observe(event)
    return tallying.tally()


def test_a_tree_is_as_far_as_the_limit_that_it_has_used_most_of() -> None:
    tally = counted(BOUNDED, StepGrown(0, 0, 0, step(500, stop="answer")), StepGrown(0, 1, 0, step(500)))
    assert tally.part_done == 0.25
    assert tally.bound is not None and (tally.bound.name, tally.bound.used, tally.bound.limit) == ("decode", 1000, 4000)
    rounds = PhaseBegan(0, Phase("expansion", 4, 8), 1)
    assert counted(BOUNDED, rounds, StepGrown(0, 0, 0, step(1000))).part_done == 0.5
    assert counted(BOUNDED, StepGrown(0, 0, 0, step(5000))).part_done == 1.0


def test_seconds_are_a_limit_too() -> None:
    clock = iter([0.0, 30.0])
    tallying = Tallying(lambda: next(clock))
    tallying.observe(TreeOpened(0, bare_tree(), limits=Limits(seconds=120.0)))
    assert tallying.tally().part_done == 0.25


def test_the_best_score_is_that_of_the_judge_that_the_search_asks() -> None:
    leaf = StepGrown(0, 0, 0, step(1, stop="answer", scores=(Score("exact", 1.0),)))
    assert counted(OPENED).best is None
    assert counted(OPENED, leaf).best == 1.0
    assert counted(OPENED, leaf, judged(-20.0), judged(60.0), judged(None), judged(7.0, "other")).best == 60.0
    assert counted(OPENED, leaf, judged(None)).best is None


def test_of_several_processes_the_only_open_tree_is_told() -> None:
    one, other = counted(BOUNDED, judged(3.0)), counted(BOUNDED, TreeClosed(0, bare_tree()))
    assert Tally.total([one, other]).bound == one.bound
    assert Tally.total([one, other]).best == 3.0
    assert Tally.total([one, one]).bound is None


# -- lines ----------------------------------------------------------------------------------------------------------


@pytest.mark.covers("S2.6")
def test_without_a_terminal_a_line_is_written_every_few_seconds() -> None:
    watched = Watched()
    with watched.shown() as progress:
        for event in (BOUNDED, PhaseBegan(0, Phase("expansion", 1, 16), 3)):
            progress.observe(event)
        watched.now_s += LINE_EVERY_S - 0.1
        progress.observe(StepGrown(0, 0, 0, step(400)))
        assert not watched.lines
        watched.now_s += 0.1
        progress.observe(StepGrown(0, 1, 0, step(600)))
        progress.observe(judged(60.0))
        watched.now_s += LINE_EVERY_S - 0.1
        progress.observe(judged(61.0))
        watched.now_s += 0.1
        progress.observe(StepGrown(0, 2, 0, step(1000, stop="answer")))
    assert watched.lines == [
        "mctsr: 25%, 15 s left, expansion 1 of 16, 1000 of 4000 tokens, 200/s, 0 leaves",
        "mctsr: 50%, 10 s left, expansion 1 of 16, 2000 of 4000 tokens, 200/s, best 61",
    ]


def test_a_short_run_and_one_in_which_nothing_changes_write_no_line() -> None:
    watched = Watched()
    with watched.shown() as progress:
        progress.observe(OPENED)
        watched.now_s += LINE_EVERY_S - 0.1
        progress.observe(TreeClosed(0, bare_tree()))
    assert not watched.lines
    watched = Watched()
    with watched.shown() as progress:
        for _ in range(3):
            watched.now_s += 10 * LINE_EVERY_S
            progress.show(Tally())
    assert watched.lines == ["mctsr: 0 tokens (0/s), 0 leaves"]


@pytest.mark.parametrize(("verbosity", "is_terminal"), [(-1, False), (-1, True)])
def test_a_quiet_run_writes_nothing(verbosity: int, is_terminal: bool) -> None:
    watched = Watched(verbosity=verbosity, is_terminal=is_terminal)
    with watched.shown() as progress:
        progress.observe(BOUNDED)
        watched.now_s += 2 * LINE_EVERY_S
        progress.observe(StepGrown(0, 0, 0, step(400)))
    assert not watched.lines


def test_several_trees_are_counted_with_their_parts_and_the_time_left() -> None:
    watched = Watched(num_trees=3)
    with watched.shown() as progress:
        for index in range(3):
            progress.observe(TreeOpened(index, bare_tree()))
            progress.observe(PhaseBegan(index, Phase("expansion", 4, 8), 1))
        progress.observe(TreeClosed(0, bare_tree()))
        watched.now_s += 60.0
        progress.observe(StepGrown(1, 0, 0, step(600)))
    assert watched.lines == ["mctsr: 2.0 of 3 trees, 30 s left, 600 tokens (10/s), 0 leaves, expansion: 2"]


def test_trees_that_were_finished_before_tell_nothing_of_the_time_left() -> None:
    watched = Watched(num_trees=100)
    with watched.shown() as progress:
        progress.observe(Resumed(50))
        watched.now_s += 10.0
        progress.observe(OPENED)
        progress.observe(TreeClosed(0, bare_tree()))
        watched.now_s += 30.0
        for _ in range(9):
            progress.observe(TreeClosed(0, bare_tree()))
        watched.now_s += 5.0
        progress.show(progress.tally())
    assert watched.lines[0] == "mctsr: 50 of 100 trees, 0 tokens (0/s), 0 leaves, build: 1"
    assert watched.lines[-1] == "mctsr: 60 of 100 trees, 3 min left, 0 tokens (0/s), 0 leaves"


def test_a_line_and_a_bar_fit_eighty_columns() -> None:
    for is_terminal in (False, True):
        watched = Watched(is_terminal=is_terminal, title="a title that is far too long for a line of progress")
        with watched.shown() as progress:
            progress.observe(TreeOpened(0, bare_tree(), limits=Limits(decode=4_000_000)))
            progress.observe(PhaseBegan(0, Phase("initial chains", 1234, 5678), 3))
            watched.now_s += 1e5
            progress.observe(StepGrown(0, 0, 0, step(400_000, stop="answer")))
            watched.now_s += 1e5
            progress.observe(judged(-12345.678))
        assert watched.lines and all(len(line) <= LINE_WIDTH for line in watched.lines)
        assert "22%" in watched.written.getvalue() and "left" in watched.written.getvalue()


def test_parts_that_do_not_fit_are_left_out_from_the_end() -> None:
    assert fitted(["one", "two", "three"], 8) == "one, two"
    assert fitted(["one", "two", "three"], 7) == "one"
    assert fitted(["one"], 1) == "one"
    assert fitted([], 9) == ""


# -- a run that waits -----------------------------------------------------------------------------------------------


def waiting(num_requests: int) -> Tree:
    """A tree with requests in flight."""
    tree = bare_tree()
    for number in range(num_requests):
        assert tree.begin(number, Grow(ROOT)) is not None
    return tree


@pytest.mark.covers("S2.6")
def test_without_an_answer_the_wait_and_the_requests_in_flight_are_said() -> None:
    watched = Watched(num_trees=64)
    with watched.shown() as progress:
        progress.observe(TreeOpened(0, waiting(5)))
        progress.observe(TreeOpened(1, waiting(3)))
        for _ in range(2):
            watched.now_s += LINE_EVERY_S
            progress.tick()
        progress.observe(StepGrown(0, 0, 0, step(100)))
        watched.now_s += WAITED_S - 0.1
        progress.tick()
        watched.now_s += LINE_EVERY_S
        progress.tick()
    assert watched.lines == [
        "mctsr: 0 of 64 trees, waited 5 s for 8 requests in flight, 0 tokens (0/s)",
        "mctsr: 0 of 64 trees, waited 10 s for 8 requests in flight, 0 tokens (0/s)",
        "mctsr: 0 of 64 trees, waited 8 s for 8 requests in flight, 100 tokens (5.59/s)",
    ]
    assert all(len(line) <= LINE_WIDTH for line in watched.lines)


def test_a_run_that_cannot_begin_yet_says_what_it_waits_for() -> None:
    watched = Watched()
    with watched.shown() as progress:
        watched.now_s += 90.0
        progress.tick()
        progress.observe(OPENED)
        watched.now_s += LINE_EVERY_S
        progress.tick()
    assert watched.lines == [
        "mctsr: waited 2 min for engines and tools to start, 0 tokens (0/s), 0 leaves",
        "mctsr: build, 0 tokens (0/s), 0 leaves",
    ]


def test_the_wait_of_several_processes_is_the_shortest_of_those_that_wait() -> None:
    slow = Tally(num_in_flight=8, waited_s=40.0)
    total = Tally.total([slow, Tally(num_in_flight=2, waited_s=6.0), Tally(num_closed=3, waited_s=1.0)])
    assert (total.num_in_flight, total.waited_s) == (10, 6.0)
    watched = Watched(num_trees=9)
    with watched.shown() as progress:
        progress.show(slow)
        watched.now_s += LINE_EVERY_S
        progress.tick()
    assert watched.lines == ["mctsr: 0 of 9 trees, waited 40 s for 8 requests in flight, 0 tokens (0/s)"]


def test_a_bar_says_the_wait_too() -> None:
    watched = Watched(is_terminal=True, num_trees=64)
    with watched.shown() as progress:
        progress.observe(TreeOpened(0, waiting(12)))
        watched.now_s += 100.0
        progress.tick()
    shown = re.split(r"[\r\n]", re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]", "", watched.written.getvalue()))
    assert any(line.endswith("0 of 64 trees, waited 2 min for 12 requests in flight") for line in shown)
    assert all(len(line) <= LINE_WIDTH for line in shown)


def test_a_quiet_run_that_waits_writes_nothing() -> None:
    watched = Watched(verbosity=-1)
    with watched.shown() as progress:
        progress.observe(TreeOpened(0, waiting(5)))
        watched.now_s += 100.0
        progress.tick()
    assert not watched.lines


@pytest.mark.slow
@pytest.mark.covers("S2.6")
def test_a_real_run_on_a_server_that_answers_late_says_that_it_waits(tmp_path: Path) -> None:
    def late(body: object) -> dict[str, object]:
        time.sleep(2 * LINE_EVERY_S)
        return dict(said("<answer>3</answer>"))

    with Endpoint(late) as endpoint:
        flags = ["--engine", "openai", "--model", "m", "--base-url", endpoint.url, "--set", "format=messages"]
        few = ["--preset", "chains", "--set", "strategy.options.n=1"]
        command = [sys.executable, "-m", "ramify.cli.main", "search", "2 + 1?", *flags, *few]
        told = subprocess.run([*command, "--out", str(tmp_path / "run")], capture_output=True, text=True, check=False)
    waits = [line for line in told.stderr.splitlines() if " s for 1 request in flight" in line]
    assert waits and all(line.startswith("chains: waited ") and len(line) <= LINE_WIDTH for line in waits)
