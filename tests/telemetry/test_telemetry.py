"""Telemetry says of runs what their reports, trees and ledgers say, and nothing of what was written in them."""

import asyncio
import json
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from opentelemetry.trace import SpanKind, StatusCode
from tests.cli.commands import SCRIPTED, ramify
from tests.engines.breakable import Breakable
from tests.runner.parts import OneChain, Plan, Small, echo, problems, small_with, tip
from tests.service.services import config, served
from tests.telemetry.exported import Exported, attributes_of, samples

from ramify.config.run_config import RunConfig, StrategyConfig
from ramify.core.action import ActionConfig
from ramify.core.command import Close, Command, Grow, Judge
from ramify.core.engine import Engine
from ramify.core.errors import ConfigError, ContractError, EngineError
from ramify.core.problem import Problem
from ramify.core.stop import STOP_WORDS
from ramify.core.tree import ROOT, Tree
from ramify.runner.events import Observer, StepGrown, TreeClosed, TreeOpened
from ramify.runner.library import Rollout, rollout
from ramify.service.manager import RolloutManager
from ramify.telemetry.metrics import METRICS, prometheus_name
from ramify.telemetry.spans import OTHER, error_type
from ramify.telemetry.telemetry import Telemetry, TelemetryConfig
from ramify.testing.clock import run_virtual
from ramify.testing.planned_faults import Delay, Fault
from ramify.testing.policies import chains
from ramify.testing.scripted import Scripted

OFFLINE = StrategyConfig(name="offline", options={"initial_rollouts": 2, "expansion_iterations": 3})
CRITIQUE = ActionConfig(edge="quotes", role="critique", template="{question} said {0}. critique:")
ACTIONS = {"policy": ActionConfig(), "critique": CRITIQUE}


class Criticised(Plan):
    """A chain, a critique of it, a judgement, and a stem that is closed."""

    def wanted(self, tree: Tree) -> Sequence[Command] | None:
        match len(self.told):
            case 0:
                return [Grow(ROOT), Grow(ROOT, until="step")]
            case 2:
                return [Grow(tip(self.told[0]), action="critique")]
            case 3:
                return [Judge((tip(self.told[0]),), "right"), Close(tip(self.told[1]), "enough")]
            case 5:
                return None
            case _:
                return []


@pytest.fixture
def exported() -> Iterator[Exported]:
    made = Exported(TelemetryConfig(agent="test"))
    with closing(made.telemetry):
        yield made


def grown(
    exported: Exported,
    engine: Engine | None = None,
    plan: type[Plan] | None = None,
    *,
    observer: Observer | None = None,
    task: object | None = None,
    questions: Sequence[Problem] | None = None,
    **fields: Any,
) -> Rollout:
    """A run in virtual time, observed and timed. Without a plan, `offline`."""
    fields = fields if plan else {"strategy": OFFLINE} | fields
    made = rollout(
        questions or problems(3),
        config=RunConfig(**fields),
        engine=exported.telemetry.in_front_of(engine or Scripted(chains(1, 3)), "tiny"),
        task=task or Small(),
        strategy=plan,
        observers=[observer or exported.telemetry.observe],
    )
    return run_virtual(made)


def fails_twice(arguments: str) -> str:
    if arguments.startswith("2"):
        raise ValueError(arguments)
    return arguments


# -- numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.covers("S3.10")
@pytest.mark.parametrize("plan", [None, Criticised])
def test_numbers_are_the_report_s_and_the_ledger_s(exported: Exported, plan: type[Plan] | None) -> None:
    result = grown(exported, plan=plan, actions=ACTIONS)
    report = result.report
    ledger = [(role, spend) for tree in result.trees for role, spend in tree.spent().items()]
    for metric, name in [
        ("ramify.tokens.decode", "decode"),
        ("ramify.tokens.prefill_cached", "prefill_cached"),
        ("ramify.tokens.prefill_uncached", "prefill_uncached"),
        ("ramify.engine_calls", "engine_calls"),
    ]:
        by_role: Counter[str] = Counter()
        for role, spend in ledger:
            by_role[role] += getattr(spend, name)
        assert exported.by(metric, "role") == {role: number for role, number in by_role.items() if number}
    assert exported.total("ramify.tokens.decode") == report.decode_tokens > 0
    assert exported.total("ramify.tool_calls") == report.tool_calls > 0
    assert exported.total("ramify.judge_calls") == report.judge_calls > 0
    assert exported.by("ramify.leaves", "stop") == report.stop_words
    assert exported.by("ramify.trees.closed", "reason") == {"done": report.trees}
    assert exported.values("ramify.trees.open") == {(): 0}
    assert not exported.by("ramify.commands.in_flight", "phase") and not exported.by("ramify.phase.trees", "phase")
    assert ("critique" in exported.by("ramify.tokens.decode", "role")) == (plan is Criticised)


