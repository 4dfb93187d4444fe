"""Writes the built-in tokenizer, the one word list every built-in task shares.

The file is a pure function of the lists below, written with the standard library alone: 256 byte symbols (so any
input encodes), a few digit merges (so "13" can be one id or two, and re-tokenisation drift is real), then control
tokens, tags and words as added tokens, cut leftmost-longest. No normaliser and no regex.

Frozen: ids are positions in these lists and shipped weights depend on them. Anything that changes the file voids the
weights; the test of its hash says so.

`python -m models.make_tokenizer [DIR]` writes DIR (default: the folder of the built-in model).
"""

import json
import sys
from pathlib import Path

from ramify.engines.shipped import DATA
from ramify.engines.tokenizer import ADDED_WORDS
from ramify.tasks.hops_world import FIRST_NAMES, LAST_NAMES, PETS, RELATIONS, TOWNS

CONTROL_TOKENS = ("<|end|>", "<|user|>", "<|assistant|>", "<|system|>", "<|pad|>")
EOS_TOKEN = "<|end|>"
PAD_TOKEN = "<|pad|>"

DIGIT_MERGES = ("1 0", "1 1", "1 2", "1 3", "1 4", "1 5", "2 0", "2 5", "5 0", "10 0")

# Result blocks are one id on each side, exactly as the `arpo` format renders them.
TAGS = (
    " <result>\n", "\n</result>", "<calc>", "</calc>", "<search>", "</search>", "<answer>", "</answer>",
    "<information>", "</information>", "\n\n<information>", "</information>\n\n", "<think>", "</think>",
    "<critique>", "</critique>", "<rewrite>", "</rewrite>", "<grade>", "</grade>", " : ",
)  # fmt: skip


# Each is one id with its leading space; the second list holds those that may also open a turn or a passage.
WORDS = tuple(
    """
    what who where which is was are not the a an of in from to and or but so then because it this that
    's ? ; , . record rumor fact question answer make target number numbers left used exact below above zero
    division by result step call calls error attempt reached right wrong grade score critique rewrite recheck
    try again good bad better worse yes no correct missing instead use with here there found unknown sure form one
    two three first last next
    """.split()
)
OPENING_WORDS = tuple(
    """
    make what who record rumor attempt reached right wrong grade score critique rewrite recheck try good bad yes no
    error: Doc (Title:
    """.split()
)


def _byte_alphabet() -> list[str]:
    """The printable character that stands for each byte value in byte-level BPE files (the GPT-2 table)."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    shifted = iter(range(256, 512))
    return [chr(value if value in printable else next(shifted)) for value in range(256)]


def added_tokens() -> list[str]:
    """All added tokens in id order."""
    names = (*FIRST_NAMES, *LAST_NAMES, *TOWNS, *PETS, *RELATIONS)
    spaced = tuple(f" {word}" for word in (*names, *WORDS))
    tokens = [*CONTROL_TOKENS, *TAGS, *spaced, *OPENING_WORDS]
    if len(set(tokens)) != len(tokens):
        raise ValueError(f"a token is listed twice: {sorted(t for t in tokens if tokens.count(t) > 1)!r}")
    return tokens


def tokenizer_json() -> str:
    """The text of `tokenizer.json` (Hugging Face tokenizers format)."""
    symbols = [*_byte_alphabet(), *(merge.replace(" ", "") for merge in DIGIT_MERGES)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [
        {"id": len(symbols) + index, "content": text, **flags, "special": text in CONTROL_TOKENS}
        for index, text in enumerate(added_tokens())
    ]
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": {symbol: index for index, symbol in enumerate(symbols)},
        "merges": [merge.split() for merge in DIGIT_MERGES],
    }
    whole = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": model,
    }
    return json.dumps(whole, ensure_ascii=True, indent=1) + "\n"


def tokenizer_config_json() -> str:
    """The text of `tokenizer_config.json`, with the chat template of the built-in model."""
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": EOS_TOKEN,
        "pad_token": PAD_TOKEN,
        "clean_up_tokenization_spaces": False,
        ADDED_WORDS: True,
        "model_max_length": 512,
        "chat_template": (
            "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
            "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
        ),
    }
    return json.dumps(config, indent=1) + "\n"


def special_tokens_map_json() -> str:
    """The text of `special_tokens_map.json`."""
    return json.dumps({"eos_token": EOS_TOKEN, "pad_token": PAD_TOKEN}, indent=1) + "\n"


def write_tokenizer(folder: Path) -> None:
    """Write the three tokenizer files into `folder`, which is made when missing."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (
        ("tokenizer.json", tokenizer_json()),
        ("tokenizer_config.json", tokenizer_config_json()),
        ("special_tokens_map.json", special_tokens_map_json()),
    ):
        (folder / name).write_bytes(text.encode())


if __name__ == "__main__":
    write_tokenizer(Path(sys.argv[1]) if len(sys.argv) > 1 else DATA / "builtin")
