"""Telemetry: the metrics and spans of a process's runs, and the page that Prometheus reads.

Owns the metrics of `metrics.py`, which are all there are, a server while one is wanted, and a provider of spans where
the process has none and a file for them is named. Observing waits for nothing: exporters work in their own
threads. It exports no prompt and no text unless `has_content` says so.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from ramify.core.engine import Engine
from ramify.core.errors import ConfigError
from ramify.runner.events import Event, Observer
from ramify.telemetry.meters import meters_of
from ramify.telemetry.metrics import INSTALL, SCOPE
from ramify.telemetry.prometheus import MetricsServer
from ramify.telemetry.run_meter import Faults, RunMeter
from ramify.telemetry.spans import Spans
from ramify.telemetry.timed_engine import TimedEngine
from ramify.version import __version__

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.sdk.trace import TracerProvider as OwnProvider
    from opentelemetry.trace import TracerProvider


@dataclass(frozen=True, slots=True)
class TelemetryConfig:
    """What is shown, and where."""

    agent: str = ""
    """Name of what is run, such as a preset: `gen_ai.agent.name`; empty = it has none."""
    spans: Path | None = None
    """A file that spans are written to, one JSON object a line; None = they go where the process's provider sends
    them, and where it has none there are no spans."""
    has_content: bool = False
    """Whether spans hold what users, models and tools wrote, and the uids of problems."""

    def __post_init__(self) -> None:
        if self.spans is not None and not self.spans.parent.is_dir():
            raise ConfigError(f"telemetry.spans = {str(self.spans)!r}: name a file in an existing folder")


class Telemetry:
    """Metrics and spans of any number of runs; to be closed.

    `observe` is the observer of one run at a time; runs that go on side by side take an `observer()` each. What is
    counted through one meter provider is counted together, by however many of these.
    """

    def __init__(
        self,
        config: TelemetryConfig = TelemetryConfig(),
        *,
        tracer_provider: "TracerProvider | None" = None,
        meter_provider: "MeterProvider | None" = None,
    ) -> None:
        """Providers that are not given are the process's. Raises `ConfigError` where the library is missing."""
        self._config = config
        self._meters = meters_of(meter_provider)
        self._own, self._file = (None, None) if config.spans is None else _own_provider(config.spans, tracer_provider)
        self._spans = _spans(config, tracer_provider or self._own)
        self._faults = Faults()
        self._run_meters: list[RunMeter] = []
        self._servers: list[MetricsServer] = []
        self._observe = self.observer()

    def observe(self, event: Event) -> None:
        """Take one event of a run, in the task that it is told in."""
        self._observe(event)

    def observer(self) -> Observer:
        """An observer of one run, whatever others are observed at the same time."""
        meter = RunMeter(self._meters, self._spans, self._faults, agent=self._config.agent)
        self._run_meters.append(meter)
        return meter.observe

    def in_front_of(self, engine: Engine, model: str = "") -> Engine:
        """`engine`, each try of a request measured. `model` = what its server calls the model, where that is known."""
        return TimedEngine(engine, model, self._meters, self._spans)

    def count(self, name: str, amount: float = 1, /, **attributes: str) -> None:
        """Add to a counter. Raises `ContractError` for what is not in the table of metrics."""
        self._meters.count(name, amount, **attributes)

    def gauge(self, name: str, value: float, /, **attributes: str) -> None:
        """Say what a gauge is now. Raises `ContractError` for what is not in the table of metrics."""
        self._meters.gauge(name, value, **attributes)

    def record(self, name: str, value: float, /, **attributes: str) -> None:
        """Add a value to a histogram. Raises `ContractError` for what is not in the table of metrics."""
        self._meters.record(name, value, **attributes)

    def serve_metrics(self, port: int = 0, host: str = "127.0.0.1") -> str:
        """Serve the metrics in Prometheus' format until `close`, and return the address. Port 0 = any that is free.

        Whoever reaches the port reads them. Raises `ConfigError` where nothing can listen there.
        """
        server = MetricsServer(self._meters, port, host)
        self._servers.append(server)
        return server.address

    def close(self) -> None:
        """Stop serving, end the spans of trees that nobody closed, and write out what this owns. Harmless when
        repeated."""
        for meter in self._run_meters:
            meter.close()
        while self._servers:
            self._servers.pop().close()
        if self._own is not None and self._file is not None:
            self._own.shutdown()
            self._file.close()
            self._own = self._file = None


def _spans(config: TelemetryConfig, provider: "TracerProvider | None") -> Spans | None:
    """What makes spans; None where nobody would get them."""
    from opentelemetry import trace

    provider = provider or trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider):
        return None
    return Spans(provider.get_tracer(SCOPE, __version__), config.agent, config.has_content)


def _own_provider(path: Path, given: "TracerProvider | None") -> "tuple[OwnProvider, TextIO]":
    """A provider whose spans go to a file, written by a thread of its own. Raises `ConfigError`."""
    from opentelemetry import trace

    try:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter
    except ImportError as error:
        raise ConfigError(f"a file of spans needs OpenTelemetry's SDK: {INSTALL}") from error
    if given is not None or not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        raise ConfigError(
            f"telemetry.spans = {str(path)!r}: the process has an OpenTelemetry provider, which gets the spans: "
            "leave telemetry.spans out, or add an exporter to the provider"
        )
    try:
        file = path.open("a", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"telemetry.spans = {str(path)!r} cannot be written: {error.strerror}") from error
    own = TracerProvider(resource=Resource.create({"service.name": SCOPE}))
    lines = ConsoleSpanExporter(out=file, formatter=lambda span: span.to_json(indent=None) + "\n")
    own.add_span_processor(BatchSpanProcessor(lines))
    return own, file
