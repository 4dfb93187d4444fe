"""Spans: what a run did, as OpenTelemetry traces: one `invoke_agent` per tree, with its generations and tool calls
inside.

Names, kinds and attributes follow the GenAI semantic conventions (see `metrics.py`). A tree's span is current in the
tree's tasks, so spans of tools and HTTP clients appear inside it. Its parent is the span that was current where the run
started. A span begins on the wall clock and lasts as long as the metric says. The tool calls of a step are known only
when it is complete, so their spans are placed at its end. Texts of models, tools and users are left out unless
`has_content` is set.
"""

import json
import re
import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from ramify.core.codec import Codec
from ramify.core.engine import Generation, Request
from ramify.core.segment import ToolCall
from ramify.core.tree import Tree

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

Operation = Literal["chat", "text_completion"]
FAILED_CALLS: Final = frozenset({"error", "timeout", "crashed"})
"""Statuses of tool calls that are errors. An empty result is not an error."""
OTHER: Final = "_OTHER"
"""The conventions' value for an error without a name."""
_WORD: Final = re.compile(r"[A-Za-z_][\w.-]{0,63}")


@dataclass(frozen=True, slots=True)
class EngineLabels:
    """The names of an engine in spans and metrics."""

    operation: Operation
    provider: str
    model: str
    is_remote: bool


@dataclass(frozen=True, slots=True)
class OpenSpan:
    """A span that has begun."""

    span: "Span"
    began_ns: int

    def end(self, duration_s: float, error: str) -> None:
        """End it `duration_s` after it began. `error` is the name of an error, or empty."""
        self.fail(error)
        self.span.end(self.began_ns + int(duration_s * 1e9))

    def fail(self, error: str) -> None:
        """Mark the span as failed with this error; empty = no error."""
        if error:
            from opentelemetry.trace import StatusCode

            self.span.set_attribute("error.type", error)
            self.span.set_status(StatusCode.ERROR)


@dataclass(frozen=True, slots=True)
class OpenTree(OpenSpan):
    """A tree's span, with the token that makes it current in the tree's tasks."""

    token: Any


