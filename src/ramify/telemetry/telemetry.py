"""Telemetry: the metrics and spans of a process's runs, and the page that Prometheus reads.

It owns the metrics of `metrics.py`; there are no others. It also owns the metrics servers that were started, and a span
provider if the configuration names a file for spans. Observing never blocks: exporters work in their own threads. It
exports no prompt and no text unless `has_content` is set.
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
    """What is exported, and where to."""

    agent: str = ""
    """Name of what runs, such as a preset: `gen_ai.agent.name`; empty = no name."""
    spans: Path | None = None
    """A file for spans, one JSON object per line. None = spans go to the process's provider; without one there are no
    spans."""
    has_content: bool = False
    """Whether spans contain what users, models and tools wrote, and the uids of problems."""

    def __post_init__(self) -> None:
        if self.spans is not None and not self.spans.parent.is_dir():
            raise ConfigError(f"telemetry.spans = {str(self.spans)!r}: name a file in an existing folder")


class Telemetry:
    """Metrics and spans of any number of runs. Close it at the end.

    `observe` is an observer for one run at a time; concurrent runs need one `observer()` each. All instances with the
    same meter provider add to the same sums.
    """

    def __init__(
        self,
        config: TelemetryConfig = TelemetryConfig(),
        *,
        tracer_provider: "TracerProvider | None" = None,
        meter_provider: "MeterProvider | None" = None,
    ) -> None:
        """A provider that is not given is the process's. Raises `ConfigError` if the library is missing."""
        self._config = config
        self._meters = meters_of(meter_provider)
        self._own, self._file = (None, None) if config.spans is None else _own_provider(config.spans, tracer_provider)
        self._spans = _spans(config, tracer_provider or self._own)
        self._faults = Faults()
        self._run_meters: list[RunMeter] = []
        self._servers: list[MetricsServer] = []
        self._observe = self.observer()

    def observe(self, event: Event) -> None:
        """Take one event of a run. Call it in the task that emits the event."""
        self._observe(event)

    def observer(self) -> Observer:
        """A new observer for one run. Other runs may be observed at the same time."""
        meter = RunMeter(self._meters, self._spans, self._faults, agent=self._config.agent)
        self._run_meters.append(meter)
        return meter.observe

    def in_front_of(self, engine: Engine, model: str = "") -> Engine:
        """`engine`, with every try of a request measured. `model` = the server's name of the model, if known."""
        return TimedEngine(engine, model, self._meters, self._spans)

    def count(self, name: str, amount: float = 1, /, **attributes: str) -> None:
        """Add to a counter. Raises `ContractError` for a name that is not in the table of metrics."""
        self._meters.count(name, amount, **attributes)

    def gauge(self, name: str, value: float, /, **attributes: str) -> None:
        """Set a gauge. Raises `ContractError` for a name that is not in the table of metrics."""
        self._meters.gauge(name, value, **attributes)

    def record(self, name: str, value: float, /, **attributes: str) -> None:
        """Add a value to a histogram. Raises `ContractError` for a name that is not in the table of metrics."""
        self._meters.record(name, value, **attributes)

    def serve_metrics(self, port: int = 0, host: str = "127.0.0.1") -> str:
        """Serve the metrics in Prometheus' format until `close`, and return the address. Port 0 = any free port.

        Anybody who can reach the port can read them. Raises `ConfigError` if it cannot listen there.
        """
        server = MetricsServer(self._meters, port, host)
        self._servers.append(server)
        return server.address

    def close(self) -> None:
        """Stop serving, end the spans of trees that are still open, and write out our own spans. Can be called
        again."""
        for meter in self._run_meters:
            meter.close()
        while self._servers:
            self._servers.pop().close()
        if self._own is not None and self._file is not None:
            self._own.shutdown()
            self._file.close()
            self._own = self._file = None


def _spans(config: TelemetryConfig, provider: "TracerProvider | None") -> Spans | None:
    """The maker of spans; None = nobody would receive them."""
    from opentelemetry import trace

    provider = provider or trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider):
        return None
    return Spans(provider.get_tracer(SCOPE, __version__), config.agent, config.has_content)


def _own_provider(path: Path, given: "TracerProvider | None") -> "tuple[OwnProvider, TextIO]":
    """A provider that writes spans to a file in its own thread. Raises `ConfigError`."""
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
