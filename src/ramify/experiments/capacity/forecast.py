"""Forecast: how long a run takes on a fleet, by growing it there in virtual time.

A large fleet is represented by a part of it with its share of the trees.
"""

import asyncio
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Final

from ramify.config.run_config import EngineConfig, RunConfig
from ramify.core.errors import ConfigError
from ramify.core.limits import Limits
from ramify.core.problem import Problem
from ramify.engines.fleet.replicas import Replicas
from ramify.experiments.capacity.workload import Speaker, Workload, stand_in_task
from ramify.planner.fleet_size import TURN_S, EngineSize, FleetForecast, fitting_batch
from ramify.runner.library import rollout
from ramify.testing.clock import run_virtual
from ramify.testing.simulated import Simulated

MAX_TURNS: Final = 6_000
"""Turns that are grown for one forecast: a few seconds. A fleet with more is represented by a part of it."""
NUM_ALONE: Final = 16
"""Trees that are also grown one by one, for the longest that a tree takes by itself."""
KEPT: Final = frozenset({"agreement"})
"""Kinds of judges that need no model and no secret, so they judge as in the run."""


@dataclass
class Capacity:
    """Forecasts of one run on fleets of any size."""

    config: RunConfig
    """Its strategy and limits. The task, its judges and the engines are stand-ins; judging takes no time, and no path
    is pruned."""
    load: Workload
    size: EngineSize
    max_batch: int = 256
    """Most sequences of an engine at once, if their keys and values fit."""
    num_drivers: int = 1
    """Processes that grow trees."""
    turns_a_tree: float = field(init=False)
    alone_s: Sequence[float] = field(init=False)
    """Seconds of a few trees, each by itself."""

    @property
    def left_out(self) -> list[str]:
        """Judges of the run in whose place stand-ins judge."""
        return sorted(name for name, judge in self._given.judges.items() if judge.kind not in KEPT)

    def __post_init__(self) -> None:
        config = self._given = self.config
        self.config = replace(
            config,
            format=None,
            format_options={},
            engine=EngineConfig(),
            limits=config.limits.within(config.run_limits.share(config.prompts, config.prompts - 1)),
            run_limits=Limits(),
            growth=replace(config.growth, prune=None, prune_options={}, prune_judge=None, keep=0.0),
            judges={name: judge for name, judge in config.judges.items() if judge.kind in KEPT},
            tools=replace(config.tools, use={}),
        )
        self._task = stand_in_task(self.load, {"reward", "process", *self.left_out})
        alone = [self._grown(1, [problem], self.max_batch) for problem in self._problems(min(NUM_ALONE, self._number))]
        self.turns_a_tree = statistics.mean(one.num_turns for one in alone)
        self.alone_s = [one.seconds for one in alone]
        self._num_calls = statistics.mean(one.num_calls for one in alone)

    @property
    def _number(self) -> int:
        return self.config.prompts

    def on(self, num_gpus: int) -> FleetForecast:
        """The forecast for `num_gpus` GPUs. Raises `ConfigError` if they hold no engine."""
        num_engines = num_gpus // self.size.num_gpus
        if not num_engines:
            raise ConfigError(f"--gpus {num_gpus}: an engine needs {self.size.num_gpus}")
        share = min(1.0, MAX_TURNS / (self.turns_a_tree * self._number))
        part = max(1, round(num_engines * share))
        num_trees = max(1, round(self._number * part / num_engines))
        max_batch = self.max_batch
        while True:
            one = self._grown(part, self._problems(num_trees), max_batch)
            fitting = fitting_batch(self.size, max_batch, held=one.held_a_sequence * min(max_batch, one.peak))
            if fitting >= min(max_batch, one.peak):
                break
            max_batch = fitting
        num_turns = one.num_turns * self._number / num_trees
        seats = self.config.tools.max_parallel
        driver_s = num_turns * TURN_S / self.num_drivers
        return FleetForecast(
            num_gpus,
            num_engines,
            max_batch,
            max(one.seconds, driver_s),
            {
                "work": one.least_s / part,
                "longest tree": max(self.alone_s),
                "tools": self._num_calls * self._number * statistics.mean(self.load.tool_seconds) / seats,
                "driver": driver_s,
            },
            one.mean_batch,
            num_turns,
            one.num_decoded * self._number / num_trees,
        )

    def _problems(self, number: int) -> list[Problem]:
        return [Problem(f"{i}", f"{i}".ljust(self.load.prompt_tokens, "?")) for i in range(number)]

    def _grown(self, num_engines: int, problems: Sequence[Problem], max_batch: int) -> "_Grown":
        return run_virtual(self._growing(num_engines, problems, max_batch))

    async def _growing(self, num_engines: int, problems: Sequence[Problem], max_batch: int) -> "_Grown":
        speaker, costs = Speaker(self.load), asdict(self.size.costs)
        block_size = self.size.block_size
        engines = [Simulated(speaker, max_batch=max_batch, block_size=block_size, **costs) for _ in range(num_engines)]
        fleet = Replicas(engines) if num_engines > 1 else engines[0]
        # A part of the fleet has its part of the seats of tools.
        seats = max(1, round(self.config.tools.max_parallel * len(problems) / self._number))
        tools = self.config.tools if len(problems) == 1 else replace(self.config.tools, max_parallel=seats)
        config = replace(self.config, prompts=len(problems), max_trees=len(problems), tools=tools)
        began = asyncio.get_running_loop().time()
        try:
            report = (await rollout(problems, config=config, engine=fleet, task=self._task)).report
        finally:
            await fleet.close()
        seconds = asyncio.get_running_loop().time() - began
        if report.failed_leaves or report.failed_trees:
            why = next(iter((*report.faults, *report.unfinished.values())), "unknown")
            raise ConfigError(
                f"strategy {config.strategy.name!r} does not grow on a stand-in of its model ({why}); its capacity is "
                "not known"
            )
        stats = [engine.stats for engine in engines]
        steps = max(1, sum(each.num_steps for each in stats))
        decoded = sum(each.num_decoded for each in stats)
        return _Grown(
            seconds,
            sum(engine.least_s for engine in engines),
            decoded,
            decoded / steps,
            sum(each.num_read for each in stats) / max(1, decoded),
            max(each.peak_batch for each in stats),
            report.turns,
            report.tool_calls,
        )


@dataclass(frozen=True)
class _Grown:
    """What growing trees on a modelled fleet came to."""

    seconds: float
    least_s: float
    """Of all engines together, had every step been full."""
    num_decoded: int
    mean_batch: float
    held_a_sequence: float
    """Tokens whose keys and values a sequence of a step holds, on average."""
    peak: int
    """Most sequences of one engine at once."""
    num_turns: int
    num_calls: int
