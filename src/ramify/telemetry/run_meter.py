"""RunMeter: turns the events of one run into metrics and spans. `observe` is an observer.

It tracks the growing trees by their index, so every run needs its own meter. It counts what this process did. For a
resumed run, work done before the resume is not counted, but the leaves and the shape of a tree are those of the whole
tree. If a tree breaks off, its undelivered steps are counted.
"""

import asyncio
from dataclasses import dataclass
from typing import Final

from ramify.core.command import Closed, Failed, Grown, Judged, Outcome, Role
from ramify.core.errors import ContractError
from ramify.core.ledger import Spend
from ramify.core.segment import FREE, ToolCall
from ramify.core.tree import Step, Tree
from ramify.runner.events import (
    CommandsAsked,
    Event,
    OutcomeTold,
    PhaseBegan,
    StepGrown,
    TreeClosed,
    TreeOpened,
)
from ramify.telemetry.meters import Meters, Series
from ramify.telemetry.spans import OpenTree, Spans, error_of_call, error_type
from ramify.telemetry.tree_shape import TreeShape, leaves_by_stop, shape_of

UNSAID: Final = ""
"""The phase of a tree before its first phase begins."""


@dataclass(slots=True)
class Faults:
    """Number of commands that ended, and how many of them failed."""

    num_outcomes: int = 0
    num_failed: int = 0

    @property
    def share(self) -> float:
        return self.num_failed / self.num_outcomes


@dataclass(slots=True)
class GrowingTree:
    """An open tree."""

    tree: Tree
    began: float
    """On the event loop's clock, in seconds."""
    span: OpenTree | None
    phase: str = UNSAID
    num_in_flight: int = 0


@dataclass(frozen=True, slots=True)
class StepCosts:
    """The counters of one phase and role."""

    steps: Series
    decode: Series
    cached: Series
    uncached: Series
    calls: Series

    def bill(self, step: Step) -> None:
        """Count a step."""
        self.steps.add(1)
        for segment in step.segments:
            usage = segment.usage
            if usage is not FREE:
                self.decode.add(usage.num_billed)
                self.cached.add(usage.num_cached)
                self.uncached.add(usage.num_prefilled)
                self.calls.add(usage.num_calls)


