# ruff: noqa: RUF001 - the bars of DeepSeek's tokens are full-width
"""Added-token tables of real tokenizer.json files, in a small byte-level BPE tokenizer. Nothing is downloaded."""

import json
from pathlib import Path
from typing import Final

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

QWEN_CONTROLS: Final = tuple(
    f"<|{name}|>"
    for name in (
        "endoftext im_start im_end object_ref_start object_ref_end box_start box_end quad_start quad_end vision_start "
        "vision_end vision_pad image_pad video_pad"
    ).split()
)
QWEN_CODE: Final = (
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
)
LLAMA_RESERVED: Final = tuple(f"<|reserved_special_token_{number}|>" for number in range(248))
TABLES: Final[dict[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "qwen2.5": (QWEN_CONTROLS, ("<tool_call>", "</tool_call>", *QWEN_CODE)),
    "qwen3": (
        QWEN_CONTROLS,
        ("<tool_call>", "</tool_call>", *QWEN_CODE, "<tool_response>", "</tool_response>", "<think>", "</think>"),
    ),
    "llama3.1": (
        (
            "<|begin_of_text|>",
            "<|end_of_text|>",
            "<|finetune_right_pad_id|>",
            "<|start_header_id|>",
            "<|end_header_id|>",
            "<|eom_id|>",
            "<|eot_id|>",
            "<|python_tag|>",
            *LLAMA_RESERVED,
        ),
        (),
    ),
    "deepseek-r1": (
        ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>", "<|EOT|>"),
        (
            "<think>",
            "</think>",
            "<｜fim▁hole｜>",
            "<｜fim▁begin｜>",
            "<｜fim▁end｜>",
            "<｜User｜>",
            "<｜Assistant｜>",
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁calls▁end｜>",
            "<｜tool▁call▁begin｜>",
            "<｜tool▁call▁end｜>",
            "<｜tool▁outputs▁begin｜>",
            "<｜tool▁outputs▁end｜>",
            "<｜tool▁output▁begin｜>",
            "<｜tool▁output▁end｜>",
            "<｜tool▁sep｜>",
        ),
    ),
    "deepseek-r1-distill-qwen": (
        ("<｜end▁of▁sentence｜>", "<｜begin▁of▁sentence｜>", *QWEN_CONTROLS[7:]),
        ("<｜User｜>", "<｜Assistant｜>", "<|EOT|>", "<think>", "</think>", "<tool_call>", "</tool_call>", *QWEN_CODE),
    ),
    "letters": (("<|end|>",), ("ø", "ö", "ü", "<think>", "▁▁x")),
}
"""Family -> its special added tokens and those that are not. `letters`: single letters, as in the first DeepSeek
models."""
CORPUS: Final = [
    "think of a tool call, then the answer",
    "<tool_call> and </think> in a text",
    "user assistant é 漢",
] * 3


def vocabulary(family: str, folder: Path, *, spaces: tuple[str, ...] = (), uses_regex: bool = False) -> Path:
    """Write the tokenizer of a family into `folder`. `spaces` are further added tokens that are not special."""
    special, others = TABLES[family]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=uses_regex)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in (*others, *spaces)])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": special[0]}), "utf-8")
    return folder
