"""Prepared: all parts of one run, decided and checked before any token is sampled.

`prepare` makes it once: format, tools, judges, pruning, strategy. It opens nothing, starts nothing and asks no engine's
server, so reading a saved run uses the same steps. `Run` grows it.
"""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ramify.config.run_config import RunConfig
from ramify.core.action import ActionConfig
from ramify.core.codec import Codec
from ramify.core.command import BESIDE
from ramify.core.engine import Capabilities, Engine
from ramify.core.environment import TURN
from ramify.core.format import Equating, Format, MessageFormat
from ramify.core.growth import GrowthRules
from ramify.core.limits import Limits
from ramify.core.prices import Prices
from ramify.core.problem import Problem
from ramify.core.protocols import follows
from ramify.core.seeds import tree_seed
from ramify.core.shard import WHOLE, Portion
from ramify.core.strategy import SearchStrategy, Strategy, Vote
from ramify.core.task import Task
from ramify.core.tool import Tool
from ramify.core.tree import Tree
from ramify.engines.retrying import Retrying, retrying
from ramify.environments.score import EnvironmentScore
from ramify.formats.messages import MESSAGES
from ramify.runner.answers import Answering
from ramify.runner.asking import Asking
from ramify.runner.formats import build_format, opening_format
from ramify.runner.judge_formats import JudgeFormat, format_for, is_spoken_to
from ramify.runner.judges import check_strategy_judges, judge_actions, judges_of, sampling, world_of
from ramify.runner.judging import Judging
from ramify.runner.pruning import PruneRule
from ramify.runner.refusals import (
    check_actions,
    check_codecs,
    check_measures,
    check_opening,
    check_prices,
    check_problems,
    check_spelling,
    check_tools,
    check_turns,
)
from ramify.runner.run_strategy import RunStrategy, StrategyTraits
from ramify.runner.sampler import Sampler
from ramify.runner.tools import listed, tools_of
from ramify.runner.whole_turns import check_growths, check_messages, check_stops
from ramify.runner.work import prompt_segments


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """All parts of one run. Growing the run does not change it."""

    config: RunConfig
    """The complete configuration: with what tools' servers say of themselves, and the actions of judges."""
    task: Task
    portion: Portion
    """The problems whose trees this run grows."""
    engines: Mapping[str, Retrying]
    """By name, including `policy`; each engine retries its requests."""
    policy: Engine
    """The policy's engine as the trees use it."""
    codec: Codec
    tools: tuple[Tool, ...]
    format: Format
    """It opens the trees, and reads all that is said in them."""
    quoting: Mapping[str, Format]
    """Action that quotes -> the format that opens its contexts."""
    judging: Judging
    judge_formats: Mapping[str, JudgeFormat]
    """Judge's action -> the format and tokenizer for asking its model."""
    pruning: PruneRule | None
    strategy: RunStrategy
    measures: frozenset[str]
    """Measures that the strategy reads."""
    traits: StrategyTraits
    answering: Answering
    """Finds the answers of a tree."""

    @property
    def engine(self) -> Retrying:
        """The policy's engine. `policy` may be a layer in front of it."""
        return self.engines["policy"]

    @property
    def world(self) -> EnvironmentScore | None:
        """The judge that scores by the states of the run's environment; None = there is no environment."""
        return world_of(self.judging.judges)

    @property
    def problems(self) -> Sequence[Problem]:
        return self.portion.problems

    @property
    def rules(self) -> GrowthRules:
        """Where growths may begin. A live tree and its replay must use the same rules."""
        return GrowthRules(self.format.stops, frozenset(self.quoting), self.codecs)

    @property
    def codecs(self) -> dict[str, Codec]:
        """Judge's action -> the tokenizer of its own contexts."""
        return {action: each.codec for action, each in self.judge_formats.items() if each.reader is not None}

    @property
    def prices(self) -> dict[str, Prices]:
        """Prices by engine name, for engines that have prices."""
        return _prices(self.config)

    @property
    def described_tools(self) -> tuple[Mapping[str, Any], ...]:
        """Tools described in every request to an engine that takes messages."""
        return self.format.schemas if follows(self.format, MessageFormat) else ()

    def tools_of(self, problem: Problem) -> tuple[Mapping[str, Any], ...]:
        """Of `described_tools`, those that the problem has."""
        described = {str(schema["name"]): schema for schema in self.described_tools}
        return tuple(described[name] for name in problem.tools_among(list(described)))

    @property
    def whole_turns(self) -> frozenset[str]:
        """Actions whose engine cannot continue inside a turn."""
        actions, engines = self.config.actions, self.engines
        return frozenset(n for n, each in actions.items() if not engines[each.engine].capabilities.can_continue_turn)

    def limits(self, index: int) -> Limits:
        """Limits of one tree: its own, and its share of the run's."""
        return self.config.limits.within(self.config.run_limits.share(self.portion.num_problems, index))

    def tree(self, problem: Problem, *, seed: int | None = None) -> Tree:
        """A tree that has only its opening context. `seed` None = made of the run's seed and the problem."""
        prompt = prompt_segments(self.codec, self.format.open(problem.for_agents()))
        seed = tree_seed(self.config.seed, problem.uid) if seed is None else seed
        return Tree(problem, self.codec, prompt, seed=seed, codecs=self.codecs)

    def check(self) -> None:
        """Raise `ConfigError` for what the engines, tools, actions or problems cannot do. Called before the start, and
        again when servers have reported what they can do."""
        config, engines = self.config, self.engines
        used = _capabilities(engines, (each for name, each in config.actions.items() if name not in self.codecs))
        check_problems(self.problems, config)
        check_codecs({name: engines[name] for name in used}, self.codec)
        check_measures(self.measures, self.engine.capabilities, config.strategy.name)
        check_tools(self.format, [tool.name for tool in self.tools])
        check_turns(self.format, [tool.name for tool in self.tools])
        check_spelling(self.format.stops, self.codec)
        check_actions(config.actions, engines, self.format)
        check_prices(config, self.prices)
        self._check_dollars()
        check_strategy_judges(self.strategy.options, self.judging.judges, config.strategy.name)
        check_messages(config, self.format, used)
        check_stops(self.format, used)
        if self.problems and not all(engine.can_continue_turn for engine in used.values()):
            check_growths(config, self.strategy.sample(), self.tree(self.problems[0]), used)

    def _check_dollars(self) -> None:
        """Refuse a problem whose dollar limit does not pay for its opening context."""
        policy = self.config.actions["policy"]
        if policy.text or policy.engine not in self.prices:
            return
        for index, problem in self.portion.items():
            if (limits := self.limits(index)).dollars is not None:
                check_opening(self.tree(problem), self.prices[policy.engine], limits)


