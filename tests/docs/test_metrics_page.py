"""The page of metrics says what the table in the code says."""

from tests.docs.test_examples import table

from ramify.telemetry.metrics import ATTRIBUTES, METRICS


def test_the_tables_of_metrics_are_the_code_s() -> None:
    rows = {**table("metrics.md", "## By the conventions"), **table("metrics.md", "## Our own")}
    assert rows == {
        name: [
            metric.kind,
            metric.unit,
            ", ".join(ATTRIBUTES[key] for key in metric.attributes),
            metric.description.replace("`", ""),
        ]
        for name, metric in METRICS.items()
    }