def test_tokens_of_generations_are_those_of_the_tree(exported: Exported) -> None:
    report = grown(exported).report
    name = "gen_ai.client.token.usage"
    assert exported.total(name, token_type="output") == report.decode_tokens
    assert exported.total(name, token_type="input") == report.prefill_cached + report.prefill_uncached
    assert sum(exported.counts(name).values()) == 2 * report.engine_calls
    (labels, *_) = exported.values(name)
    assert {"text_completion", "scripted", "tiny"} <= {value for _, value in labels}


def test_durations_are_the_loop_s(exported: Exported) -> None:
    grown(exported, Scripted(chains(1), delay=Delay(2.0)), OneChain)
    assert set(exported.values("gen_ai.client.operation.duration").values()) == {12.0}
    assert exported.counts("gen_ai.client.operation.duration") == dict.fromkeys(
        exported.values("gen_ai.client.operation.duration"), 6
    )
    assert list(exported.values("gen_ai.invoke_agent.duration").values()) == [12.0]


def test_calls_are_counted_by_tool_and_status_and_a_name_made_up_is_not_shown(exported: Exported) -> None:
    result = grown(exported, task=small_with(fails_twice))
    calls = Counter(
        s.tool_call.status for t in result.trees for n in range(len(t)) for s in t.segments(n) if s.tool_call
    )
    assert len(calls) == 2
    assert exported.by("ramify.tool_calls", "status") == calls
    assert exported.by("ramify.tool_calls", "tool") == {"calculator": calls.total()}
    assert sum(exported.counts("gen_ai.execute_tool.duration").values()) == calls.total()


def test_a_call_that_reached_no_tool_names_none_and_has_no_span(exported: Exported) -> None:
    result = grown(exported, Scripted(lambda turn: "<calc></calc>"), OneChain, questions=problems(1))
    assert result.report.tool_calls == 0
    assert set(exported.by("ramify.tool_calls", "tool")) <= {""}
    assert not exported.spans("execute_tool")
    assert "gen_ai.execute_tool.duration" not in exported.names()


def test_a_tree_s_shape_is_measured(exported: Exported) -> None:
    result = grown(exported)
    depths = [max(tree.depth(leaf) for leaf in tree.leaves()) for tree in result.trees]
    assert exported.values("ramify.tree.depth") == {(): sum(depths)}
    assert exported.values("ramify.tree.nodes") == {(): sum(len(tree) for tree in result.trees)}
    parents = [[tree.parent(n) for n in range(len(tree)) if n != ROOT] for tree in result.trees]
    factors = [len(each) / len(set(each)) for each in parents]
    assert exported.values("ramify.tree.branch_factor")[()] == pytest.approx(sum(factors))
    assert all(factor > 1 for factor in factors)


@pytest.mark.covers("S0.9")
def test_phases_are_numbers_with_their_rounds_active_trees_and_tool_calls(exported: Exported) -> None:
    seen: list[tuple[dict[str, float], dict[str, float]]] = []

    def look(event: object) -> None:
        exported.telemetry.observe(event)  # type: ignore[arg-type]
        if not isinstance(event, TreeOpened):
            seen.append((exported.by("ramify.phase.trees", "phase"), exported.by("ramify.commands.in_flight", "phase")))

    report = grown(exported, observer=look).report
    assert exported.by("ramify.phase.rounds", "phase") == {
        "build": 3,
        "initial chains": 3,
        "expansion": 9,
        "collection": 3,
    }
    assert {phase for trees, _ in seen for phase in trees} == {"build", "initial chains", "expansion", "collection"}
    assert all(sum(trees.values()) <= 3 for trees, _ in seen)
    assert max(active.get("initial chains", 0) for _, active in seen) == 6
    assert seen[-1] == ({}, {})
    calls = exported.by("ramify.tool_calls", "phase")
    assert set(calls) == {"initial chains", "expansion"}
    assert sum(calls.values()) == report.tool_calls


