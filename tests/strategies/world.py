"""The deterministic worlds of `ramify.testing`, under the names that these tests use."""

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
]
