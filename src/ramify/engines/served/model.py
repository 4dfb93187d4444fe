"""Model: what this machine knows of a model that a server runs, by its tokenizer's folder alone.

No weights are read. Refused: a model without a folder to take the tokenizer from, since ids in and out mean nothing
without one; and a server that runs another model, which would answer as readily.
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
    """What the server calls it, or its folder."""
    codec: Codec
    end_ids: tuple[int, ...]
    """Tokens that end a sequence."""
    context_length: int
    """Positions of the model by its config.json; 0 = there is none."""

    @classmethod
    def of(
        cls, engine: str, model: str | Path | None, *, tokenizer: str | Path | None, served_name: str | None
    ) -> "ServedModel":
        """Read the tokenizer of `tokenizer`, a folder; None = `model` is one. `served_name` is what the server calls
        the model, None = `model`. Raises `ConfigError`."""
        if model is None:
            raise ConfigError(f"engine {engine!r} needs the model its server runs: engine.model = 'name or folder'")
        folder = Path(model if tokenizer is None else tokenizer)
        if not folder.is_dir():
            raise ConfigError(
                f"engine {engine!r} needs the tokenizer of {str(model)!r}, and {str(folder)!r} is no folder; "
                "name one with tokenizer.json: engine.options.tokenizer = 'path/to/folder'"
            )
        config = _config(folder)
        codec, end_ids = _codec(folder, _number(config, "vocab_size"))
        return cls(served_name or str(model), codec, end_ids, _number(config, "max_position_embeddings"))

    def is_among(self, names: Iterable[str]) -> bool:
        """Whether a server that has its model under these names, some of them paths, runs this one."""
        own = {self.name}
        if Path(self.name).is_dir():
            own.add(str(Path(self.name).resolve()))
        return not own.isdisjoint(names)


def _config(folder: Path) -> dict[str, Any]:
    """What config.json says of the model; empty = there is none."""
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


def _codec(folder: Path, vocab_size: int) -> tuple[Codec, tuple[int, ...]]:
    """The folder's tokenizer and the tokens that end a sequence. Without `tokenizers`, plain byte-level files only."""
    try:
        from ramify.engines.tokenizer_json import TokenizerJson
    except ImportError as missing:
        try:
            plain = TokenizerFile(folder / "tokenizer.json")
        except (OSError, ValueError) as error:
            raise ConfigError(f"the tokenizer in {str(folder)!r} needs more: {INSTALL} ({error})") from missing
        return plain, (plain.eos_id,)
    codec = TokenizerJson(folder, vocab_size=vocab_size)
    return codec, codec.end_ids
