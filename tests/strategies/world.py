"""The deterministic worlds of `ramify.testing`, under the names that these tests use."""

from dataclasses import fields, replace
from typing import Any

from ramify.testing.journeys import Journey, journey
from ramify.testing.journeys import canonical as shape
from ramify.testing.worlds import (
    CODEC,
    QUOTING,
    ListDraws,
    SeededWorld,
    bare_tree,
    path_text,
    sampled_step,
    seeded_values,
    text_step,
)

__all__ = [
    "CODEC",
    "QUOTING",
    "Journey",
    "ListDraws",
    "SeededWorld",
    "bare_tree",
    "journey",
    "path_text",
    "sampled_step",
    "seeded_values",
    "shape",
    "text_step",
    "varied",
]


def varied(config: Any, **options: Any) -> Any:
    """`config` with other options; switches of its table `published` may stand beside the others."""
    switches = {field.name for field in fields(config.published)} & set(options)
    published = replace(config.published, **{name: options.pop(name) for name in switches})
    return replace(config, published=published, **options)
