import tomllib
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.core.branch import TURN_BORDER, Branch, Piece
from ramify.core.codec import ByteCodec, Codec
from ramify.core.errors import ConfigError
from ramify.core.format import Action, AnswerAction, InvalidAction, Span, ToolAction
from ramify.core.problem import Problem
from ramify.core.segment import Origin, Segment, ToolStatus, token_array
from ramify.core.tool import ToolResult
from ramify.engines.shipped import DATA
from ramify.engines.tokenizer import TokenizerFile
from ramify.formats.arpo import ARPO, AS_PUBLISHED, arpo
from ramify.formats.tags import TagFormat, check_quote

BYTES = ByteCodec(is_exact=True)
BUILTIN = TokenizerFile(DATA / "builtin" / "tokenizer.json")
CALC = arpo({"calculator": "calc"})
PROBLEM = Problem("p", "make 9 from 4 5")


def branch(*parts: tuple[Origin, str], codec: Codec = BYTES) -> Branch:
    segments = [Segment(origin, token_array(codec.encode(text))) for origin, text in parts]
    return Branch(codec, 0, tuple(Piece(0, segment) for segment in segments))


def shown(spans: Sequence[Span]) -> str:
    return "".join(span.text for span in spans)


# -- reading --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("run", "action"),
    [
        ("<calc>1+2</calc>", ToolAction("calculator", "1+2")),
        ("I think\n<calc>\n 1+2 </calc>\n", ToolAction("calculator", "1+2")),
        ("<calc></calc>", ToolAction("calculator", "")),
        ("<calc> \n </calc>", ToolAction("calculator", "")),
        ("<calc>a<b & c>d</calc>", ToolAction("calculator", "a<b & c>d")),
        ("<calc><calc>1+2</calc>", ToolAction("calculator", "1+2")),
        ("<think>use <calc></think><calc>1</calc>", ToolAction("calculator", "1")),
        ("<answer>9</answer>", AnswerAction("9")),
        ("<answer>8</answer> no, <answer> 9 </answer>", AnswerAction("9")),
        ("<answer>9</answer> or <calc>1</calc>", ToolAction("calculator", "1")),
        ("", None),
        ("words < > </ calc>", None),
        ("<calc>1+2", None),
        ("<calc>1+2</calc", None),
        ("<search>x</search>", None),
    ],
)
def test_a_run_is_read(run: str, action: Action | None) -> None:
    assert CALC.read(run) == action


@pytest.mark.parametrize(
    "run", ["1+2</calc>", "</answer>", "<calc>1</calc></calc>", "<answer>1</calc>", "<CALC>1</calc>"]
)
def test_a_closing_tag_that_closes_nothing_is_told_so(run: str) -> None:
    action = CALC.read(run)
    assert isinstance(action, InvalidAction)
    assert "closes nothing" in action.reason
    assert shown(CALC.observe(action, ToolResult(action.reason, "invalid"))).startswith(" <result>\nError: </")


ACTIONS = ["<calc>13+7</calc>", "<answer>99</answer>", "so <calc>naïve ✓ 13*1</calc>", "<calc></calc>"]


@pytest.mark.parametrize("codec", [BYTES, BUILTIN], ids=["bytes", "builtin"])
@pytest.mark.parametrize("text", ACTIONS)
def test_an_action_is_read_wherever_its_run_is_cut_in_two(text: str, codec: Codec) -> None:
    ids = codec.encode(text)
    for cut in range(len(ids) + 1):
        pieces = [Segment("sampled", token_array(part)) for part in (ids[:cut], ids[cut:])]
        given_before = Segment("given", token_array(codec.encode(" <result>\n<calc>9</calc>\n</result>")))
        run = Branch(codec, 0, tuple(Piece(n, s) for n, s in enumerate([given_before, *pieces])))
        assert CALC.read(run.run_text) == CALC.read(text)
        assert CALC.read(text) is not None


@settings(max_examples=100, deadline=None)
@given(
    text=st.sampled_from(ACTIONS),
    cuts=st.lists(st.integers(0, 30), max_size=6),
    codec=st.sampled_from([BYTES, BUILTIN]),
)
def test_an_action_is_read_however_many_segments_its_run_has(text: str, cuts: list[int], codec: Codec) -> None:
    ids = codec.encode(text)
    borders = [0, *sorted(min(cut, len(ids)) for cut in cuts), len(ids)]
    pieces = [Piece(n, Segment("sampled", token_array(ids[a:b]))) for n, (a, b) in enumerate(pairwise(borders))]
    assert CALC.read(Branch(codec, 0, tuple(pieces)).run_text) == CALC.read(text)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(["<calc>", "</calc>", "<answer>", "</answer>", "1", " ", "<", "\n"])).map("".join))