def test_a_failed_path_is_counted_with_its_error(exported: Exported) -> None:
    engine = Scripted(chains(1), faults=[Fault("error", share=1.0, is_retryable=False)])
    report = grown(exported, engine, OneChain).report
    assert report.failed_leaves == 3
    assert exported.by("ramify.leaves", "stop") == {"engine_error": 3}
    assert sum(n for word, n in exported.by("ramify.leaves", "stop").items() if not STOP_WORDS[word].is_failure) == 0
    assert exported.by("ramify.commands.told", "error") == {"engine_500": 3}
    assert exported.values("ramify.failed_share") == {(): 1.0}
    assert {dict(key)["error.type"] for key in exported.values("gen_ai.client.operation.duration")} == {"engine_500"}
    assert "gen_ai.client.token.usage" not in exported.names()


def test_each_try_of_a_request_has_its_own_duration(exported: Exported) -> None:
    engine = Scripted(chains(0), delay=Delay(1.0), faults=[Fault("error", share=1.0, num_tries=1)])
    report = grown(exported, engine, OneChain, questions=problems(1)).report
    counts = exported.counts("gen_ai.client.operation.duration")
    assert {dict(key).get("error.type"): number for key, number in counts.items()} == {"engine_500": 1, None: 1}
    assert exported.total("ramify.engine_calls") == report.engine_calls == 1


def test_runs_side_by_side_are_counted_together(exported: Exported) -> None:
    telemetry = exported.telemetry

    async def both() -> list[Rollout]:
        return await asyncio.gather(
            *(
                rollout(
                    problems(2),
                    config=RunConfig(strategy=OFFLINE, seed=seed),
                    engine=telemetry.in_front_of(Scripted(chains(1, 3), delay=Delay(1.0))),
                    task=Small(),
                    observers=[telemetry.observer()],
                )
                for seed in (1, 2)
            )
        )

    reports = [result.report for result in run_virtual(both())]
    assert exported.total("ramify.tokens.decode") == sum(report.decode_tokens for report in reports)
    assert exported.by("ramify.trees.closed", "reason") == {"done": 4}
    assert exported.values("ramify.trees.open") == {(): 0}
    assert len(exported.spans("invoke_agent")) == 4


@pytest.mark.covers("S3.10")
def test_a_service_is_observed_like_any_run_and_its_gaps_are_closed(exported: Exported, tmp_path: Path) -> None:
    events: list[Any] = []

    async def use(manager: RolloutManager) -> None:
        for rollout_id in range(2):
            await manager.generate(rollout_id)

    observers = [exported.telemetry.observe, events.append]
    served(tmp_path / "run", use, configured=config(), observers=observers)
    steps = [event.step for event in events if isinstance(event, StepGrown)]
    billed = sum(segment.usage.num_billed for step in steps for segment in step.segments)
    num_opened, num_closed = (sum(isinstance(e, kind) for e in events) for kind in (TreeOpened, TreeClosed))
    assert exported.total("ramify.tokens.decode") == billed > 0
    assert exported.total("ramify.trees.closed") == num_closed >= 8
    exported.telemetry.close()
    assert exported.values("ramify.trees.open") == {(): 0}
    assert len(exported.spans("invoke_agent")) == num_opened


def test_a_run_that_was_cancelled_leaves_nothing_open(exported: Exported) -> None:
    made = rollout(
        problems(2),
        config=RunConfig(strategy=OFFLINE),
        engine=exported.telemetry.in_front_of(Scripted(chains(3), delay=Delay(1.0))),
        task=Small(),
        observers=[exported.telemetry.observe],
    )

    async def cancelled() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.5):
                await made

    run_virtual(cancelled())
    assert exported.values("ramify.trees.open") == {(): 2}
    exported.telemetry.close()
    assert exported.values("ramify.trees.open") == {(): 0}
    assert not exported.by("ramify.commands.in_flight", "phase") and not exported.by("ramify.phase.trees", "phase")
    assert [attributes_of(s)["error.type"] for s in exported.spans("invoke_agent")] == ["cancelled"] * 2
    assert attributes_of(exported.spans("text_completion")[-1])["error.type"] == "cancelled"


