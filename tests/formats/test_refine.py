"""Whole answers, their critiques, rewrites and grades: what each request says, to engines of both kinds."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engines.endpoint import Endpoint, said
from tests.runner.parts import Small, grown

from ramify import plugins, view
from ramify.config.configure import checked, resolve
from ramify.config.run_config import EngineConfig, RunConfig
from ramify.core.branch import Branch, Piece
from ramify.core.codec import ByteCodec
from ramify.core.command import Role
from ramify.core.errors import ConfigError
from ramify.core.format import AnswerAction, InvalidAction, MessageFormat, Span, SystemFormat, span_ids
from ramify.core.problem import Problem
from ramify.core.segment import Segment, token_array
from ramify.core.tool import ToolResult
from ramify.core.tree import Tree
from ramify.formats.boxed import boxed
from ramify.formats.refine import ACTIONS, NEEDS, Refine
from ramify.runner.library import rollout_sync
from ramify.testing.scripted import Scripted
from ramify.testing.scripts import ScriptedTurn

GOLDEN = Path(__file__).parent / "refine"
PROBLEM = Problem("p", "What is {x} in 2 * {x} = 6? <|end|>")
ANSWER = "Divide by 2.\nx = \\boxed{4}"
CRITIQUE = "6 / 2 is 3; \\boxed{4} is wrong."
KINDS = ("critique", "rewrite", "grade")


def context(text: str, role: Role = "policy") -> Branch:
    codec = ByteCodec()
    pieces = (
        Segment("prompt", token_array(codec.encode("asked"))),
        Segment("sampled", token_array(codec.encode(text))),
    )
    return Branch(codec, 1, tuple(Piece(1, piece) for piece in pieces), role)


CONTEXTS = {
    "critique": [context(ANSWER)],
    "rewrite": [context(ANSWER), context(CRITIQUE, "critique")],
    "grade": [context("older"), context("words", "critique"), context(ANSWER)],
}


def request(kind: str, format: Refine) -> list[Span]:
    if kind == "answer":
        return list(format.open(PROBLEM))
    return list(format.quote(ACTIONS[kind]["template"], CONTEXTS[kind], PROBLEM))


# -- requests -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["answer", *KINDS])
def test_a_request_reads_as_its_golden_file(kind: str) -> None:
    golden = (GOLDEN / f"{kind}.txt").read_text("utf-8")
    assert "".join(span.text for span in request(kind, Refine())) == golden.removesuffix("\n")


@pytest.mark.parametrize("kind", ["answer", *KINDS])
def test_engines_of_messages_get_the_same_words(kind: str) -> None:
    golden = (GOLDEN / f"{kind}.txt").read_text("utf-8").removesuffix("\n")
    words = golden.removeprefix("<|user|>").removesuffix("<|end|><|assistant|>")
    (span,) = request(kind, Refine(speaks="messages"))
    assert span.message == {"role": "user", "content": words}
    system, user = request(kind, Refine(speaks="messages", system="Be kind."))
    assert (system.message, user.message) == ({"role": "system", "content": "Be kind."}, span.message)


@pytest.mark.parametrize("kind", ["answer", *KINDS])
def test_nothing_that_is_cited_can_forge_a_control_token(kind: str) -> None:
    trusted = "|".join(span.text for span in request(kind, Refine()) if span.is_trusted)
    assert trusted.count("<|end|>") == 1
    assert PROBLEM.question not in trusted and ANSWER not in trusted
    codec = Scripted(lambda turn: "").codec
    assert span_ids(codec, request(kind, Refine())).count(codec.eos_id) <= 1


def test_a_system_message_stands_in_front_of_the_users_turn_and_of_no_correction() -> None:
    for format in (Refine(system="Be kind."), Refine().with_system("Be kind.")):
        spans = request("grade", format)
        assert "".join(span.text for span in spans if span.is_trusted).startswith("<|system|>Be kind.<|end|><|user|>")
        assert spans[-len(request("grade", Refine())) :] == request("grade", Refine())
        assert format.observe(InvalidAction("x"), ToolResult("why")) == Refine().observe(
            InvalidAction("x"), ToolResult("why")
        )
    assert request("grade", Refine(system="Be kind.").with_system("")) == request("grade", Refine())


def test_models_that_know_no_turns_are_asked_in_bare_words() -> None:
    format = Refine(frame="{prompt}\n", template="Q: {question}\nA:", end=("\nQ:",))
    assert "".join(span.text for span in format.open(PROBLEM)) == f"Q: {PROBLEM.question}\nA:\n"
    assert format.stops == ("\nQ:",)
    assert format.read(" 3\nQ: next") == AnswerAction("3")
    assert format.read(" 3") is None
    (span,) = [s for s in format.quote("{answer}", [context("3\nQ:")], PROBLEM) if not s.is_trusted]
    assert span.text == "3"


def test_the_answer_is_the_last_whole_one_above_and_never_a_critique() -> None:
    contexts = [context("one"), context("\\boxed{bad}", "critique"), context("two"), context("more", "critique")]
    told = Refine(frame="{prompt}").quote("{answer}|{critique}|{previous}|{0}|{1}|{-2}", contexts, PROBLEM)
    assert "".join(span.text for span in told) == "two|more|more|one|\\boxed{bad}|two"


def test_thoughts_are_neither_quoted_nor_answers() -> None:
    thinking = "<think>\\boxed{1}?</think>\nNo: \\boxed{2}"
    assert Refine().answer(thinking) == "2"
    assert Refine().answer("\\boxed{1}?</think> nothing") is None
    told = Refine(frame="{prompt}").quote("{answer}", [context(thinking)], PROBLEM)
    assert "".join(span.text for span in told) == "No: \\boxed{2}"


def test_it_is_a_format_of_messages_without_tools() -> None:
    format = Refine()
    assert isinstance(format, MessageFormat) and isinstance(format, SystemFormat)
    assert (format.schemas, dict(format.tools()), format.hear({"role": "assistant", "content": "x"})) == ((), {}, None)


# -- answers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("\\boxed{3}", "3"),
        ("\\boxed{1} or \\boxed{ \\frac{1}{2} }.", "\\frac{1}{2}"),
        ("\\boxed{x_{\\{1\\}}}", "x_{\\{1\\}}"),
        ("\\boxed {7}", "7"),
        ("\\boxed{7} and then {", "7"),
        ("{ \\boxed{7}", "7"),
        ("\\boxed{\\boxed{7}}", "7"),
        ("\\boxed{7} and \\boxed{8", "7"),
        ("\\boxed{8", None),
        ("\\boxed{}", None),
        ("\\boxed{ }", None),
        ("boxed{8}", None),
        ("", None),
    ],
)
def test_a_boxed_answer_is_the_last_whole_one(text: str, answer: str | None) -> None:
    assert boxed(text) == Refine().answer(text) == answer


@given(st.text(alphabet="\\boxed{} 7\n", max_size=60))
def test_any_text_has_a_boxed_answer_or_none(text: str) -> None:
    answer = boxed(text)
    assert answer is None or (answer in text and answer == answer.strip() != "")


def test_a_text_full_of_open_boxes_takes_no_time() -> None:
    assert boxed("\\boxed{" * 100_000) is None


@pytest.mark.parametrize(
    ("pattern", "text", "answer"),
    [
        (r"(?im)answer is:? *(.+?)\.?$", "The answer is 4.\nNo, the Answer is: 5.", "5"),
        (r"(?im)answer is:? *(.+?)\.?$", "\\boxed{5}", None),
        (r"<answer>(.*?)</answer>", "<answer> 6 </answer>", "6"),
        (r"\d+", "1 and 22", "22"),
        (r"(a)|b", "b", None),
    ],
)
def test_an_answer_may_be_a_pattern_instead(pattern: str, text: str, answer: str | None) -> None:
    assert Refine(answer_pattern=pattern).answer(text) == answer


# -- what is refused before the start ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_template_must_cite_what_its_kind_needs(kind: str) -> None:
    template = ACTIONS[kind]["template"]
    Refine().check(kind, template)
    for name in NEEDS[kind]:
        lacking = template.replace(f"{{{name}}}", "it")
        with pytest.raises(ConfigError, match=rf"actions\.{kind}\.template = .*does not cite \{{{name}\}}"):
            Refine().check(kind, lacking)
        with pytest.raises(ConfigError, match=rf"cites \{{{name}s\}}; allowed are"):
            Refine().check(kind, template.replace(f"{{{name}}}", f"{{{name}s}}"))


def test_a_template_may_cite_by_number_or_be_allowed_to_cite_less() -> None:
    Refine().check("rewrite", "{question}: {0}, but {1}")
    Refine().check("condense", "{answer}")
    Refine(needs={"grade": ("answer",)}).check("grade", "{answer}")
    with pytest.raises(ConfigError, match=r"does not cite \{question\}"):
        Refine().check("rewrite", "{0}, but {1}")
    with pytest.raises(ConfigError, match=r"does not cite \{question\}"):
        Refine(needs={"grade": ("answer",)}).check("critique", "{answer}")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"template": "Answer it."}, r"template = 'Answer it.': it must cite \{question\}"),
        ({"template": "{question} {answer}"}, r"must cite \{question\} and nothing else"),
        ({"template": "{question"}, "expected '}'"),
        ({"frame": "<|user|>"}, r"frame = .*must cite \{prompt\}"),
        ({"frame": "{prompt}{prompt}"}, r"must cite \{prompt\}"),
        ({"answer_pattern": "("}, "is no regular expression"),
        ({"end": ["\n", ""]}, "a stop word has characters"),
        ({"tempalte": "{question}"}, "unknown key; did you mean 'template'"),
        ({"end": "x"}, "Expected `array`"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: Mapping[str, Any], message: str) -> None:
    config, faults = checked({"format": "refine", "format_options": options})
    assert config is None
    with pytest.raises(ConfigError, match=message):
        raise ConfigError(faults[0].message)


@pytest.mark.parametrize("template", ["Criticise {answer}.", "{question}{answer}{anser}", "{question} {answer"])
def test_a_prompt_that_lacks_or_misspells_something_is_refused_before_the_start(template: str) -> None:
    engine = Scripted(lambda turn: "never")
    config, _ = checked({"format": "refine", "actions": {"critique": {"template": template}}})
    assert config is not None
    with pytest.raises(ConfigError, match="template"):
        rollout_sync(config=config, engine=engine, task=Small(judges=()))
    assert not engine.calls


# -- configuration ----------------------------------------------------------------------------------------------------


def test_the_actions_of_the_format_need_not_be_described() -> None:
    config, faults = checked({"format": "refine", "actions": {"critique": {"engine": "critic"}}})
    assert config is not None and not faults
    assert {name: (a.edge, a.role) for name, a in config.actions.items()} == {
        "policy": ("continues", "policy"),
        "critique": ("quotes", "critique"),
        "rewrite": ("quotes", "policy"),
        "grade": ("quotes", "judge"),
        "dummy": ("continues", "policy"),
    }
    assert config.actions["critique"].engine == "critic"
    assert config.actions["critique"].template == ACTIONS["critique"]["template"]
    assert config.actions["dummy"].text == "I don't know."


@pytest.mark.covers("S2.7")
def test_another_type_of_problem_is_another_toml(tmp_path: Path) -> None:
    path = tmp_path / "essays.toml"
    path.write_text(
        'format = "refine"\n[format_options]\ntemplate = "Write an essay: {question}"\nanswer_pattern = "(?s).+"\n'
        '[actions.critique]\ntemplate = "Review {answer} for {question}"\n'
        '[actions.grade]\ntemplate = "{question}: {answer}. A grade, please"\n'
        '[engines.critic]\nname = "openai"\nmodel = "big"\nbase_url = "http://127.0.0.1:9/v1"\n'
    )
    config = resolve(files=[path], overrides=["actions.critique.engine=critic"]).config
    assert config.format_options["template"] == "Write an essay: {question}"
    assert config.actions["critique"].template == "Review {answer} for {question}"
    assert config.actions["rewrite"].template == ACTIONS["rewrite"]["template"]
    assert (config.engines["critic"].model, config.actions["critique"].engine) == ("big", "critic")


@pytest.mark.parametrize("format", ["refine", "messages", "rstar"])
def test_a_template_of_words_is_no_path(format: str) -> None:
    config, _ = checked({"format": format, "format_options": {"template": "{question}"}})
    assert config is not None
    assert config.format_options["template"] == "{question}"


# -- whole searches ---------------------------------------------------------------------------------------------------


def refined(context: str) -> str:
    """A model that gets one better with every critique."""
    if "Grade the answer" in context:
        return "-20" if "\\boxed{4}" in context else "60"
    if "critique of that answer" in context:
        return "Now \\boxed{3}"
    return "6 / 2 is 3." if "Say what is wrong" in context else "\\boxed{4}"


def searching(**strategy: Any) -> RunConfig:
    config, faults = checked(
        {
            "format": "refine",
            "judges": {"grade": {"kind": "llm", "options": {"mode": "self_reward"}}},
            "strategy": {"name": "mctsr", "options": {"max_rollouts": 3, "selection": "greedy", **strategy}},
            "growth": {"max_response_tokens": 4000},
        }
    )
    assert config is not None, faults
    return config


def check_search(tree: Tree) -> None:
    told = view.mctsr_trace(tree)
    assert len(told.selected_nodes) == 3
    assert set(told.critiques) == {"6 / 2 is 3."}
    assert set(told.refinements) == {"Now \\boxed{3}"}
    assert set(told.rewards) == {-20.0, 60.0}
    assert view.mctsr(tree, told.selected_nodes[0]).parent is None


def test_a_search_refines_its_answers_in_tokens() -> None:
    def rule(turn: ScriptedTurn) -> str:
        return refined(turn.context)

    result = rollout_sync(config=searching(), engine=Scripted(rule), task=Small(judges=(), tools=()))
    (tree,) = result.trees
    check_search(tree)
    assert result.answers()[0].answer == "3"


def test_a_search_may_begin_with_an_answer_that_nobody_gave() -> None:
    prompts: list[str] = []

    def rule(turn: ScriptedTurn) -> str:
        prompts.append(turn.context)
        return refined(turn.context)

    config = searching(initialise="dummy")
    (tree,) = rollout_sync(config=config, engine=Scripted(rule), task=Small(judges=(), tools=())).trees
    told = view.mctsr_trace(tree)
    assert view.mctsr(tree, told.selected_nodes[0]).answer == "I don't know."
    assert any("I don't know." in prompt and "Say what is wrong" in prompt for prompt in prompts)
    assert not any("Solve the problem" in prompt for prompt in prompts)


@pytest.mark.covers("S2.4", "S2.7")
def test_a_search_refines_its_answers_at_an_endpoint() -> None:
    def model(body: Mapping[str, Any]) -> Mapping[str, Any]:
        return said(refined(body["messages"][-1]["content"]))

    with Endpoint(model) as endpoint:
        config = replace(searching(), engine=EngineConfig(name="openai", model="m", base_url=endpoint.url))
        result = rollout_sync(config=config, task=Small(judges=(), tools=()))
    check_search(result.trees[0])
    assert all(len(sent["messages"]) == 1 for sent in endpoint.requests)


def test_it_is_found_by_name() -> None:
    assert isinstance(plugins.build("format", "refine"), Refine)
    assert grown(None, Scripted(lambda turn: "\\boxed{3}"), format="refine").trees[0].num_leaves
