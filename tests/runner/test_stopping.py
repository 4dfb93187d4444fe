"""What happens after a generation, beyond the golden cases: answers, turns, context, and the policies by themselves."""

from dataclasses import replace

import pytest

from ramify.core.format import AnswerAction, InvalidAction, ToolAction
from ramify.core.stop import STOP_WORDS
from ramify.runner.stopping import (
    ARPO,
    AT2PO,
    CORRECTED,
    STOP_POLICIES,
    Generated,
    Ruling,
    StopPolicy,
    classify_failed_tool,
    classify_stop,
)

CALL = Generated(
    finish="stop",
    action=ToolAction("calc", "1+2"),
    calls_made=0,
    call_limit=3,
    response_tokens=10,
    max_response_tokens=100,
)
EMPTY = replace(CALL, action=ToolAction("calc", ""))


@pytest.mark.covers("S0.4")
@pytest.mark.parametrize("policy", STOP_POLICIES.values(), ids=STOP_POLICIES)
def test_an_answer_ends_a_path_whatever_else_is_full(policy: StopPolicy) -> None:
    full = replace(CALL, action=AnswerAction("3"), calls_made=9, response_tokens=100, is_last_turn=True)
    assert classify_stop(policy, full) == Ruling("end", "answer")


@pytest.mark.covers("S0.4")
def test_a_call_on_the_last_turn_is_not_made() -> None:
    assert classify_stop(CORRECTED, replace(CALL, is_last_turn=True)) == Ruling("end", "turn_limit")


def test_a_generation_cut_by_the_context_is_full_and_by_less_goes_on() -> None:
    cut = replace(CALL, finish="length", action=None)
    assert classify_stop(CORRECTED, cut) == Ruling("continue")
    assert classify_stop(CORRECTED, replace(cut, is_context_full=True)) == Ruling("end", "context_full")
    assert classify_stop(CORRECTED, replace(cut, is_context_full=True, response_tokens=100)) == Ruling("end", "length")


def test_a_full_turn_without_an_action_is_corrected_and_the_last_one_ends() -> None:
    full = replace(CALL, finish="length", action=None, is_turn_full=True)
    search_r1 = replace(CORRECTED, no_action="observe")
    assert classify_stop(search_r1, full) == Ruling("call_tool_error")
    assert classify_stop(search_r1, replace(full, is_last_turn=True)) == Ruling("end", "turn_limit")
    assert classify_stop(CORRECTED, replace(full, is_last_turn=True)) == Ruling("continue")


def test_without_a_limit_calls_go_on() -> None:
    assert classify_stop(CORRECTED, replace(CALL, call_limit=None, calls_made=999)) == Ruling("call_tool")


@pytest.mark.parametrize("action", [ToolAction("calc", ""), InvalidAction("no such tool"), None])
def test_what_cannot_be_called_is_answered_with_an_error(action: ToolAction | InvalidAction | None) -> None:
    assert classify_stop(CORRECTED, replace(CALL, action=action)) == Ruling("call_tool_error")


def test_the_plan_generates_on_after_an_empty_call() -> None:
    assert classify_stop(replace(CORRECTED, empty_call="continue"), EMPTY) == Ruling("continue")


def test_an_invalid_call_has_a_policy_of_its_own() -> None:
    invalid = replace(CALL, action=InvalidAction("unreadable"))
    assert classify_stop(CORRECTED, invalid).action == "call_tool_error"
    assert classify_stop(replace(CORRECTED, empty_call="end"), invalid).action == "call_tool_error"
    assert classify_stop(ARPO, invalid).stop == "empty_tool_call"


def test_an_empty_call_may_be_carried_out() -> None:
    assert classify_stop(replace(CORRECTED, empty_call="call"), EMPTY) == Ruling("call_tool")


@pytest.mark.covers("S0.5")
def test_a_failed_tool_is_observed_unless_the_policy_ends_the_path() -> None:
    assert classify_failed_tool(CORRECTED) == Ruling("call_tool_error")
    assert classify_failed_tool(AT2PO) == Ruling("end", "tool_failed")


def test_the_corrected_policy_never_trains_a_token_nobody_sampled() -> None:
    paths = (CALL, EMPTY, replace(CALL, calls_made=3), replace(CALL, finish="end_of_sequence", action=None))
    assert not any(classify_stop(CORRECTED, path).forced_eos_trained for path in paths)


def test_every_ruling_uses_a_known_stop_word() -> None:
    for policy in STOP_POLICIES.values():
        assert policy.forced_end <= set(STOP_WORDS)
