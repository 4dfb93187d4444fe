"""The library: grow trees inside your own process and write nothing to disk.

`rollout` returns trees and rows. `rollout_sync` does the same without an event loop. `steps` yields events and can stop
a tree. What is read from a data file is logged once, at INFO, by the logger `ramify`; `Rollout.config.data` holds it.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from ramify.config.run_config import RunConfig
from ramify.core.engine import Engine
from ramify.core.errors import ConfigError
from ramify.core.notebook import html_of
from ramify.core.problem import Problem
from ramify.core.strategy import Strategy
from ramify.core.task import Task
from ramify.core.tree import Tree
from ramify.rows.gold import with_gold
from ramify.rows.row import Row
from ramify.runner import loop
from ramify.runner.answers import Answering, Answers
from ramify.runner.build import configured, prepared_run
from ramify.runner.deadline import finished
from ramify.runner.events import Event, Observer, TreeClosed
from ramify.runner.prepared import Prepared
from ramify.runner.report import RunReport
from ramify.runner.reread import secret_of
from ramify.runner.rows import tree_rows
from ramify.runner.run import Run
from ramify.runner.run_strategy import StrategyTraits

Part = TypeVar("Part")
LOGGER: Final = logging.getLogger("ramify")


@dataclass(frozen=True, slots=True)
class Rollout:
    """The result of a rollout: its trees in the order of their problems, and the report."""

    config: RunConfig
    """Complete: of a data file, with the columns and the judge that were chosen (`config.data`)."""
    trees: tuple[Tree, ...]
    report: RunReport
    answering: Answering
    traits: StrategyTraits = StrategyTraits()  # noqa: RUF009 - frozen
    problems: Sequence[Problem] = field(default=(), repr=False)
    """The problems with their secrets, which the trees do not hold."""

    def _repr_html_(self) -> str | None:
        return html_of(self)

    def rows(
        self,
        *,
        per_tree: int | None = None,
        normaliser: float | None = None,
        max_tokens: int | None = None,
        gold: str | None = None,
    ) -> list[Row]:
        """One row for each kept leaf, by the configured credit; each sampled token counts once. With `per_tree`,
        exactly that many rows of each tree. With `normaliser` or `max_tokens`, these in place of the run's. With
        `gold`, the secret of that name is a public column of each row. Raises `ExportError`."""
        problems = {problem.uid: problem for problem in self.problems}
        made: list[Row] = []
        for tree in self.trees:
            rows = tree_rows(
                tree, self.config, self.traits, per_tree=per_tree, normaliser=normaliser, max_tokens=max_tokens
            )
            if gold is not None:
                secret = secret_of(problems[tree.problem.uid], gold, column=self.config.data.answer)
                rows = with_gold(rows, gold, secret)
            made += rows
        return made

    def answers(self) -> list[Answers]:
        """The answers of each tree, in the order of their problems."""
        return [self.answering.of(tree) for tree in self.trees]


async def rollout(
    problems: Sequence[Problem | str] | None = None,
    *,
    preset: str | None = None,
    config: RunConfig | None = None,
    engine: Engine | str | None = None,
    task: Task | str | None = None,
    strategy: type[Strategy] | str | None = None,
    observers: Iterable[Observer] = (),
    **settings: Any,
) -> Rollout:
    """Grow one tree for each problem and return the trees.

    `problems` are problems or plain questions; None = as many of the task's own as `config.prompts` says. Objects given
    as `engine`, `task` and `strategy` replace those the config names; a text there is the name of a plug-in. `settings`
    are paths of the config with `__` for the dot: `strategy__options={"n": 4}`, `limits__decode=224`. An engine you
    pass stays open. Raises `ConfigError` before anything starts.
    """
    settings |= _names(engine=engine, task=task, strategy=strategy)
    engine, task, strategy = _object(engine), _object(task), _object(strategy)
    config = _settled(config, settings) or configured(preset, settings, engine=engine, strategy=strategy)
    run = Run(prepared_run(config, problems, engine=engine, task=task, strategy=strategy))
    _log_data(run.prepared, problems)
    trees: dict[int, Tree] = {}

    def keep(event: Event) -> None:
        if isinstance(event, TreeClosed):
            trees[event.index] = event.tree

    try:
        report = await run.grow([*observers, keep])
    finally:
        await finished(run.close() if engine is None else run.close_others())
    grown = tuple(trees[index] for index in sorted(trees))
    of = run.prepared
    return Rollout(of.config, grown, report, of.answering, of.traits, of.problems)


def _log_data(of: Prepared, given: Sequence[Problem | str] | None) -> None:
    """Log what is read from the data file. Problems that are `given` are read from none."""
    if of.config.data.path is not None and given is None:
        LOGGER.info("%s", of.config.data.told(len(of.problems), of.judging.leaf))


def _names(**parts: object) -> dict[str, str]:
    """The parts that are given by name, as settings."""
    return {f"{part}__name": name for part, name in parts.items() if isinstance(name, str)}


def _settled(config: RunConfig | None, settings: Mapping[str, Any]) -> RunConfig | None:
    """The config, if one is given. Raises `ConfigError` for settings beside it, which nothing would read."""
    if config is not None and settings:
        raise ConfigError(f"config and {', '.join(settings)} are both given; put the settings into the config")
    return config


def _object(part: Part | str | None) -> Part | None:
    """The part, if it is given as an object."""
    return None if isinstance(part, str) else part


def rollout_sync(problems: Sequence[Problem | str] | None = None, **settings: Any) -> Rollout:
    """`rollout` for code without an event loop. A notebook has one: `await ramify.rollout(…)` there. Raises
    `ConfigError` also where a loop runs already."""
    loop.refuse_running("rollout_sync", "done = await ramify.rollout(…)")
    return loop.run(rollout(problems, **settings))


def grow(config: RunConfig, problems: Sequence[Problem], *, observers: Iterable[Observer]) -> RunReport:
    """Grow the trees of these problems in memory. Only the observers keep what they want. Raises `NothingAnswered`."""
    return loop.run(_observed(config, problems, observers))


def check_start(config: RunConfig, problems: Sequence[Problem]) -> Prepared:
    """Check what a run checks before its first tree: connects, and closes again. Raises what `grow` would."""
    return loop.run(_connected(config, problems))


async def _connected(config: RunConfig, problems: Sequence[Problem]) -> Prepared:
    run = Run(prepared_run(config, problems))
    try:
        await run.connect()
        return run.prepared
    finally:
        await finished(run.close())


async def _observed(config: RunConfig, problems: Sequence[Problem], observers: Iterable[Observer]) -> RunReport:
    run = Run(prepared_run(config, problems))
    try:
        report = await run.grow(observers)
        run.check_answered()
        return report
    finally:
        await finished(run.close())


@dataclass(frozen=True, slots=True)
class Watched:
    """An event of a running rollout, and a function that stops its tree."""

    event: Event
    stop: Callable[[], None]
    """Stop growing this tree; the others go on."""


async def steps(
    problems: Sequence[Problem | str] | None = None,
    *,
    preset: str | None = None,
    config: RunConfig | None = None,
    engine: Engine | str | None = None,
    task: Task | str | None = None,
    strategy: type[Strategy] | str | None = None,
    **settings: Any,
) -> AsyncIterator[Watched]:
    """Grow trees and yield events in order. Leaving the loop cancels the rest. Arguments as in `rollout`."""
    settings |= _names(engine=engine, task=task, strategy=strategy)
    engine, task, strategy = _object(engine), _object(task), _object(strategy)
    config = _settled(config, settings) or configured(preset, settings, engine=engine, strategy=strategy)
    run = Run(prepared_run(config, problems, engine=engine, task=task, strategy=strategy))
    _log_data(run.prepared, problems)
    events: asyncio.Queue[Event | None] = asyncio.Queue()
    growing = asyncio.create_task(run.grow([events.put_nowait]))
    growing.add_done_callback(lambda _: events.put_nowait(None))
    try:
        while (event := await events.get()) is not None:
            yield Watched(event, lambda index=event.index: run.stop(index))
        await growing
    finally:
        growing.cancel()
        try:
            await asyncio.gather(growing, return_exceptions=True)
        finally:
            await finished(run.close() if engine is None else run.close_others())
