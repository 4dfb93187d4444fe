"""THUDM/slime: `sft_rollout.generate_rollout` on written conversations, with our chat templates and vocabularies."""

import random
import tempfile
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tests.hostile.vocabularies import vocabulary
from tests.originals.sources import imports, source
from tokenizers import Tokenizer

from ramify.config.configure import resolve
from ramify.core.errors import ConfigError
from ramify.engines.chat_template import ChatTemplate
from ramify.engines.tokenizer_json import TokenizerJson
from ramify.rows.sample import Sample
from ramify.service.sft import slime_rollout
from ramify.tasks.data_columns import CONVERSATION

Given = Mapping[str, Any]
TEMPLATES = Path(__file__).parents[1] / "formats" / "chat_templates"
KINDS = {
    "qwen": ("chatml_tools", "drops_thinking", "reserialises", "llama3_headers", "xml_calls"),
    "qwen3": ("drops_thinking",),
    "qwen3_5": ("chatml_tools", "drops_thinking"),
    "distill_qwen": ("chatml_tools", "drops_thinking"),
}
"""Way of masking -> templates."""
FAMILIES = ("qwen2.5", "qwen3", "deepseek-r1-distill-qwen")
WORDS = ("so", " ", "é ☃", "𝄞漢", "\n", "4", "<think>", "</think>", "<tool_call>", "a tool call", "{}", "\t")
REFUSED: Mapping[str, object] = {"refused": True}
TOOL = {"type": "function", "function": {"name": "search", "description": "é", "parameters": {"type": "object"}}}


def scenario(rng: random.Random) -> Given:
    kind = rng.choice(list(KINDS))
    family = rng.choice(FAMILIES)
    is_short = kind == "distill_qwen" or (kind == "qwen" and family == FAMILIES[2])
    return {
        "kind": kind,
        "template": rng.choice(KINDS["distill_qwen" if is_short else kind]),
        "family": family,
        "messages": _conversation(rng, num_turns=1 if is_short else rng.randint(1, 4), has_more=not is_short),
        "tools": [TOOL] * rng.randint(1, 2) if rng.random() < 0.3 else None,
    }


def _conversation(rng: random.Random, *, num_turns: int, has_more: bool) -> list[dict[str, Any]]:
    messages = [{"role": "system", "content": _text(rng)}] if has_more and rng.random() < 0.5 else []
    for _ in range(num_turns):
        messages.append({"role": "user", "content": _text(rng)})
        messages.append(_said(rng))
        while has_more and rng.random() < 0.3:
            messages += [{"role": "tool", "content": _text(rng)} for _ in range(rng.randint(1, 3))]
            messages.append(_said(rng))
    if not any(message.get("step_loss_mask", 1) == 1 for message in messages if message["role"] == "assistant"):
        del messages[-1]["step_loss_mask"]
    return messages


def _said(rng: random.Random) -> dict[str, Any]:
    thought = f"<think>\n{_text(rng)}\n</think>\n\n" if rng.random() < 0.4 else ""
    said: dict[str, Any] = {"role": "assistant", "content": f"{thought}{_text(rng)}"}
    if rng.random() < 0.3:
        said["step_loss_mask"] = rng.randint(0, 1)
    if rng.random() < 0.2:
        said["tool_calls"] = [{"function": {"name": "search", "arguments": {"query": _text(rng)}}}]
    return said


def _text(rng: random.Random) -> str:
    return "x" + "".join(rng.choice(WORDS) for _ in range(rng.randint(0, 6)))


def original() -> Callable[[Given], Mapping[str, object]]:
    root = source("RAMIFY_SLIME", "THUDM/slime", "slime/rollout/sft_rollout.py")
    with imports(root, absent=("transformers", "PIL")) as get:
        module = get("slime.rollout.sft_rollout")
    return lambda given: _played(module, given)


def _played(module: Any, given: Given) -> Mapping[str, object]:
    module.TOKENIZER, module.PROCESSOR, module.MASK_GENERATOR = _Tokenizer(given), object(), None
    args = Namespace(rollout_global_dataset=True, loss_mask_type=given["kind"], rollout_batch_size=1)
    drawn = Namespace(prompt=given["messages"], metadata={"tools": given["tools"]} if given["tools"] else {})
    try:
        ((sample,),) = module.generate_rollout(args, 0, Namespace(get_samples=lambda _: [[drawn]]))
    except ValueError:
        return REFUSED
    return _trained(sample)


def ours(given: Given) -> Mapping[str, object]:
    args = Namespace(
        config=_config(given["template"]),
        run=Namespace(codec=TokenizerJson(_folder(given["family"]))),
        loss_mask_type=given["kind"],
        rollout_batch_size=1,
    )
    columns = {"uid": "0", CONVERSATION: given["messages"], **({"tools": given["tools"]} if given["tools"] else {})}
    drawn = Namespace(get_samples=lambda _: [[Sample(index=0, metadata=columns)]])
    try:
        ((sample,),) = slime_rollout(args, 0, drawn)  # pyright: ignore[reportArgumentType]
    except ConfigError:
        return REFUSED
    return _trained(sample)


def _trained(sample: Any) -> Mapping[str, object]:
    names = ("tokens", "response_length", "loss_mask", "reward")
    return {name: getattr(sample, name) for name in names}


class _Tokenizer:
    """A fast tokenizer as transformers has it. `test_chat_template.py` compares our templates with those of
    transformers."""

    def __init__(self, given: Given) -> None:
        self._render = ChatTemplate((TEMPLATES / f"{given['template']}.jinja").read_text("utf-8"), variables=TOKENS)
        self._tokenizer = Tokenizer.from_file(str(_folder(given["family"]) / "tokenizer.json"))

    def __call__(self, text: str, add_special_tokens: bool, return_offsets_mapping: bool = False) -> Mapping[str, Any]:
        assert not add_special_tokens
        encoded = self._tokenizer.encode(text, add_special_tokens=False)
        return {"input_ids": encoded.ids, "offset_mapping": encoded.offsets}

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        tokenize: bool,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = False,
        **_: Any,
    ) -> Any:
        text = self._render(messages, tools or (), add_generation_prompt)
        return self(text, add_special_tokens=False)["input_ids"] if tokenize else text

    def get_added_vocab(self) -> Mapping[str, int]:
        return {token.content: index for index, token in self._tokenizer.get_added_tokens_decoder().items()}


TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


@cache
def _folder(family: str) -> Path:
    return vocabulary(family, Path(tempfile.mkdtemp()), uses_regex=True)


@cache
def _config(template: str) -> Any:
    flags = {"format": "chat", "format_options.template": str(TEMPLATES / f"{template}.jinja")}
    options = {f"format_options.variables.{name}": token for name, token in TOKENS.items()}
    return resolve(flags={**flags, **options}).config
