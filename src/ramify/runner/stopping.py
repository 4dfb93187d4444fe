"""Stopping: decides what happens after one generation of a path. Pure; the grower carries out the decision.

It owns the rules of `docs/concepts/growth.md` as one policy of named switches; the published rules are values of it.
The response of a path is everything after the opening context: actions and observations.
"""

from dataclasses import dataclass
from typing import Final, Literal

from ramify.core.format import Action, AnswerAction, InvalidAction, ToolAction, TurnAction
from ramify.core.quick_init import quick_init


@dataclass(frozen=True, slots=True)
class StopPolicy:
    """When a path ends. The defaults are the corrected rules."""

    empty_call: Literal["observe", "end", "call", "continue"] = "observe"
    """A call without content: answer with an error text, end the path, carry it out, or let the model continue (the
    plan)."""
    invalid_call: Literal["observe", "end"] = "observe"
    """An action that cannot be parsed: answer with an error text, or end the path as for an empty call."""
    no_action: Literal["end", "observe"] = "end"
    """A turn without an action, ended by the model or cut at its own limit: end the path, or answer with the corrective
    observation of Search-R1."""
    tool_failed: Literal["observe", "end"] = "observe"
    """A failed tool call: its error text becomes the observation, or the path ends at the call."""
    at_limit: Literal["end", "warn"] = "end"
    """A call beyond the limit: end the path, or append a warning that nobody sampled and continue."""
    forced_end: frozenset[str] = frozenset()
    """Stop words after which an end token that nobody sampled is appended and trained. Never by default."""


CORRECTED: Final = StopPolicy()
ARPO: Final = StopPolicy(empty_call="end", invalid_call="end", forced_end=frozenset({"tool_limit"}))
"""RUC-NLPIR/ARPO vllm_rollout_with_tools.py."""
AT2PO: Final = StopPolicy(
    empty_call="end", tool_failed="end", at_limit="warn", forced_end=frozenset({"empty_tool_call"})
)
"""zzfoutofspace/ATPO vllm_rollout_with_tools_tree_offline.py."""
STOP_POLICIES: Final = {"arpo": ARPO, "at2po": AT2PO, "corrected": CORRECTED}


@quick_init
@dataclass(frozen=True, slots=True)
class Generated:
    """The state of a path after one generation, as the rules see it."""

    finish: Literal["stop", "end_of_sequence", "length"]
    """How the generation ended; `stop` = at a stop word of the format."""
    action: Action | None
    """The action that the format found at its end; None = no action."""
    calls_made: int
    """Tool calls of the path before this one."""
    call_limit: int | None
    response_tokens: int
    """Includes this generation and, if the policy warns at the limit, the warning."""
    max_response_tokens: int
    is_context_full: bool = False
    """Whether the model's context has no room for another token."""
    is_last_turn: bool = False
    """Whether the path may make no further step."""
    is_turn_full: bool = False
    """Whether the turn has reached its own limit of tokens."""


@quick_init
@dataclass(frozen=True, slots=True)
class Ruling:
    """What happens next."""

    action: Literal["continue", "call_tool", "call_tool_error", "end"]
    """continue: generate on; call_tool: run the tool; call_tool_error: write an error text as the observation."""
    stop: str | None = None
    """The stop word, if the path ends."""
    forced_eos_trained: bool = False
    """Whether an end token that nobody sampled is appended with mask 1 (published defect)."""


def classify_stop(policy: StopPolicy, path: Generated) -> Ruling:
    """Decide about a path whose generation has just ended."""
    if isinstance(path.action, AnswerAction):
        return _end(policy, "answer")
    if path.finish == "end_of_sequence" and isinstance(path.action, TurnAction | InvalidAction):
        return Ruling("call_tool" if isinstance(path.action, TurnAction) else "call_tool_error")
    if path.finish == "end_of_sequence":
        is_over = policy.no_action == "end" or path.is_last_turn
        return _end(policy, "end_of_sequence") if is_over else Ruling("call_tool_error")
    if path.finish == "length":
        if not path.is_turn_full or policy.no_action == "end":
            return _go_on(policy, path)
        return _end(policy, "turn_limit") if path.is_last_turn else Ruling("call_tool_error")
    if path.call_limit is not None and path.calls_made >= path.call_limit:
        return _end(policy, "tool_limit") if policy.at_limit == "end" else _go_on(policy, path)
    return _call(policy, path)


def classify_failed_tool(policy: StopPolicy) -> Ruling:
    """Decide about a path whose tool call has just failed."""
    return _end(policy, "tool_failed") if policy.tool_failed == "end" else Ruling("call_tool_error")


def _call(policy: StopPolicy, path: Generated) -> Ruling:
    """The path asked for a tool within its limit. A stop word without an action is an empty call."""
    is_callable = isinstance(path.action, ToolAction) and (path.action.arguments != "" or policy.empty_call == "call")
    how = policy.invalid_call if isinstance(path.action, InvalidAction) else policy.empty_call
    if not is_callable and how == "end":
        return _end(policy, "empty_tool_call")
    if path.is_last_turn:
        return _end(policy, "turn_limit")
    if not is_callable and how == "continue":
        return _go_on(policy, path)
    return Ruling("call_tool" if is_callable else "call_tool_error")


def _go_on(policy: StopPolicy, path: Generated) -> Ruling:
    """Continue to generate if there is room for another token."""
    if path.response_tokens >= path.max_response_tokens:
        return _end(policy, "length")
    return _end(policy, "context_full") if path.is_context_full else Ruling("continue")


def _end(policy: StopPolicy, stop: str) -> Ruling:
    return Ruling("end", stop, forced_eos_trained=stop in policy.forced_end)
