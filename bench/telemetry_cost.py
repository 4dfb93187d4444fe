"""Cost of telemetry: nanoseconds an event, microseconds a generation, and its share of a whole run.

The events of 64 trees of four chains, which call a tool, are kept and told again to a fresh observer, and requests are
given to an engine that answers at once, timed and not; `turn` is a whole run's CPU a turn, with the ratio to the same
run without telemetry, in turns. CPU time, medians of fifteen runs. `none`: a process without
OpenTelemetry providers, metrics for Prometheus alone. `metrics`: the SDK's meter provider too. `spans`: also its tracer
provider, with batches handed to an exporter that drops them.

Target: below 10 microseconds an event and below 10 % of a run without exporters.
"""

import asyncio
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing

import numpy as np
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from smoke import few

from ramify.config.run_config import GrowthConfig, RunConfig, StrategyConfig
from ramify.core.codec import ByteCodec, Codec
from ramify.core.engine import Capabilities, Engine, Generation, Request
from ramify.core.problem import Problem
from ramify.core.segment import Finish
from ramify.runner.events import Event, Observer
from ramify.runner.library import rollout
from ramify.telemetry.telemetry import Telemetry
from ramify.testing.clock import run_virtual
from ramify.testing.policies import chains
from ramify.testing.scripted import Scripted

NUM_TREES = few(64, 2)
NUM_RUNS = few(15, 1)
NUM_REQUESTS = few(2000, 20)
IDS = np.arange(65, 81, dtype=np.int32)


class Dropping(SpanExporter):
    """Takes spans and keeps none."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.SUCCESS


class Prompt:
    """An engine that answers at once."""

    capabilities = Capabilities("prompt", 1 << 20)

    @property
    def codec(self) -> Codec:
        return ByteCodec()

    async def generate(self, request: Request) -> Generation:
        return Generation(IDS, Finish("stop"), num_billed=len(IDS), num_prefilled=len(request.ids))

    async def close(self) -> None: ...


def grown(engine: Engine, *observers: Observer) -> int:
    """Grow the trees and return the number of their turns."""
    made = rollout(
        [Problem(f"p{i}", f"make {i} from 3 5 7") for i in range(NUM_TREES)],
        config=RunConfig(
            strategy=StrategyConfig(options={"n": 4}), growth=GrowthConfig(max_response_tokens=1024), max_trees=512
        ),
        engine=engine,
        observers=observers,
    )
    return run_virtual(made).report.turns


def recorded() -> list[Event]:
    """The events of a run."""
    events: list[Event] = []
    grown(Scripted(chains(3, 4, 5)), events.append)
    return events


def turn_us(exporters: str | None) -> float:
    """Microseconds of CPU a turn of a run; None = without telemetry."""
    engine = Scripted(chains(3, 4, 5))
    began = time.thread_time()
    if exporters is None:
        turns = grown(engine)
    else:
        with closing(telemetry(exporters)) as watching:
            turns = grown(watching.in_front_of(engine), watching.observe)
    return (time.thread_time() - began) / turns * 1e6


def telemetry(exporters: str) -> Telemetry:
    if exporters == "none":
        return Telemetry()
    meters = MeterProvider(metric_readers=[InMemoryMetricReader()])
    if exporters == "metrics":
        return Telemetry(meter_provider=meters)
    tracers = TracerProvider()
    tracers.add_span_processor(BatchSpanProcessor(Dropping(), max_queue_size=1 << 16))
    return Telemetry(meter_provider=meters, tracer_provider=tracers)


async def observed_ns(exporters: str, events: list[Event]) -> dict[str, float]:
    """Nanoseconds an event, by its kind."""
    spent, counts = defaultdict(float), defaultdict(int)
    with closing(telemetry(exporters)) as watching:
        for event in events:
            began = time.thread_time_ns()
            watching.observe(event)
            spent[type(event).__name__] += time.thread_time_ns() - began
            counts[type(event).__name__] += 1
    means = {kind: spent[kind] / counts[kind] for kind in counts}
    return {"all": sum(spent.values()) / len(events), **means}


async def generated_us(engine: Engine) -> float:
    """Microseconds a generation."""
    request = Request(IDS, max_tokens=16, seed=1)
    began = time.thread_time()
    for _ in range(NUM_REQUESTS):
        await engine.generate(request)
    return (time.thread_time() - began) / NUM_REQUESTS * 1e6


def medians(runs: list[dict[str, float]]) -> dict[str, float]:
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]}


def main() -> None:
    events = recorded()
    print(f"{len(events)} events; nanoseconds each, and microseconds added to a generation")
    kinds = ["all", *sorted({type(event).__name__ for event in events})]
    print(f"{'exporters':10}" + "".join(f"{kind:>15}" for kind in [*kinds, "generation", "turn us"]) + "  ratio")
    bare = statistics.median(asyncio.run(generated_us(Prompt())) for _ in range(NUM_RUNS))
    for exporters in ("none", "metrics", "spans"):
        figures = medians([asyncio.run(observed_ns(exporters, events)) for _ in range(NUM_RUNS)])
        with closing(telemetry(exporters)) as timing:
            engine = timing.in_front_of(Prompt())
            timed = statistics.median(asyncio.run(generated_us(engine)) for _ in range(NUM_RUNS))
        pairs = [(turn_us(None), turn_us(exporters)) for _ in range(NUM_RUNS)]
        turn, ratio = statistics.median(b for _, b in pairs), statistics.median(b / a for a, b in pairs)
        shown = "".join(f"{figures[kind]:15.0f}" for kind in kinds)
        print(f"{exporters:10}{shown}{timed - bare:15.1f}{turn:15.0f}{ratio:7.2f}")


if __name__ == "__main__":
    main()