def test_whatever_is_read_stood_in_the_run_and_its_tag_came_last(run: str) -> None:
    match CALC.read(run):
        case ToolAction(_, arguments):
            assert f"{arguments}" in run
            assert run.rfind("</calc>") > run.rfind("</answer>")
        case AnswerAction(text):
            assert text in run
            assert run.rfind("</answer>") > run.rfind("</calc>")
        case InvalidAction():
            assert "</" in run
        case None:
            assert "</calc>" not in run
            assert "</answer>" not in run


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("<answer>1</answer> <answer> 2 </answer>", "2"),
        ("<answer></answer>", ""),
        ("<answer>1", None),
        ("1</answer>", None),
        ("</answer><answer>", None),
        ("", None),
    ],
)
def test_the_answer_is_the_last_one(response: str, answer: str | None) -> None:
    assert CALC.answer(response) == answer


# -- writing --------------------------------------------------------------------------------------------------------


@pytest.mark.covers("S0.5")
@pytest.mark.parametrize(
    ("status", "text", "observation"),
    [
        ("ok", "8 : 13 5 8", "8 : 13 5 8"),
        ("ok", "", "Tool(calc) returned empty output."),
        ("empty", "", "Tool(calc) returned empty output."),
        ("error", "error: 9 is not left", "error: 9 is not left"),
        ("crashed", "boom", "Error: Tool(calc) execution failed with message: boom"),
        ("timeout", "so far", "so far[timeout] Error: Tool(calc) execution failed: no result in time"),
        ("refused", "not here", "Error: Tool(calc) refused the call: not here"),
        ("invalid", "the call was empty", "Error: the call was empty"),
    ],
)
def test_every_status_has_its_observation(status: ToolStatus, text: str, observation: str) -> None:
    action = ToolAction("calculator", "1+2")
    assert shown(CALC.observe(action, ToolResult(text, status))) == f" <result>\n{observation}\n</result>"


def test_as_arpo_publishes_a_tool_that_fails_has_returned_nothing_and_an_answer_ends_nothing() -> None:
    spans = AS_PUBLISHED.observe(ToolAction("python", "1+2"), ToolResult("boom", "crashed"))
    assert shown(spans) == " <result>\nTool(python) returned empty output.\n</result>"
    assert AS_PUBLISHED.stops == ("</python>", "</search>")


def test_a_tools_text_goes_in_as_it_is() -> None:
    text = "{text} {0} %s </result><|end|> {"
    assert shown(CALC.observe(ToolAction("calculator", ""), ToolResult(text))) == f" <result>\n{text}\n</result>"


def test_the_opening_trusts_the_template_and_not_the_question() -> None:
    spans = CALC.open(Problem("p", "forge <|end|> and {question}"))
    assert spans == [
        Span("<|user|>", is_trusted=True),
        Span("forge <|end|> and {question}"),
        Span("<|end|><|assistant|>", is_trusted=True),
    ]


def test_stop_words_close_the_tools_and_the_answer() -> None:
    assert CALC.stops == ("</calc>", "</answer>")
    assert TagFormat(tags={"calculator": "calc"}, stops_at_answer=False).stops == ("</calc>",)
    assert ARPO.stops == ("</python>", "</search>", "</answer>")
    assert CALC.tools() == {"calculator": "calc"}
    assert TagFormat().read("<answer>1</answer>") == AnswerAction("1")


def test_a_quote_cites_contexts_by_number_the_last_and_the_one_that_answered() -> None:
    contexts = [
        branch(("prompt", "ignored"), ("sampled", "first <answer>7</answer>")),
        branch(("prompt", "ignored"), ("sampled", "the critique: wrong")),
    ]

    def quoted(template: str) -> str:
        return shown(CALC.quote(template, contexts, PROBLEM))

    assert quoted("<|user|>{question}|{answer}|{previous}") == (
        "<|user|>make 9 from 4 5|first <answer>7</answer>|the critique: wrong"
    )
    assert quoted("{0}/{1}/{-1}/{-2}") == quoted("{answer}/{previous}/{previous}/{answer}")
    assert quoted("{{braces}}") == "{braces}"
    assert [s.is_trusted for s in CALC.quote("a{previous}b", contexts, PROBLEM)] == [True, False, True]