def test_a_run_after_a_cancelled_one_starts_afresh(exported: Exported) -> None:
    telemetry = exported.telemetry
    engine = telemetry.in_front_of(Scripted(chains(3), delay=Delay(1.0)))

    async def one_after_another() -> Rollout:
        def made() -> Any:
            run_config = RunConfig(strategy=OFFLINE)
            return rollout(problems(2), config=run_config, engine=engine, task=Small(), observers=[telemetry.observe])

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.5):
                await made()
        return await made()

    assert run_virtual(one_after_another()).report.trees == 2
    assert exported.values("ramify.trees.open") == {(): 0}
    assert exported.by("ramify.trees.closed", "reason") == {"done": 2}


def test_an_observer_that_two_runs_share_says_so(exported: Exported) -> None:
    events: list[Any] = []
    grown(exported, observer=events.append, questions=problems(1))

    async def later() -> None:
        with pytest.raises(ContractError, match=r"tree 0 was not opened here: .* need an observer\(\) each"):
            exported.telemetry.observe(events[1])

    run_virtual(later())


def test_a_tree_that_closes_unopened_is_counted(exported: Exported) -> None:
    (tree,) = grown(Exported(), questions=problems(1)).trees

    async def close() -> None:
        exported.telemetry.observe(TreeClosed(7, tree, "ContractError: its record asks for something else"))

    run_virtual(close())
    assert exported.by("ramify.trees.closed", "reason") == {"ContractError": 1}
    assert "ramify.trees.open" not in exported.names()


# -- spans ------------------------------------------------------------------------------------------------------------


@pytest.mark.covers("S3.10")
def test_generations_and_tool_calls_are_inside_their_tree_s_span(exported: Exported) -> None:
    result = grown(exported, task=small_with(echo))
    trees = {span.context.span_id: span for span in exported.spans("invoke_agent")}
    assert sorted(attributes_of(span)["ramify.tree"] for span in trees.values()) == [0, 1, 2]
    for operation, number in (
        ("text_completion", result.report.engine_calls),
        ("execute_tool", result.report.tool_calls),
    ):
        spans = exported.spans(operation)
        assert len(spans) == number
        assert all(span.parent.span_id in trees for span in spans)
        assert all(span.context.trace_id == trees[span.parent.span_id].context.trace_id for span in spans)
    tree_of = {id: attributes_of(span)["ramify.tree"] for id, span in trees.items()}
    for span in exported.spans("text_completion"):
        assert str(attributes_of(span)["ramify.request"]).startswith(f"{tree_of[span.parent.span_id]}/")
    for span in exported.spans("execute_tool"):
        assert str(attributes_of(span)["gen_ai.tool.call.id"]).startswith(f"{tree_of[span.parent.span_id]}/")
    ids = [attributes_of(span)["gen_ai.tool.call.id"] for span in exported.spans("execute_tool")]
    assert len(set(ids)) == len(ids)


def test_spans_say_what_the_conventions_ask_for(exported: Exported) -> None:
    result = grown(exported, Scripted(chains(1)), OneChain, task=small_with(echo), questions=problems(1))
    (tree,) = exported.spans("invoke_agent")
    assert (tree.name, tree.kind, tree.status.status_code) == (
        "invoke_agent test",
        SpanKind.INTERNAL,
        StatusCode.UNSET,
    )
    assert attributes_of(tree) == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "test",
        "gen_ai.usage.input_tokens": result.report.prefill_cached + result.report.prefill_uncached,
        "gen_ai.usage.cache_read.input_tokens": result.report.prefill_cached,
        "gen_ai.usage.output_tokens": result.report.decode_tokens,
        "ramify.tree": 0,
        "ramify.num_nodes": 3,
        "ramify.num_leaves": 1,
        "ramify.num_tool_calls": 1,
    }
    (call,) = exported.spans("execute_tool")
    assert (call.name, call.kind) == ("execute_tool calculator", SpanKind.INTERNAL)
    assert attributes_of(call) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "calculator",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": "0/0/0/0",
        "ramify.tool.status": "ok",
        "ramify.tool.num_retries": 0,
    }
    first, last = exported.spans("text_completion")
    assert (first.name, first.kind) == ("text_completion tiny", SpanKind.INTERNAL)
    assert attributes_of(last)["gen_ai.response.finish_reasons"] == ("stop",)
    assert attributes_of(last)["gen_ai.usage.output_tokens"] == len("<answer>0</answer>")
    assert [event.name for event in tree.events] == ["ramify.phase"] * len(tree.events)


