"""Model: what this machine knows of a model that a server runs, from its tokenizer's folder alone.

No weights are read. It rejects a model without a tokenizer folder, because ids mean nothing without a tokenizer.
`is_among` detects a server that runs another model, which would answer all the same.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ramify.core.codec import Codec
from ramify.core.errors import ConfigError
from ramify.engines.tokenizer import TokenizerFile

INSTALL: Final = "pip install 'ramify[http]'"


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model by name or folder, and its tokenizer."""

    name: str
    """The server's name of it, or its folder."""
    codec: Codec
    end_ids: tuple[int, ...]
    """Tokens that end a sequence."""
    context_length: int
    """The model's positions in its config.json; 0 = not given."""

    @classmethod
    def of(
        cls, engine: str, model: str | Path | None, *, tokenizer: str | Path | None, served_name: str | None
    ) -> "ServedModel":
        """Read the tokenizer in the folder `tokenizer`; None = the folder `model`. `served_name` is the server's name
        of the model; None = `model`. Raises `ConfigError`."""
        if model is None:
            raise ConfigError(f"engine {engine!r} needs the model its server runs: engine.model = 'name or folder'")
        folder = Path(model if tokenizer is None else tokenizer)
        if not folder.is_dir():
            raise ConfigError(
                f"engine {engine!r} needs the tokenizer of {str(model)!r}, and {str(folder)!r} is no folder; "
                "name one with tokenizer.json: engine.options.tokenizer = 'path/to/folder'"
            )
        config = _config(folder)
        codec, end_ids = codec_in(folder)
        return cls(served_name or str(model), codec, end_ids, _number(config, "max_position_embeddings"))

    def is_among(self, names: Iterable[str]) -> bool:
        """Whether a server that lists its model under these names, some of them paths, runs this model."""
        own = {self.name}
        if Path(self.name).is_dir():
            own.add(str(Path(self.name).resolve()))
        return not own.isdisjoint(names)


def _config(folder: Path) -> dict[str, Any]:
    """The model's part of config.json; empty = no such file."""
    path = folder / "config.json"
    if not path.is_file():
        return {}
    try:
        config = json.loads(path.read_bytes())
    except ValueError as error:
        raise ConfigError(f"{str(path)!r} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise ConfigError(f"{str(path)!r} cannot be read: it holds no table")
    text = config.get("text_config")
    return text if isinstance(text, dict) else config


def _number(config: dict[str, Any], key: str) -> int:
    value = config.get(key)
    return value if isinstance(value, int) else 0


def codec_in(folder: Path) -> tuple[Codec, tuple[int, ...]]:
    """The folder's tokenizer and the tokens that end a sequence. Without the package `tokenizers`, only plain
    byte-level files work."""
    try:
        from ramify.engines.tokenizer_json import TokenizerJson
    except ImportError as missing:
        try:
            plain = TokenizerFile(folder / "tokenizer.json")
        except (OSError, ValueError) as error:
            raise ConfigError(f"the tokenizer in {str(folder)!r} needs more: {INSTALL} ({error})") from missing
        return plain, (plain.eos_id,)
    codec = TokenizerJson(folder, vocab_size=_number(_config(folder), "vocab_size"))
    return codec, codec.end_ids
