"""Presets: published settings by name, one TOML file each, with their sources.

The table `[preset]` describes the file. Everything else in it is ordinary configuration. So is the table `[small]`,
which is applied on top if the built-in model runs.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ramify.core.errors import ConfigError, nearest

FOLDER: Final = Path(__file__).parents[1] / "presets"


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """One published setting."""

    name: str
    title: str
    cites: str
    notes: str = ""
    """What to know before using it."""
    leaves: int
    """Most leaves of a tree; for a search, the most answers that it votes on."""
    assumes: str
    """What engine, tools and task must provide for the preset to be what its name says."""
    cost_a_leaf: float | None = None
    """Decode tokens per leaf, as a share of a chain's, if forks are spread evenly along paths of one length; None = it
    depends."""
    is_exact: bool
    """Whether its forks are predictable, so that `credit = "auto"` uses an exact credit."""
    values: Mapping[str, Any]
    """The configuration values of the preset."""
    small: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Values used instead on the built-in tasks, whose responses have tens of sampled tokens instead of thousands."""


def preset_names() -> tuple[str, ...]:
    """Names of all presets."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))


def preset(name: str) -> Preset:
    """The preset called `name`. Raises `ConfigError` naming the nearest if there is none."""
    known = preset_names()
    if name not in known:
        raise ConfigError(f"unknown preset {name!r}; {nearest(name, known)}")
    values = tomllib.loads((FOLDER / f"{name}.toml").read_text("utf-8"))
    about, small = values.pop("preset"), values.pop("small", {})
    return Preset(name=name, values=values, small=small, **about)