def test_an_engine_behind_a_server_is_a_client_s(exported: Exported) -> None:
    grown(exported, Breakable(chains(0)), OneChain, questions=problems(1))
    assert [span.kind for span in exported.spans("text_completion")] == [SpanKind.CLIENT]


def test_a_failed_generation_has_its_error_and_no_message_of_it(exported: Exported) -> None:
    engine = Scripted(chains(0), faults=[Fault("error", share=1.0, is_retryable=False, reason="engine_500")])
    grown(exported, engine, OneChain, questions=problems(1))
    (span,) = exported.spans("text_completion")
    assert attributes_of(span)["error.type"] == "engine_500"
    assert (span.status.status_code, span.status.description, list(span.events)) == (StatusCode.ERROR, None, [])


def test_a_failed_tool_call_has_its_error(exported: Exported) -> None:
    grown(exported, Scripted(chains(2)), OneChain, task=small_with(fails_twice), questions=problems(1))
    errors = [attributes_of(span).get("error.type") for span in exported.spans("execute_tool")]
    statuses = [attributes_of(span)["ramify.tool.status"] for span in exported.spans("execute_tool")]
    assert len(errors) == 2 and errors[0] is None
    assert errors[1] == statuses[1] in ("error", "crashed")


def test_a_tree_that_was_not_finished_has_its_error(exported: Exported) -> None:
    class Moody(OneChain):
        def tell(self, tree: Tree, outcome: object) -> None:
            raise KeyError("make 3 from 1 2")

    grown(exported, plan=Moody, questions=problems(1))
    (span,) = exported.spans("invoke_agent")
    assert attributes_of(span)["error.type"] == "ContractError"
    assert span.status.status_code == StatusCode.ERROR
    assert exported.by("ramify.trees.closed", "reason") == {"ContractError": 1}
    assert "make 3" not in exported.everything()


@pytest.mark.parametrize(
    ("reason", "name"),
    [
        ("engine_500", "engine_500"),
        ("judge: what it said", "judge"),
        ("KeyError: 'x'", "KeyError"),
        ("stopped", "stopped"),
        ("what it said", OTHER),
        ("", OTHER),
        ("a" * 65, OTHER),
    ],
)
def test_an_error_s_name_is_a_word_and_never_a_message(reason: str, name: str) -> None:
    assert error_type(reason) == name


def test_spans_join_the_trace_that_is_current(exported: Exported) -> None:
    with exported.tracers.get_tracer("theirs").start_as_current_span("training") as training:
        grown(exported, plan=OneChain, questions=problems(2))
    assert {span.context.trace_id for span in exported.spans()} == {training.get_span_context().trace_id}
    assert {span.parent.span_id for span in exported.spans("invoke_agent")} == {training.get_span_context().span_id}


def test_what_a_tool_traces_by_itself_is_inside_the_tree(exported: Exported) -> None:
    tracer = exported.tracers.get_tracer("a tool's own")

    async def looks_up(arguments: str) -> str:
        with tracer.start_as_current_span("look up"):
            return arguments

    grown(exported, Scripted(chains(1)), OneChain, task=small_with(looks_up), questions=problems(1))
    (tree,) = exported.spans("invoke_agent")
    (own,) = [span for span in exported.spans() if span.name == "look up"]
    assert own.parent.span_id == tree.context.span_id


# -- content ----------------------------------------------------------------------------------------------------------


@pytest.mark.covers("S3.10")
def test_nothing_that_was_written_leaves(exported: Exported) -> None:
    result = grown(exported, task=small_with(lambda arguments: f"found {arguments}"))
    said = result.trees[0].branch(result.trees[0].leaves()[0]).text
    assert "make 0 from 1 2" in said and "<answer>" in said and "found" in said
    everything = exported.everything()
    assert "text_completion" in everything and "ramify_tokens_decode_total" in everything
    for text in ("make 0", "from 1 2", "<answer>", "<calc>", "found", "p0"):
        assert text not in everything


