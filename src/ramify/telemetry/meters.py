"""Meters: the numbers behind the table of metrics, told to OpenTelemetry and to whoever looks.

There is one of them a meter provider, as there is one registry a process elsewhere: what several parts of a process
count through one provider is summed, and exported once. Sums and last values are read by the provider when it exports,
so that counting is an addition; values of histograms are handed over one by one, since nothing else keeps their spread.
A series is there from its first value on: what nobody counted is not shown as 0. Safe to call from several threads.
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
    """A metric with one set of attributes. Mutated by `add`, `set` and `record`, each for its kinds of metrics."""

    __slots__ = ("_exported", "_lock", "_name", "attributes", "counts", "labels", "metric", "value")

    def __init__(self, name: str, metric: Metric, attributes: dict[str, str], exported: Any) -> None:
        """`exported`: what the values of a histogram are handed on to."""
        self._name = name
        self._exported = exported
        self._lock = threading.Lock()
        self.metric = metric
        self.labels = tuple(_valid(attributes.get(key, "")) for key in metric.attributes)
        """A value for every attribute of the metric; empty = it does not apply."""
        self.attributes = {ATTRIBUTES[k]: v for k, v in zip(metric.attributes, self.labels, strict=True) if v}
        self.value: float = 0
        """Of a histogram, the sum."""
        self.counts = [0] * (len(metric.buckets) + 1) if metric.buckets else []
        """Of a histogram, the number of values up to each bound and above the one before; the last: above all."""

    def add(self, amount: float) -> None:
        """Add to a sum. Raises `ContractError` if it is a counter and would fall."""
        if not math.isfinite(amount) or (amount < 0 and self.metric.kind == "counter"):
            raise ContractError(
                f"{self._name!r} cannot grow by {amount!r}: a counter takes finite numbers of 0 or more"
            )
        with self._lock:
            self.value += amount

    def set(self, value: float) -> None:
        """Say what a gauge is now."""
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
    """Text that can be written as UTF-8: one value that cannot would cost everybody the page."""
    return str(value).encode("utf-8", "replace").decode()


class Meters:
    """Takes numbers by name. Raises `ContractError` for a name, a kind or an attribute that is not in the table."""

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
        """Say what a value is now."""
        self._of(name, ("gauge",), attributes).set(value)

    def record(self, name: str, value: float, /, **attributes: str) -> None:
        """Add one value to a histogram."""
        self._of(name, ("histogram",), attributes).record(value)

    def counter(self, name: str, /, **attributes: str) -> Series:
        """The sum of these attributes, for whoever adds to it often."""
        return self._of(name, COUNTED, attributes)

    def each(self) -> Iterator[tuple[str, list[Series]]]:
        """Every metric that has a value, with its series, in the order in which they came."""
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
        """Tell the provider of a metric."""

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
    """The meters of a provider; None = of the process's, which does nothing with them where none was set. Raises
    `ConfigError` where the library is missing."""
    try:
        from opentelemetry import metrics
    except ImportError as error:
        raise ConfigError(f"metrics need OpenTelemetry: {INSTALL}") from error
    provider = provider or metrics.get_meter_provider()
    with _LOOKING:
        if provider not in _METERS:
            _METERS[provider] = Meters(provider)
        return _METERS[provider]
