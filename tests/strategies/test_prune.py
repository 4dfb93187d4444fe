"""Rules that give paths up."""

from tests.strategies.world import CODEC

from ramify.core.branch import Branch, Piece
from ramify.core.segment import Segment, ToolCall, token_array
from ramify.strategies.parts.prune import judged_below, over_budget, repeated_call, repetition


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


def branch_that_says(*texts: str) -> Branch:
    """Runs of sampled tokens with an observation between them."""
    pieces: list[Piece] = []
    for i, text in enumerate(texts):
        observation = [Piece(i, Segment("given", token_array(CODEC.encode("="))))] if i else []
        pieces += [*observation, Piece(i, Segment("sampled", token_array(CODEC.encode(text))))]
    return Branch(CODEC, len(texts), tuple(pieces))


def test_thirty_two_characters_said_eight_times_are_a_loop() -> None:
    sentence = "I will try once more and add one. "
    assert len(sentence) > 32
    assert repetition(branch_that_says(sentence * 7)) is None
    reason = repetition(branch_that_says(sentence * 8))
    assert reason is not None
    assert reason.startswith("repetition: 'I will try once more")
    assert repetition(branch_that_says("-" * 38)) is None
    assert repetition(branch_that_says("-" * 39)) is not None, "overlapping ones count, as published"


def test_a_path_is_over_budget_when_it_has_sampled_more_tokens_and_given_ones_do_not_count() -> None:
    branch = branch_that_says("one", "two", "three")
    assert over_budget(branch, tokens=11) is None
    assert over_budget(branch, tokens=10) == "11 tokens were sampled, more than 10"


def test_a_path_may_be_given_up_by_what_a_judge_says() -> None:
    branch = branch_that_says("one")
    assert judged_below(branch, value=0.05) is None
    assert judged_below(branch, value=0.3, below=0.4) == "judged 0.3, below 0.4"


def test_what_was_said_before_an_observation_is_no_part_of_a_loop() -> None:
    assert repetition(branch_that_says("-" * 20, "-" * 20)) is None
    assert repetition(branch_that_says("short")) is None
