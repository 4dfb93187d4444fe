"""Survivors: which paths of a level grow on, as choices among scored paths and nothing else.

Sources: huggingface/search-and-learn sal/search/beam_search.py; Red-Hat-AI-Innovation-Team/its_hub
its_hub/algorithms/beam_search.py; microsoft/rStar branch rStar-math, rstar_deepthink/agents/beam_search.py.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import cycle, islice
from typing import Literal, TypeVar

from ramify.core.tree import Tree
from ramify.strategies.parts.paths import LevelPath

T = TypeVar("T")
Ties = Literal["first", "later"]
"""Of equal scores the one asked for first comes first, or the last of them (published: the tail of an argsort)."""


def ranked(paths: Sequence[LevelPath], ties: Ties = "first") -> list[LevelPath]:
    """Best first."""
    if ties == "later":
        return sorted(paths, key=lambda path: path.score)[::-1]
    return sorted(paths, key=lambda path: -path.score)


def distinct(tree: Tree, paths: Sequence[LevelPath]) -> list[LevelPath]:
    """The first of all that say the same, where those that they continue say different things already."""
    places = [(path.parent, tree.length(path.tip)) for path in paths]
    counts = Counter(places)
    found: dict[object, LevelPath] = {}
    for path, place in zip(paths, places, strict=True):
        said = tuple(tree.content_key(node) for node in path.nodes) if counts[place] > 1 else ()
        found.setdefault((place, said), path)
    return list(found.values())


def tiled(items: Sequence[T], n: int) -> list[T]:
    """`n` items: all of them in order, again and again; none if there are none."""
    return list(islice(cycle(items), n)) if items else []


def best_with_places(paths: Sequence[LevelPath], width: int) -> tuple[list[LevelPath], list[LevelPath]]:
    """Finished ones among the best `width`, each of which takes a place for good, and live ones for what is left.

    `paths` are best first.
    """
    finished = [path for path in paths[: max(0, width)] if path.is_finished]
    live = [path for path in paths if not path.is_ended]
    return finished, live[: max(0, width - len(finished))]


def all_with_places(paths: Sequence[LevelPath], width: int) -> tuple[list[LevelPath], list[LevelPath]]:
    """All finished ones, each of which takes a place for good, and the best of *all* for what is left (published).

    Places go to the finished and the dead as well; where more finished than there were places, the rest counts from
    the end. `paths` are best first.
    """
    finished = [path for path in paths if path.is_finished]
    return finished, list(paths[: width - len(finished)])
