# ruff: noqa: E501 - a template a line
import builtins
import json
from pathlib import Path
from typing import Any

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ramify.core.errors import ConfigError
from ramify.engines.chat_template import ChatTemplate, load_template, special_tokens
from ramify.engines.shipped import DATA
from ramify.engines.template_budget import MAX_CHARACTERS, MAX_STEPS

BUILTIN = DATA / "builtin"
FIXTURES = Path(__file__).parents[1] / "formats" / "chat_templates"
ASKED = [{"role": "user", "content": "q"}]
TOOLS = [{"type": "function", "function": {"name": "f", "description": "a < b & é", "parameters": {}}}]


def rendered(source: str, **options: Any) -> str:
    return ChatTemplate(source, **options)(ASKED, TOOLS, True)


def folder(path: Path, config: object = None, **files: str) -> Path:
    """A model's folder; `files` have `__` for the slash and no ending."""
    if config is not None:
        (path / "tokenizer_config.json").write_text(config if isinstance(config, str) else json.dumps(config), "utf-8")
    for name, text in files.items():
        file = path / (name.replace("__", "/") + ".jinja")
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, "utf-8")
    return path


def test_the_built_in_model_has_a_template():
    render = load_template(BUILTIN)
    assert render(ASKED, [], True) == "<|user|>q<|end|><|assistant|>"
    assert render(ASKED, [], False) == "<|user|>q<|end|>"


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% if true %}\n  a\n{% endif %}\nb", "  a\nb"),
        ("   {% if true %}a{% endif %}", "a"),
        ("{{ tools | tojson }}", json.dumps(TOOLS, ensure_ascii=False)),
        ("{{ [2, 'é'] | tojson(indent=1, separators=('; ', '=')) }}", '[\n 2; \n "é"\n]'),
        ("{% for i in [1, 2, 3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "1"),
        ("{% generation %}a{{ messages[0].content }}{% endgeneration %}b", "aqb"),
        ("{{ 'x' if strftime_now is defined else 'no clock' }}", "no clock"),
        ("{{ missing_token }}{{ add_generation_prompt }}", "True"),
    ],
)  # fmt: skip
def test_a_template_is_rendered_as_transformers_does(source: str, text: str):
    assert rendered(source) == text


def test_without_tools_a_template_sees_none():
    assert ChatTemplate("{{ tools is none }}")(ASKED, [], True) == "True"


def test_the_date_is_the_one_that_is_given():
    assert rendered("{{ strftime_now('%d %b %Y') }}", date="2025-07-26") == "26 Jul 2025"
    with pytest.raises(ConfigError, match="date = 'today': write it as 2025-07-26"):
        ChatTemplate("", date="today")


@pytest.mark.parametrize("name", sorted(path.stem for path in FIXTURES.glob("*.jinja")))
def test_a_conversation_is_rendered_as_transformers_does(name: str):
    transformers = pytest.importorskip("transformers.utils.chat_template_utils")
    source = (FIXTURES / f"{name}.jinja").read_text("utf-8")
    call = {"type": "function", "function": {"name": "f", "arguments": {"a": "<é>", "b": 1}}}
    tools = [{"type": "function", "function": {"name": "f", "description": "é", "parameters": {"properties": {}}}}]
    messages = [
        *ASKED,
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\n x ", "tool_calls": [call]},
        {"role": "tool", "content": ' "r"\n', "name": "f", "tool_call_id": "callidone"},
    ]
    tokens = {"bos_token": "<s>", "eos_token": "</s>", "date_string": "1 May 2025"}
    (theirs,), _ = transformers.render_jinja_template(
        conversations=[messages], tools=tools, chat_template=source, add_generation_prompt=True, **tokens
    )
    assert ChatTemplate(source, variables=tokens)(messages, tools, True) == theirs


@pytest.mark.parametrize("name", sorted(path.stem for path in FIXTURES.glob("*.jinja")))
def test_a_long_conversation_with_many_tools_stays_far_below_the_budget(name: str):
    source = (FIXTURES / f"{name}.jinja").read_text("utf-8")
    call = {"type": "function", "function": {"name": "f", "arguments": {"a": "x" * 100, "b": 1}}, "id": "callidone"}
    turns = [
        {"role": "user", "content": "word " * 400},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\n" + "text " * 400, "tool_calls": [call]},
        {"role": "tool", "content": "result " * 300, "name": "f", "tool_call_id": "callidone"},
        {"role": "assistant", "content": "done " * 400},
    ]
    parameters = {
        "type": "object",
        "properties": {f"p{i}": {"type": "string", "description": "d" * 80} for i in range(5)},
    }
    tools = [{"type": "function", "function": {"name": f"f{i}", "parameters": parameters}} for i in range(20)]
    variables = {"bos_token": "<s>", "eos_token": "</s>", "date_string": "1 May 2025"}
    counted = ChatTemplate(source, variables=variables)
    counted(turns * 50, tools, True)
    assert counted.spent.steps < MAX_STEPS / 50
    assert counted.spent.characters < MAX_CHARACTERS / 20


