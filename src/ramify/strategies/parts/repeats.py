"""Repeats: how many rollouts a prompt gets, read from either of two settings layouts (requirement S1.1).

Current settings have one number, `n`: the size of the group. Search-R1 has two: `n_agent` copies of every prompt, made
outside the generation loop, and `n` completions of each copy, made inside the engine. There all n_agent * n rows of a
prompt are one group; here they are one tree with that many chains.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ramify.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Repeats:
    """The size of a group, and how it was read from the settings."""

    n: int
    reading: str
    """Text for people, printed and stored with the run."""


def repeats(settings: Mapping[str, object], *, group: int | None = None) -> Repeats:
    """Read `n` and `n_agent` from `settings`. Other keys are ignored; a missing number counts as 1.

    `group`: a size requested elsewhere. Raises `ConfigError` if neither number is there, if one is not a positive
    integer, or if their product differs from `group`.
    """
    if "n" not in settings and "n_agent" not in settings:
        raise ConfigError(f"no number of rollouts a prompt: 'n' or 'n_agent' is needed, got {sorted(settings)}")
    outside, inside = _number(settings, "n_agent"), _number(settings, "n")
    size = outside * inside
    if "n_agent" in settings:
        reading = f"n_agent x n = {outside} x {inside}: one group of {size}"
    else:
        reading = f"n = {inside}: one group of {size}"
    if group is not None and group != size:
        raise ConfigError(f"a group of {group} was asked for, but {reading}; keep one of the two")
    return Repeats(size, reading)


def _number(settings: Mapping[str, object], name: str) -> int:
    value = settings.get(name, 1)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{name} = {value!r}: a number of rollouts is an integer of at least 1")
    return value
