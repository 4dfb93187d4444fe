"""Rules that give paths up."""

import pytest
from tests.strategies.world import CODEC

from ramify.core.branch import Branch, Piece
from ramify.core.segment import Segment, ToolCall, token_array
from ramify.strategies.prune import first_reason, repeated_call


def branch_with_calls(*arguments: str) -> Branch:
    pieces = [
        Piece(i, Segment("given", token_array(CODEC.encode("=")), tool_call=ToolCall("calc", text)))
        for i, text in enumerate(arguments)
    ]
    return Branch(CODEC, len(arguments), tuple(pieces))


def test_a_call_made_before_is_a_loop() -> None:
    assert repeated_call(branch_with_calls()) is None
    assert repeated_call(branch_with_calls("1+2", "3+4")) is None
    assert repeated_call(branch_with_calls("1+2", "3+4", "1+2")) == "the call '1+2' was made before"


@pytest.mark.covers("S0.10")
def test_the_first_rule_with_a_reason_gives_it() -> None:
    rule = first_reason(lambda branch: None, lambda branch: "dead", lambda branch: "never asked")
    assert rule(branch_with_calls()) == "dead"
    assert first_reason()(branch_with_calls()) is None
