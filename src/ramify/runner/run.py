"""Run: everything one run is made of, assembled from its configuration and checked before anything starts."""

import asyncio
import sys
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ramify import plugins
from ramify.config.run_config import RunConfig
from ramify.config.strategy_options import named_functions, read_options
from ramify.core.action import ActionConfig
from ramify.core.codec import Codec
from ramify.core.engine import Capabilities, Engine
from ramify.core.errors import ConfigError, RamifyError
from ramify.core.format import Equating, Format, MessageFormat
from ramify.core.growth import GrowthRules
from ramify.core.limits import Limits
from ramify.core.prices import Prices
from ramify.core.problem import Problem
from ramify.core.seeds import strategy_seed, tree_seed
from ramify.core.shard import WHOLE, Portion
from ramify.core.strategy import SearchStrategy, Strategy, Vote, post_hoc_rule
from ramify.core.task import Task
from ramify.core.tree import Tree
from ramify.edge.error_text import error_text
from ramify.engines.retrying import retrying
from ramify.runner.allowance import Allowance
from ramify.runner.answers import Answering
from ramify.runner.asking import Asking
from ramify.runner.deadline import finished
from ramify.runner.driver import Driver
from ramify.runner.events import Event, Observer, TreeClosed
from ramify.runner.formats import build_format
from ramify.runner.grower import Grower
from ramify.runner.judges import check_strategy_judges, judge_actions, judges_of, sampling
from ramify.runner.judging import Judging
from ramify.runner.pruning import Pruning
from ramify.runner.refusals import (
    check_actions,
    check_codecs,
    check_measures,
    check_opening,
    check_prices,
    check_problems,
    check_spelling,
    check_tools,
)
from ramify.runner.report import RunReport, engine_reports
from ramify.runner.sampler import Sampler, most_tool_tokens
from ramify.runner.scheduler import KeepUp, Scheduler, TreeRun
from ramify.runner.toolbox import Toolbox
from ramify.runner.tools import listed, tools_of
from ramify.runner.voices import Voice, format_for, is_spoken_to
from ramify.runner.whole_turns import check_growths, check_messages, check_stops
from ramify.runner.work import prompt_segments
from ramify.store.replay import Replayed
from ramify.strategies.parts.topped_up import ToppedUp

MAX_CHARACTER_BYTES = 4
"""Of UTF-8. A token may be a single byte, so a word or a character takes at most as many tokens as it has bytes."""


async def _at_once() -> None:
    """A run that writes nothing down has nothing to wait for."""


@dataclass(frozen=True, slots=True)
class Seedling:
    """A tree to grow: its number, its problem, and what a killed run had recorded of it."""

    index: int
    problem: Problem
    before: Replayed | None = None


