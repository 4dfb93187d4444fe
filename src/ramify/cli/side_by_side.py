"""Side by side: jobs of one command in several processes, so that they use the cores of this machine.

A job is a function of a module and its arguments. It tells the command how far it is (`Tell`), and what it returns is
handed over when it ends. A stream (`in_streams`) hands over each item as it is made. The processes start without
interrupts: Ctrl-C reaches the command alone, which ends them.
"""

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import connection, get_context
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from ramify.core.errors import RamifyError, Unavailable
from ramify.runner.events import Event, Observer, TreeClosed
from ramify.runner.tally import Tally, Tallying

T = TypeVar("T")

TELL_EVERY_S = 0.25
"""Least time between two counts of a tree that still grows."""

Tell = Callable[[Tally | str], None]
"""Tells the command counts of a job, or a line for people."""
Job = Callable[[Tell], Any]


@dataclass(frozen=True, slots=True)
class _Done:
    job: int
    result: object


@dataclass(frozen=True, slots=True)
class _Item:
    value: Any


@dataclass(frozen=True, slots=True)
class _Raised:
    error: BaseException


@dataclass(slots=True)
class SideBySide:
    """Runs `jobs`, of which the first is the first of the first process, the second of the second, and so on."""

    jobs: Sequence[Job]
    _tallies: dict[int, Tally] = field(default_factory=dict[int, Tally])

    def run(self, *, show: Callable[[Tally], object], say: Callable[[str], object]) -> list[Any]:
        """The results in the order of the jobs. `show` is given the counts of all jobs together, `say` lines for
        people. Raises what a job raised, or `Unavailable` if a process died. No process is left when this returns."""
        number = min(len(self.jobs), num_cores())
        portions = [{j: self.jobs[j] for j in range(i, len(self.jobs), number)} for i in range(number)]
        with _started(_work, portions) as pipes:
            results: dict[int, object] = {}
            while len(results) < len(self.jobs):
                for pipe in connection.wait(pipes):
                    assert isinstance(pipe, Connection)
                    match told := _received(pipe):
                        case _Done(job, result):
                            results[job] = result
                        case _Raised(error):
                            raise error
                        case (int(job), Tally() as tally):
                            self._tallies[job] = tally
                            show(Tally.total(self._tallies.values()))
                        case None:
                            pipes.remove(pipe)
                        case _:
                            say(str(told))
                if not pipes and len(results) < len(self.jobs):
                    raise _cut_short()
        return [results[job] for job in range(len(self.jobs))]


@contextmanager
def in_streams(makes: Sequence[Callable[[], Iterable[T]]]) -> Iterator[list[Iterator[T]]]:
    """What each of `makes` yields, in a process of its own that works ahead as far as a pipe has room. An iterator
    raises what its process raised, or `Unavailable` if that died. No process is left behind the block."""
    with _started(_stream, makes) as pipes:
        yield [_items(pipe) for pipe in pipes]


def _items(pipe: Connection) -> Iterator[Any]:
    while True:
        match _received(pipe):
            case _Item(value):
                yield value
            case _Done():
                return
            case _Raised(error):
                raise error
            case _:
                raise _cut_short()


def _cut_short() -> Unavailable:
    return Unavailable("a process of this command ended before its work was done; run it again")


def counted(tell: Tell) -> Observer:
    """An observer of a run that tells its counts."""
    tallying, told = Tallying(), time.monotonic()

    def observe(event: Event) -> None:
        nonlocal told
        tallying.observe(event)
        now = time.monotonic()
        if isinstance(event, TreeClosed) or now - told >= TELL_EVERY_S:
            told = now
            tell(tallying.tally())

    return observe


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _received(pipe: Connection) -> object:
    """What a process told; None = it has ended."""
    try:
        return pipe.recv()
    except EOFError:
        return None


@contextmanager
def _started(target: Callable[[Any, Connection], None], works: Sequence[Any]) -> Iterator[list[Connection]]:
    """A process for each of `works`, which `target` does there, and the pipe that it tells through; ended on
    leaving."""
    context, processes, pipes = get_context("spawn"), [], list[Connection]()
    try:
        with _without_interrupts():
            for work in works:
                pipe, its_end = context.Pipe(duplex=False)
                process = context.Process(target=target, args=(work, its_end), daemon=True)
                process.start()
                its_end.close()
                processes.append(process)
                pipes.append(pipe)
        yield list(pipes)
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()
            process.close()
        for pipe in pipes:
            pipe.close()


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Processes that are started inside ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _work(portion: dict[int, Job], pipe: Connection) -> None:
    """Do jobs one after the other, in a process of their own. Boundary: whatever one raises ends the command."""
    with suppress(BrokenPipeError):
        try:
            for number, job in portion.items():
                pipe.send(_Done(number, job(lambda told, number=number: _tell(pipe, number, told))))
        except RamifyError as error:
            pipe.send(_Raised(error))


def _stream(make: Callable[[], Iterable[object]], pipe: Connection) -> None:
    """Tell item by item, in a process of its own. Boundary: whatever is raised ends the command."""
    with suppress(BrokenPipeError):
        try:
            for item in make():
                pipe.send(_Item(item))
            pipe.send(_Done(0, None))
        except RamifyError as error:
            pipe.send(_Raised(error))


def _tell(pipe: Connection, job: int, told: Tally | str) -> None:
    pipe.send(told if isinstance(told, str) else (job, told))