def test_content_is_in_spans_alone_and_only_when_it_is_asked_for() -> None:
    exported = Exported(TelemetryConfig(has_content=True))
    with closing(exported.telemetry):
        grown(exported, Scripted(chains(1)), OneChain, task=small_with(echo), questions=problems(1))
        first, last = exported.spans("text_completion")
        (message,) = json.loads(str(attributes_of(first)["gen_ai.input.messages"]))
        assert message["role"] == "user" and "make 0 from 1 2" in message["parts"][0]["content"]
        (answer,) = json.loads(str(attributes_of(last)["gen_ai.output.messages"]))
        assert (answer["role"], answer["finish_reason"]) == ("assistant", "stop")
        assert answer["parts"][0]["content"].startswith("<answer>")
        (call,) = exported.spans("execute_tool")
        assert attributes_of(call)["gen_ai.tool.call.arguments"] == attributes_of(call)["gen_ai.tool.call.result"]
        assert attributes_of(exported.spans("invoke_agent")[0])["ramify.problem"] == "p0"
        assert "make 0" not in exported.page()


# -- where it goes ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.covers("S3.10")
def test_the_page_says_what_opentelemetry_is_told(exported: Exported) -> None:
    grown(exported, plan=Criticised, actions=ACTIONS, task=small_with(fails_twice))
    page = samples(exported.page())
    for name in sorted(exported.names()):
        told = prometheus_name(name)
        if METRICS[name].kind == "histogram":
            pairs = [(f"{told}_sum", exported.values(name)), (f"{told}_count", exported.counts(name))]
        else:
            pairs = [(told + ("_total" if METRICS[name].kind == "counter" else ""), exported.values(name))]
        for sample, series in pairs:
            labelled = {tuple(sorted((k.replace(".", "_"), v) for k, v in key)): n for key, n in series.items()}
            shown = {labels: value for (found, labels), value in page.items() if found == sample}
            assert shown == labelled, sample
    families = {name.rsplit("_", 1)[0] for name, _ in page}
    assert {prometheus_name(name) for name in exported.names()} <= families | {name for name, _ in page}


def test_spans_go_to_a_file_where_one_is_named(tmp_path: Path) -> None:
    telemetry = Telemetry(TelemetryConfig(spans=tmp_path / "spans.jsonl"))
    run_virtual(
        rollout(
            problems(1),
            config=RunConfig(),
            strategy=OneChain,
            engine=telemetry.in_front_of(Scripted(chains(1))),
            task=Small(),
            observers=[telemetry.observe],
        )
    )
    telemetry.close()
    spans = [json.loads(line) for line in (tmp_path / "spans.jsonl").read_text().splitlines()]
    assert Counter(span["name"].split()[0] for span in spans) == {
        "text_completion": 2,
        "execute_tool": 1,
        "invoke_agent": 1,
    }
    assert {span["resource"]["attributes"]["service.name"] for span in spans} == {"ramify"}
    telemetry.close()


def test_without_anybody_who_wants_them_there_are_no_spans_but_the_numbers_are() -> None:
    telemetry = Telemetry()
    with closing(telemetry):
        address = telemetry.serve_metrics()
        run_virtual(
            rollout(
                problems(1),
                config=RunConfig(),
                strategy=OneChain,
                engine=telemetry.in_front_of(Scripted(chains(1))),
                task=Small(),
                observers=[telemetry.observe],
            )
        )
        assert "ramify_trees_closed_total" in fetched(address)


PROCESS = """
import asyncio, sys
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
metrics.set_meter_provider(MeterProvider(metric_readers=[reader]))

from pathlib import Path
import ramify
from ramify.core.errors import ConfigError
from ramify.testing.policies import chains
from ramify.testing.scripted import Scripted
from ramify.telemetry.telemetry import Telemetry, TelemetryConfig

telemetry = Telemetry()
with trace.get_tracer("theirs").start_as_current_span("training") as training:
    ramify.rollout_sync(
        ["1 + 1"], preset="chains", engine=telemetry.in_front_of(Scripted(chains(1))), observers=[telemetry.observe]
    )
telemetry.close()
with trace.get_tracer("theirs").start_as_current_span("after"):
    pass
spans = exporter.get_finished_spans()
print(len({s.context.trace_id for s in spans if s.name != "after"}), "invoke_agent" in {s.name for s in spans})
names = {m.name for r in reader.get_metrics_data().resource_metrics for s in r.scope_metrics for m in s.metrics}
print("after" in {s.name for s in spans}, "ramify.tokens.decode" in names)
try:
    Telemetry(TelemetryConfig(spans=Path("spans.jsonl")))
except ConfigError as error:
    print(error)
"""


