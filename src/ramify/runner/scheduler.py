"""Scheduler: grows many trees at once.

One TaskGroup owns the tasks of a tree, so no task is left running unobserved. No tree waits for another: there is no
barrier across trees or rounds. The number of trees in flight is limited. A fault in one tree closes only that tree; too
many failed commands stop the run.
"""

import asyncio
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from ramify.core.command import Candidate, Failed, Grow, Judge
from ramify.core.errors import ContractError, EnginesDown, JudgeError, RamifyError, StoreError
from ramify.core.growth import Asked, Ending, Failure, Scored
from ramify.core.judge import SamplingJudge
from ramify.core.problem import Problem
from ramify.core.stop import stop_word
from ramify.core.strategy import Phase
from ramify.core.tree import Place, Step
from ramify.edge.url_keys import without_url_keys
from ramify.runner.asking import Questions
from ramify.runner.deadline import is_being_cancelled
from ramify.runner.driver import Delivered, Driver, DriverEvent, Pumped, Start
from ramify.runner.events import (
    CommandsAsked,
    EngineFault,
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
from ramify.runner.resume import Redriven, redrive
from ramify.runner.work import Contexts, Path, Work
from ramify.store.replay import Replayed

KeepUp = Callable[[], Awaitable[None]]
"""Returns when new work may begin, that is, when the store has room for more records."""
MIN_COMMANDS_TO_JUDGE_FAULTS = 20
"""Failures are not judged before this many outcomes."""


BUILD = Phase("build")
"""The phase of a tree whose strategy has not been asked yet."""


class TooManyFailures(RamifyError):
    """More commands failed than `max_failed_share` allows. Finished work is kept, and the run can be resumed."""


class NothingAnswered(TooManyFailures):
    """Every command of a new run failed, and no engine has answered any request."""


@dataclass(slots=True)
class TreeRun:
    """One tree being grown: its driver, the tasks of its commands, and where its events go."""

    index: int
    problem: Problem
    driver: Driver
    grower: Grower
    judging: Judging
    emit: Callable[[Event], None]
    max_seconds: float | None = None
    """Most seconds of this tree, from its start."""
    deadline: float | None = None
    """Deadline of the run, by the loop's clock. If `max_seconds` ends earlier, the tree stops then."""
    before: Replayed | None = None
    """What an interrupted run had recorded of this tree."""
    _due: dict[int, Start] = field(default_factory=dict)
    """Commands to start when the driver has no more to say. A command that it cancels at once never starts."""
    _tasks: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    _paths: dict[int, Path] = field(default_factory=dict)
    _questions: dict[int, Questions] = field(default_factory=dict)
    _cancelled: set[int] = field(default_factory=set)
    _woken: asyncio.Event = field(default_factory=asyncio.Event)
    _task: asyncio.Task[None] | None = None
    is_stopped: bool = False
    _phase: Phase = BUILD

    async def run(self) -> None:
        """Grow the tree until its strategy is done. Cancelling this cancels every command of the tree."""
        self._task = asyncio.current_task()
        before = self.before
        redriven = Redriven() if before is None else redrive(self.driver, before.events, before.steps)
        self.emit(TreeOpened(self.index, self.driver.tree, before is not None, self.driver.ledger.limits))
        if self.max_seconds is not None:
            own = asyncio.get_running_loop().time() + self.max_seconds
            self.deadline = own if self.deadline is None else min(own, self.deadline)
        async with asyncio.TaskGroup() as group:
            self.emit(PhaseBegan(self.index, self._phase, 0))
            self._tell(redriven.unsaid)
            self._take(redriven.starts, redriven.cancels)
            while self._advance():
                for command_id, start in self._due.items():
                    self._tasks[command_id] = group.create_task(self._carry_out(start))
                self._due.clear()
                self._woken.clear()
                await self._woken.wait()

    def had_failed(self, command_id: int) -> bool:
        """Whether the command had failed before the run was resumed, and only its outcome was not yet delivered."""
        steps = () if self.before is None else self.before.steps.get(command_id, ())
        return bool(steps) and steps[-1].stop is not None and stop_word(steps[-1].stop).is_failure

    def stop(self) -> None:
        """Give the tree up as it stands."""
        if self._task is not None and not self.is_stopped:
            self.is_stopped = True
            self._task.cancel()

    def _advance(self) -> bool:
        """Deliver what has ended and collect what to start. Returns false when the tree is finished."""
        while True:
            pumped = Pumped()
            try:
                self.driver.pump(pumped)
            finally:
                self._tell(pumped.events)
            self._take(pumped.starts, pumped.cancels)
            self._announce_phase()
            if not pumped.cancels:
                return not self.driver.is_finished

    def _tell(self, events: Iterable[DriverEvent]) -> None:
        for event in events:
            is_question = isinstance(event, Asked)
            self.emit(CommandsAsked(self.index, event) if is_question else OutcomeTold(self.index, event))

    def _take(self, starts: Iterable[Start], cancels: Iterable[int]) -> None:
        """Note what the driver wants to start, and cancel what it no longer wants."""
        self._due.update((start.command_id, start) for start in starts)
        for command_id in cancels:
            self._cancel(command_id)

    def _announce_phase(self) -> None:
        phase = self.driver.strategy.phase(self.driver.tree)
        if phase != self._phase:
            self._phase = phase
            self.emit(PhaseBegan(self.index, phase, len(self.driver.growth.flights)))

    def _cancel(self, command_id: int) -> None:
        if self.driver.has_ended(command_id):
            return
        if command_id in self._tasks:
            self._cancelled.add(command_id)
            self._tasks[command_id].cancel()
        elif command_id in self._due:
            self.driver.ended(command_id, self._given_up(self._due.pop(command_id)))
        else:
            self.driver.ended(command_id, Failure("cancelled"))

    async def _carry_out(self, start: Start) -> None:
        """Carry out one command, from its start to its ending."""
        try:
            ending = await self._ending(start)
        except asyncio.CancelledError:
            ending = self._cancelled_ending(start)
        del self._tasks[start.command_id]
        self._paths.pop(start.command_id, None)
        self._questions.pop(start.command_id, None)
        self.driver.ended(start.command_id, ending)
        self._woken.set()

    def _cancelled_ending(self, start: Start) -> Ending:
        """How a command ends whose task was cancelled. Raises `CancelledError` if the whole tree was cancelled."""
        if start.command_id in self._cancelled:
            asyncio.current_task().uncancel()  # pyright: ignore[reportOptionalMemberAccess]
            return self._given_up(start)
        if is_being_cancelled():
            raise asyncio.CancelledError
        raise ContractError(f"{start.command!r} was cancelled by the engine, judge or format that carried it out")

    def _given_up(self, start: Start) -> Ending:
        """How a command ends that its strategy cancelled."""
        if isinstance(start.command, Grow):
            path = self._paths.get(start.command_id) or Path.begin(self._grow_work(start))
            path.work.report(self.grower.failed_step(path, "cancelled", reason="cancelled"))
        elif (questions := self._questions.get(start.command_id)) is not None:
            questions.give_up("cancelled", "cancelled")
        return Failure("cancelled")

    async def _ending(self, start: Start) -> Ending:
        command = start.command
        if isinstance(command, Grow):
            path = self._paths[start.command_id] = Path.begin(self._grow_work(start))
            return await self.grower.grow(path)
        judge = self.judging.named(command.judge)
        if isinstance(judge, SamplingJudge):
            return await self._asked(start, command, judge)
        branches = [self.driver.tree.branch(node) for node in command.nodes]
        try:
            scores = await self.judging.scores(
                command.judge,
                branches,
                self.problem,
                attempt=command.attempt,
                of_state=self.grower.state_score(str(self.index)),
            )
        except JudgeError as error:
            return Failure(f"judge: {error}")
        return Scored(scores)

    async def _asked(self, start: Start, command: Judge, judge: SamplingJudge) -> Ending:
        """A judgement for which a judge asks models of the run."""
        tree, asking = self.driver.tree, self.judging.asking
        assert asking is not None
        place = tree.about(command, 0)
        work = self._work(start, Grow(place.parent, until="step", action=judge.action), place)
        questions = asking.begin(work, self.problem, places=lambda number: tree.about(command, number))
        if (failure := questions.had_failed) is not None:
            return failure
        self._questions[start.command_id] = questions
        nodes = [tree.contexts(node) for node in command.nodes]
        try:
            return Scored(await self.judging.asked(judge, nodes, questions, attempt=command.attempt))
        except JudgeError as error:
            return questions.failure(error)

    def _grow_work(self, start: Start) -> Work:
        assert isinstance(start.command, Grow) and start.place is not None
        return self._work(start, start.command, start.place)

    def _work(self, start: Start, command: Grow, place: Place) -> Work:
        tree, parent = self.driver.tree, place.parent
        steps = self.driver.growth.flights[start.command_id].steps

        def report(step: Step) -> None:
            number = len(steps)
            self.driver.grew(start.command_id, step)
            self.emit(StepGrown(self.index, start.command_id, number, step))

        return Work(
            tree=str(self.index),
            command=command,
            place=place,
            branch=tree.branch(parent),
            contexts=Contexts(tree, parent) if self.grower.quotes(command.action) else (),
            allotment=start.allotment,
            limited=self.driver.limited,
            report=report,
            done=tuple(steps),
            deadline=self.deadline,
        )


class Scheduler:
    """Run trees side by side, at most `max_trees` at a time."""

    def __init__(self, observers: Iterable[Observer], *, max_trees: int, max_failed_share: float) -> None:
        self._observers = tuple(observers)
        self._max_trees = max_trees
        self._max_failed_share = max_failed_share
        self._runs: dict[int, TreeRun] = {}
        self._observers_fault: Exception | None = None
        self._num_outcomes = 0
        self._num_failed = 0
        self._last_fault = ""
        """What the engine said that failed last."""

    def emit(self, event: Event) -> None:
        """Tell every observer, then check the share of failures. An exception of an observer ends the run."""
        for observer in self._observers:
            try:
                observer(event)
            except Exception as error:
                self._observers_fault = error
                raise
        if isinstance(event, EngineFault):
            self._last_fault = event.said
        if isinstance(event, OutcomeTold) and not self._runs[event.index].had_failed(event.delivered.command_id):
            self._count(event.delivered)

    def stop(self, index: int) -> None:
        """Give up a tree that is growing; any other index is ignored."""
        if index in self._runs:
            self._runs[index].stop()

    def forgive(self) -> None:
        """Reset the count of failures: in a run of many days, earlier failures should not count any more."""
        self._num_outcomes = self._num_failed = 0

    async def run(self, trees: AsyncIterable[Callable[[], TreeRun]], *, keep_up: KeepUp) -> None:
        """Grow every tree of `trees`. Each is built when there is room for it and `keep_up` has returned."""
        room = asyncio.Semaphore(self._max_trees)

        async def one(build: Callable[[], TreeRun]) -> None:
            try:
                await self._grow(build())
            finally:
                room.release()

        try:
            async with asyncio.TaskGroup() as group:
                async for build in trees:
                    await room.acquire()
                    await keep_up()
                    group.create_task(one(build))
        except ExceptionGroup as failures:
            first = _flat(failures)[0]
            raise first from first.__cause__

    async def _grow(self, run: TreeRun) -> None:
        self._runs[run.index] = run
        try:
            reason = await self._reason(run)
        finally:
            del self._runs[run.index]
        tree = run.driver.tree
        reason, tree.candidates = _answered(run, reason)
        tree.is_broken = reason != "done"
        tree.trim()
        self.emit(TreeClosed(run.index, tree, reason))

    async def _reason(self, run: TreeRun) -> str:
        """Grow a tree and return why it ended. Boundary: a fault ends only its tree, unless it concerns the whole
        run."""
        try:
            await run.run()
        except asyncio.CancelledError:
            if not run.is_stopped:
                raise
            asyncio.current_task().uncancel()  # pyright: ignore[reportOptionalMemberAccess]
            return "stopped"
        except Exception as error:  # noqa: BLE001 - the boundary
            faults = _flat(error)
            for fault in faults:
                if fault is self._observers_fault or isinstance(fault, TooManyFailures | StoreError | EnginesDown):
                    raise fault from fault.__cause__
            return without_url_keys("; ".join(f"{type(fault).__name__}: {fault}" for fault in faults))
        return "done"

    def _count(self, delivered: Delivered) -> None:
        self._num_outcomes += 1
        outcome = delivered.outcome
        self._num_failed += isinstance(outcome, Failed) and outcome.is_fault
        if self._num_outcomes < MIN_COMMANDS_TO_JUDGE_FAULTS:
            return
        if self._num_failed > self._max_failed_share * self._num_outcomes:
            raise TooManyFailures(
                f"{self._num_failed} of {self._num_outcomes} commands failed, more than max_failed_share = "
                f"{self._max_failed_share}; the last for {getattr(outcome, 'reason', '?')!r}"
                f"{f', and an engine said last: {self._last_fault}' if self._last_fault else ''}"
            )


def _answered(run: TreeRun, reason: str) -> tuple[str, tuple[Candidate, ...]]:
    """The candidates of a tree's search, however it ended. Boundary to plug-in code: a strategy's fault is its
    tree's."""
    try:
        return reason, run.driver.candidates()
    except ContractError as error:
        return f"ContractError: {error}" if reason == "done" else reason, ()


def _flat(error: Exception) -> list[Exception]:
    """The exceptions of a group without the nesting; a single exception as a list of one."""
    if not isinstance(error, ExceptionGroup):
        return [error]
    return [fault for inner in error.exceptions for fault in _flat(inner)]
