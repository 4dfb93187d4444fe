"""The format of a conversation that somebody else began."""

from dataclasses import replace

import pytest

from ramify.core.errors import ConfigError
from ramify.core.format import AnswerAction
from ramify.core.problem import Problem
from ramify.core.tool import ToolResult
from ramify.formats.conversation import ACTIONS, Conversation, transcript
from ramify.formats.messages import MESSAGES
from ramify.testing.questions import branch_of

CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
TALK = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "What is "}, {"type": "text", "text": "x?"}], "name": "Eve"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "1", "tool_call_id": "a"},
    {"role": "user", "content": "And now?"},
]
ONE = Problem("p", "[user]\nWho?", public={MESSAGES: [{"role": "user", "content": "Who?"}]})
SEVERAL = Problem("p", "x", public={MESSAGES: TALK})


def test_the_messages_are_sent_exactly_as_they_were_given() -> None:
    assert [span.message for span in Conversation().open(SEVERAL)] == TALK


def test_a_problem_without_messages_is_one_message_of_the_user() -> None:
    (span,) = Conversation().open(Problem("p", "Who?"))
    assert span.message == {"role": "user", "content": "Who?"}


def test_one_message_is_quoted_by_its_words_and_several_under_their_roles() -> None:
    assert transcript(ONE) == "Who?"
    assert transcript(SEVERAL) == (
        "[developer]\nBe brief.\n\n[user]\nWhat is x?\n\n"
        '[assistant]\n<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>\n\n[tool]\n1\n\n'
        "[user]\nAnd now?"
    )


@pytest.mark.parametrize("action", [name for name, action in ACTIONS.items() if "template" in action])
def test_what_is_asked_about_an_answer_is_one_message_with_the_conversation_and_the_answer(action: str) -> None:
    contexts = [branch_of("<think>hm</think>It is me."), replace(branch_of("Be clearer."), role="critique")]
    (span,) = Conversation().quote(ACTIONS[action]["template"], contexts, SEVERAL)
    assert span.message is not None
    text = span.message["content"]
    assert transcript(SEVERAL) in text
    assert "It is me." in text
    assert "hm</think>" not in text
    assert ("Be clearer." in text) == (action == "rewrite")


def test_a_call_is_an_answer_and_any_other_message_ends_by_itself() -> None:
    format = Conversation()
    heard = format.hear({"role": "assistant", "content": None, "tool_calls": [CALL]})
    assert isinstance(heard, AnswerAction)
    assert format.hear({"role": "assistant", "content": "Done."}) is None
    assert not format.stops and not format.schemas and not format.tools()


def test_an_answer_is_the_last_message_without_its_thoughts() -> None:
    format = Conversation()
    assert format.answer("<think>2 or 3</think>\nIt is 3.") == "It is 3."
    assert format.answer("  ") is None


def test_a_correction_is_a_message_of_the_user() -> None:
    (span,) = Conversation().observe(AnswerAction("x"), ToolResult("Be brief."))
    assert span.message == {"role": "user", "content": "Be brief."}


def test_a_pattern_says_what_an_answer_is() -> None:
    is_same = Conversation(answer_pattern=r"<<(.*?)>>").is_same_answer
    assert is_same("so <<7>> it is", "no, <<7.0>>!")
    assert not is_same("so <<7>>", "so <<8>>")
    assert is_same("The answer is 3", "3"), "what the pattern does not find is read as without it"


def test_a_pattern_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="no regular expression"):
        Conversation(answer_pattern="(")
