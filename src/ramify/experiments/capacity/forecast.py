"""Forecast: how long a run takes on a fleet, by growing it there in virtual time.

A large fleet is represented by a part of it with its share of the trees.
"""

import asyncio
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final

from ramify.config.run_config import EngineConfig, RunConfig
from ramify.core.errors import ConfigError
from ramify.core.limits import Limits
from ramify.core.problem import Problem
from ramify.engines.fleet.replicas import Replicas
from ramify.experiments.capacity.fleet_size import TURN_S, EngineSize, FleetForecast, fitting_batch
from ramify.experiments.capacity.workload import Speaker, Workload, stand_in_task
from ramify.runner.library import rollout
from ramify.testing.clock import run_virtual
from ramify.testing.simulated import Simulated

MAX_TURNS: Final = 6_000
"""Turns that are grown for one forecast: a few seconds. A fleet with more is represented by a part of it."""
NUM_ALONE: Final = 16
"""Trees that are also grown one by one, for the longest that a tree takes by itself."""
REAL_TURNS: Final = 2.0
"""CPU of a turn of a real task, as a multiple of a turn of a stand-in, which reads and writes less. With it, forecasts
of small runs of the built-in engine were 0.95 to 1.18 of the time taken (`bench/capacity.py --part builtin`)."""
KEPT: Final = frozenset({"agreement"})
"""Kinds of judges that need no model and no secret, so they judge as in the run."""


class Capacity:
    """Forecasts of one run on fleets of any size. Making one grows a few trees, each by itself."""

    def __init__(
        self,
        config: RunConfig,
        workload: Workload,
        size: EngineSize,
        *,
        max_batch: int = 256,
        num_drivers: int = 1,
        max_turns: int = MAX_TURNS,
    ) -> None:
        """`config`: its strategy and limits hold. The task, its judges and the engines are stand-ins; judging takes no
        time, and no path is pruned.

        - `size`: one engine of the fleet.
        - `max_batch`: most sequences of an engine at once, if their keys and values fit.
        - `num_drivers`: processes that grow trees.
        - `max_turns`: turns that are grown for a forecast, as far as one engine's share of the trees allows.

        Raises `ConfigError` for a strategy that does not grow on stand-ins.
        """
        self.left_out = sorted(name for name, judge in config.judges.items() if judge.kind not in KEPT)
        """Judges of the run in whose place stand-ins judge."""
        self._config = replace(
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
        self._workload = workload
        self._size = size
        self._max_batch = max_batch
        self._num_drivers = num_drivers
        self._max_turns = max_turns
        self._num_trees = config.prompts
        self._task = stand_in_task(workload, {"reward", "process", *self.left_out})
        self._alone = [self._grown(1, [tree], max_batch) for tree in self._problems(min(NUM_ALONE, self._num_trees))]

    def on(self, num_gpus: int) -> FleetForecast:
        """The forecast for `num_gpus` GPUs. Raises `ConfigError` if they hold no engine."""
        num_engines = num_gpus // self._size.num_gpus
        if not num_engines:
            raise ConfigError(f"--gpus {num_gpus}: an engine needs {self._size.num_gpus}")
        part = self._part(num_engines)
        num_trees = max(1, round(self._num_trees * part / num_engines))
        max_batch, one = self._fitting(part, self._problems(num_trees))
        scale = self._num_trees / num_trees
        turn_s = REAL_TURNS * one.cpu_s / one.num_turns if self._size.is_in_process else TURN_S
        driver_s = one.num_turns * scale * turn_s / self._num_drivers
        num_calls = statistics.mean(tree.num_calls for tree in self._alone) * self._num_trees
        call_s = statistics.mean(self._workload.tool_seconds)
        beside_s = driver_s if self._size.is_in_process else 0.0
        return FleetForecast(
            num_gpus=num_gpus,
            num_engines=num_engines,
            max_batch=max_batch,
            seconds=max(one.seconds + beside_s, driver_s),
            bounds={
                "work": one.least_s / part + beside_s,
                "longest tree": max(tree.seconds for tree in self._alone),
                "tools": num_calls * call_s / self._config.tools.max_parallel,
                "driver": driver_s,
            },
            mean_batch=one.mean_batch,
            num_turns=one.num_turns * scale,
            decode_tokens=one.num_decoded * scale,
        )

    def _part(self, num_engines: int) -> int:
        """How many engines stand for all."""
        turns_a_tree = statistics.mean(tree.num_turns for tree in self._alone)
        share = min(1.0, self._max_turns / (turns_a_tree * self._num_trees))
        return max(1, round(num_engines * share))

    def _fitting(self, num_engines: int, problems: Sequence[Problem]) -> "tuple[int, _Grown]":
        """The trees grown with as many sequences at once as fit, and that number."""
        max_batch = self._max_batch
        while True:
            one = self._grown(num_engines, problems, max_batch)
            fitting = fitting_batch(self._size, max_batch, held=one.held_a_sequence * one.peak)
            if fitting >= one.peak:
                return max_batch, one
            max_batch = fitting

    def _problems(self, number: int) -> list[Problem]:
        load = self._workload
        shared = "?" * load.shared_tokens
        return [Problem(f"{i}", shared + f"{i}".ljust(load.prompt_tokens - len(shared), "?")) for i in range(number)]

    def _grown(self, num_engines: int, problems: Sequence[Problem], max_batch: int) -> "_Grown":
        return run_virtual(self._growing(num_engines, problems, max_batch))

    async def _growing(self, num_engines: int, problems: Sequence[Problem], max_batch: int) -> "_Grown":
        size = self._size
        engines = [
            Simulated(Speaker(self._workload), max_batch=max_batch, block_size=size.block_size, **asdict(size.costs))
            for _ in range(num_engines)
        ]
        fleet = Replicas(engines) if num_engines > 1 else engines[0]
        config = replace(self._config, prompts=len(problems), max_trees=len(problems))
        if len(problems) > 1:  # A part of the trees has its part of the seats of tools.
            seats = max(1, round(config.tools.max_parallel * len(problems) / self._num_trees))
            config = replace(config, tools=replace(config.tools, max_parallel=seats))
        began, cpu = asyncio.get_running_loop().time(), time.process_time()
        try:
            report = (await rollout(problems, config=config, engine=fleet, task=self._task)).report
        finally:
            await fleet.close()
        seconds, cpu_s = asyncio.get_running_loop().time() - began, time.process_time() - cpu
        if report.failed_leaves or report.failed_trees:
            why = next(iter((*report.faults, *report.unfinished.values())), "unknown")
            raise ConfigError(
                f"strategy {config.strategy.name!r} does not grow on a stand-in of its model ({why}); its capacity is "
                "not known"
            )
        stats = [engine.stats for engine in engines]
        num_decoded = sum(each.num_decoded for each in stats)
        return _Grown(
            seconds=seconds,
            cpu_s=cpu_s,
            least_s=sum(engine.least_s for engine in engines),
            num_decoded=num_decoded,
            mean_batch=num_decoded / max(1, sum(each.num_steps for each in stats)),
            held_a_sequence=sum(each.num_read for each in stats) / max(1, num_decoded),
            peak=max(each.peak_batch for each in stats),
            num_turns=report.turns,
            num_calls=report.tool_calls,
        )


@dataclass(frozen=True, kw_only=True)
class _Grown:
    """What growing trees on a modelled fleet came to."""

    seconds: float
    cpu_s: float
    """CPU time of this process, which grew them."""
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