class RunMeter:
    """Counts the events of one run."""

    def __init__(self, meters: Meters, spans: Spans | None, faults: Faults, *, agent: str) -> None:
        self._meters = meters
        self._spans = spans
        self._faults = faults
        self._agent = agent
        self._growing: dict[int, GrowingTree] = {}
        self._costs: dict[tuple[str, Role], StepCosts] = {}
        """By phase and role."""

    def observe(self, event: Event) -> None:
        """Take one event. Call it in the task that emits the event."""
        match event:
            case TreeOpened(index, tree, is_resumed):
                self._opened(index, tree, is_resumed=is_resumed)
            case PhaseBegan(index, phase, num_active):
                growing = self._of(index)
                self._moved(growing, phase.name)
                self._meters.count("ramify.phase.rounds", phase=phase.name)
                if self._spans is not None and growing.span is not None:
                    self._spans.phase(growing.span, phase.name, phase.round, num_active)
            case CommandsAsked(index):
                self._recount(self._of(index))
            case StepGrown(index, command_id, number, step):
                self._grown(self._of(index), step, f"{index}/{command_id}/{number}")
                for aside in step.asides:
                    self._costs_of(self._of(index).phase, aside.role).bill(aside)
            case OutcomeTold(index, told):
                self._recount(self._of(index))
                self._told(told.outcome)
            case TreeClosed(index):
                self._closed(self._growing.pop(index, None), event)
            case _:
                pass

    def close(self) -> None:
        """End the trees that are still open: their run was cancelled."""
        for growing in self._growing.values():
            self._gone(growing)
            if growing.span is not None:
                growing.span.fail("cancelled")
                growing.span.span.end()
        self._growing.clear()

    # -- trees --------------------------------------------------------------------------------------------------------

    def _opened(self, index: int, tree: Tree, *, is_resumed: bool) -> None:
        if index in self._growing:
            # Its run was cancelled and another one began.
            self.close()
        span = None if self._spans is None else self._spans.open_tree(index, tree, is_resumed=is_resumed)
        self._growing[index] = GrowingTree(tree, _now(), span)
        self._meters.count("ramify.trees.open")

    def _of(self, index: int) -> GrowingTree:
        if index not in self._growing:
            raise ContractError(f"tree {index} was not opened here: runs side by side need an observer() each")
        return self._growing[index]

    def _closed(self, growing: GrowingTree | None, closed: TreeClosed) -> None:
        """A tree has ended. `growing` is None if its record could not be followed, so that it was never opened."""
        tree, meters = closed.tree, self._meters
        error = "" if closed.is_whole else error_type(closed.reason)
        meters.count("ramify.trees.closed", reason=error or "done")
        for word, number in leaves_by_stop(tree).items():
            meters.count("ramify.leaves", number, stop=word)
        shape = shape_of(tree)
        meters.record("ramify.tree.nodes", shape.num_nodes)
        if shape.depth is not None:
            meters.record("ramify.tree.depth", shape.depth)
        if shape.branch_factor is not None:
            meters.record("ramify.tree.branch_factor", shape.branch_factor)
        if growing is None:
            return
        self._gone(growing)
        duration_s = _now() - growing.began
        meters.record("gen_ai.invoke_agent.duration", duration_s, agent=self._agent, error=error)
        if self._spans is not None and growing.span is not None:
            self._spans.close_tree(growing.span, _attributes(closed, shape), duration_s, error)

    def _gone(self, growing: GrowingTree) -> None:
        """A tree is not open any more."""
        self._meters.count("ramify.trees.open", -1)
        self._set_in_flight(growing, 0)
        if growing.phase != UNSAID:
            self._meters.count("ramify.phase.trees", -1, phase=growing.phase)

    # -- what is going on ---------------------------------------------------------------------------------------------

    def _moved(self, growing: GrowingTree, phase: str) -> None:
        """A tree enters a phase or another round of it. Its commands in flight move with it."""
        if phase == growing.phase:
            return
        number = growing.num_in_flight
        self._set_in_flight(growing, 0)
        if growing.phase != UNSAID:
            self._meters.count("ramify.phase.trees", -1, phase=growing.phase)
        growing.phase = phase
        self._meters.count("ramify.phase.trees", phase=phase)
        self._set_in_flight(growing, number)

    def _recount(self, growing: GrowingTree) -> None:
        self._set_in_flight(growing, len(growing.tree.pending))

    def _set_in_flight(self, growing: GrowingTree, number: int) -> None:
        """The tree has `number` commands in flight."""
        if number != growing.num_in_flight:
            self._meters.count("ramify.commands.in_flight", number - growing.num_in_flight, phase=growing.phase)
            growing.num_in_flight = number

    def _told(self, outcome: Outcome) -> None:
        self._faults.num_outcomes += 1
        match outcome:
            case Failed(_, reason):
                self._faults.num_failed += outcome.is_fault
                self._meters.count("ramify.commands.told", outcome="failed", error=error_type(reason))
            case Judged(_, scores):
                self._meters.count("ramify.commands.told", outcome="judged")
                for score in scores:
                    self._meters.count("ramify.judge_calls", judge=score.judge)
            case Grown():
                self._meters.count("ramify.commands.told", outcome="grown")
            case Closed():
                self._meters.count("ramify.commands.told", outcome="closed")
        self._meters.gauge("ramify.failed_share", self._faults.share)

    # -- what it costs ------------------------------------------------------------------------------------------------

    def _grown(self, growing: GrowingTree, step: Step, name: str) -> None:
        calls = [segment.tool_call for segment in step.segments if segment.tool_call is not None]
        self._costs_of(growing.phase, step.role).bill(step)
        for score in step.scores:
            self._meters.count("ramify.judge_calls", judge=score.judge)
        for call in calls:
            self._called(call, growing.phase)
        if self._spans is not None and growing.span is not None and calls:
            named = ((f"{name}/{number}", call) for number, call in enumerate(calls) if call.is_executed)
            self._spans.tools(growing.span, named)

    def _costs_of(self, phase: str, role: Role) -> StepCosts:
        if (phase, role) not in self._costs:
            count = self._meters.counter
            self._costs[phase, role] = StepCosts(
                steps=count("ramify.steps", phase=phase, role=role),
                decode=count("ramify.tokens.decode", role=role),
                cached=count("ramify.tokens.prefill_cached", role=role),
                uncached=count("ramify.tokens.prefill_uncached", role=role),
                calls=count("ramify.engine_calls", role=role),
            )
        return self._costs[phase, role]

    def _called(self, call: ToolCall, phase: str) -> None:
        if not call.is_executed:
            # The model may have called a tool that does not exist, under any name.
            self._meters.count("ramify.tool_calls", tool="", status=call.status, phase=phase)
            return
        self._meters.count("ramify.tool_calls", tool=call.tool, status=call.status, phase=phase)
        if call.num_retries:
            self._meters.count("ramify.tool_retries", call.num_retries, tool=call.tool)
        self._meters.record(
            "gen_ai.execute_tool.duration",
            call.duration_s,
            tool=call.tool,
            agent=self._agent,
            error=error_of_call(call),
        )


def _attributes(closed: TreeClosed, shape: TreeShape) -> dict[str, int]:
    """The attributes that a tree's span gets at its end."""
    total = Spend()
    for spend in closed.spent.values():
        total.add(spend)
    return {
        "gen_ai.usage.input_tokens": total.prefill_cached + total.prefill_uncached,
        "gen_ai.usage.cache_read.input_tokens": total.prefill_cached,
        "gen_ai.usage.output_tokens": total.decode,
        "ramify.num_nodes": shape.num_nodes,
        "ramify.num_leaves": total.leaves,
        "ramify.num_tool_calls": total.tool_calls,
    }


def _now() -> float:
    return asyncio.get_running_loop().time()