@pytest.mark.parametrize(
    "source",
    [
        "{% for a, b in {'x': 1, 'y': 2}.items() %}{{ loop.index }}{{ a }}{{ b }}{{ loop.last }}{{ loop.length }}{% endfor %}",
        "{% for x in [1, 2, 3] if x != 2 %}{{ x }}{% else %}none{% endfor %}{% for x in [] %}{% else %}none{% endfor %}",
        "{% for x in [[1, [2]], [3]] recursive %}{{ loop(x) if x is iterable else x }}{% endfor %}",
        "{% macro m(a, b=2) %}{{ a }}{{ b }}{{ varargs }}{{ caller() if caller }}{% endmacro %}{{ m(1) }}{% call m(3, 4, 5) %}c{% endcall %}",
        "{% filter upper %}abc{{ 1 }}{% endfilter %}{% set x | trim %}  y {% endset %}{{ x }}{{ (1, 2) }}{{ {'a': (1,)} }}",
        "{{ '%05d|%s' % (3, 'x') }}{{ '{:>5}|{a}'.format(1, a=2) }}{{ '%(b)s'|format(b=4) }}{{ 'a-b'.split('-')[-1:] }}",
        "{{ messages|map(attribute='role')|list }}{{ messages|selectattr('role', 'eq', 'user')|list|length }}{{ [3, 1]|sort|join(', ') }}",
        "{{ 1 < 2 < 3 }}{{ 2 in [1, 2] }}{{ 'q' not in 'abc' }}{{ 'role' in messages[0] }}{{ 7 // 2 * 3 % 5 - 1 }}{{ -2 ** 3 }}{{ 4 is divisibleby 2 }}",
        "{{ ['a', 'b']|batch(2, 'x')|list }}{{ 'abc'|replace('b', 'x')|indent(2, true) }}{{ nothing }}{{ nothing|default('d') }}",
        "{{ [1, 2]|sum }}{{ 2.567|round(1) }}{{ 'x' ~ 1 ~ none }}{{ 'a,b'.split(',')|map('upper')|join('|') }}{{ range(3)|list }}",
        "{% set n = namespace(a=1) %}{% set n.a = n.a + 1 %}{{ n.a }}{{ [1] + [2] }}{{ 'ab' * 2 }}{{ dict(a=1)|items|list }}{{ 'é'.encode('utf-8') }}",
    ],
)  # fmt: skip
def test_counting_changes_no_text(source: str):
    plain = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    assert rendered(source) == plain.from_string(source).render(messages=ASKED)


# -- files ----------------------------------------------------------------------------------------------------------


def test_files_win_over_the_configuration(tmp_path: Path):
    config = {"chat_template": "config", "bos_token": {"content": "<s>"}, "add_bos_token": True, "eos_token": None}
    assert load_template(folder(tmp_path, config))([], [], True) == "config"
    folder(tmp_path, chat_template="{{ bos_token }}file", additional_chat_templates__tool_use="tools")
    assert load_template(tmp_path)([], [], True) == "<s>file"
    assert load_template(tmp_path, has_tools=True)([], [], True) == "tools"
    assert load_template(tmp_path, has_tools=True, name="default")([], [], True) == "<s>file"
    assert special_tokens(tmp_path) == {"bos_token": "<s>"}


def test_a_list_of_templates_is_told_apart_by_name(tmp_path: Path):
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    path = folder(tmp_path, {"chat_template": named})
    assert [load_template(path, has_tools=has)([], [], True) for has in (False, True)] == ["plain", "tools"]
    with pytest.raises(ConfigError, match="no chat template called 'tooluse'; did you mean 'tool_use'"):
        load_template(path, name="tooluse")


def test_a_file_alone_cites_the_tokens_of_the_model(tmp_path: Path):
    path = folder(tmp_path, mine="{{ eos_token }}|{{ bos_token }}") / "mine.jinja"
    assert load_template(path)([], [], True) == "|"
    assert load_template(path, tokens=BUILTIN)([], [], True) == "<|end|>|"
    assert load_template(path, variables={"eos_token": "mine"})([], [], True) == "mine|"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (None, "has neither chat_template.jinja nor tokenizer_config.json"),
        ({}, "has no chat_template: this is no chat model"),
        ({"chat_template": ""}, "has no chat_template"),
        ({"chat_template": [{"name": "rag", "template": "x"}]}, "no chat template called 'default'; known: rag"),
        ({"chat_template": [{"template": "x"}]}, "are no list of names and templates"),
        ({"chat_template": ["x"]}, "are no list of names and templates"),
        ("{", "is no JSON"),
        ("[1]", "must hold a JSON object"),
        ({"chat_template": "{% if %}"}, "is no chat template: line 1"),
        ({"chat_template": "{% for m in messages %}"}, "is no chat template: line 1"),
        ({"chat_template": "{{ x | nosuchfilter }}"}, "is no chat template"),
    ],
)
def test_a_folder_that_cannot_be_used_is_told_why(tmp_path: Path, config: object, message: str):
    with pytest.raises(ConfigError) as caught:
        load_template(folder(tmp_path, config))
    assert message in str(caught.value)


def test_a_file_that_is_no_text_is_told_why(tmp_path: Path):
    (tmp_path / "a.jinja").write_bytes(b"\xff\xfe")
    for name in ("a.jinja", "b.jinja"):
        with pytest.raises(ConfigError, match="cannot be read"):
            load_template(tmp_path / name)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "raises TemplateError: roles must alternate"),
        ("{{ messages[0].content + 1 }}", "raises TypeError"),
        ("{{ strftime_now('%Y') }}", "give it a date: format_options.date"),
        ("{{ ''.__class__.__mro__ }}", "raises SecurityError"),
        ("{{ messages.append({}) }}", "raises SecurityError"),
    ],
)
def test_whatever_a_template_raises_is_a_fault_of_the_configuration(source: str, message: str):
    with pytest.raises(ConfigError) as caught:
        rendered(source, name="mine")
    assert str(caught.value).startswith("mine raises")
    assert message in str(caught.value)


def test_without_jinja2_the_install_line_is_shown(monkeypatch: pytest.MonkeyPatch):
    imported = builtins.__import__

    def without_jinja2(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("jinja2"):
            raise ImportError(name)
        return imported(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without_jinja2)
    with pytest.raises(ConfigError, match=r"pip install 'ramify\[chat\]'"):
        ChatTemplate("x")
