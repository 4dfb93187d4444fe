"""Metrics: the one table of every number that telemetry may export: name -> kind, unit, description, attributes.

Names, units, buckets and attributes that begin with `gen_ai.` follow OpenTelemetry's semantic conventions 1.41.0. Two
durations are missing there and follow open-telemetry/semantic-conventions-genai:docs/gen-ai/gen-ai-metrics.md. Both
documents have the status "development". Names of our own begin with `ramify.`. Attribute values come from small closed
sets or from the configuration. They are never a prompt, a text, or a name that a model made up.
"""

from dataclasses import dataclass
from typing import Final, Literal

from ramify.core.errors import ConfigError, ContractError, nearest

Kind = Literal["counter", "up_down", "gauge", "histogram"]
"""counter: a sum that only rises; up_down: a sum; gauge: the last value; histogram: the distribution of values."""

SCOPE: Final = "ramify"
INSTALL: Final = "pip install 'ramify[metrics]'"

ATTRIBUTES: Final = {
    "operation": "gen_ai.operation.name",
    "provider": "gen_ai.provider.name",
    "model": "gen_ai.request.model",
    "agent": "gen_ai.agent.name",
    "tool": "gen_ai.tool.name",
    "token_type": "gen_ai.token.type",
    "error": "error.type",
    "role": "ramify.role",
    "phase": "ramify.phase",
    "outcome": "ramify.outcome",
    "stop": "ramify.stop",
    "reason": "ramify.reason",
    "state": "ramify.state",
    "status": "ramify.tool.status",
    "judge": "ramify.judge",
}
"""Name of an attribute in our calls -> its exported name."""

TOKENS: Final = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864)
REQUEST_S: Final = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
AGENT_S: Final = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 102.4, 204.8, 409.6)
POWERS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
SMALL: Final = (0, 1, 2, 3, 4, 6, 8, 12, 16, 32)


@dataclass(frozen=True, slots=True)
class Metric:
    """What is fixed about a metric before it has a value."""

    kind: Kind
    unit: str
    """In UCUM, as OpenTelemetry writes it: `s`, `1`, `{token}`."""
    description: str
    attributes: tuple[str, ...] = ()
    """Keys of `ATTRIBUTES`. A call leaves out those that do not apply."""
    buckets: tuple[float, ...] = ()
    """Upper bounds of a histogram."""

    def __post_init__(self) -> None:
        if bool(self.buckets) != (self.kind == "histogram"):
            raise ConfigError(
                f"a {self.kind!r} with buckets {self.buckets!r}: a histogram needs buckets, other kinds have none"
            )
        if unknown := sorted(set(self.attributes) - set(ATTRIBUTES)):
            raise ConfigError(f"unknown attribute {unknown[0]!r}; {nearest(unknown[0], ATTRIBUTES)}")


