"""What telemetry exported, read back: through OpenTelemetry's own readers, and from Prometheus' page."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.request import urlopen

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families

from ramify.telemetry.metrics import ATTRIBUTES
from ramify.telemetry.telemetry import Telemetry, TelemetryConfig


@dataclass
class Exported:
    """A telemetry, and readers of all it exports."""

    config: TelemetryConfig = field(default_factory=TelemetryConfig)
    exporter: InMemorySpanExporter = field(default_factory=InMemorySpanExporter)
    reader: InMemoryMetricReader = field(default_factory=InMemoryMetricReader)
    address: str = ""
    """Of the page, once somebody has looked at it."""

    def __post_init__(self) -> None:
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.meters = MeterProvider(metric_readers=[self.reader])
        self.telemetry = Telemetry(self.config, tracer_provider=self.tracers, meter_provider=self.meters)

    def values(self, name: str) -> dict[tuple[tuple[str, str], ...], float]:
        """Attributes -> value of a metric; of a histogram its sum."""
        return {key: value for key, (value, _) in self._points(name).items()}

    def counts(self, name: str) -> dict[tuple[tuple[str, str], ...], int]:
        """Attributes -> number of values of a histogram."""
        return {key: count for key, (_, count) in self._points(name).items()}

    def total(self, name: str, **attributes: str) -> float:
        """Sum over all series that have these attributes."""
        wanted = {(ATTRIBUTES[key], value) for key, value in attributes.items()}
        return sum(value for key, value in self.values(name).items() if wanted <= set(key))

    def by(self, name: str, attribute: str) -> dict[str, float]:
        """Value of an attribute -> sum over all series that have it, 0 left out."""
        sums: dict[str, float] = {}
        for key, value in self.values(name).items():
            word = dict(key).get(ATTRIBUTES[attribute], "")
            sums[word] = sums.get(word, 0) + value
        return {word: value for word, value in sums.items() if value}

    def spans(self, operation: str | None = None) -> list[ReadableSpan]:
        """Finished spans of one operation, in the order they ended."""
        every = self.exporter.get_finished_spans()
        return [s for s in every if operation is None or attributes_of(s).get("gen_ai.operation.name") == operation]

    def page(self) -> str:
        """Prometheus' page."""
        if not self.address:
            self.address = self.telemetry.serve_metrics()
        with urlopen(self.address) as answer:
            return answer.read().decode()

    def everything(self) -> str:
        """All that left the process, as text."""
        metrics = self.reader.get_metrics_data()
        spans = "\n".join(span.to_json() for span in self.spans())
        return "\n".join([spans, "" if metrics is None else metrics.to_json(), self.page()])

    def names(self) -> set[str]:
        """Of all metrics that have a value."""
        return set(self._metrics())

    def _points(self, name: str) -> dict[tuple[tuple[str, str], ...], tuple[float, int]]:
        found: dict[tuple[tuple[str, str], ...], tuple[float, int]] = {}
        for point in self._metrics().get(name, ()):
            key = tuple(sorted((name, str(value)) for name, value in (point.attributes or {}).items()))
            is_spread = isinstance(point, HistogramDataPoint)
            found[key] = (point.sum, point.count) if is_spread else (point.value, 1)
        return found

    def _metrics(self) -> Mapping[str, list]:
        data = self.reader.get_metrics_data()
        scopes = [scope for each in data.resource_metrics for scope in each.scope_metrics] if data else []
        return {metric.name: list(metric.data.data_points) for scope in scopes for metric in scope.metrics}


def attributes_of(span: ReadableSpan) -> dict[str, object]:
    return dict(span.attributes or {})


def samples(page: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """(name, labels) -> value of everything on a page, empty labels left out."""
    return {
        (sample.name, tuple(sorted((k, v) for k, v in sample.labels.items() if v))): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }
