"""What every registered format keeps to, whatever it is given to read."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify import plugins
from ramify.core.branch import Branch, Piece
from ramify.core.codec import ByteCodec
from ramify.core.errors import ConfigError
from ramify.core.format import AnswerAction, Format, InvalidAction, MessageFormat, ToolAction
from ramify.core.problem import Problem
from ramify.core.segment import Segment, token_array
from ramify.core.tool import ToolResult

NAMES = [name for name in plugins.known("format") if name != "chat"]
"""`chat` is made of a template, and tested with many."""
FORMATS: dict[str, Format] = {name: plugins.build("format", name) for name in NAMES}
PROBLEM = Problem("p", "Who {is} <|end|> it?")
CODEC = ByteCodec()
WORDS = sorted({word for format in FORMATS.values() for word in format.stops})
OPENINGS = ["<answer>", "<search>", "<python>", "<code>", "\\boxed{3}", "boxed", "x = 1", "}", "<think>", "\n\n", " "]
RUNS = st.lists(st.sampled_from([*WORDS, *OPENINGS])).map("".join)


def context(text: str) -> Branch:
    return Branch(CODEC, 1, (Piece(1, Segment("sampled", token_array(CODEC.encode(text)))),))


@pytest.fixture(params=NAMES)
def format(request: pytest.FixtureRequest) -> Format:
    return FORMATS[request.param]


def test_it_asks_the_question_word_by_word_and_does_not_trust_it(format: Format) -> None:
    spans = format.open(PROBLEM)
    assert "".join(span.text for span in spans).count(PROBLEM.question) == 1
    assert not any(PROBLEM.question in span.text for span in spans if span.is_trusted)


def test_its_stop_words_are_words_and_none_is_part_of_another(format: Format) -> None:
    assert all(sum(word in other for other in format.stops) == 1 for word in format.stops if word)
    assert all(format.stops)


def test_it_quotes_what_was_said_and_refuses_what_it_does_not_know(format: Format) -> None:
    spans = format.quote("{question}|{answer}|{0}", [context("said {0}")], PROBLEM)
    assert f"{PROBLEM.question}|said {{0}}|said {{0}}" in "".join(span.text for span in spans)
    for template in ("{anser}", "{7}", "{question", "{critique}"):
        with pytest.raises(ConfigError, match="template"):
            format.quote(template, [context("said")], PROBLEM)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=60, deadline=None)
@given(run=RUNS)
def test_it_reads_any_run_and_answers_whatever_it_reads(name: str, run: str) -> None:
    format = FORMATS[name]
    action = format.read(run)
    assert action is None or isinstance(action, ToolAction | AnswerAction | InvalidAction)
    if isinstance(action, ToolAction):
        assert action.tool in format.tools()
    spans = format.observe(action or InvalidAction("nothing"), ToolResult("the result"))
    if not isinstance(spans, str) and isinstance(action, ToolAction):
        assert not any("the result" in span.text for span in spans if span.is_trusted)
    if isinstance(format, MessageFormat):
        format.hear({"role": "assistant", "content": run})
    answer = format.answer(run)
    assert answer is None or answer in run


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=60, deadline=None)
@given(run=RUNS)
def test_without_a_stop_word_no_tool_is_called(name: str, run: str) -> None:
    format = FORMATS[name]
    if not any(word in run for word in format.stops):
        assert not isinstance(format.read(run), ToolAction)