def prepare(
    config: RunConfig,
    *,
    task: Task,
    engine: Engine,
    engines: Mapping[str, Engine] | None = None,
    problems: Sequence[Problem] | Portion,
    strategy: type[Strategy] | None = None,
    in_front: Callable[[Engine], Engine] | None = None,
) -> Prepared:
    """Decide and check all parts of a run. Raises `ConfigError` for every fault that can be known before the start.

    `in_front` puts a layer between the policy's engine and the trees that sample from it.
    """
    config = replace(config, tools=listed(config.tools))
    others = {name: retrying(each, config.engines[name].retry) for name, each in (engines or {}).items()}
    every = {"policy": retrying(engine, config.engine.retry), **others}
    tools = tools_of(task, config.tools)
    portion = problems if isinstance(problems, Portion) else WHOLE.of(problems)
    growing = [action for action in config.actions.values() if action.role not in BESIDE]
    format = build_format(
        config,
        task,
        engine.codec,
        tools=[tool for tool in tools if tool.name != TURN],
        engines=_capabilities(every, growing).values(),
        has_conversations=any(MESSAGES in problem.public for problem in portion.problems),
    )
    config, judging, judge_formats = _judged(config, every, task, format, engine.codec)
    quoting = _quoting(config, format, judge_formats)
    format = format if "policy" in quoting else opening_format(format, "policy", config.actions["policy"].system)
    chosen = RunStrategy.of(config, strategy)
    sample = chosen.sample()
    is_same = format.is_same_answer if isinstance(format, Equating) else None
    prepared = Prepared(
        config=config,
        task=task,
        portion=portion,
        engines=every,
        policy=every["policy"] if in_front is None else in_front(every["policy"]),
        codec=engine.codec,
        tools=tools,
        format=format,
        quoting=quoting,
        judging=judging,
        judge_formats=judge_formats,
        pruning=PruneRule.of(config.growth, task, judging),
        strategy=chosen,
        measures=sample.measures,
        traits=chosen.traits(format.stops),
        answering=Answering(_vote(sample, judging), format.answer, is_same or task.is_same_answer),
    )
    prepared.check()
    return prepared


