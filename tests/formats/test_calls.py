import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.core.format import InvalidAction, ToolAction
from ramify.formats.calls import CALL, CALL_END, Schemas, Syntax, only_text, read_call, unwrapped

SCHEMAS: Schemas = {
    "search": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
    "book": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "nights": {"type": "integer"},
            "is_paid": {"type": "boolean"},
            "tags": {"type": "array"},
            "note": {"type": ["string", "null"]},
            "floor": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            "any": True,
        },
    },
    "now": {"type": "object", "properties": {}},
    "plan": {
        "type": "object",
        "properties": {"stay": {"$ref": "#/$defs/Stay"}},
        "$defs": {"Stay": {"type": "object", "properties": {"nights": {"$ref": "#/$defs/Nights"}}}, "Nights": {}},
    },
    "rate": {
        "type": "object",
        "properties": {
            "stars": {"oneOf": [{"$ref": "#/$defs/Stars"}, {"type": "null"}]},
            "room": {"enum": [1, 2]},
            "loop": {"$ref": "#/$defs/Loop"},
            "lost": {"$ref": "#/$defs/Nobody"},
            "junk": {"type": 3, "anyOf": None},
        },
        "$defs": {"Stars": {"type": "integer"}, "Loop": {"anyOf": [{"$ref": "#/$defs/Loop"}]}},
    },
    "bare": {"type": "object", "properties": None},
}
"""As servers of tools write them, references, junk and all."""
BOOK = """<function=book>
<parameter=city>
7
</parameter>
<parameter=nights>
7
</parameter>
<parameter=tags>
["a", 1]
</parameter>
<parameter=is_paid>
True
</parameter>
<parameter=note>
null
</parameter>
<parameter=other>
7
</parameter>
<parameter=any>
7
</parameter>
<parameter=floor>
7
</parameter>
</function>"""


def read(content: str, syntax: Syntax = "hermes") -> ToolAction | InvalidAction:
    return read_call(f"{CALL}\n{content}\n{CALL_END}", syntax, SCHEMAS)


def reason(content: str, syntax: Syntax = "hermes") -> str:
    action = read(content, syntax)
    assert isinstance(action, InvalidAction), action
    return action.reason


@pytest.mark.parametrize(
    ("content", "action"),
    [
        ('{"name": "search", "arguments": {"query": "who is fikol ?"}}', ToolAction("search", "who is fikol ?")),
        ('{"arguments":{"query":"  a\\n  b "},"name":"search"}', ToolAction("search", "  a\n  b ")),
        ('{"name": "search", "arguments": {"query": "\\ud834\\udd1e é"}}', ToolAction("search", "𝄞 é")),
        ('{"name": "search", "arguments": {"query": "<tool_call> tag"}}', ToolAction("search", "<tool_call> tag")),
        ('{"name": "search", "arguments": {"query": "  "}}', ToolAction("search", "")),
        ('{"name": "book", "arguments": {"nights": 2, "city": "é"}}', ToolAction("book", '{"nights": 2, "city": "é"}')),
        ('{"name": "now", "arguments": {}}', ToolAction("now", "{}")),
        ('{"name": "now"}', ToolAction("now", "{}")),
        ('{"name": "nobody", "arguments": {"x": "1"}}', ToolAction("nobody", '{"x": "1"}')),
        ('{"name": "plan", "arguments": {"stay": {"nights": 2}}}', ToolAction("plan", '{"stay": {"nights": 2}}')),
        ('{"name": "bare", "arguments": {"x": 1}}', ToolAction("bare", '{"x": 1}')),
    ],
)  # fmt: skip
def test_a_hermes_call_is_read(content: str, action: ToolAction):
    assert read(content) == action


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "this is no JSON"),
        ('{"name": "search", "arguments": {"query": "x"}', "this is no JSON"),
        ('{"name": "search", "arguments": {"query": "x"}} and more', "Extra data"),
        ('["search"]', "must be a JSON object"),
        ('{"arguments": {}}', "must be a JSON object"),
        ('{"name": 3, "arguments": {}}', "name = 3 is no name"),
        ('{"name": " ", "arguments": {}}', "is no name"),
        ('{"name": "search", "arguments": "x"}', "arguments must be a JSON object, not 'x'"),
        ('{"name": "search", "arguments": {"q": "x"}}', "takes one argument, the text 'query'"),
        ('{"name": "search", "arguments": {"query": 3}}', "takes one argument"),
        ('{"name": "search", "arguments": {"query": "x", "k": 1}}', "takes one argument"),
        ('{"name": "search", "arguments": {"query": "x", "query": "y"}}', "given twice"),
        ('{"name": "book", "arguments": {"nights": NaN}}', "NaN is no JSON"),
        ('{"name": "book", "arguments": {"nights": 1e999}}', "not JSON compliant"),
        ('{"name": "search", "arguments": {"query": "\\ud800"}}', "surrogate"),
        ('{"name": "\\udfff", "arguments": {}}', "surrogate"),
        ('{"name": "book", "arguments": {"nights": ' + "9" * 5000 + "}}", "could not be read"),
        ('{"name": "book", "arguments": {"nights": ' + "[" * 100_000 + "}}", "could not be read"),
    ],
)
def test_a_hermes_call_that_needs_a_guess_is_told_why(content: str, message: str):
    assert message in reason(content)


