"""Jobs in processes of their own: their results come in order, their faults reach the command, none outlives it."""

import multiprocessing
import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from ramify.cli.side_by_side import SideBySide, Tell, in_streams
from ramify.core.errors import StoreError, Unavailable
from ramify.runner.tally import Tally


def counting(number: int, tell: Tell) -> int:
    tell(Tally(num_closed=1))
    tell(Tally(num_closed=number))
    tell(f"job {number}")
    return number * number


def failing(tell: Tell) -> None:
    raise StoreError("the disk is full")


def dying(tell: Tell) -> None:
    os._exit(7)


def noting(path: Path, tell: Tell) -> None:
    """Write this process's id, tell so, and never end."""
    path.write_text(str(os.getpid()), "utf-8")
    tell("written")
    signal.pause()


def none(told: object) -> None:
    pass


def test_results_come_in_the_order_of_the_jobs_and_counts_are_summed() -> None:
    shown: list[Tally] = []
    said: list[object] = []
    results = SideBySide([partial(counting, number) for number in range(1, 4)]).run(show=shown.append, say=said.append)
    assert results == [1, 4, 9]
    assert shown[-1].num_closed == 6
    assert sorted(map(str, said)) == ["job 1", "job 2", "job 3"]


def test_what_a_job_raises_ends_the_command() -> None:
    with pytest.raises(StoreError, match="the disk is full"):
        SideBySide([failing]).run(show=none, say=none)


def test_a_process_that_dies_is_told() -> None:
    with pytest.raises(Unavailable, match="before its work was done"):
        SideBySide([dying]).run(show=none, say=none)


def test_an_interrupted_command_leaves_no_process(tmp_path: Path) -> None:
    path = tmp_path / "pid"

    def interrupt(told: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        SideBySide([partial(noting, path)]).run(show=none, say=interrupt)
    with pytest.raises(ProcessLookupError):
        os.kill(int(path.read_text("utf-8")), 0)


def numbers(count: int) -> Iterator[int]:
    yield from range(count)
    if count > 2:
        raise StoreError("no more numbers")


def ending(number: int) -> Iterator[int]:
    yield number
    os._exit(7)


def test_items_come_as_they_are_made_and_a_fault_behind_them() -> None:
    with in_streams([partial(numbers, 2), partial(numbers, 3)]) as (short, long):
        assert list(short) == [0, 1]
        assert [next(long), next(long), next(long)] == [0, 1, 2]
        with pytest.raises(StoreError, match="no more numbers"):
            next(long)


def test_a_stream_whose_process_dies_says_so() -> None:
    with in_streams([partial(ending, 1)]) as (items,):
        assert next(items) == 1
        with pytest.raises(Unavailable, match="before its work was done"):
            next(items)


def test_streams_that_nobody_reads_to_their_end_leave_no_process() -> None:
    with in_streams([partial(numbers, 10**9)]) as (items,):
        assert next(items) == 0
        assert multiprocessing.active_children()
    assert not multiprocessing.active_children()