METRICS: Final[dict[str, Metric]] = {
    # -- by the conventions -------------------------------------------------------------------------------------------
    "gen_ai.client.token.usage": Metric(
        "histogram",
        "{token}",
        "Number of input and output tokens used by a generation.",
        ("operation", "provider", "model", "token_type"),
        TOKENS,
    ),
    "gen_ai.client.operation.duration": Metric(
        "histogram",
        "s",
        "Duration of a generation, one try of it.",
        ("operation", "provider", "model", "error"),
        REQUEST_S,
    ),
    "gen_ai.invoke_agent.duration": Metric(
        "histogram", "s", "Duration of growing a tree.", ("agent", "error"), AGENT_S
    ),
    "gen_ai.execute_tool.duration": Metric(
        "histogram", "s", "Duration of a tool call, its retries included.", ("tool", "agent", "error"), REQUEST_S
    ),
    # -- trees --------------------------------------------------------------------------------------------------------
    "ramify.trees.open": Metric("up_down", "{tree}", "Trees that are growing."),
    "ramify.trees.closed": Metric("counter", "{tree}", "Trees that ended, by `done` or the fault.", ("reason",)),
    "ramify.leaves": Metric("counter", "{leaf}", "Ended paths of closed trees, failed ones too.", ("stop",)),
    "ramify.tree.nodes": Metric("histogram", "{node}", "Nodes of a closed tree.", (), POWERS),
    "ramify.tree.depth": Metric("histogram", "{edge}", "Edges from the root to a tree's deepest leaf.", (), POWERS),
    "ramify.tree.branch_factor": Metric(
        "histogram", "{child}", "Mean number of children of a tree's inner nodes.", (), (1, 1.25, 1.5, 2, 3, 4, 8, 16)
    ),
    # -- what is going on ---------------------------------------------------------------------------------------------
    "ramify.phase.trees": Metric("up_down", "{tree}", "Growing trees in a phase of their strategy.", ("phase",)),
    "ramify.phase.rounds": Metric("counter", "{round}", "Phases and rounds of them that began.", ("phase",)),
    "ramify.commands.in_flight": Metric("up_down", "{command}", "Commands asked and not yet told.", ("phase",)),
    "ramify.commands.told": Metric("counter", "{command}", "Commands that ended.", ("outcome", "error")),
    "ramify.failed_share": Metric(
        "gauge", "1", "Share of ended commands that failed, budgets and cancels left out of the failures."
    ),
    "ramify.steps": Metric("counter", "{step}", "Steps grown.", ("phase", "role")),
    # -- what it costs ------------------------------------------------------------------------------------------------
    "ramify.tokens.decode": Metric("counter", "{token}", "Tokens sampled, those cut off too.", ("role",)),
    "ramify.tokens.prefill_cached": Metric("counter", "{token}", "Context tokens that an engine still had.", ("role",)),
    "ramify.tokens.prefill_uncached": Metric("counter", "{token}", "Context tokens computed anew.", ("role",)),
    "ramify.engine_calls": Metric("counter", "{request}", "Requests whose tokens are in a step.", ("role",)),
    "ramify.tool_calls": Metric(
        "counter", "{call}", "Tool calls; those refused or invalid name no tool.", ("tool", "status", "phase")
    ),
    "ramify.tool_retries": Metric("counter", "{call}", "Further tries of tool calls.", ("tool",)),
    "ramify.judge_calls": Metric("counter", "{score}", "Scores that judges gave.", ("judge",)),
    # -- the service --------------------------------------------------------------------------------------------------
    "ramify.weight_version": Metric("gauge", "{version}", "Version of the weights that are sampled from."),
    "ramify.staleness": Metric(
        "histogram", "{version}", "Versions between sampling and training, one value a trained sample.", (), SMALL
    ),
    "ramify.buffer.groups": Metric("gauge", "{group}", "Groups in the buffer.", ("state",)),
    "ramify.groups.dropped": Metric("counter", "{group}", "Groups that will not be trained.", ("reason",)),
    "ramify.batches": Metric("counter", "{batch}", "Batches handed to the trainer."),
    "ramify.journal.lag": Metric("gauge", "{record}", "Records of a journal that are not on disk yet."),
}


def metric_of(name: str, kinds: tuple[Kind, ...], attributes: tuple[str, ...]) -> Metric:
    """The metric called `name`. Raises `ContractError` if there is none, if its kind differs, or if it lacks an
    attribute."""
    metric = METRICS.get(name)
    if metric is None:
        raise ContractError(f"no metric is called {name!r}; {nearest(name, METRICS)}")
    if metric.kind not in kinds:
        raise ContractError(f"{name!r} is a {metric.kind}, not a {' or '.join(kinds)}")
    for attribute in attributes:
        if attribute not in metric.attributes:
            has = ", ".join(metric.attributes) or "none"
            raise ContractError(f"{name!r} has no attribute {attribute!r}; it has {has}")
    return metric


def prometheus_name(name: str) -> str:
    """The name of a metric in Prometheus' text, without the `_total` of counters (OpenTelemetry specification,
    compatibility/prometheus_and_openmetrics.md)."""
    metric = METRICS[name]
    unit = {"s": "_seconds", "By": "_bytes"}.get(metric.unit, "")
    return name.replace(".", "_") + ("_ratio" if metric.unit == "1" and metric.kind == "gauge" else unit)


def label(attribute: str) -> str:
    """The name of an attribute in Prometheus' text."""
    return ATTRIBUTES[attribute].replace(".", "_")