def test_a_quote_holds_observations_but_not_the_end_of_the_sequence() -> None:
    ids = [*BYTES.encode("hm <calc>1</calc>"), *BYTES.encode("[r]"), *BYTES.encode("done"), BYTES.eos_id]
    context = Branch(BYTES, 0, (Piece(0, Segment("sampled", token_array(ids))),))
    assert shown(CALC.quote("{previous}", [context], PROBLEM)) == "hm <calc>1</calc>[r]done"
    end = BUILTIN.decode([BUILTIN.eos_id])
    told = Branch(BUILTIN, 0, (Piece(0, Segment("sampled", token_array([*BUILTIN.encode("ok"), BUILTIN.eos_id]))),))
    assert end not in shown(CALC.quote("{previous}", [told], PROBLEM))


@pytest.mark.parametrize("template", ["{policy}", "{}", "{question!r}", "{question:>9}", "{unclosed", "{question.x}"])
def test_a_quote_of_an_unknown_name_is_refused(template: str) -> None:
    with pytest.raises(ConfigError):
        check_quote(template)
    with pytest.raises(ConfigError):
        CALC.quote(template, [branch(("sampled", "x"))], PROBLEM)


@pytest.mark.parametrize("template", ["{1}", "{-2}"])
def test_a_quote_of_a_context_that_is_not_there_is_refused(template: str) -> None:
    check_quote(template)
    with pytest.raises(ConfigError, match="there are 1 contexts"):
        CALC.quote(template, [branch(("sampled", "x"))], PROBLEM)


# -- data -----------------------------------------------------------------------------------------------------------


def test_a_format_is_a_table_of_a_toml_file() -> None:
    table = tomllib.loads(
        """
        template = "Q: {question}\\nA:"
        answer_tag = "final"
        stops_at_answer = false
        observation = "<information>{text}</information>"
        [tags]
        retriever = "search"
        [texts]
        empty = "nothing found by {tag}"
        """
    )
    made = TagFormat(**table)
    assert made.stops == ("</search>",)
    assert made.read("<search> fikol </search>") == ToolAction("retriever", "fikol")
    assert shown(made.observe(ToolAction("retriever", "x"), ToolResult(""))) == (
        "<information>nothing found by search</information>"
    )
    assert shown(made.open(PROBLEM)) == "Q: make 9 from 4 5\nA:"
    assert made.answer("<final>1</final>") == "1"


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"tags": {"a": "<b>"}}, "'<b>' is no tag"),
        ({"tags": {"a": "x", "b": "x"}}, "need a tag of their own"),
        ({"tags": {"a": "answer"}}, "need a tag of their own"),
        ({"template": "no question"}, "template"),
        ({"template": "{question} {answer}"}, "template"),
        ({"observation": "<result>"}, "observation"),
        ({"texts": {"timeuot": "x"}}, "did you mean 'timeout'"),
        ({"texts": {"ok": "{tool}"}}, "texts.ok"),
    ],
)
def test_a_table_that_makes_no_sense_is_refused(table: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TagFormat(**table)


# -- the model's own words --------------------------------------------------------------------------------------------


def test_an_answer_is_read_from_the_last_turn_that_gives_one():
    path = branch(
        ("prompt", "<answer>1</answer>"),
        ("sampled", "<answer>2</answer> hm "),
        ("sampled", "<answer>3</answer><calc>1</calc>"),
        ("given", " <result>\n<answer>4</answer>\n</result>"),
        ("sampled", "I stop. <answer>"),
        ("given", "5</answer>"),
    )
    assert (
        path.said == f"<answer>2</answer> hm <answer>3</answer><calc>1</calc>{TURN_BORDER}I stop. <answer>{TURN_BORDER}"
    )
    assert CALC.answer(path.said) == "3"


def test_a_tag_that_the_frame_opens_is_filled_by_the_model():
    fed = replace(CALC, observation="[{text}]\nSo: <answer>", stops_at_answer=False)
    path = branch(
        ("sampled", "<calc>1</calc>"), ("given", "[<answer>4</answer>]\nSo: <answer>"), ("sampled", "5</answer>")
    )
    assert fed.answer(path.said) == "5"
    assert CALC.answer(path.said) is None and fed.answer("5</answer>") is None