def _vote(strategy: Strategy, judging: Judging) -> Vote:
    """How answers are chosen: as a search says; otherwise the state that an environment scores best, if it knows no
    secret, else the answer of the majority."""
    if isinstance(strategy, SearchStrategy):
        return strategy.vote
    world = world_of(judging.judges)
    return "majority" if world is None or world.is_oracle else "best"


def _judged(
    config: RunConfig, engines: Mapping[str, Engine], task: Task, format: Format, codec: Codec
) -> tuple[RunConfig, Judging, Mapping[str, JudgeFormat]]:
    """The configuration with the actions of judges, the judges, and judge's action -> how its model is spoken to."""
    judges, leaf_judges = judges_of(config, task, format)
    config = replace(config, actions=judge_actions(config, judges, format))
    check_actions(config.actions, engines, format)
    asked = [judge.action for judge in sampling(judges).values()]
    if (world := world_of(judges)) is not None and world.action is not None:
        asked.append(world.action)
    formats = {action: _judge_format(config, engines, format, codec, action) for action in asked}
    judging = Judging(judges, leaf_judges, asking=Asking(formats, config.actions) if formats else None)
    return config, judging, formats


def _quoting(config: RunConfig, format: Format, judges: Mapping[str, JudgeFormat]) -> dict[str, Format]:
    """Action that quotes -> the format that opens its contexts."""
    return {
        name: judges[name].format if name in judges else opening_format(format, name, action.system)
        for name, action in config.actions.items()
        if action.edge == "quotes"
    }


def _judge_format(
    config: RunConfig, engines: Mapping[str, Engine], own: Format, codec: Codec, action: str
) -> JudgeFormat:
    """How judges ask by an action: in the run's own format wherever the action's engine can use it."""
    name, system = config.actions[action].engine, config.actions[action].system
    engine = engines[name]
    if is_spoken_to(engine, codec, own):
        format = opening_format(own, action, system)
        return JudgeFormat(_judges_sampler(config, engines, own.stops), format, codec)
    other = format_for(engine, config.engine if name == "policy" else config.engines[name])
    format = opening_format(other, action, system)
    return JudgeFormat(_judges_sampler(config, engines, format.stops), format, engine.codec, reader=own)


def _judges_sampler(config: RunConfig, engines: Mapping[str, Engine], stops: tuple[str, ...]) -> Sampler:
    """The sampler of judges: no tools, a limit on each reply, and no limit on a whole dialogue except the context."""
    room = config.growth.max_response_tokens
    actions = {
        name: replace(action, max_tokens=action.max_tokens or room)
        for name, action in config.actions.items()
        if not action.text
    }
    growth = replace(config.growth, max_turns=None, max_response_tokens=sys.maxsize)
    return Sampler(engines, actions, stops=stops, config=growth, measures=frozenset(), prices=_prices(config))


def _prices(config: RunConfig) -> dict[str, Prices]:
    every = {"policy": config.engine, **config.engines}
    return {name: engine.prices for name, engine in every.items() if engine.prices.is_known}


def _capabilities(engines: Mapping[str, Engine], actions: Iterable[ActionConfig]) -> dict[str, Capabilities]:
    """Capabilities of the engines that these actions name."""
    used = {action.engine for action in actions}
    return {name: engine.capabilities for name, engine in engines.items() if name in used}
