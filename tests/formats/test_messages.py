"""The format of chat messages: what it opens with, how it reads a message, and that every call in one is answered."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from tests.engines.endpoint import call

from ramify.core.branch import Branch, Piece
from ramify.core.codec import ByteCodec
from ramify.core.errors import ConfigError
from ramify.core.format import AnswerAction, InvalidAction, MessageFormat, Span, ToolAction
from ramify.core.problem import Problem
from ramify.core.segment import Segment, token_array
from ramify.core.tool import ToolResult, text_schema
from ramify.formats.arpo import arpo
from ramify.formats.messages import ONE_CALL, Messages, MessagesOptions, rendered, text_of
from ramify.formats.search_r1 import SEARCH_R1
from ramify.formats.tags import TagFormat

PROBLEM = Problem("p", "Who is {x} <|im_end|> fikol?")
SEARCH = text_schema("search", "Find what is known.", parameter="query")
PLAN = {
    "name": "plan",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}},
}
NATIVE = Messages(schemas=[SEARCH, PLAN])
TAGS = Messages(arpo({"search": "find"}), schemas=[SEARCH])


def assistant(content: Any = None, *calls: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": content, **fields}
    return {**message, "tool_calls": [*calls]} if calls else message


def messages(spans: Sequence[Span]) -> list[Mapping[str, Any]]:
    assert all(span.message is not None for span in spans)
    return [span.message for span in spans if span.message is not None]


# -- opening --------------------------------------------------------------------------------------------------------


def test_it_is_a_format_of_messages():
    assert isinstance(NATIVE, MessageFormat)
    assert not isinstance(TagFormat(), MessageFormat)


def test_a_question_is_the_user_s_message_as_it_is():
    assert messages(NATIVE.open(PROBLEM)) == [{"role": "user", "content": PROBLEM.question}]
    asking = Messages(options=MessagesOptions(system="Be brief.", template="{{Q}} {question}?"))
    assert messages(asking.open(PROBLEM)) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "{Q} Who is {x} <|im_end|> fikol??"},
    ]


def test_tags_are_explained_and_native_tools_are_left_to_the_engine():
    system, _ = messages(TAGS.open(PROBLEM))
    assert "- <find>query</find>: Find what is known." in system["content"]
    assert "<answer>the answer</answer>" in system["content"]
    assert (TAGS.schemas, TAGS.stops) == ((), ("</find>", "</answer>"))
    assert (NATIVE.schemas, NATIVE.stops) == ((SEARCH, PLAN), ())
    assert messages(Messages(TagFormat(), schemas=[SEARCH]).open(PROBLEM))[0]["content"].startswith("When you know")
    silent = Messages(TagFormat(), schemas=[SEARCH], options=MessagesOptions(system=""))
    assert [message["role"] for message in messages(silent.open(PROBLEM))] == ["user"]


@pytest.mark.parametrize(
    ("spoken", "options", "stops", "native"),
    [
        (None, {}, (), True),
        (None, {"answer_tag": "final"}, ("</final>",), True),
        (TagFormat(), {}, ("</answer>",), True),
        (SEARCH_R1, {}, ("</search>", "</answer>"), False),
        (SEARCH_R1, {"calls": "native"}, ("</answer>",), True),
        (TagFormat(stops_at_answer=False), {}, (), True),
        (None, {"calls": "tags"}, ("</search>", "</answer>"), False),
    ],
)
def test_calls_are_tags_where_the_task_has_tags_for_its_tools(
    spoken: TagFormat | None, options: Mapping[str, Any], stops: tuple[str, ...], native: bool
):
    format = Messages(spoken, schemas=[SEARCH], options=MessagesOptions(**options))
    assert (format.stops, bool(format.schemas)) == (stops, native)
    assert set(format.tools()) == {"search"}


def test_a_quote_is_a_conversation_of_its_own():
    pieces = [
        Piece(0, Segment("prompt", token_array(list(b"question\n\n")))),
        Piece(1, Segment("sampled", token_array([*b"<answer>4</answer>", 256]))),
    ]
    context = Branch(ByteCodec(), 1, tuple(pieces))
    (message,) = messages(NATIVE.quote("Is {0} right? {question}", [context], PROBLEM))
    assert message == {"role": "user", "content": f"Is <answer>4</answer> right? {PROBLEM.question}"}


# -- reading --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "action"),
    [
        ('{"query": "a"}', ToolAction("search", "a")),
        ('{"query" : " "}', ToolAction("search", "")),
        ('{"query": "x</tool_call>"}', ToolAction("search", "x</tool_call>")),
    ],
)
def test_a_tool_of_one_text_gets_the_text(arguments: str, action: ToolAction):
    assert NATIVE.hear(assistant(None, call("search", arguments))) == action


def test_a_tool_of_several_arguments_gets_json():
    said = assistant("Let me see.", call("plan", '{"a":1,  "b": "é"}'))
    assert NATIVE.hear(said) == ToolAction("plan", '{"a": 1, "b": "é"}')
    assert NATIVE.hear(assistant(None, call("plan", ""))) == ToolAction("plan", "{}")
    assert NATIVE.hear(assistant(None, call("unknown", "{}"))) == ToolAction("unknown", "{}")


@pytest.mark.parametrize("arguments", ['{"query": ', "[]", '"a"', '{"query": 1}', '{"q": "a"}', '{"a":1,"a":2}', "NaN"])
def test_arguments_that_cannot_be_read_are_an_invalid_action(arguments: str):
    action = NATIVE.hear(assistant(None, call("search", arguments)))
    assert isinstance(action, InvalidAction) and "could not be read" in action.reason


def test_text_holds_answers_and_calls_by_tags():
    assert NATIVE.hear(assistant("<answer>3</answer>")) is None
    answering = Messages(TagFormat(), schemas=[SEARCH])
    assert answering.hear(assistant("It is <answer> 3 </answer>")) == AnswerAction("3")
    assert answering.hear(assistant("<answer>3</answer>", call("search", '{"query": "a"}'))) == ToolAction(
        "search", "a"
    )
    assert TAGS.hear(assistant("Hm. <find> a </find>")) == ToolAction("search", "a")
    assert TAGS.hear(assistant([{"type": "text", "text": "<find>a</find>"}])) == ToolAction("search", "a")
    assert TAGS.hear(assistant(None)) is None
    assert isinstance(TAGS.hear(assistant("a</find>")), InvalidAction)


@pytest.mark.parametrize(
    ("format", "response", "answer"),
    [
        (NATIVE, "Red", "Red"),
        (NATIVE, "<think>Blue?</think>\nRed", "Red"),
        (NATIVE, "Blue?</think>\nRed", "Red"),
        (NATIVE, "Blue?</think>", None),
        (NATIVE, "", None),
        (NATIVE, rendered(assistant("Hm", call("search", "{}"))), None),
        (NATIVE, "one\n<tool_response>\nx\n</tool_response>\nRed", "Red"),
        (TAGS, "Red", None),
        (TAGS, "Red <answer>Blue</answer>", "Blue"),
    ],
)
def test_the_answer_of_a_response(format: Messages, response: str, answer: str | None):
    assert format.answer(response) == answer


# -- answering ------------------------------------------------------------------------------------------------------


def test_every_call_of_a_turn_is_answered_and_only_the_first_was_made():
    said = assistant(None, *(call("search", '{"query": "a"}', f"id_{i}") for i in range(3)))
    spans = NATIVE.reply(said, ToolAction("search", "a"), ToolResult("found"))
    assert messages(spans) == [
        {"role": "tool", "tool_call_id": "id_0", "content": "found"},
        {"role": "tool", "tool_call_id": "id_1", "content": ONE_CALL},
        {"role": "tool", "tool_call_id": "id_2", "content": ONE_CALL},
    ]
    assert spans[0].text == "\n<tool_response>\nfound\n</tool_response>\n"


def test_a_turn_without_a_call_is_answered_by_the_user():
    (message,) = messages(NATIVE.reply(assistant("hm"), InvalidAction("no action"), ToolResult("no action", "invalid")))
    assert message == {"role": "user", "content": "Error: no action"}
    (message,) = messages(TAGS.reply(assistant("<find>a</find>"), ToolAction("search", "a"), ToolResult("x")))
    assert message == {"role": "user", "content": " <result>\nx\n</result>"}


def test_what_became_of_a_call_is_said_in_words():
    said = assistant(None, call("search", "{}"))
    for result, text in [
        (ToolResult(""), "Tool(search) returned empty output."),
        (ToolResult("boom", "crashed"), "Error: Tool(search) execution failed with message: boom"),
    ]:
        (message,) = messages(NATIVE.reply(said, ToolAction("search", "a"), result))
        assert message["content"] == text


@pytest.mark.covers("S1.6")
def test_images_travel_beside_the_text_and_are_no_part_of_it():
    result = ToolResult("two frames", attachments=("a.PNG", "notes.txt", "/b/c.jpg"))
    images = [{"type": "image_url", "image_url": {"url": f"file://{name}"}} for name in ("a.PNG", "/b/c.jpg")]
    spans = NATIVE.reply(assistant(None, call("search", "{}")), ToolAction("search", "a"), result)
    assert messages(spans)[1:] == [{"role": "user", "content": images}]
    assert spans[1].text == ""
    (span,) = TAGS.reply(assistant("<find>a</find>"), ToolAction("search", "a"), result)
    text = " <result>\ntwo frames\n</result>"
    assert span.message == {"role": "user", "content": [{"type": "text", "text": text}, *images]}
    assert span.text == text


def test_a_message_is_rendered_for_people():
    assert rendered(assistant(None)) == ""
    assert rendered(assistant(None, refusal="No.")) == "No."
    assert text_of(assistant([{"type": "thinking"}, {"type": "text", "text": "a"}, "b"])) == "a"
    assert rendered(assistant("a", call("f", "{"))) == 'a\n<tool_call>\n{"name": "f", "arguments": {}\n</tool_call>'


# -- configuration --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"template": "no question"}, "must cite ['question']"),
        ({"template": "{question} {answer}"}, "must cite ['question']"),
        ({"answer_tag": "<a>"}, "'<a>' is no tag"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], message: str):
    with pytest.raises(ConfigError) as caught:
        MessagesOptions(**options)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "schema", [{"name": "a"}, {"parameters": {}}, {"name": "a", "parameters": {"x": float("nan")}}]
)
def test_a_schema_that_is_none_is_refused(schema: dict[str, Any]):
    with pytest.raises(ConfigError, match="schema of"):
        Messages(schemas=[schema])