@pytest.mark.parametrize(
    ("content", "action"),
    [
        (
            "<function=search>\n<parameter=query>\nwho\nis it\n</parameter>\n</function>",
            ToolAction("search", "who\nis it"),
        ),
        ("<function=search><parameter=query>\n\n  x\n\n</parameter></function>", ToolAction("search", "\n  x\n")),
        ("<function=now>\n</function>", ToolAction("now", "{}")),
        (
            '<function=plan><parameter=stay>\n{"nights": 2}\n</parameter></function>',
            ToolAction("plan", '{"stay": {"nights": 2}}'),
        ),
        (
            "<function=rate>"
            + "".join(f"<parameter={name}>2</parameter>" for name in ("stars", "room", "loop", "lost", "junk"))
            + "</function>",
            ToolAction("rate", '{"stars": 2, "room": 2, "loop": "2", "lost": "2", "junk": "2"}'),
        ),
        ("<function=bare><parameter=x>2</parameter></function>", ToolAction("bare", '{"x": "2"}')),
        (
            BOOK,
            ToolAction(
                "book",
                '{"city": "7", "nights": 7, "tags": ["a", 1], "is_paid": true, "note": "null", "other": "7", '
                '"any": "7", "floor": 7}',
            ),
        ),
    ],
)
def test_an_xml_call_is_typed_by_the_schema(content: str, action: ToolAction):
    assert read(content, "xml") == action


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "it must be <function=NAME>"),
        ('{"name": "search", "arguments": {"query": "x"}}', "it must be <function=NAME>"),
        ("<function=search>\n<parameter=query>x</parameter>", "it must be <function=NAME>"),
        ("<function= >\n</function>", "it must be <function=NAME>"),
        ("<function=search>query</function>", "between parameters stands 'query'"),
        ("<function=search><parameter=query>a</parameter>b</parameter></function>", "between parameters stands"),
        ("<function=book><parameter=nights>two</parameter></function>", "must be of type integer, not 'two'"),
        ("<function=search><parameter=query>a</parameter><parameter=query>b</parameter></function>", "given twice"),
        ("<function=now></function><function=now></function>", "between parameters stands"),
    ],
)
def test_an_xml_call_that_needs_a_guess_is_told_why(content: str, message: str):
    assert message in reason(content, "xml")


@pytest.mark.parametrize("syntax", ["hermes", "xml"])
def test_several_calls_in_one_turn_are_all_refused(syntax: Syntax):
    call = f'{CALL}{{"name": "now"}}{CALL_END}'
    action = read_call(f"first {call}\n{call}", syntax, SCHEMAS)
    assert isinstance(action, InvalidAction)
    assert "several calls in one turn: none was made" in action.reason


def test_a_closing_tag_that_closes_nothing_is_told_so():
    action = read_call(f'{{"name": "now"}}{CALL_END}', "hermes", SCHEMAS)
    assert isinstance(action, InvalidAction)
    assert "closes nothing" in action.reason


def test_a_tool_of_one_text_is_told_from_others():
    assert {name: only_text(schema) for name, schema in SCHEMAS.items()} == {
        "search": "query",
        "book": None,
        "now": None,
        "plan": None,
        "rate": None,
        "bare": None,
    }


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"])), st.booleans())
def test_any_text_reaches_the_tool_as_it_was_meant(query: str, is_ascii: bool):
    text = json.dumps({"name": "search", "arguments": {"query": query}}, ensure_ascii=is_ascii)
    if CALL_END not in text:
        assert read(text) == ToolAction("search", query if query.strip() else "")


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet='{}[]"\\,: naemrgut123<>/=\n') | st.text(), st.sampled_from(["hermes", "xml"]))
def test_nothing_that_a_model_writes_raises(content: str, syntax: Syntax):
    assert isinstance(read(content, syntax), ToolAction | InvalidAction)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ('{"query": "x"}', "x"),
        (' {"query": "a \\u00e4"}\n', "a ä"),
        ('{"query": "{\\"query\\": \\"x\\"}"}', '{"query": "x"}'),
        ('{"query": 3}', '{"query": 3}'),
        ('{"query": "x", "k": 1}', '{"query": "x", "k": 1}'),
        ('{"other": "x"}', '{"other": "x"}'),
        ('{"query": "x"} and more', '{"query": "x"} and more'),
        ('{"query": "\\ud800"}', '{"query": "\\ud800"}'),
        ('["query"]', '["query"]'),
        ("x", "x"),
        ("", ""),
    ],
)
def test_an_object_around_one_text_is_taken_off_once(text: str, read: str):
    assert unwrapped(text, "query") == read


def test_a_text_that_looks_like_such_an_object_reaches_its_tool_unchanged():
    """A function's arguments are unwrapped by the syntax, and what stands in them is the text."""
    said = json.dumps({"name": "search", "arguments": {"query": '{"query": "x"}'}})
    action = read_call(f"{CALL}{said}{CALL_END}", "hermes", SCHEMAS)
    assert isinstance(action, ToolAction)
    assert unwrapped(action.arguments, "query") == '{"query": "x"}'