@pytest.mark.slow
def test_providers_that_the_process_has_are_used_and_left_open(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROCESS], capture_output=True, check=True, text=True, cwd=tmp_path
    )
    assert done.stderr == ""
    traces, left_open, refused = done.stdout.splitlines()
    assert (traces, left_open) == ("1 True", "True True")
    assert refused.startswith("telemetry.spans = 'spans.jsonl': the process has an OpenTelemetry provider")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("module", ["opentelemetry", "opentelemetry.sdk.trace", "prometheus_client"])
def test_what_is_not_installed_is_named_with_its_line(
    module: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=r"pip install 'ramify\[metrics\]'"):
        Telemetry(TelemetryConfig(spans=tmp_path / "spans")).serve_metrics()


def test_a_file_of_spans_in_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"telemetry\.spans = .*name a file in an existing folder"):
        TelemetryConfig(spans=tmp_path / "no folder" / "spans.jsonl")


def test_a_file_of_spans_that_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"telemetry\.spans = .* cannot be written: Is a directory"):
        Telemetry(TelemetryConfig(spans=tmp_path))


# -- in front of engines ----------------------------------------------------------------------------------------------


def test_an_engine_behind_it_is_the_same_but_for_the_clock(exported: Exported) -> None:
    behind = Scripted(chains(1, 3))
    engine = exported.telemetry.in_front_of(behind)
    assert (engine.codec, engine.capabilities) == (behind.codec, behind.capabilities)
    plain = run_virtual(rollout(problems(2), config=RunConfig(strategy=OFFLINE), engine=behind, task=Small()))
    timed = grown(exported, Scripted(chains(1, 3)), questions=problems(2))
    for one, other in zip(plain.trees, timed.trees, strict=True):
        assert [one.content_key(n) for n in one.subtree()] == [other.content_key(n) for n in other.subtree()]


@pytest.mark.parametrize(
    ("fault", "name"), [(EngineError("what it said", "x"), OTHER), (ValueError("make 3"), "ValueError")]
)
def test_whatever_an_engine_raises_goes_through_and_is_named(exported: Exported, fault: Exception, name: str) -> None:
    def raises(turn: object) -> str:
        raise fault

    grown(exported, Scripted(raises), OneChain, questions=problems(1))
    assert {dict(key)["error.type"] for key in exported.values("gen_ai.client.operation.duration")} == {name}
    assert "make 3" not in exported.everything()


# -- the command line -------------------------------------------------------------------------------------------------

LOOKING = """
from pathlib import Path
from urllib.request import urlopen

from ramify.strategies.chains import Chains, ChainsConfig


class Looking(Chains):
    Config = ChainsConfig

    def is_done(self, tree):
        is_done = super().is_done(tree)
        if is_done:
            with urlopen("http://127.0.0.1:PORT/metrics") as page:
                Path("page.txt").write_bytes(page.read())
        return is_done
"""


@pytest.mark.slow
def test_a_run_of_the_command_line_serves_its_metrics_while_it_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    port = free_port()
    Path("looking.py").write_text(LOOKING.replace("PORT", str(port)))
    said = ramify(
        capsys, "rollout", *SCRIPTED, "--strategy", "looking.py:Looking", "--prompts", 2, "--metrics-port", port
    )
    assert said.code == 0, said.err
    assert f"metrics: http://127.0.0.1:{port}/metrics" in said.err
    page = samples(Path("page.txt").read_text())
    assert page["ramify_trees_open", ()] >= 1
    assert any(name == "gen_ai_client_operation_duration_seconds_count" for name, _ in page)
    with pytest.raises(OSError, match="refused"):
        fetched(f"http://127.0.0.1:{port}/metrics")


def test_a_port_that_is_taken_ends_the_command_before_anything_is_begun(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = ramify(capsys, "rollout", *SCRIPTED, "--metrics-port", port, "--out", tmp_path / "run")
    assert said.code == 2
    assert f"metrics cannot be served at '127.0.0.1', port {port}" in said.err
    assert not (tmp_path / "run").exists()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def fetched(address: str) -> str:
    with urlopen(address) as answer:
        return answer.read().decode()
