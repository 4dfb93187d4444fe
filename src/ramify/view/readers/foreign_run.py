"""Foreign run: what a file of another project shows in the viewer. Its trees are ordinary trees of `core`.

Whoever reads a file fills one; nothing is ever resumed, exported or trained from it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ramify.core.tree import Tree


@dataclass(frozen=True, slots=True)
class ForeignTree:
    """All samples of one prompt."""

    number: int
    """Place among the trees of the run, in the order in which the file begins them."""
    tree: Tree
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What the file says of this prompt and no node can hold, as plain JSON values."""


@dataclass(frozen=True, slots=True)
class ForeignRun:
    """A file of another project, or a folder of its files."""

    title: str
    """The project, and what it calls the run."""
    trees: Sequence[ForeignTree]
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What the file says of all its trees. `skipped` = what could not be read because it is still being written."""
