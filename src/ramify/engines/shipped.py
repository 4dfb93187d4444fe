"""Shipped: the models that come with the package, by name, and which model each built-in task uses.

They share one network and one tokenizer. Wherever a model is configured, a name of this table means the shipped model;
any other text means a folder.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from ramify.core.errors import ConfigError, nearest
from ramify.engines.tokenizer import TokenizerFile

DATA: Final = Path(__file__).parents[1] / "data"
MODELS: Final[Mapping[str, Path]] = MappingProxyType({name: DATA / name for name in ("builtin", "herds")})
MODEL_OF_TASK: Final[Mapping[str, str]] = MappingProxyType({"herds": "herds"})
"""Built-in tasks that the model `builtin` has not learnt -> the model that has."""


def unknown_words(question: str) -> list[str] | None:
    """The words of a question that the shipped models were not trained on; None = they know all of it.

    A word that they know is made of longer tokens; one that they do not is spelt letter by letter. An empty list: the
    question has no word at all.
    """
    codec = TokenizerFile(MODELS["builtin"] / "tokenizer.json")
    words = re.findall(r"[^\W\d_]{2,}", question)
    unknown = [word for word in words if all(len(codec.encode(form)) >= len(word) for form in (word, f" {word}"))]
    return unknown if unknown or not words else None


def folder_of(model: str | Path) -> Path:
    """The folder of a model, from its shipped name or its folder. Raises `ConfigError` if it is neither."""
    if isinstance(model, str) and model in MODELS:
        return MODELS[model]
    if not Path(model).is_dir():
        known = nearest(str(model), MODELS)
        raise ConfigError(f"model = {str(model)!r}: no folder, and none of the shipped models; {known}")
    return Path(model)
