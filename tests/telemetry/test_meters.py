"""Numbers have the names of one table, are told alike to both libraries, and are served on one page."""

import math
import re
import socket
from collections.abc import Iterator
from contextlib import closing
from threading import Thread
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.semconv._incubating.metrics import gen_ai_metrics
from tests.telemetry.exported import Exported, samples

from ramify.core.errors import ConfigError, ContractError
from ramify.core.stop import STOP_WORDS
from ramify.telemetry.meters import meters_of
from ramify.telemetry.metrics import ATTRIBUTES, METRICS, Metric, prometheus_name
from ramify.telemetry.prometheus import MetricsServer
from ramify.telemetry.telemetry import Telemetry


@pytest.fixture
def exported() -> Iterator[Exported]:
    made = Exported()
    with closing(made.telemetry):
        yield made


# -- the table --------------------------------------------------------------------------------------------------------


def test_names_are_the_conventions_or_ours() -> None:
    known = {value for name, value in vars(gen_ai_metrics).items() if name.startswith("GEN_AI_")}
    later = {"gen_ai.invoke_agent.duration", "gen_ai.execute_tool.duration"}
    assert {name for name in METRICS if not name.startswith("ramify.")} <= known | later
    assert all(re.fullmatch(r"[a-z_]+(\.[a-z_]+)+", name) for name in [*METRICS, *ATTRIBUTES.values()])


def test_every_name_is_another_one_in_prometheus() -> None:
    assert len({prometheus_name(name) for name in METRICS}) == len(METRICS)
    assert prometheus_name("gen_ai.client.operation.duration") == "gen_ai_client_operation_duration_seconds"
    assert prometheus_name("gen_ai.client.token.usage") == "gen_ai_client_token_usage"
    assert prometheus_name("ramify.failed_share") == "ramify_failed_share_ratio"


