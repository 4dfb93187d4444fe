"""Scheduler: grows many trees at once.

One TaskGroup owns the tasks of a tree, nothing is fire-and-forget, and no tree waits for another: there is no barrier
across trees or rounds. Back-pressure is a bound on trees in flight. A fault of one tree closes that tree and touches no
other; too many failed commands stop the run.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ramify.core.command import Failed, Grow
from ramify.core.errors import JudgeError, RamifyError, StoreError
from ramify.core.growth import Ending, Failure, Scored
from ramify.core.problem import Problem
from ramify.core.strategy import Phase
from ramify.core.tree import Step
from ramify.runner.driver import Asked, Delivered, Driver, DriverEvent, Start
from ramify.runner.events import (
    CommandsAsked,
    Event,
    Observer,
    OutcomeTold,
    PhaseBegan,
    StepGrown,
    TreeClosed,
    TreeOpened,
)
from ramify.runner.grower import Grower
from ramify.runner.judging import Judging
from ramify.runner.resume import Redriven
from ramify.runner.work import Work

MIN_COMMANDS_TO_JUDGE_FAULTS = 20
"""Below so many outcomes a share of failures says nothing."""


class TooManyFailures(RamifyError):
    """More commands failed than `max_failed_share` allows; what is done is kept and the run can be resumed."""


@dataclass(slots=True)
class TreeRun:
    """One tree being grown: its driver, the tasks of its commands, and whom to tell."""

    index: int
    problem: Problem
    driver: Driver
    grower: Grower
    judging: Judging
    emit: Callable[[Event], None]
    max_seconds: float | None = None
    resumed: Redriven | None = None
    """What a killed run had left to do."""
    _tasks: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    _cancelled: set[int] = field(default_factory=set)
    _woken: asyncio.Event = field(default_factory=asyncio.Event)
    _deadline: float | None = None
    _task: asyncio.Task[None] | None = None
    is_stopped: bool = False
    _phase: Phase | None = None

    async def run(self) -> None:
        """Grow the tree until its strategy is done. Cancelling this cancels every command of the tree."""
        self._task = asyncio.current_task()
        self.emit(TreeOpened(self.index, self.driver.tree, self.resumed is not None))
        if self.max_seconds is not None:
            self._deadline = asyncio.get_running_loop().time() + self.max_seconds
        async with asyncio.TaskGroup() as group:
            if self.resumed is not None:
                self._tell(self.resumed.unsaid)
                self._start(self.resumed.starts, group)
                for command_id in self.resumed.cancels:
                    self._cancel(command_id)
            while self._advance(group):
                self._woken.clear()
                await self._woken.wait()

    def stop(self) -> None:
        """Give the tree up where it stands."""
        if self._task is not None and not self.is_stopped:
            self.is_stopped = True
            self._task.cancel()

    def _advance(self, group: asyncio.TaskGroup) -> bool:
        """Deliver what has ended and start what was asked; false when the tree is finished."""
        while True:
            pumped = self.driver.pump()
            self._tell(pumped.events)
            self._announce_phase()
            self._start(pumped.starts, group)
            if not [self._cancel(command_id) for command_id in pumped.cancels]:
                return not self.driver.is_finished

    def _tell(self, events: Iterable[DriverEvent]) -> None:
        for event in events:
            is_question = isinstance(event, Asked)
            self.emit(CommandsAsked(self.index, event) if is_question else OutcomeTold(self.index, event))

    def _start(self, starts: Iterable[Start], group: asyncio.TaskGroup) -> None:
        for start in starts:
            self._tasks[start.command_id] = group.create_task(self._carry_out(start))

    def _announce_phase(self) -> None:
        phase = self.driver.strategy.phase(self.driver.tree)
        if phase != self._phase:
            self._phase = phase
            self.emit(PhaseBegan(self.index, phase, len(self.driver.growth.flights)))

    def _cancel(self, command_id: int) -> None:
        if self.driver.has_ended(command_id):
            return
        task = self._tasks.get(command_id)
        if task is None:
            self.driver.ended(command_id, Failure("cancelled"))
        else:
            self._cancelled.add(command_id)
            task.cancel()

    async def _carry_out(self, start: Start) -> None:
        """One command, from its start to its ending."""
        number = len(self.driver.growth.flights[start.command_id].steps)

        def report(step: Step) -> None:
            nonlocal number
            self.driver.grew(start.command_id, step)
            self.emit(StepGrown(self.index, start.command_id, number, step))
            number += 1

        try:
            ending = await self._ending(start, report)
        except asyncio.CancelledError:
            if start.command_id not in self._cancelled:
                raise
            asyncio.current_task().uncancel()  # pyright: ignore[reportOptionalMemberAccess]
            if isinstance(start.command, Grow):
                report(self.grower.failed_step(self._work(start, report), "cancelled", reason="cancelled"))
            ending = Failure("cancelled")
        del self._tasks[start.command_id]
        self.driver.ended(start.command_id, ending)
        self._woken.set()

    async def _ending(self, start: Start, report: Callable[[Step], None]) -> Ending:
        command = start.command
        if isinstance(command, Grow):
            return await self.grower.grow(self._work(start, report))
        branches = [self.driver.tree.branch(node) for node in command.nodes]
        try:
            scores = await self.judging.scores(command.judge, branches, self.problem, attempt=command.attempt)
        except JudgeError as error:
            return Failure(f"judge: {error}")
        return Scored(scores)

    def _work(self, start: Start, report: Callable[[Step], None]) -> Work:
        assert isinstance(start.command, Grow) and start.place is not None
        tree, parent = self.driver.tree, start.place.parent
        return Work(
            tree=str(self.index),
            command=start.command,
            place=start.place,
            branch=tree.branch(parent),
            contexts=tuple(tree.contexts(parent)) if self.grower.quotes(start.command.action) else (),
            allotment=start.allotment,
            limited=self.driver.limited,
            report=report,
            done=tuple(self.driver.growth.flights[start.command_id].steps),
            deadline=self._deadline,
        )


class Scheduler:
    """Run trees side by side, at most `max_trees` at a time."""

    def __init__(self, observers: Iterable[Observer], *, max_trees: int, max_failed_share: float) -> None:
        self._observers = tuple(observers)
        self._max_trees = max_trees
        self._max_failed_share = max_failed_share
        self._runs: dict[int, TreeRun] = {}
        self._num_outcomes = 0
        self._num_failed = 0

    def emit(self, event: Event) -> None:
        for observer in self._observers:
            observer(event)
        if isinstance(event, OutcomeTold):
            self._count(event.delivered)

    def stop(self, index: int) -> None:
        """Give up a tree that is growing; any other index is ignored."""
        if index in self._runs:
            self._runs[index].stop()

    async def run(self, trees: Iterable[Callable[[], TreeRun]]) -> None:
        """Grow every tree. Each is built only when there is room for it."""
        room = asyncio.Semaphore(self._max_trees)

        async def one(build: Callable[[], TreeRun]) -> None:
            try:
                await self._grow(build())
            finally:
                room.release()

        try:
            async with asyncio.TaskGroup() as group:
                for build in trees:
                    await room.acquire()
                    group.create_task(one(build))
        except* (TooManyFailures, StoreError) as failures:
            raise _flat(failures)[0] from None

    async def _grow(self, run: TreeRun) -> None:
        """Boundary: whatever goes wrong inside one tree closes that tree and is recorded as its reason."""
        self._runs[run.index] = run
        reason = "done"
        try:
            await run.run()
        except* (TooManyFailures, StoreError):
            raise
        except* asyncio.CancelledError:
            if not run.is_stopped:
                raise
            asyncio.current_task().uncancel()  # pyright: ignore[reportOptionalMemberAccess]
            reason = "stopped"
        except* Exception as group:
            reason = "; ".join(f"{type(e).__name__}: {e}" for e in _flat(group))
        finally:
            del self._runs[run.index]
        run.driver.tree.trim()
        self.emit(TreeClosed(run.index, run.driver.tree, reason))

    def _count(self, delivered: Delivered) -> None:
        self._num_outcomes += 1
        outcome = delivered.outcome
        self._num_failed += isinstance(outcome, Failed) and outcome.reason not in ("budget", "cancelled")
        if self._num_outcomes < MIN_COMMANDS_TO_JUDGE_FAULTS:
            return
        if self._num_failed > self._max_failed_share * self._num_outcomes:
            raise TooManyFailures(
                f"{self._num_failed} of {self._num_outcomes} commands failed, more than max_failed_share = "
                f"{self._max_failed_share}; the last for {getattr(outcome, 'reason', '?')!r}"
            )


def _flat(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    """The exceptions of a group, without the nesting."""
    found: list[BaseException] = []
    for error in group.exceptions:
        found.extend(_flat(error) if isinstance(error, BaseExceptionGroup) else [error])
    return found
