# pyright: reportMissingImports=false
"""Verifiers episode: one rollout of a verifiers task, on one branch of a tree.

It holds what verifiers keeps of a rollout: the task, its Trace with the State, and its toolsets. The Trace is always
linear: it holds the messages of this branch and nothing of its siblings, because `last_reply`, `num_turns` and
`tool_messages` read every message of a Trace. A tool's result joins the Trace with the next turn, as in verifiers, so a
stop condition sees the turn and not yet its result.

Order of the hooks: task.setup, toolset.setup, toolset.setup_task, turns with the limits and @vf.stop after each,
task.finalize, task.score. Source: verifiers 0.4.0, verifiers/v1/rollout.py and session.py.
"""

import copy
import inspect
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ramify.core.branch import Branch, turns_of
from ramify.core.environment import TURN, AgentTurn, Observation
from ramify.core.errors import JudgeError, ToolError
from ramify.core.judge import Verdict
from ramify.core.problem import Problem
from ramify.environments.state_digest import state_digest
from ramify.environments.verifiers_hooks import arguments_of, fault_of, is_overridden
from ramify.environments.verifiers_tools import ToolsetFunction, called, held_by
from ramify.formats.thoughts import without_thoughts

COMPLETED: Final = "agent_completed"
"""verifiers' stop condition of a rollout whose agent has said its last word."""


@dataclass(frozen=True, slots=True)
class RolloutRules:
    """What all episodes of a taskset share."""

    functions: Mapping[str, ToolsetFunction]
    shared: Sequence[Any] = ()
    """Toolsets of the taskset, which serve all rollouts. They come after a task's own."""
    max_turns: int | None = None


class VerifiersEpisode:
    """A task with its Trace and its toolsets."""

    def __init__(self, rules: RolloutRules, task: Any, trace: Any, toolsets: list[Any]) -> None:
        self._rules = rules
        self._task = task
        self._trace = trace
        self._toolsets = toolsets
        self._pending: list[Any] = []
        """Messages that join the Trace with the next turn."""

    async def step(self, turn: AgentTurn, seed: int) -> Observation:
        """A call of a tool, or a turn without a call, which ends the rollout. `seed` is not used: verifiers has
        none."""
        from verifiers.v1 import AssistantMessage, ToolCall

        if turn.tool == TURN:
            self._commit(AssistantMessage(content=turn.text))
            self._trace.stop(COMPLETED)
            return Observation("", end="done")
        function = self._rules.functions[turn.tool]
        given, fault = function.read(turn.arguments)
        arguments = turn.arguments if given is None else json.dumps(given)
        call = ToolCall(id=f"call_{self._trace.num_turns}", name=turn.tool, arguments=arguments)
        self._commit(AssistantMessage(tool_calls=[call]))
        observed = Observation(fault, status="error")
        if given is not None:
            toolset = [*self._toolsets, *self._rules.shared][function.toolset]
            observed, self._trace.state = await called(function, toolset, self._trace.state, given)
        end = await self._end()
        self._pending.append(_tool_message(call, observed.text))
        return Observation(observed.text, status=observed.status, end=end)

    async def fork(self) -> "VerifiersEpisode":
        """Raises `ToolError` if the task or a toolset holds something that cannot be copied."""
        try:
            other = self._copied(self._toolsets)
        except Exception as error:
            raise ToolError(
                "not_copied", f"the State or a toolset cannot be copied ({error}); set branching = 'replay'"
            ) from error
        return other

    def digest(self) -> str | None:
        trace = self._trace
        held = [held_by(each) for each in self._toolsets]
        return state_digest(vars(trace.state), trace.info, trace.stop_condition, held)

    async def score(self, branch: Branch, problem: Problem) -> Verdict | None:
        """The weighted sum of the task's rewards. Its parts: each reward with its weight, and each metric. None = the
        task has no reward. Raises `JudgeError` with the name and the words of a reward that raises or is no number.
        Does not change an episode that can be copied."""
        try:
            scored = self._copied([])
        except Exception:  # noqa: BLE001 - boundary to the author's objects: such an episode replays, and ends here
            scored = self
        if scored._trace.stop_condition is None:
            scored._say_last(branch.said)
        task, trace = scored._task, scored._trace
        trace.stop(COMPLETED)
        try:
            if is_overridden(task, "finalize"):
                await task.finalize(**arguments_of(task.finalize, trace))
            await task.score(trace, None)
        except Exception as error:
            raise JudgeError(fault_of(task, error)) from error
        rewards = {name: reward.value for name, reward in trace.rewards.items() if reward is not None}
        bad = {name: value for name, value in rewards.items() if not math.isfinite(value)}
        if bad:
            raise JudgeError(f"rewards of the task {type(task).__name__} are no finite numbers: {bad!r}")
        metrics = {name: value for name, value in trace.metrics.items() if value is not None}
        return Verdict(math.fsum(rewards.values()) if rewards else None, {**metrics, **rewards})

    async def close(self) -> None:
        for toolset in self._toolsets:
            await toolset._exit_stack.aclose()

    def _copied(self, toolsets: list[Any]) -> "VerifiersEpisode":
        """A copy with copies of these toolsets. Raises whatever a copied object raises."""
        kept = [self._task.data, self._task.config]
        kept += [part for each in toolsets for part in (each.config, each._state_adapter)]
        task, copies = copy.deepcopy((self._task, toolsets), {id(each): each for each in kept})
        other = VerifiersEpisode(self._rules, task, _copied_trace(self._trace), copies)
        other._pending = list(self._pending)
        return other

    def _commit(self, message: Any) -> None:
        for each in self._pending:
            _add(self._trace, each)
        self._pending = []
        _add(self._trace, message, is_sampled=True)

    def _say_last(self, said: str) -> None:
        """Add the words of a turn that was cut, which is no step."""
        from verifiers.v1 import AssistantMessage

        if words := without_thoughts(turns_of(said)[-1]).strip():
            self._commit(AssistantMessage(content=words))

    async def _end(self) -> Any:
        """The limits and stop conditions, in verifiers' order: `RolloutSession.refused`."""
        trace, most = self._trace, self._rules.max_turns
        if most is not None and trace.num_turns >= most:
            trace.stop("max_turns")
            return "truncated"
        for stop in self._task.hooks("stop"):
            said = stop(**arguments_of(stop, trace))
            is_over = await said if inspect.isawaitable(said) else said
            if not isinstance(is_over, bool):
                raise TypeError(f"@vf.stop {stop.__name__} returned {is_over!r:.80}; it must return a bool")
            if is_over:
                trace.stop(stop.__name__)
                return "done"
        return None