@dataclass(frozen=True, slots=True)
class Spans:
    """Starts and ends spans. Nothing here raises or waits for an exporter."""

    tracer: "Tracer"
    agent: str = ""
    has_content: bool = False

    # -- trees --------------------------------------------------------------------------------------------------------

    def open_tree(self, index: int, tree: Tree, *, is_resumed: bool) -> OpenTree:
        """A tree begins. Call it in the tree's own task."""
        from opentelemetry import context, trace

        began = time.time_ns()
        attributes: dict[str, Any] = {"gen_ai.operation.name": "invoke_agent", "ramify.tree": index}
        if self.agent:
            attributes["gen_ai.agent.name"] = self.agent
        if is_resumed:
            attributes["ramify.is_resumed"] = True
        if self.has_content:
            attributes["ramify.problem"] = tree.problem.uid
        name = f"invoke_agent {self.agent}" if self.agent else "invoke_agent"
        span = self.tracer.start_span(name, attributes=attributes, start_time=began)
        return OpenTree(span, began, context.attach(trace.set_span_in_context(span)))

    def phase(self, tree: OpenTree, name: str, number: int, num_active: int) -> None:
        """A tree's strategy enters a phase, or a round of it."""
        attributes = {"ramify.phase": name, "ramify.round": number, "ramify.num_active": num_active}
        tree.span.add_event("ramify.phase", attributes)

    def tools(self, tree: OpenTree, calls: Iterable[tuple[str, ToolCall]]) -> None:
        """Add the calls (id, call) of a step that has just been completed, one after the other; the last one ends
        now."""
        from opentelemetry import trace

        within = trace.set_span_in_context(tree.span)
        end = time.time_ns()
        for call_id, call in reversed(list(calls)):
            start = max(tree.began_ns, end - int(call.duration_s * 1e9))
            name, attributes = f"execute_tool {call.tool}", self._of_call(call_id, call)
            span = OpenSpan(self.tracer.start_span(name, within, attributes=attributes, start_time=start), start)
            span.end(call.duration_s, error_of_call(call))
            end = start

    def close_tree(self, tree: OpenTree, attributes: Mapping[str, Any], duration_s: float, error: str) -> None:
        """A tree has ended. Call it in the task that opened it."""
        from opentelemetry import context

        tree.span.set_attributes(attributes)
        tree.end(duration_s, error)
        context.detach(tree.token)

    # -- generations --------------------------------------------------------------------------------------------------

    def generation(self, labels: EngineLabels, request: Request, codec: Codec) -> OpenSpan:
        """One try of a generation begins."""
        from opentelemetry.trace import SpanKind

        sampling = request.sampling
        attributes: dict[str, Any] = {
            "gen_ai.operation.name": labels.operation,
            "gen_ai.provider.name": labels.provider,
            "gen_ai.request.max_tokens": request.max_tokens,
            "gen_ai.request.temperature": sampling.temperature,
            "gen_ai.request.top_p": sampling.top_p,
            "ramify.request": request.request_id,
        }
        if sampling.top_k:
            attributes["gen_ai.request.top_k"] = sampling.top_k
        if labels.model:
            attributes["gen_ai.request.model"] = labels.model
        if self.has_content:
            attributes["gen_ai.input.messages"] = _input(request, codec)
        began = time.time_ns()
        span = self.tracer.start_span(
            f"{labels.operation} {labels.model}".rstrip(),
            kind=SpanKind.CLIENT if labels.is_remote else SpanKind.INTERNAL,
            attributes=attributes,
            start_time=began,
        )
        return OpenSpan(span, began)

    def current(self, span: OpenSpan) -> AbstractContextManager[Any]:
        """A context in which this span is the parent of new spans."""
        from opentelemetry import trace

        return trace.use_span(span.span, record_exception=False, set_status_on_exception=False)

    def generated(self, span: OpenSpan, generation: Generation, codec: Codec) -> None:
        """Add the result of a try to its span."""
        attributes: dict[str, Any] = {
            "gen_ai.response.finish_reasons": [_reason(generation)],
            "gen_ai.usage.output_tokens": generation.num_billed,
        }
        if num_input := generation.num_cached + generation.num_prefilled:
            attributes["gen_ai.usage.input_tokens"] = num_input
            attributes["gen_ai.usage.cache_read.input_tokens"] = generation.num_cached
        if self.has_content:
            attributes["gen_ai.output.messages"] = _output(generation, codec)
        span.span.set_attributes(attributes)

    def _of_call(self, call_id: str, call: ToolCall) -> dict[str, Any]:
        attributes: dict[str, Any] = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": call.tool,
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.id": call_id,
            "ramify.tool.status": call.status,
            "ramify.tool.num_retries": call.num_retries,
        }
        if self.has_content:
            attributes |= {"gen_ai.tool.call.arguments": call.arguments, "gen_ai.tool.call.result": call.result}
        return attributes


def error_type(reason: str) -> str:
    """The name of an error, from its reason or message: the word before the first colon. A message without such a word
    becomes `OTHER`, because it might contain any text."""
    word = reason.partition(":")[0]
    return word if _WORD.fullmatch(word) else OTHER


def error_of_call(call: ToolCall) -> str:
    """Why a tool call failed; empty = it did not fail."""
    return call.status if call.status in FAILED_CALLS else ""


def _input(request: Request, codec: Codec) -> str:
    """The context as `gen_ai.input.messages`. A context without messages becomes one text."""
    if not request.messages:
        return json.dumps([_message("user", codec.decode(request.ids))])
    return json.dumps([_message(str(said.get("role")), _text(said.get("content"))) for said in request.messages])


def _output(generation: Generation, codec: Codec) -> str:
    message = generation.message
    text = codec.decode(generation.ids) if message is None else _text(message.get("content"))
    return json.dumps([_message("assistant", text) | {"finish_reason": _reason(generation)}])


def _reason(generation: Generation) -> str:
    """The finish reason, in the conventions' words where there is one; `abort` is our own."""
    kind = generation.finish.kind
    return "stop" if kind == "end_of_sequence" else kind


def _message(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "parts": [{"type": "text", "content": text}]}


def _text(content: object) -> str:
    """The content of a message as text; other content, such as images, as JSON."""
    return content if isinstance(content, str) else json.dumps(content)
