"""Presets: published settings by name, one TOML file each, with what they cite.

The table `[preset]` describes the file; everything else in it is configuration like any other, and so is the table
`[small]`, which is put on top where the built-in model runs.
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
    """What is worth knowing before using it."""
    leaves: int
    """Most leaves of a tree; of a search, most answers that it votes on."""
    assumes: str
    """What it needs of engine, tools and task to be worth its name."""
    cost_a_leaf: float | None = None
    """Decode tokens a leaf, in chains, where forks fall evenly along paths of one length; None = it depends."""
    is_exact: bool
    """Whether its forks are predictable, so that `credit = "auto"` takes an exact credit."""
    values: Mapping[str, Any]
    """The configuration it stands for."""
    small: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What is used instead on the built-in tasks, whose responses have tens of sampled tokens, not thousands."""


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