async def opened(rules: RolloutRules, task: Any, prompt: Sequence[Any]) -> VerifiersEpisode:
    """A rollout of `task` before its first turn; `prompt`: the messages of its opening. Mutates `task`."""
    from verifiers.v1 import AgentConfig, AgentInfo, Trace, TraceTask
    from verifiers.v1.state import state_cls

    trace: Any = Trace(
        task=TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash),
        state=state_cls(type(task))(),
        agent=AgentInfo(config=AgentConfig()),
    )
    if is_overridden(task, "setup"):
        await task.setup(**arguments_of(task.setup, trace))
    toolsets = list(type(task).toolsets(task.config))
    for toolset in toolsets:
        await toolset.setup()
        await toolset.setup_task(task.data)
    for message in prompt:
        _add(trace, message)
    return VerifiersEpisode(rules, task, trace, toolsets)


def _copied_trace(trace: Any) -> Any:
    """A Trace with the same messages, and copies of all that hooks change."""
    changed = {name: copy.deepcopy(getattr(trace, name)) for name in ("info", "rewards", "metrics", "extra_usage")}
    state = trace.state.model_copy(deep=True)
    return trace.model_copy(update={**changed, "state": state, "nodes": list(trace.nodes)})


def _add(trace: Any, message: Any, *, is_sampled: bool = False) -> None:
    from verifiers.v1 import MessageNode

    parent = len(trace.nodes) - 1 if trace.nodes else None
    trace.nodes.append(MessageNode(parent=parent, message=message, sampled=is_sampled))


def _tool_message(call: Any, text: str) -> Any:
    from verifiers.v1.types import ToolMessage

    return ToolMessage(tool_call_id=call.id, content=text, name=call.name)