class Run:
    """One run. Raises `ConfigError` from the constructor for whatever can be known to be wrong before the start."""

    def __init__(
        self,
        config: RunConfig,
        *,
        task: Task,
        engine: Engine,
        engines: Mapping[str, Engine] | None = None,
        problems: Sequence[Problem] | Portion,
        strategy: type[Strategy] | None = None,
        in_front: Callable[[Engine], Engine] | None = None,
    ) -> None:
        """`in_front` puts something between the policy's engine and the trees that sample from it."""
        self.config = config = replace(config, tools=listed(config.tools))
        self.task = task
        self.portion = problems if isinstance(problems, Portion) else WHOLE.of(problems)
        self.engine = retrying(engine, config.engine.retry)
        others = {name: retrying(each, config.engines[name].retry) for name, each in (engines or {}).items()}
        self.engines = {"policy": self.engine, **others}
        self.policy: Engine = self.engine if in_front is None else in_front(self.engine)
        """The policy's engine as the trees see it."""
        self.codec = engine.codec
        self.tools = tools_of(task, config.tools)
        growing = [action for action in config.actions.values() if action.role != "judge"]
        self.format: Format = build_format(
            config, task, self.codec, tools=self.tools, engines=self._capabilities(growing).values()
        )
        self._growing = {str(index): problem for index, problem in self.portion.items()}
        """Name of a tree that is not finished -> its problem."""
        self.toolbox = Toolbox(self.tools, config.tools, problems=self._growing)
        judges, leaf_judges = judges_of(config, task, self.format)
        self.config = config = replace(config, actions=judge_actions(config, judges, self.format))
        check_actions(config.actions, self.engines, self.format)
        self._asking_judges = sampling(judges)
        self._voices = {judge.action: self._voice(judge.action) for judge in self._asking_judges.values()}
        asking = Asking(self._voices, config.actions) if self._voices else None
        self.judging = Judging(judges, leaf_judges, asking=asking)
        self._pruning = Pruning.of(config.growth, task, self.judging)
        self._strategy: Any = strategy or plugins.find("strategy", config.strategy.name)
        self._options = _options(self._strategy, config)
        self._functions = named_functions(self._options)
        self._scheduler: Scheduler | None = None
        self._deadline: float | None = None
        self._is_connected = False
        sample = self._sample()
        self._measures = sample.measures
        self.post_hoc_reasons = (sample.post_hoc_reason,) if sample.post_hoc_reason else ()
        self.post_hoc = post_hoc_rule(sample, self.format.stops)
        self._check()

    @property
    def problems(self) -> Sequence[Problem]:
        """Those it grows trees of."""
        return self.portion.problems

    @property
    def rules(self) -> GrowthRules:
        """Where growths may begin: what a live tree and its replay must agree on."""
        quoting = (name for name, action in self.config.actions.items() if action.edge == "quotes")
        return GrowthRules(self.format.stops, frozenset(quoting), self._codecs)

    def strategy(self, seed: int) -> Strategy:
        """A fresh strategy for the tree of `seed`."""
        strategy = self._strategy(self._options, np.random.default_rng(strategy_seed(seed)), **self._functions)
        min_leaves = self.config.rows.min_leaves
        return strategy if min_leaves is None else ToppedUp(_checked(strategy), min_leaves)

    @property
    def prices(self) -> dict[str, Prices]:
        """Of the engines that have any, by name."""
        every = {"policy": self.config.engine, **self.config.engines}
        return {name: engine.prices for name, engine in every.items() if engine.prices.is_known}

    @property
    def answering(self) -> Answering:
        """How its trees are asked for their answers; leaves that no search grew answer by majority."""
        sample = self._sample()
        vote: Vote = sample.vote if isinstance(sample, SearchStrategy) else "majority"
        own = self.format.is_same_answer if isinstance(self.format, Equating) else None
        return Answering(vote, self.format.answer, own or self.task.is_same_answer)

    async def connect(self) -> None:
        """Try the walls of the tools, ask the engines' servers what they are, and check the run against that. Harmless
        when repeated; the first that fails ends the others."""
        if self._is_connected:
            return
        await self.toolbox.try_walls()
        try:
            async with asyncio.TaskGroup() as group:
                for engine in self.engines.values():
                    group.create_task(engine.connect())
        except ExceptionGroup as failures:
            first = failures.exceptions[0]
            raise first from first.__cause__
        self._check()
        self._is_connected = True

    async def grow(
        self,
        observers: Iterable[Observer],
        *,
        replayed: Mapping[int, Replayed] | None = None,
        keep_up: KeepUp = _at_once,
    ) -> RunReport:
        """Grow every tree that is not finished yet, telling observers; closed ones only enter the report."""
        await self.connect()
        began = asyncio.get_running_loop().time()
        seconds = self.config.run_limits.seconds
        self._deadline = None if seconds is None else began + seconds
        report = RunReport(dollars=0.0 if self.prices else None)
        known = replayed or {}
        for tree in known.values():
            if tree.is_closed:
                report.observe(TreeClosed(tree.index, tree.tree, tree.reason))
        await self.grow_each(self._unfinished(known), [*observers, report.observe], keep_up=keep_up)
        seconds = asyncio.get_running_loop().time() - began
        engines = engine_reports(self.engines, self.config.actions)
        return report.finish(seconds=seconds, tools=self.toolbox.metrics(), engines=engines)

    async def grow_each(
        self, seedlings: AsyncIterable[Seedling], observers: Iterable[Observer], *, keep_up: KeepUp = _at_once
    ) -> None:
        """Grow a tree for every one of `seedlings`, each when there is room for it, and return behind the last. Their
        numbers differ, and the first is driven by twins where it is 0."""
        await self.connect()
        scheduler = self._scheduler = Scheduler(
            (*observers, self._release),
            max_trees=self.config.max_trees,
            max_failed_share=self.config.max_failed_share,
        )
        builds = (partial(self._tree_run, seedling, emit=scheduler.emit) async for seedling in seedlings)
        try:
            await scheduler.run(builds, keep_up=keep_up)
        finally:
            await finished(self._let_go())

    def forgive(self) -> None:
        """Begin to count failed commands anew."""
        if self._scheduler is not None:
            self._scheduler.forgive()

    async def _let_go(self) -> None:
        """End what tools and judges hold for this run; a later one opens it again."""
        await asyncio.gather(self.toolbox.close(), self.judging.close())

    def stop(self, index: int) -> None:
        """Stop growing one tree; what it has is kept. The others go on."""
        if self._scheduler is not None:
            self._scheduler.stop(index)

    async def close(self) -> None:
        await asyncio.gather(self.close_others(), self.engine.close())

    async def close_others(self) -> None:
        """Close all but the policy's engine, which somebody may have handed in."""
        others = (engine for name, engine in self.engines.items() if name != "policy")
        await asyncio.gather(self.judging.close(), *(engine.close() for engine in others))

    # -- inside -----------------------------------------------------------------------------------------------------

    async def _unfinished(self, known: Mapping[int, Replayed]) -> AsyncIterator[Seedling]:
        for index, problem in self.portion.items():
            before = known.get(index)
            if before is None or not before.is_closed:
                yield Seedling(index, problem, before)

    def _tree_run(self, seedling: Seedling, *, emit: Callable[[Event], None]) -> TreeRun:
        index, problem = seedling.index, seedling.problem
        self._growing[str(index)] = problem
        return TreeRun(
            index=index,
            problem=problem,
            driver=self._driver(index, problem),
            grower=self._grower(problem),
            judging=self.judging,
            emit=emit,
            max_seconds=self.config.limits.seconds,
            deadline=self._deadline,
            before=seedling.before,
        )

    def _driver(self, index: int, problem: Problem) -> Driver:
        tree = self._tree(problem)
        max_word = max([MAX_CHARACTER_BYTES, *(len(word.encode()) for word in self.format.stops)])
        return Driver(
            tree,
            self.strategy(tree.seed),
            delivery=self.config.delivery,
            limits=self._limits(index),
            need=Allowance(
                self.config.growth,
                self.config.actions,
                len(self.judging.leaf),
                max_word,
                asking=self._asking_judges,
                whole_turns=self._whole_turns,
                prices=self.prices,
                num_tool_tokens=most_tool_tokens(self._described_tools),
            ),
            rules=self.rules,
            twin=self.strategy(tree.seed) if index == 0 else None,
        )

    def _limits(self, index: int) -> Limits:
        """Of one tree: its own, and its share of the run's."""
        return self.config.limits.within(self.config.run_limits.share(self.portion.num_problems, index))

    def _tree(self, problem: Problem) -> Tree:
        """A tree with nothing but its opening context."""
        prompt = prompt_segments(self.codec, self.format.open(problem.for_agents()))
        seed = tree_seed(self.config.seed, problem.uid)
        return Tree(problem, self.codec, prompt, seed=seed, codecs=self._codecs)

    def _grower(self, problem: Problem) -> Grower:
        sampler = Sampler(
            {**self.engines, "policy": self.policy},
            self.config.actions,
            stops=self.format.stops,
            config=self.config.growth,
            measures=self._measures,
            tools=self._described_tools,
            prices=self.prices,
        )
        return Grower(
            problem,
            sampler=sampler,
            actions=self.config.actions,
            format=self.format,
            toolbox=self.toolbox,
            judging=self.judging,
            config=self.config.growth,
            pruning=self._pruning,
        )

    def _voice(self, action: str) -> Voice:
        """How judges ask by an action: in the run's own format wherever its engine is spoken to in that."""
        name = self.config.actions[action].engine
        engine, own = self.engines[name], self.format
        if is_spoken_to(engine, self.codec, own):
            return Voice(self._judges_sampler(own.stops), own, self.codec)
        config = self.config.engine if name == "policy" else self.config.engines[name]
        format = format_for(engine, config)
        return Voice(self._judges_sampler(format.stops), format, engine.codec, reader=own)

    @property
    def _codecs(self) -> dict[str, Codec]:
        """Judge's action -> the tokenizer of contexts of its own."""
        return {action: voice.codec for action, voice in self._voices.items() if voice.reader is not None}

    def _judges_sampler(self, stops: tuple[str, ...]) -> Sampler:
        """What judges ask by: no tools, and a limit to each reply, but none to all of a dialogue but the context."""
        room = self.config.growth.max_response_tokens
        actions = {
            name: replace(action, max_tokens=action.max_tokens or room)
            for name, action in self.config.actions.items()
            if not action.text
        }
        growth = replace(self.config.growth, max_turns=None, max_response_tokens=sys.maxsize)
        return Sampler(self.engines, actions, stops=stops, config=growth, measures=frozenset(), prices=self.prices)

    def _release(self, event: Event) -> None:
        if isinstance(event, TreeClosed):
            self.toolbox.release(str(event.index))
            self._growing.pop(str(event.index), None)

    # -- before the start ---------------------------------------------------------------------------------------------

    def _sample(self) -> Strategy:
        """A strategy to look at. Boundary to plug-in code: one that cannot be made is a fault of the configuration."""
        try:
            return _checked(self.strategy(seed=0))
        except RamifyError:
            raise
        except Exception as error:
            raise ConfigError(f"strategy {self.config.strategy.name!r} cannot be made: {error_text(error)}") from error

    def _check(self) -> None:
        """Refuse what the engines, the tools, the actions or the problems cannot do."""
        config, engines = self.config, self.engines
        used = self._capabilities(action for name, action in config.actions.items() if name not in self._codecs)
        check_problems(self.problems, config)
        check_codecs({name: engines[name] for name in used}, self.codec)
        check_measures(self._measures, self.engine.capabilities, config.strategy.name)
        check_tools(self.format, self.toolbox.names)
        check_spelling(self.format.stops, self.codec)
        check_actions(config.actions, engines, self.format)
        check_prices(config, self.prices)
        self._check_dollars()
        check_strategy_judges(self._options, self.judging.judges, config.strategy.name)
        check_messages(config, self.format, used)
        check_stops(self.format, used)
        if self.problems and not all(engine.can_continue_turn for engine in used.values()):
            check_growths(config, self._sample(), self._tree(self.problems[0]), used)

    def _check_dollars(self) -> None:
        """Refuse a question whose opening context its dollars do not pay for."""
        policy = self.config.actions["policy"]
        if policy.text or policy.engine not in self.prices:
            return
        for index, problem in self.portion.items():
            if (limits := self._limits(index)).dollars is not None:
                check_opening(self._tree(problem), self.prices[policy.engine], limits)

    @property
    def _described_tools(self) -> tuple[Mapping[str, Any], ...]:
        """Those that every request to an engine that speaks in messages describes."""
        return self.format.schemas if isinstance(self.format, MessageFormat) else ()

    @property
    def _whole_turns(self) -> frozenset[str]:
        """Actions whose engine cannot go on inside a turn."""
        actions, engines = self.config.actions, self.engines
        return frozenset(n for n, each in actions.items() if not engines[each.engine].capabilities.can_continue_turn)

    def _capabilities(self, actions: Iterable[ActionConfig]) -> dict[str, Capabilities]:
        """Of the engines that these actions name."""
        used = {action.engine for action in actions}
        return {name: engine.capabilities for name, engine in self.engines.items() if name in used}


def _checked(strategy: object) -> Strategy:
    """Refuse a plug-in that is no strategy, naming what it lacks. `unpredictable` is read for one version: it is what
    `post_hoc_reason` was called."""
    if hasattr(strategy, "unpredictable") and not hasattr(strategy, "post_hoc_reason"):
        type(strategy).post_hoc_reason = property(lambda each: each.unpredictable)  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(strategy, Strategy):
        return strategy
    wanted = ("measures", "is_order_free", "post_hoc_reason", "ask", "tell", "is_done", "phase")
    lacking = sorted(set(wanted) - set(dir(strategy)))
    raise ConfigError(f"{type(strategy).__name__} is no strategy: it lacks {', '.join(lacking)}")


def _options(strategy: Any, config: RunConfig) -> Any:
    """The strategy's own `Config`, from the run's options."""
    options, _, faults = read_options(plugins.config_class(strategy), config.strategy.options)
    if options is None:
        raise ConfigError("; ".join(f"{fault.path}: {fault.message}" for fault in faults))
    return options
