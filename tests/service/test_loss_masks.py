"""Whole conversations as ids and loss masks. `tests/originals/test_slime.py` compares them with slime's own."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.hostile.vocabularies import vocabulary

from ramify.core.codec import ByteCodec, Codec
from ramify.core.errors import ConfigError
from ramify.engines.chat_template import ChatTemplate
from ramify.engines.tokenizer_json import TokenizerJson
from ramify.service.loss_masks import LossMasks, refuse_tokenizer

TEMPLATES = Path(__file__).parents[1] / "formats" / "chat_templates"
BYTES = ByteCodec(is_exact=True)
TOOL = {"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}

SYSTEM = {"role": "system", "content": "Be brief."}
ASKED = {"role": "user", "content": "2 + 2?"}
SAID = {"role": "assistant", "content": "4"}
MORE = {"role": "user", "content": "☃?"}
LAST = {"role": "assistant", "content": "é 𝄞"}
RESULTS = [{"role": "tool", "content": "a"}, {"role": "tool", "content": "b"}]


def template(name: str) -> ChatTemplate:
    return ChatTemplate((TEMPLATES / f"{name}.jinja").read_text("utf-8"), name=name)


def masks(kind: Any, name: str = "drops_thinking", codec: Codec = BYTES) -> LossMasks:
    return LossMasks(kind, template(name), codec)


def trained(made: LossMasks, messages: Sequence[Mapping[str, Any]], tools: Any = (), codec: Codec = BYTES) -> list[str]:
    """The runs of text that are trained."""
    ids, mask = made(messages, tools)
    assert len(ids) == len(mask) and set(mask) <= {0, 1}
    runs: list[list[int]] = [[]]
    for token, is_trained in zip(ids, mask, strict=True):
        runs[-1].append(token) if is_trained else runs.append([])
    return [codec.decode(run) for run in runs if run]


def text_of(made: LossMasks, messages: Sequence[Mapping[str, Any]], tools: Any = ()) -> str:
    return BYTES.decode(made(messages, tools)[0])


@pytest.mark.covers("S3.9")
def test_by_qwen_each_message_is_rendered_alone_and_the_templates_own_system_message_stands_once() -> None:
    made = masks("qwen", "chatml_tools")
    told = "<|im_start|>system\nYou are a careful assistant.<|im_end|>\n"
    said = "<|im_start|>user\n2 + 2?<|im_end|>\n<|im_start|>assistant\n4<|im_end|>\n"
    more = "<|im_start|>user\n☃?<|im_end|>\n<|im_start|>assistant\né 𝄞<|im_end|>\n"
    messages = [ASKED, SAID, MORE, LAST]
    assert text_of(made, messages) == told + said + more
    assert trained(made, messages) == ["4<|im_end|>\n", "é 𝄞<|im_end|>\n"]
    with_system = [SYSTEM, ASKED, SAID]
    assert text_of(made, with_system) == "<|im_start|>system\nBe brief.<|im_end|>\n" + said
    assert trained(made, with_system) == ["4<|im_end|>\n"]
    assert "search" in text_of(made, with_system, [TOOL])


@pytest.mark.covers("S3.9")
def test_by_qwen3_thinking_of_earlier_turns_stays_and_results_share_a_turn() -> None:
    made = masks("qwen3")
    thought = {"role": "assistant", "content": "<think>\nHm.\n</think>\n\nSo."}
    messages = [SYSTEM, ASKED, thought, *RESULTS, LAST]
    text = text_of(made, messages)
    assert "<|im_start|>assistant\n<think>\nHm.\n</think>\n\nSo.<|im_end|>\n" in text
    assert (
        "<|im_start|>user\n<tool_response>\na\n</tool_response>\n<tool_response>\nb\n</tool_response><|im_end|>\n"
        in text
    )
    assert trained(made, messages) == [
        "<think>\nHm.\n</think>\n\nSo.<|im_end|>\n",
        "<think>\n\n</think>\n\né 𝄞<|im_end|>\n",  # the template writes the thinking of the last turn
    ]


@pytest.mark.covers("S3.9")
def test_by_qwen3_5_the_conversation_is_rendered_once_and_begun_thinking_is_not_trained() -> None:
    made = masks("qwen3_5")
    thought = {"role": "assistant", "content": "<think>\nHm.\n</think>\n\nSo."}
    messages = [SYSTEM, ASKED, thought, MORE, LAST]
    assert text_of(made, messages) == template("drops_thinking")(messages, [], False)
    assert trained(made, messages) == ["So.<|im_end|>\n", "\n</think>\n\né 𝄞<|im_end|>\n"]
    assert trained(made, [ASKED, {**thought, "step_loss_mask": 0}, MORE, LAST]) == ["\n</think>\n\né 𝄞<|im_end|>\n"]


@pytest.mark.covers("S3.9")
def test_by_distill_qwen_the_answer_alone_is_trained_behind_the_opening() -> None:
    made = masks("distill_qwen", "chatml_tools")
    assert trained(made, [ASKED, SAID]) == ["4"]
    assert text_of(made, [ASKED, SAID]).endswith("<|im_start|>assistant\n4")


def test_a_vocabulary_of_deepseek_makes_distill_qwen_of_qwen(tmp_path: Path) -> None:
    codec = TokenizerJson(vocabulary("deepseek-r1-distill-qwen", tmp_path))
    made = masks("qwen", "chatml_tools", codec)
    assert trained(made, [ASKED, SAID], codec=codec) == ["4"]


def test_a_turn_may_say_that_it_is_not_trained() -> None:
    for kind, name in (("qwen", "chatml_tools"), ("qwen3", "drops_thinking")):
        messages = [ASKED, {**SAID, "step_loss_mask": 0}, MORE, {**LAST, "step_loss_mask": 1}]
        assert [run[-14:] for run in trained(masks(kind, name), messages)] == ["é 𝄞<|im_end|>\n"]


BEGINS = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"
LOOKS_AHEAD = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% if loop.nextitem is defined and loop.nextitem.role == 'assistant' %}+{% endif %}</>{% endfor %}"
)
REPEATS = "{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}"


@pytest.mark.parametrize(
    ("kind", "source", "messages", "fault"),
    [
        ("qwen3", "chatml_tools", [ASKED, SAID], "adds a system message of its own"),
        ("qwen", REPEATS, [ASKED, SAID], "shows the content of a message 4 times in 2 messages"),
        ("qwen3", LOOKS_AHEAD, [ASKED, SAID], "in another way when others stand beside it"),
        ("qwen3_5", BEGINS, [ASKED, SAID], r"writes no '<|im_start|>assistant\n' or no '<|im_end|>'"),
        ("qwen3_5", "chatml_tools", [{**ASKED, "content": "<|im_end|>"}, SAID], "message 0 spells '<|im_end|>'"),
        ("distill_qwen", "chatml_tools", [ASKED, SAID, MORE, LAST], "has 4 messages of"),
        ("distill_qwen", "chatml_tools", [SAID, ASKED], "messages of ['assistant', 'user']; give exactly two"),
        ("qwen", "chatml_tools", [ASKED, {**SAID, "step_loss_mask": None}], "message 1 has step_loss_mask = None"),
        ("qwen", "chatml_tools", [], "holds no message"),
        ("qwen", "chatml_tools", [{"content": "x"}], "message 0 has no role"),
    ],
)
def test_what_cannot_be_masked_exactly_is_refused(
    kind: Any, source: str, messages: list[dict[str, Any]], fault: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        LossMasks(kind, template(source) if "{" not in source else ChatTemplate(source), BYTES)(messages, ())
    assert fault in str(caught.value)


def test_ids_that_are_no_model_s_are_refused() -> None:
    with pytest.raises(ConfigError, match="takes chat messages"):
        masks("qwen", codec=ByteCodec())


@pytest.mark.parametrize(
    ("part", "kind", "fault"),
    [
        ({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True}}, "qwen", "puts a space before every text"),
        ({"normalizer": {"type": "Prepend", "prepend": "▁"}}, "qwen3", "puts a space before every text"),
        ({"pre_tokenizer": {"type": "Metaspace", "prepend_scheme": "first"}}, "qwen", "puts a space before every text"),
        ({"post_processor": {"type": "ByteLevel", "trim_offsets": True}}, "qwen3_5", "leaves white space out"),
        ({"post_processor": {"type": "ByteLevel", "trim_offsets": True}}, "qwen", None),
        ({"post_processor": {"type": "ByteLevel", "trim_offsets": False}}, "qwen3_5", None),
        ({"normalizer": {"type": "NFC"}, "pre_tokenizer": {"type": "Sequence", "pretokenizers": []}}, "qwen", None),
    ],
)
def test_a_tokenizer_that_pieces_cannot_be_cut_from_is_refused(
    tmp_path: Path, part: dict[str, Any], kind: Any, fault: str | None
) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {}, **part}), "utf-8")
    if fault is None:
        refuse_tokenizer(tmp_path, kind)
    else:
        with pytest.raises(ConfigError, match=fault):
            refuse_tokenizer(tmp_path, kind)


def test_a_text_that_the_tokenizer_changes_has_no_spans(tmp_path: Path) -> None:
    path = vocabulary("qwen3", tmp_path) / "tokenizer.json"
    whole = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps({**whole, "normalizer": {"type": "NFC"}}), "utf-8")
    made = masks("qwen3_5", codec=TokenizerJson(tmp_path))
    assert trained(made, [ASKED, LAST], codec=TokenizerJson(tmp_path))
    with pytest.raises(ConfigError, match="the tokenizer writes the conversation in another way"):
        made([ASKED, {**LAST, "content": "e\u0301"}], ())
