"""Run: connects to engines and tools, grows the trees of a prepared run, and closes."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from ramify.core.environment import TURN
from ramify.core.problem import Problem
from ramify.core.segment import Usage
from ramify.runner.allowance import Allowance
from ramify.runner.deadline import finished
from ramify.runner.driver import Driver
from ramify.runner.engine_faults import EngineFaults
from ramify.runner.events import Event, Observer, TreeClosed
from ramify.runner.grower import Grower
from ramify.runner.judges import sampling
from ramify.runner.prepared import Prepared
from ramify.runner.probe import probe_logprobs
from ramify.runner.report import RunReport, engine_reports
from ramify.runner.sampler import ENTROPY_TOPK, Sampler, most_tool_tokens
from ramify.runner.scheduler import KeepUp, NothingAnswered, Scheduler, TooManyFailures, TreeRun
from ramify.runner.toolbox import Toolbox
from ramify.store.replay import Replayed
from ramify.strategies.parts.entropy import STEP_ENTROPY

MAX_CHARACTER_BYTES = 4
"""Most bytes of a UTF-8 character. A token may be a single byte, so a text has at most as many tokens as bytes."""


async def _at_once() -> None:
    """The `keep_up` of a run that writes no records: it never waits."""


@dataclass(frozen=True, slots=True)
class Seedling:
    """A tree to grow: its number, its problem, and what an interrupted run had recorded of it."""

    index: int
    problem: Problem
    before: Replayed | None = None
    prepared: Prepared | None = None
    """The parts that this tree grows with, on the engines and tools of the run; None = those of the run."""
    seed: int | None = None
    """None = made of the seed of the run and the problem."""


class Run:
    """One run. Mutable; it holds tool sessions and connections until it is closed."""

    def __init__(self, prepared: Prepared) -> None:
        self.prepared = prepared
        self._growing = {str(index): problem for index, problem in prepared.portion.items()}
        """Name of a tree that is not finished -> its problem."""
        self._seeds: dict[str, int] = {}
        """Name of a tree that grows -> its seed."""
        self.toolbox = Toolbox(prepared.tools, prepared.config.tools, problems=self._growing, seeds=self._seeds)
        self._scheduler: Scheduler | None = None
        self._deadline: float | None = None
        self._is_connected = False
        self._probed: Usage | None = None
        """What was used before the start; None = nothing."""
        self._faults: EngineFaults | None = None
        self._is_resumed = False

    async def connect(self) -> None:
        """Check the tools, test their sandboxes, ask each engine's server what it can do, and check the run against the
        answers. A second call does nothing. The first engine that fails to connect cancels the others."""
        if self._is_connected:
            return
        await self.toolbox.check_start()
        await self.toolbox.try_walls()
        try:
            async with asyncio.TaskGroup() as group:
                for engine in self.prepared.engines.values():
                    group.create_task(engine.connect())
        except ExceptionGroup as failures:
            first = failures.exceptions[0]
            raise first from first.__cause__
        self.prepared.check()
        await self._probe()
        self._is_connected = True

    async def _probe(self) -> None:
        """Ask for one token with top logprobs, if the run reads them and only that can show whether there are any."""
        engine, config = self.prepared.engine, self.prepared.config
        if STEP_ENTROPY in self.prepared.measures and not engine.capabilities.has_token_ids:
            self._probed = await probe_logprobs(engine, topk=ENTROPY_TOPK, strategy=config.strategy.name)

    async def grow(
        self,
        observers: Iterable[Observer],
        *,
        replayed: Mapping[int, Replayed] | None = None,
        keep_up: KeepUp = _at_once,
    ) -> RunReport:
        """Grow every unfinished tree and send its events to `observers`. Trees already closed only enter the report."""
        await self.connect()
        began = asyncio.get_running_loop().time()
        seconds = self.prepared.config.run_limits.seconds
        self._deadline = None if seconds is None else began + seconds
        report = RunReport(dollars=0.0 if self.prepared.prices else None)
        if self._probed is not None:
            report.add_probe(self._probed, self.prepared.prices.get("policy"))
            self._probed = None
        known = replayed or {}
        self._is_resumed = bool(known)
        for tree in known.values():
            if tree.is_closed:
                report.observe(TreeClosed(tree.index, tree.tree, tree.reason))
        await self.grow_each(self._unfinished(known), [*observers, report.observe], keep_up=keep_up)
        seconds = asyncio.get_running_loop().time() - began
        engines = engine_reports(self.prepared.engines, self.prepared.config.actions)
        return report.finish(seconds=seconds, tools=self.toolbox.metrics(), engines=engines)

    async def grow_each(
        self, seedlings: AsyncIterable[Seedling], observers: Iterable[Observer], *, keep_up: KeepUp = _at_once
    ) -> None:
        """Grow one tree for each of `seedlings` as soon as there is room for it; return when all are done. The numbers
        of the trees must differ. The tree with number 0 is checked with a twin strategy, unless the strategy is built
        in."""
        await self.connect()
        scheduler = self._scheduler = Scheduler(
            (*observers, self._release),
            max_trees=self.prepared.config.max_trees,
            max_failed_share=self.prepared.config.max_failed_share,
        )
        builds = (partial(self._tree_run, seedling, emit=scheduler.emit) async for seedling in seedlings)
        faults = self._faults = EngineFaults(
            self.prepared.engines,
            num_trees=len(self.prepared.problems),
            may_stop=self.prepared.config.max_failed_share < 1,
        )
        try:
            with faults.told(scheduler.emit):
                await scheduler.run(builds, keep_up=keep_up)
        except TooManyFailures as error:
            if faults.are_silent and not self._is_resumed:
                raise NothingAnswered(f"no engine has answered any request: {error}") from None
            raise
        finally:
            await finished(self._let_go())

    def check_answered(self) -> None:
        """Raise `NothingAnswered` if requests were made, and no engine has answered any."""
        if self._faults is not None and self._faults.are_silent:
            raise NothingAnswered(f"no engine has answered any request; the last fault: {self._faults.last}")

    def forgive(self) -> None:
        """Reset the count of failed commands."""
        if self._scheduler is not None:
            self._scheduler.forgive()

    async def _let_go(self) -> None:
        """Release what tools and judges hold for this run; a later run opens it again."""
        await asyncio.gather(self.toolbox.close(), self.prepared.judging.close())

    def stop(self, index: int) -> None:
        """Stop growing one tree and keep what it has. The other trees go on."""
        if self._scheduler is not None:
            self._scheduler.stop(index)

    async def close(self) -> None:
        await asyncio.gather(self.close_others(), self.prepared.engine.close())

    async def close_others(self) -> None:
        """Close everything except the policy's engine, which the caller may own."""
        others = (engine for name, engine in self.prepared.engines.items() if name != "policy")
        await asyncio.gather(self.prepared.judging.close(), *(engine.close() for engine in others))

    # -- inside -----------------------------------------------------------------------------------------------------

    async def _unfinished(self, known: Mapping[int, Replayed]) -> AsyncIterator[Seedling]:
        for index, problem in self.prepared.portion.items():
            before = known.get(index)
            if before is None or not before.is_closed:
                yield Seedling(index, problem, before)

    def _tree_run(self, seedling: Seedling, *, emit: Callable[[Event], None]) -> TreeRun:
        index, problem = seedling.index, seedling.problem
        prepared = seedling.prepared or self.prepared
        driver = _driver(prepared, seedling)
        self._growing[str(index)], self._seeds[str(index)] = problem, driver.tree.seed
        return TreeRun(
            index=index,
            problem=problem,
            driver=driver,
            grower=self._grower(prepared, problem),
            judging=prepared.judging,
            emit=emit,
            max_seconds=prepared.config.limits.seconds,
            deadline=self._deadline,
            before=seedling.before,
        )

    def _grower(self, prepared: Prepared, problem: Problem) -> Grower:
        config = prepared.config
        sampler = Sampler(
            {**prepared.engines, "policy": prepared.policy},
            config.actions,
            stops=prepared.format.stops,
            config=config.growth,
            measures=prepared.measures,
            tools=prepared.tools_of(problem),
            prices=prepared.prices,
        )
        return Grower(
            problem,
            sampler=sampler,
            actions=config.actions,
            format=prepared.format,
            quoting=prepared.quoting,
            toolbox=self.toolbox,
            judging=prepared.judging,
            config=config.growth,
            pruning=prepared.pruning,
            world=prepared.world,
        )

    def _release(self, event: Event) -> None:
        if isinstance(event, TreeClosed):
            self.toolbox.release(str(event.index))
            self._growing.pop(str(event.index), None)
            self._seeds.pop(str(event.index), None)


def _driver(prepared: Prepared, seedling: Seedling) -> Driver:
    config = prepared.config
    tree = prepared.tree(seedling.problem, seed=seedling.seed)
    max_word = max([MAX_CHARACTER_BYTES, *(len(word.encode()) for word in prepared.format.stops)])
    return Driver(
        tree,
        prepared.strategy.new(tree.seed),
        delivery=config.delivery,
        limits=prepared.limits(seedling.index),
        need=Allowance(
            config.growth,
            config.actions,
            len(prepared.judging.leaf),
            max_word,
            asking=sampling(prepared.judging.judges),
            whole_turns=prepared.whole_turns,
            prices=prepared.prices,
            num_tool_tokens=most_tool_tokens(prepared.described_tools),
            world_action=None if prepared.world is None else prepared.world.action,
            takes_turns=any(tool.name == TURN for tool in prepared.tools),
        ),
        rules=prepared.rules,
        twin=prepared.strategy.new(tree.seed) if seedling.index == 0 and not prepared.strategy.is_built_in else None,
    )
