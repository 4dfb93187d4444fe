"""Tokenizer JSON: reads any `tokenizer.json` with the `tokenizers` package: text <-> ids for Hugging Face models.

A conversation is encoded piece by piece (template, result, template, …). So whatever a file does only at the start of a
text (a space put in front, a token inserted) is removed. An id's bytes are what it adds to a text: exact for byte-level
and byte-fallback vocabularies; for others, the bytes of a word with the space before it. Invariant: untrusted text
never becomes an added token, special or not, even if the vocabulary spells one; `engines.tokenizer` says which added
tokens are ordinary text.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from ramify.core.errors import ConfigError
from ramify.engines.tokenizer import byte_of_symbol, is_ordinary, without_surrogates

_HEX_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_BYTE_OF_SYMBOL = byte_of_symbol()
_ANYWHERE = {"prepend_scheme": "never", "add_prefix_space": False}
_END_FILES = ("tokenizer_config.json", "special_tokens_map.json", "generation_config.json", "config.json")


class TokenizerJson:
    """The tokenizer of a model folder. Immutable after construction."""

    def __init__(self, folder: str | Path, name: str | None = None, vocab_size: int = 0) -> None:
        """Read `folder`/tokenizer.json; `name` defaults to the folder's.

        `vocab_size` is the model's, if it has more ids than the file: the extra ids have no text. Raises `ConfigError`.
        """
        self._folder = Path(folder).resolve()
        self._name = self._folder.name if name is None else name
        path = self._folder / "tokenizer.json"
        whole = _read(path)
        self._sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        self._trusting = _tokenizer(whole, path)
        added, ordinary = whole.get("added_tokens") or [], _ordinary(whole, self._folder)
        self._wary = _tokenizer({**whole, "added_tokens": ordinary}, path)
        self._framing = {token["id"]: token["content"] for token in added if token not in ordinary}
        # The package numbers added tokens anew when some are left out.
        self._renumbered = {self._wary.token_to_id(token["content"]): token["id"] for token in ordinary}
        self._token_bytes = _token_table(self._trusting, whole, vocab_size)
        self._end_ids = _end_ids(self._folder, self._trusting)

    @property
    def folder(self) -> Path:
        """The folder it was read from."""
        return self._folder

    @property
    def name(self) -> str:
        return self._name

    @property
    def sha256(self) -> str:
        """Hash of the file's bytes."""
        return self._sha256

    @property
    def vocab_size(self) -> int:
        return len(self._token_bytes)

    @property
    def eos_id(self) -> int:
        return self._end_ids[0]

    @property
    def end_ids(self) -> tuple[int, ...]:
        """`eos_id` and the other ids that end a sequence according to the folder."""
        return self._end_ids

    @property
    def is_exact(self) -> bool:
        return True

    def __reduce__(self) -> tuple[type["TokenizerJson"], tuple[Path, str, int]]:
        return TokenizerJson, (self._folder, self._name, self.vocab_size)

    def encode(self, text: str, *, allow_special: bool = False) -> list[int]:
        """Ids of `text`; no token is added. Text that spells an added token becomes one only if `allow_special`."""
        text = without_surrogates(text)
        if allow_special:
            return self._trusting.encode(text, add_special_tokens=False).ids
        return [plain for i in self._untrusted(text) for plain in (self._spelt(i) if i in self._framing else (i,))]

    def decode(self, ids: Iterable[int]) -> str:
        """Text of `ids`, including control tokens; incomplete UTF-8 becomes U+FFFD. Raises `ValueError` for unknown
        ids."""
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes of one id. Raises ValueError for an unknown id."""
        if not 0 <= token_id < len(self._token_bytes):
            raise ValueError(f"token id {token_id!r} is not in 0..{len(self._token_bytes) - 1} of {self._name!r}")
        return self._token_bytes[token_id]

    def _untrusted(self, text: str) -> list[int]:
        """Ids of `text`; an added token is among them only if it is ordinary text or in the vocabulary itself."""
        ids = self._wary.encode(text, add_special_tokens=False).ids
        return [self._renumbered.get(i, i) for i in ids]

    def _spelt(self, token_id: int) -> list[int]:
        """The text of an added token that the vocabulary spells itself, as ordinary ids, encoded one character at a
        time. A single character that has no other id keeps it: a character frames nothing."""
        spelling = self._framing[token_id]
        if len(spelling) == 1:
            return [token_id]
        return [i for character in spelling for i in self._untrusted(character) if len(self._framing.get(i, "")) <= 1]


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ConfigError(
            f"no tokenizer in {str(path.parent)!r}: {path.name} is missing; "
            "transformers writes it: AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
        )
    whole = _table(path)
    if not isinstance(whole.get("model"), dict):
        raise ConfigError(f"{str(path)!r} cannot be read: it has no table 'model'")
    return whole


def _table(path: Path) -> dict[str, Any]:
    """The JSON table in a file."""
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise ConfigError(f"{str(path)!r} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{str(path)!r} cannot be read: it holds no table")
    return content


def _ordinary(whole: Mapping[str, Any], folder: Path) -> list[Mapping[str, Any]]:
    """The added tokens that any text may hold, with the token for text that the vocabulary lacks."""
    path = folder / "tokenizer_config.json"
    config = _table(path) if path.is_file() else {}
    return [
        token
        for token in whole.get("added_tokens") or []
        if is_ordinary(token, config) or token["content"] == _unk(whole)
    ]


def _tokenizer(whole: Mapping[str, Any], path: Path) -> Tokenizer:
    """The tokenizer without truncation, padding, and whatever it does only at the start of a text."""
    parts = {part: _without_start(whole.get(part)) for part in ("normalizer", "pre_tokenizer")}
    piecewise = {**whole, **parts, "post_processor": None, "truncation": None, "padding": None}
    try:
        return Tokenizer.from_str(json.dumps(piecewise))
    except Exception as error:  # boundary: the package raises bare exceptions
        raise ConfigError(f"{str(path)!r} cannot be read: {error}") from error


def _without_start(part: Any) -> Any:
    """A copy of a normalizer or pre-tokenizer that puts no space in front of a text."""
    match part:
        case {"type": "Prepend"}:
            return {"type": "Sequence", "normalizers": []}
        case dict():
            return {key: _ANYWHERE.get(key, _without_start(value)) for key, value in part.items()}
        case list():
            return [_without_start(each) for each in part]
        case _:
            return part


def _token_table(tokenizer: Tokenizer, whole: Mapping[str, Any], vocab_size: int) -> tuple[bytes, ...]:
    """Bytes of every id; ids without a token have empty bytes."""
    kinds = _kinds(whole.get("decoder"))
    added = tokenizer.get_added_tokens_decoder()
    table = [b""] * max(vocab_size, *(i + 1 for i in tokenizer.get_vocab().values()))
    for piece, index in tokenizer.get_vocab().items():
        if index in added:
            table[index] = added[index].content.encode()
        elif "ByteLevel" in kinds:
            table[index] = _byte_level(piece)
        elif kinds & {"ByteFallback", "Metaspace"} or whole["model"].get("byte_fallback"):
            table[index] = _sentence_piece(piece)
        else:
            table[index] = _behind_a_word(tokenizer, piece)
    return tuple(table)


def _kinds(decoder: Mapping[str, Any] | None) -> frozenset[str]:
    """Types of a decoder and of its parts."""
    if not decoder:
        return frozenset()
    return frozenset({decoder["type"]}).union(*(_kinds(part) for part in decoder.get("decoders", ())))


def _byte_level(piece: str) -> bytes:
    if not set(piece) <= _BYTE_OF_SYMBOL.keys():
        return piece.encode()
    return bytes(_BYTE_OF_SYMBOL[symbol] for symbol in piece)


def _sentence_piece(piece: str) -> bytes:
    byte = _HEX_BYTE.fullmatch(piece)
    return bytes.fromhex(byte[1]) if byte else piece.replace("▁", " ").encode()


def _behind_a_word(tokenizer: Tokenizer, piece: str) -> bytes:
    """What a token adds to a text that already has a word."""
    if tokenizer.decoder is None:
        return b" " + piece.encode()
    return tokenizer.decoder.decode(["a", piece]).removeprefix(tokenizer.decoder.decode(["a"])).encode()


def _unk(whole: Mapping[str, Any]) -> str | None:
    """The token for text that the vocabulary lacks. It controls nothing, so any text may contain it."""
    index = whole["model"].get("unk_id")
    return whole["model"].get("unk_token") if index is None else whole["model"]["vocab"][index][0]


def _end_ids(folder: Path, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Ids that end a sequence; the one named in the tokenizer's own files comes first. Raises `ConfigError` if there is
    none."""
    found: list[int] = []
    for name in _END_FILES:
        path = folder / name
        settings = _table(path) if path.is_file() else {}
        token, ids = settings.get("eos_token"), settings.get("eos_token_id")
        content = token.get("content") if isinstance(token, dict) else token
        named = [tokenizer.token_to_id(content)] if content is not None else []
        found += [*named, *(ids if isinstance(ids, list) else [ids])]
    ends = tuple(dict.fromkeys(i for i in found if i is not None))
    if not ends:
        raise ConfigError(
            f"no token ends a sequence in {str(folder)!r}; name one as eos_token in tokenizer_config.json "
            "or as eos_token_id in generation_config.json"
        )
    return ends
