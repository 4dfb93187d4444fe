"""MetricsServer: one page in Prometheus' text format, served by a thread of its own.

It owns only a port and a thread, until it is closed. Each request reads the current values. There is no access control,
so by default it listens on this machine only.
"""

from collections.abc import Iterator
from itertools import accumulate
from typing import TYPE_CHECKING

from ramify.core.errors import ConfigError
from ramify.telemetry.meters import Meters, Series
from ramify.telemetry.metrics import INSTALL, METRICS, label, prometheus_name

if TYPE_CHECKING:
    from prometheus_client import Metric as Family

MAX_PORT = 65535


class MetricsServer:
    """Serves the values of `meters` at `address` until it is closed."""

    def __init__(self, meters: Meters, port: int = 0, host: str = "127.0.0.1") -> None:
        """Port 0 = any free port. Raises `ConfigError` if it cannot listen, or if the library is missing."""
        try:
            from prometheus_client import CollectorRegistry, start_http_server
        except ImportError as error:
            raise ConfigError(f"serving metrics needs prometheus_client: {INSTALL}") from error
        if not 0 <= port <= MAX_PORT:
            raise ConfigError(f"metrics port {port!r}: must be 0 (any free port) to {MAX_PORT}")
        registry = CollectorRegistry()
        registry.register(_Page(meters))
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except OSError as error:
            why = error.strerror or str(error)
            raise ConfigError(
                f"metrics cannot be served at {host!r}, port {port}: {why}; choose another, or 0 for any free port"
            ) from error
        self.port: int = self._server.server_port
        shown = f"[{host}]" if ":" in host else host
        self.address = f"http://{shown}:{self.port}/metrics"

    def close(self) -> None:
        """Stop serving and free the port. Can be called again."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Page:
    """The meters as a collector for prometheus_client."""

    def __init__(self, meters: Meters) -> None:
        self._meters = meters

    def collect(self) -> "Iterator[Family]":
        """The current values of every metric that has one."""
        for name, every in self._meters.each():
            yield _family(name, every)


def _family(name: str, every: list[Series]) -> "Family":
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    metric, shown = METRICS[name], prometheus_name(name)
    labels = [label(key) for key in metric.attributes]
    if metric.kind == "histogram":
        family = HistogramMetricFamily(shown, metric.description, labels=labels)
        for series in every:
            family.add_metric(series.labels, _buckets(series), series.value)
        return family
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = kind(shown, metric.description, labels=labels)
    for series in every:
        family.add_metric(series.labels, series.value)
    return family


def _buckets(series: Series) -> list[tuple[str, float]]:
    """Upper bound -> number of values up to it."""
    bounds = [*(str(float(bound)) for bound in series.metric.buckets), "+Inf"]
    return list(zip(bounds, accumulate(series.counts), strict=True))
