"""Tokenizer: a small reader of byte-level BPE `tokenizer.json` files, standard library only.

Converts text <-> ids for the built-in model. The ids equal those of the `tokenizers` package for the files it accepts:
byte-level BPE without normaliser, regex or post-processor, with plain added tokens. Opening any other file raises an
error; no file is read approximately. No token is ever inserted. Invariant: `decode(encode(text)) == text` for every
text without lone surrogates; those become U+FFFD.

Text that a tool, a question or a quoted answer brings never becomes an added token, special or not: in many
vocabularies `<tool_call>` and `<think>` are added tokens that are not special. Such text is spelt in ordinary ids. Two
kinds of added tokens are ordinary text: white space, and the words of a vocabulary whose `tokenizer_config.json` says
`"added_tokens_are_words": true`, as those of the built-in models do.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

_CACHED_TEXTS: Final = 8192  # turns of one episode recur (prompts, results); about 2 MB at worst for short turns
_CACHED_TEXT_CHARS: Final = 512  # longer texts are not kept, so that the cache stays small

ADDED_WORDS: Final = "added_tokens_are_words"
"""Key of `tokenizer_config.json`: whether the added tokens that are not special are words that any text may hold."""

_ADDED_FLAGS = ("single_word", "lstrip", "rstrip", "normalized")
_MODEL_OPTIONS = ("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                  "byte_fallback", "ignore_merges")  # fmt: skip


class TokenizerFile:
    """One `tokenizer.json`, read once. Immutable after construction; safe to share between threads."""

    def __init__(self, path: str | Path, name: str | None = None) -> None:
        """Read `path`; `name` defaults to its folder's name. Raises ValueError for a file this reader cannot match."""
        path = Path(path)
        self._path = path.resolve()
        raw = path.read_bytes()
        whole: dict[str, Any] = json.loads(raw)
        _refuse_other_kinds(whole, path)
        self._name = name if name is not None else path.resolve().parent.name
        self._sha256 = hashlib.sha256(raw).hexdigest()
        self._token_bytes = _token_table(whole)
        self._id_of_byte = _byte_ids(whole["model"]["vocab"])
        self._merges = _merge_table(whole["model"])
        self._added = {token["content"]: int(token["id"]) for token in whole["added_tokens"]}
        config = _config(path.parent)
        plain = [token["content"] for token in whole["added_tokens"] if is_ordinary(token, config)]
        self._splitters = {True: _splitter(self._added), False: _splitter(plain)}
        self._eos_id = _end_id(path.parent, config, self._added)
        self._encode_cached = lru_cache(maxsize=_CACHED_TEXTS)(self._encode)

    @property
    def name(self) -> str:
        """The tokenizer's name in records."""
        return self._name

    @property
    def sha256(self) -> str:
        """Hash of the file's bytes: two tokenizers are the same exactly when these are equal."""
        return self._sha256

    @property
    def vocab_size(self) -> int:
        """Number of ids, including added tokens."""
        return len(self._token_bytes)

    @property
    def eos_id(self) -> int:
        """Id of the token that ends a turn."""
        return self._eos_id

    @property
    def is_exact(self) -> bool:
        """Always true: the model samples these ids itself."""
        return True

    def __reduce__(self) -> tuple[type["TokenizerFile"], tuple[Path, str]]:
        """Pickles the file's path: the tables are large, and the cache is local."""
        return TokenizerFile, (self._path, self._name)

    def encode(self, text: str, *, allow_special: bool = False) -> list[int]:
        """Ids of `text`. Text that spells an added token becomes ordinary ids unless `allow_special` (templates only),
        so that a user's or a tool's text cannot forge one."""
        if len(text) > _CACHED_TEXT_CHARS:
            return list(self._encode(text, allow_special))
        return list(self._encode_cached(text, allow_special))

    def decode(self, ids: Iterable[int]) -> str:
        """Text of `ids`, including control tokens; incomplete UTF-8 becomes U+FFFD. Raises `ValueError` for unknown
        ids."""
        return self.decode_bytes(ids).decode("utf-8", errors="replace")

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """Bytes of `ids`, exact even if a character is split between two ids."""
        return b"".join(map(self.token_bytes, ids))

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes of one id. Raises ValueError for an unknown id."""
        if not 0 <= token_id < len(self._token_bytes):
            raise ValueError(f"token id {token_id!r} is not in 0..{len(self._token_bytes) - 1} of {self._name!r}")
        return self._token_bytes[token_id]

    def _encode(self, text: str, allow_special: bool) -> tuple[int, ...]:
        text, splitter = without_surrogates(text), self._splitters[allow_special]
        if splitter is None:
            return tuple(self._encode_plain(text))
        ids: list[int] = []
        for index, piece in enumerate(splitter.split(text)):
            ids += [self._added[piece]] if index % 2 else self._encode_plain(piece)
        return tuple(ids)

    def _encode_plain(self, text: str) -> list[int]:
        """Byte-level BPE of text without added tokens: the lowest-ranked pair first, left to right."""
        ids = [self._id_of_byte[byte] for byte in text.encode("utf-8")]
        while True:
            ranked = [self._merges[pair] for pair in set(pairwise(ids)) if pair in self._merges]
            if not ranked:
                return ids
            _, left, right, merged = min(ranked)
            ids = _merge_all(ids, left, right, merged)


def is_ordinary(token: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    """Whether any text may become this added token. `config` is the table in `tokenizer_config.json`."""
    is_space = not token["content"].replace("▁", " ").strip()
    return not token["special"] and (is_space or config.get(ADDED_WORDS) is True)


def _splitter(tokens: Iterable[str]) -> re.Pattern[str] | None:
    """Splits a text at the leftmost-longest of `tokens`; None = there are none."""
    # An alternation takes its first branch that matches, so longest first makes it leftmost-longest.
    longest_first = sorted(tokens, key=len, reverse=True)
    return re.compile("(" + "|".join(map(re.escape, longest_first)) + ")") if longest_first else None


def _merge_all(ids: list[int], left: int, right: int, merged: int) -> list[int]:
    out: list[int] = []
    index = 0
    while index < len(ids):
        if ids[index] == left and index + 1 < len(ids) and ids[index + 1] == right:
            out.append(merged)
            index += 2
        else:
            out.append(ids[index])
            index += 1
    return out


def without_surrogates(text: str) -> str:
    """`text` with U+FFFD in place of lone surrogates, which UTF-8 cannot encode."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        # Through UTF-16, so that a proper pair of surrogates becomes its character and only lone ones are replaced.
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def byte_of_symbol() -> dict[str, int]:
    """Printable symbol of byte-level BPE -> the byte that it stands for (the GPT-2 table)."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    shifted = iter(range(256, 512))
    return {chr(value if value in printable else next(shifted)): value for value in range(256)}


def _token_table(whole: dict[str, Any]) -> tuple[bytes, ...]:
    alphabet = byte_of_symbol()
    by_id = {int(index): bytes(alphabet[char] for char in symbol) for symbol, index in whole["model"]["vocab"].items()}
    by_id |= {int(token["id"]): token["content"].encode() for token in whole["added_tokens"]}
    if sorted(by_id) != list(range(len(by_id))):
        raise ValueError(f"ids must run from 0 without gaps, got {len(by_id)} ids up to {max(by_id)}")
    return tuple(by_id[index] for index in range(len(by_id)))


def _byte_ids(vocab: dict[str, int]) -> list[int]:
    missing = [char for char in byte_of_symbol() if char not in vocab]
    if missing:
        raise ValueError(f"the vocabulary lacks {len(missing)} of 256 byte symbols, so it cannot encode every text")
    return [vocab[char] for char in byte_of_symbol()]


def _merge_table(model: dict[str, Any]) -> dict[tuple[int, int], tuple[int, int, int, int]]:
    """(left id, right id) -> (rank, left id, right id, merged id)."""
    vocab: dict[str, int] = model["vocab"]
    table: dict[tuple[int, int], tuple[int, int, int, int]] = {}
    for rank, merge in enumerate(model["merges"]):
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        table[vocab[left], vocab[right]] = (rank, vocab[left], vocab[right], vocab[left + right])
    return table


def _config(folder: Path) -> dict[str, Any]:
    """The table in `tokenizer_config.json`; empty if there is none."""
    path = folder / "tokenizer_config.json"
    return json.loads(path.read_bytes()) if path.exists() else {}


def _end_id(folder: Path, config: Mapping[str, Any], added: dict[str, int]) -> int:
    """Id of the eos token: the one that `tokenizer_config.json` beside the file names, or else `<|end|>`."""
    token: str | dict[str, Any] = config.get("eos_token", "<|end|>")
    content: str = token if isinstance(token, str) else token["content"]
    if content not in added:
        raise ValueError(f"the eos token {content!r} is not an added token of the tokenizer in {folder.name!r}")
    return added[content]


def _refuse_other_kinds(whole: dict[str, Any], path: Path) -> None:
    model: dict[str, Any] = whole.get("model") or {}
    pre: dict[str, Any] = whole.get("pre_tokenizer") or {}
    decoder: dict[str, Any] = whole.get("decoder") or {}
    problems = [
        *(["model.type is not BPE"] if model.get("type") != "BPE" else []),
        *(f"model.{option} is set" for option in _MODEL_OPTIONS if model.get(option)),
        *(f"{part} is set" for part in ("normalizer", "post_processor", "truncation", "padding") if whole.get(part)),
        *(["pre_tokenizer is not ByteLevel"] if pre.get("type") != "ByteLevel" else []),
        *(f"pre_tokenizer.{key} is not false" for key in ("add_prefix_space", "use_regex") if pre.get(key, True)),
        *(["decoder is not ByteLevel"] if decoder.get("type") != "ByteLevel" else []),
        *(
            f"added token {t['content']!r} sets {f}"
            for t in whole.get("added_tokens", [])
            for f in _ADDED_FLAGS
            if t[f]
        ),
    ]
    if problems:
        raise ValueError(f"{path.name} is not a plain byte-level BPE file: {'; '.join(problems[:3])}")
