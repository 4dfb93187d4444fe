"""Runs that speak by a chat template: what stands in the tree, whose template it is, and what is refused before it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.engines.models import write_model
from tests.runner.parts import Listening, OneChain, Small, grown, only_leaf

from ramify.config.configure import from_toml, resolve, to_toml
from ramify.config.run_config import EngineConfig, GrowthConfig
from ramify.core.errors import ConfigError
from ramify.core.problem import Problem
from ramify.core.tool import schema_of, text_schema
from ramify.core.tree import Tree
from ramify.engines.shipped import DATA
from ramify.engines.tokenizer import TokenizerFile
from ramify.rows import rows_of
from ramify.runner.folder import begin
from ramify.runner.library import Rollout, rollout_sync
from ramify.runner.saved import Saved
from ramify.testing.scripted import Scripted
from ramify.testing.scripts import ScriptedTurn
from ramify.tools.calculator import Calculator
from ramify.tools.function import FunctionTool

BUILTIN = DATA / "builtin"
TOKENIZER = TokenizerFile(BUILTIN / "tokenizer.json")
TEMPLATES = Path(__file__).parents[1] / "formats" / "chat_templates"
QWEN = str(TEMPLATES / "drops_thinking.jinja")
CALL = '<tool_call>{"name":"look",  "arguments": {"thing":"a"}}</tool_call>'


def look(thing: str) -> str:
    """Look at a thing."""
    return f"\n{thing} is red.<|end|>\n"


def saying(*turns: str) -> Listening:
    """An engine that says `turns` one after the other, the last one for good."""

    def rule(turn: ScriptedTurn) -> str:
        return turns[min(turn.context.count("<|tool|>") + turn.context.count("<tool_response>"), len(turns) - 1)]

    return Listening(Scripted(rule, codec=TOKENIZER))


def chatting(speaker: Listening, /, **config: Any) -> Rollout:
    growth = config.pop("growth", GrowthConfig(max_response_tokens=4000))
    return grown(OneChain, speaker, task=Small(tools=(FunctionTool(look),)), format="chat", growth=growth, **config)


def segments(tree: Tree, leaf: int) -> list[tuple[str, str]]:
    return [(p.segment.origin, tree.codec.decode(p.segment.ids)) for p in tree.branch(leaf).pieces]


@pytest.mark.covers("S1.2", "S1.3")
def test_a_call_is_answered_in_the_models_own_template_and_its_text_is_kept():
    engine = saying(f"Hm. {CALL}", "It is red.")
    tree, leaf = only_leaf(chatting(engine))
    assert segments(tree, leaf) == [
        ("prompt", "<|user|>make 3 from 1 2<|end|><|assistant|>"),
        ("sampled", f"Hm. {CALL}"),
        ("given", "<|end|><|tool|>\na is red.<|end|>\n<|end|><|assistant|>"),
        ("sampled", "It is red.<|end|>"),
    ]
    assert tree.stop(leaf) == "end_of_sequence"
    (call,) = tree.branch(leaf).tool_calls
    assert (call.tool, call.arguments, call.status) == ("look", "a", "ok")
    (end,) = TOKENIZER.encode("<|end|>", allow_special=True)
    given = tree.branch(leaf).pieces[2].segment.ids.tolist()
    assert given.count(end) == 2, "the end of the turn and of the result; the tool's own text forges none"
    (row,) = rows_of(tree)
    assert not np.any(row.weights[~row.is_sampled])


def test_every_request_continues_the_ids_of_the_one_before():
    engine = saying(f"<think>\nhm\n</think>\n\n{CALL}", f"  again {CALL}", "done")
    leaf = only_leaf(chatting(engine, format_options={"template": QWEN}))
    assert len(engine.answers) == 3
    for (before, answer), (after, _) in zip(engine.answers, engine.answers[1:], strict=False):
        fed = [*before.ids.tolist(), *answer.ids.tolist()]
        assert after.ids[: len(fed)].tolist() == fed
    tree, node = leaf
    assert "<think>\nhm\n</think>" in tree.branch(node).text


def test_a_call_that_cannot_be_read_is_corrected_and_the_path_goes_on():
    engine = saying("<tool_call>{look}</tool_call>", '<tool_call>{"name": "loook"}</tool_call>', "sorry")
    tree, leaf = only_leaf(chatting(engine))
    texts = [text for origin, text in segments(tree, leaf) if origin == "given"]
    assert texts[0].startswith("<|end|><|tool|>Error: the tool call could not be read: this is no JSON")
    assert "there is no tool 'loook'; did you mean 'look'?" in texts[1]
    assert [call.status for call in tree.branch(leaf).tool_calls] == ["invalid", "refused"]
    assert tree.branch(leaf).run_text == "sorry<|end|>"


def test_several_calls_are_made_one_after_the_other():
    """The first closing tag stops the model, so it never gets to write the second before it has the first result."""
    tree, leaf = only_leaf(chatting(saying(CALL + CALL, CALL, "done")))
    assert [text for origin, text in segments(tree, leaf) if origin == "sampled"] == [CALL, CALL, "done<|end|>"]
    assert len(tree.branch(leaf).tool_calls) == 2


def test_a_call_in_the_thinking_is_no_call():
    said = f"<think>maybe {CALL} no</think>It is red."
    tree, leaf = only_leaf(chatting(saying(said)))
    assert tree.branch(leaf).transcript == f"{said}<|end|>"
    assert tree.branch(leaf).tool_calls == ()


@pytest.mark.parametrize(
    ("template", "behind"),
    [
        (str(BUILTIN), "<|tool|>Error: the turn holds no action<|end|><|assistant|>"),
        (
            str(TEMPLATES / "reserialises.jinja"),
            '\n<|tool|>\ninvalid: {"output": "Error: the turn holds no action"}<|end|>\n<|assistant|>\n',
        ),
    ],
)
def test_the_end_of_a_turn_is_written_once(template: str, behind: str):
    growth = GrowthConfig(max_response_tokens=400, no_action="observe", max_turns=2)
    options = {"answer_tag": "answer", "template": template}
    engine = saying("I think.", "<answer>3</answer>")
    tree, leaf = only_leaf(chatting(engine, growth=growth, format_options=options))
    assert tree.branch(leaf).transcript == f"I think.<|end|>{behind}<answer>3</answer>"
    assert tree.stop(leaf) == "answer"


@pytest.mark.parametrize(
    ("options", "said", "reward"),
    [
        ({}, "<think>\n4?\n</think>\n\nRed", 1.0),
        ({}, "<answer>red</answer>", 0.0),
        ({"answer_tag": "answer"}, "It is <answer> red </answer>", 1.0),
        ({"answer_tag": "answer"}, "red", 0.0),
    ],
)
def test_a_judge_reads_the_answer_as_the_run_speaks(tmp_path: Path, options: dict[str, Any], said: str, reward: float):
    file = tmp_path / "q.jsonl"
    file.write_text('{"question": "what colour?", "answer": "red"}\n', "utf-8")
    overrides = [f"data.path={file}", "data.answer=answer", "prompts=1", "format=chat"]
    overrides += [f"format_options.{key}={value}" for key, value in options.items()]
    result = rollout_sync(config=resolve(overrides=overrides).config, engine=saying(said))
    assert {row.reward for row in result.rows()} == {reward}


def test_the_built_in_model_speaks_by_its_own_template(tmp_path: Path):
    overrides = ["format=chat", "prompts=2", "growth.max_response_tokens=24", "strategy.options.n=2"]
    begin(resolve(preset="chains", overrides=overrides).config, tmp_path / "run")
    saved = Saved.open(tmp_path / "run")
    for tree in saved.trees():
        assert tree.branch(tree.leaves()[0]).prompt_text == f"<|user|>{tree.problem.question}<|end|><|assistant|>"
    assert len(list(saved.rows())) == 4


def test_the_folder_of_a_local_model_has_its_template(tmp_path: Path):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    folder = write_model(tmp_path)
    (folder / "chat_template.jinja").write_text(Path(QWEN).read_text("utf-8"), "utf-8")
    overrides = ["format=chat", "engine.name=local", f"engine.model={folder}", "prompts=1"]
    short = ["growth.max_response_tokens=8", "strategy.options.n=1"]
    result = rollout_sync(config=resolve(preset="chains", overrides=[*overrides, *short]).config)
    (tree,) = result.trees
    assert tree.branch(tree.leaves()[0]).prompt_text.endswith("<|im_end|>\n<|im_start|>assistant\n")


# -- configuration --------------------------------------------------------------------------------------------------


def test_a_template_is_named_by_its_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(TEMPLATES)
    overrides = ["format=chat", "format_options.template=trims.jinja", "format_options.variables.bos_token=<s>"]
    config = resolve(overrides=overrides).config
    assert config.format_options == {"template": str(TEMPLATES / "trims.jinja"), "variables": {"bos_token": "<s>"}}
    assert from_toml(to_toml(config)) == config


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["format=chat", "format_options.sytem=x"], "did you mean 'system'"),
        (["format=chat", "format_options.calls=json"], "allowed are 'hermes', 'xml'"),
        (["format=chat", "format_options.answer_tag=<a>"], "answer_tag = '<a>'"),
        (["format_options.system=x"], "they are of a format that is named"),
    ],
)
def test_options_that_make_no_sense_are_refused(overrides: list[str], message: str):
    with pytest.raises(ConfigError) as caught:
        resolve(overrides=overrides)
    assert message in str(caught.value)
    assert "format_options" in str(caught.value)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"engine": EngineConfig(model="some/name")}, "engine.model = 'some/name' is no folder here"),
        ({"engine": EngineConfig(name="scripted")}, "engine.model = None is no folder here"),
        ({"format_options": {"template": "/no/such.jinja"}}, "'/no/such.jinja' is no folder here"),
        ({"format_options": {"template": str(TEMPLATES)}}, "has neither chat_template.jinja nor tokenizer_config.json"),
        ({"format_options": {"template": str(TEMPLATES / "counts_turns.jinja")}}, "with 1 turns before it"),
    ],
)
def test_a_run_without_a_usable_template_does_not_start(config: Mapping[str, Any], message: str):
    speaker = saying("x")
    with pytest.raises(ConfigError) as caught:
        chatting(speaker, **config)
    assert message in str(caught.value)
    assert not speaker.requests


def test_a_model_is_told_what_a_tool_says_of_itself():
    assert schema_of(FunctionTool(look)) == text_schema("look", "Look at a thing.", parameter="thing")
    assert schema_of(Calculator())["parameters"]["required"] == ["expression"]
    opening = chatting(saying("x"), format_options={"template": QWEN, "system": "Be brief."}).trees[0]
    text = opening.branch(opening.leaves()[0]).prompt_text
    assert text.startswith("<|im_start|>system\nBe brief.\n\n# Tools\n<tools>\n{")
    assert '"description": "Look at a thing."' in text
    assert Problem("p", "make 3 from 1 2").question in text
