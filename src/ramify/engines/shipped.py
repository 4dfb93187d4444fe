"""Shipped: the models that come with the package, by name, and which of them plays a task.

All have one network and one tokenizer. Any of them can be named where a model is: a name of this table stands for the
model shipped under it, anything else for a folder.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from ramify.core.errors import ConfigError, nearest

DATA: Final = Path(__file__).parents[1] / "data"
MODELS: Final[Mapping[str, Path]] = MappingProxyType({name: DATA / name for name in ("builtin", "herds")})
MODEL_OF_TASK: Final[Mapping[str, str]] = MappingProxyType({"herds": "herds"})
"""Built-in tasks that the model `builtin` has not learnt, and the model that has."""


def folder_of(model: str | Path) -> Path:
    """Where a model is, by its shipped name or its folder. Raises `ConfigError` where there is neither."""
    if isinstance(model, str) and model in MODELS:
        return MODELS[model]
    if not Path(model).is_dir():
        known = nearest(str(model), MODELS)
        raise ConfigError(f"model = {str(model)!r}: no folder, and none of the shipped models; {known}")
    return Path(model)