def test_every_metric_takes_a_value_with_all_its_attributes(exported: Exported) -> None:
    for name, metric in METRICS.items():
        attributes = dict.fromkeys(metric.attributes, "x")
        match metric.kind:
            case "counter" | "up_down":
                exported.telemetry.count(name, 2, **attributes)
            case "gauge":
                exported.telemetry.gauge(name, 2, **attributes)
            case "histogram":
                exported.telemetry.record(name, 2, **attributes)
        assert list(exported.values(name)) == [tuple(sorted((ATTRIBUTES[key], "x") for key in metric.attributes))]
    assert exported.names() == set(METRICS)
    assert len(samples(exported.page())) > len(METRICS)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (("counter", "1", "", (), (1.0,)), "a 'counter' with buckets"),
        (("histogram", "1", ""), "a 'histogram' with buckets"),
        (("gauge", "1", "", ("stoop",)), "unknown attribute 'stoop'; did you mean 'stop'"),
    ],
)
def test_an_impossible_metric_is_refused(fields: tuple, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Metric(*fields)


# -- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.covers("S3.10")
def test_the_service_s_own_numbers_are_shown(exported: Exported) -> None:
    telemetry = exported.telemetry
    telemetry.gauge("ramify.buffer.groups", 3, state="ready")
    telemetry.gauge("ramify.buffer.groups", 5, state="ready")
    telemetry.gauge("ramify.buffer.groups", 1, state="growing")
    telemetry.gauge("ramify.weight_version", 7)
    telemetry.count("ramify.groups.dropped", 2, reason="stale")
    telemetry.count("ramify.batches")
    for staleness in (0, 0, 2):
        telemetry.record("ramify.staleness", staleness)
    page = samples(exported.page())
    assert page["ramify_buffer_groups", (("ramify_state", "ready"),)] == 5
    assert page["ramify_buffer_groups", (("ramify_state", "growing"),)] == 1
    assert page["ramify_weight_version", ()] == 7
    assert page["ramify_groups_dropped_total", (("ramify_reason", "stale"),)] == 2
    assert page["ramify_batches_total", ()] == 1
    assert (page["ramify_staleness_count", ()], page["ramify_staleness_sum", ()]) == (3, 2)
    assert page["ramify_staleness_bucket", (("le", "0.0"),)] == 2
    assert exported.by("ramify.buffer.groups", "state") == {"ready": 5, "growing": 1}


def test_what_nobody_counted_is_not_shown_as_0(exported: Exported) -> None:
    assert samples(exported.page()) == {}


@pytest.mark.parametrize(
    ("kind", "name", "value", "attributes", "message"),
    [
        ("count", "ramify.batch", 1, {}, "no metric is called 'ramify.batch'; did you mean 'ramify.batches'"),
        ("gauge", "ramify.batches", 1, {}, "'ramify.batches' is a counter, not a gauge"),
        ("count", "ramify.weight_version", 1, {}, "'ramify.weight_version' is a gauge, not a counter or up_down"),
        ("record", "ramify.batches", 1, {}, "'ramify.batches' is a counter, not a histogram"),
        ("count", "ramify.batches", -1, {}, "'ramify.batches' cannot grow by -1"),
        ("count", "ramify.trees.open", math.inf, {}, "'ramify.trees.open' cannot grow by inf"),
        ("count", "ramify.groups.dropped", 1, {"why": "x"}, "has no attribute 'why'; it has reason"),
        ("gauge", "ramify.weight_version", 1, {"state": "x"}, "has no attribute 'state'; it has none"),
        ("gauge", "ramify.weight_version", math.nan, {}, "'ramify.weight_version' = nan: must be a finite number"),
        ("record", "ramify.staleness", math.inf, {}, "'ramify.staleness' = inf: must be a finite number"),
    ],
)
def test_what_is_not_in_the_table_is_refused(
    exported: Exported, kind: str, name: str, value: float, attributes: dict[str, str], message: str
) -> None:
    telemetry = exported.telemetry
    take = {"count": telemetry.count, "gauge": telemetry.gauge, "record": telemetry.record}[kind]
    with pytest.raises(ContractError, match=message):
        take(name, value, **attributes)


@pytest.mark.parametrize(("value", "shown"), [(7, "7"), ("\ud800", "?"), ('a"\\\n', 'a"\\\n'), ("", "")])
def test_no_value_of_an_attribute_breaks_the_page(exported: Exported, value: object, shown: str) -> None:
    exported.telemetry.count("ramify.groups.dropped", reason=value)  # type: ignore[arg-type]
    exported.telemetry.count("ramify.batches")
    (labels,) = [labels for name, labels in samples(exported.page()) if name == "ramify_groups_dropped_total"]
    assert dict(labels).get("ramify_reason", "") == shown
    assert exported.by("ramify.groups.dropped", "reason") == {shown: 1}


def test_threads_count_together(exported: Exported) -> None:
    def count() -> None:
        for word in list(STOP_WORDS) * 50:
            exported.telemetry.count("ramify.leaves", stop=word)

    threads = [Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert exported.by("ramify.leaves", "stop") == dict.fromkeys(STOP_WORDS, 200)
    assert sum(value for (name, _), value in samples(exported.page()).items() if name == "ramify_leaves_total") == (
        200 * len(STOP_WORDS)
    )


def test_what_is_counted_through_one_provider_is_counted_together(exported: Exported) -> None:
    exported.telemetry.count("ramify.batches", 2)
    with closing(Telemetry(meter_provider=exported.meters)) as other:
        other.count("ramify.batches", 3)
    assert exported.values("ramify.batches") == {(): 5}
    assert samples(exported.page())["ramify_batches_total", ()] == 5
    with closing(Telemetry(meter_provider=MeterProvider())) as apart:
        apart.count("ramify.batches")
    assert exported.values("ramify.batches") == {(): 5}


# -- the page ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_server_gives_its_port_back() -> None:
    meters = meters_of(MeterProvider())
    server = MetricsServer(meters)
    assert server.address == f"http://127.0.0.1:{server.port}/metrics"
    with urlopen(server.address) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=")
    server.close()
    server.close()
    with pytest.raises(URLError):
        urlopen(server.address)
    again = MetricsServer(meters, server.port)
    again.close()


def test_a_port_in_use_is_named(exported: Exported) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"'127.0.0.1', port {port}: Address already in use; choose another"):
            exported.telemetry.serve_metrics(port)


@pytest.mark.parametrize("port", [-1, 65536])
def test_what_is_no_port_is_refused(exported: Exported, port: int) -> None:
    with pytest.raises(ConfigError, match=f"metrics port {port}: must be 0 "):
        exported.telemetry.serve_metrics(port)


def test_a_host_that_is_not_this_machine_is_refused(exported: Exported) -> None:
    with pytest.raises(ConfigError, match=r"metrics cannot be served at '192\.0\.2\.1', port 0"):
        exported.telemetry.serve_metrics(host="192.0.2.1")
