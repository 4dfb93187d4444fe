"""Presets: published settings by name, one TOML file each, with their sources.

The table `[preset]` describes the file. Everything else in it is ordinary configuration. So is the table `[small]`,
which is applied on top if the built-in model runs.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal

from ramify.config.decode import decode
from ramify.core.errors import ConfigError, nearest

FOLDER: Final = Path(__file__).parents[1] / "presets"
MAX_SUMMARY: Final = 60
"""The most characters of a summary."""

Kind = Literal["train", "sample", "refine", "steps", "as_published"]
"""What a preset is for."""
KINDS: Final[Mapping[Kind, str]] = MappingProxyType(
    {
        "train": "rollouts for a trainer",
        "sample": "answers by independent samples, then a vote or a judge",
        "refine": "answers by rewriting whole answers",
        "steps": "answers by a search over steps",
        "as_published": "as the published code runs, to compare with a paper",
    }
)
"""Kind -> what its presets are for, in the order of a list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """One published setting."""

    name: str
    kind: Kind
    summary: str
    """What it does, in one line of at most `MAX_SUMMARY` characters."""
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

    def __post_init__(self) -> None:
        if not self.summary.strip() or "\n" in self.summary or len(self.summary) > MAX_SUMMARY:
            raise ConfigError(
                f"summary = {self.summary!r} has {len(self.summary)} characters; write one line of 1 to {MAX_SUMMARY} "
                "characters, and the rest into notes"
            )


def preset_names() -> tuple[str, ...]:
    """Names of all presets."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))


def preset(name: str) -> Preset:
    """The preset called `name`. Raises `ConfigError` naming the nearest if there is none."""
    known = preset_names()
    if name not in known:
        raise ConfigError(f"unknown preset {name!r}; {nearest(name, known)}")
    return read_preset(FOLDER / f"{name}.toml")


def read_preset(path: Path) -> Preset:
    """The preset of a TOML file. Raises `ConfigError` if its table `[preset]` does not describe it."""
    values = tomllib.loads(path.read_text("utf-8"))
    about, small = values.pop("preset", {}), values.pop("small", {})
    needed = {each.name for each in fields(Preset) if each.default is each.default_factory is MISSING}
    if missing := sorted(needed - {"name", "values", *about}):
        raise ConfigError(f"preset {path.stem!r}: [preset] has no {', '.join(missing)}; add what is missing")
    found, faults = decode(Preset, {**about, "name": path.stem, "values": values, "small": small})
    if found is None:
        raise ConfigError(
            f"preset {path.stem!r}: " + "; ".join(f"{each.path} {each.message}".strip() for each in faults)
        )
    return found
