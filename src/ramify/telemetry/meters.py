"""Meters: the values of the metrics in the table, exported to OpenTelemetry and readable here.

Each meter provider has one `Meters`. Parts of a process that share a provider add to the same sums, which are exported
once. The provider reads sums and gauges when it exports, so counting is only an addition. Histogram values are passed
on one by one, because their distribution needs every value. A series exists from its first value on; a metric that
nobody counted is not shown as 0. Safe to call from several threads.
"""

import math
import threading
from bisect import bisect_left
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from ramify.core.errors import ConfigError, ContractError
from ramify.telemetry.metrics import ATTRIBUTES, INSTALL, SCOPE, Kind, Metric, metric_of
from ramify.version import __version__

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation

COUNTED: tuple[Kind, ...] = ("counter", "up_down")


class Series:
    """A metric with one set of attributes. Mutated by `add`, `set` and `record`, each for its own kind of metric."""

    __slots__ = ("_exported", "_lock", "_name", "attributes", "counts", "labels", "metric", "value")

    def __init__(self, name: str, metric: Metric, attributes: dict[str, str], exported: Any) -> None:
        """`exported` receives the values of a histogram."""
        self._name = name
        self._exported = exported
        self._lock = threading.Lock()
        self.metric = metric
        self.labels = tuple(_valid(attributes.get(key, "")) for key in metric.attributes)
        """One value per attribute of the metric; empty = it does not apply."""
        self.attributes = {ATTRIBUTES[k]: v for k, v in zip(metric.attributes, self.labels, strict=True) if v}
        self.value: float = 0
        """For a histogram, the sum of its values."""
        self.counts = [0] * (len(metric.buckets) + 1) if metric.buckets else []
        """For a histogram, the number of values in each bucket; the last bucket has the values above all bounds."""

    def add(self, amount: float) -> None:
        """Add to a sum. Raises `ContractError` if the amount is not finite, or would lower a counter."""
        if not math.isfinite(amount) or (amount < 0 and self.metric.kind == "counter"):
            raise ContractError(
                f"{self._name!r} cannot grow by {amount!r}: a counter takes finite numbers of 0 or more"
            )
        with self._lock:
            self.value += amount

    def set(self, value: float) -> None:
        """Set a gauge."""
        self.value = self._finite(value)

    def record(self, value: float) -> None:
        """Add a value to a histogram."""
        place = bisect_left(self.metric.buckets, self._finite(value))
        with self._lock:
            self.value += value
            self.counts[place] += 1
        self._exported.record(value, self.attributes)

    def _finite(self, value: float) -> float:
        if not math.isfinite(value):
            raise ContractError(f"{self._name!r} = {value!r}: must be a finite number")
        return value


def _valid(value: object) -> str:
    """The value as valid UTF-8. A single invalid value would break the whole page."""
    return str(value).encode("utf-8", "replace").decode()


class Meters:
    """Records numbers by name. Raises `ContractError` for a name, a kind or an attribute that is not in the table."""

    def __init__(self, provider: "MeterProvider") -> None:
        self._meter = provider.get_meter(SCOPE, __version__)
        self._series: dict[tuple[object, ...], Series] = {}
        self._by_name: dict[str, dict[tuple[str, ...], Series]] = {}
        self._histograms: dict[str, Any] = {}
        self._making = threading.Lock()

    def count(self, name: str, amount: float = 1, /, **attributes: str) -> None:
        """Add to a sum."""
        self._of(name, COUNTED, attributes).add(amount)

    def gauge(self, name: str, value: float, /, **attributes: str) -> None:
        """Set a gauge."""
        self._of(name, ("gauge",), attributes).set(value)

    def record(self, name: str, value: float, /, **attributes: str) -> None:
        """Add one value to a histogram."""
        self._of(name, ("histogram",), attributes).record(value)

    def counter(self, name: str, /, **attributes: str) -> Series:
        """The series of these attributes, for code that adds to it often."""
        return self._of(name, COUNTED, attributes)

    def each(self) -> Iterator[tuple[str, list[Series]]]:
        """Every metric that has a value, with its series, in order of first use."""
        with self._making:
            found = [(name, list(series.values())) for name, series in self._by_name.items()]
        yield from found

    def _of(self, name: str, kinds: tuple[Kind, ...], attributes: dict[str, str]) -> Series:
        series = self._series.get((name, *attributes.items()))
        if series is None or series.metric.kind not in kinds:
            series = self._made(name, metric_of(name, kinds, tuple(attributes)), attributes)
        return series

    def _made(self, name: str, metric: Metric, attributes: dict[str, str]) -> Series:
        with self._making:
            if name not in self._by_name:
                self._by_name[name] = {}
                self._export(name, metric)
            series = Series(name, metric, attributes, self._histograms.get(name))
            series = self._by_name[name].setdefault(series.labels, series)
        self._series[name, *attributes.items()] = series
        return series

    def _export(self, name: str, metric: Metric) -> None:
        """Register a metric with the provider."""

        def values(options: "CallbackOptions") -> "Iterator[Observation]":
            return self._observations(name)

        match metric.kind:
            case "counter":
                self._meter.create_observable_counter(name, [values], metric.unit, metric.description)
            case "up_down":
                self._meter.create_observable_up_down_counter(name, [values], metric.unit, metric.description)
            case "gauge":
                self._meter.create_observable_gauge(name, [values], metric.unit, metric.description)
            case "histogram":
                self._histograms[name] = self._meter.create_histogram(
                    name, metric.unit, metric.description, explicit_bucket_boundaries_advisory=metric.buckets
                )

    def _observations(self, name: str) -> "Iterator[Observation]":
        from opentelemetry.metrics import Observation

        with self._making:
            every = list(self._by_name[name].values())
        return (Observation(series.value, series.attributes) for series in every)


_METERS: "WeakKeyDictionary[MeterProvider, Meters]" = WeakKeyDictionary()
_LOOKING = threading.Lock()


def meters_of(provider: "MeterProvider | None" = None) -> Meters:
    """The meters of a provider. None = the process's provider, which discards them if none was set. Raises
    `ConfigError` if the library is missing."""
    try:
        from opentelemetry import metrics
    except ImportError as error:
        raise ConfigError(f"metrics need OpenTelemetry: {INSTALL}") from error
    provider = provider or metrics.get_meter_provider()
    with _LOOKING:
        if provider not in _METERS:
            _METERS[provider] = Meters(provider)
        return _METERS[provider]
