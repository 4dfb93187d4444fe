"""Survivors: which paths of a level continue. Pure choices among scored paths.

Sources: huggingface/search-and-learn sal/search/beam_search.py; Red-Hat-AI-Innovation-Team/its_hub
its_hub/algorithms/beam_search.py; microsoft/rStar branch rStar-math, rstar_deepthink/agents/beam_search.py.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import cycle, islice
from typing import Literal, TypeVar, assert_never

import numpy as np

from ramify.core.tree import Tree
from ramify.strategies.parts.paths import LevelPath

T = TypeVar("T")
Ties = Literal["first", "later", "argsort"]
"""Which of equal scores comes first: the one asked for first, the last one, or the one that numpy's argsort puts last
(published). That sort is not stable: its order depends on the processor and on numpy's version."""
RepeatsBy = Literal["step", "text"]
"""What is the same in steps that repeat each other: all that the model said, or the text before the tag that ended it
(rStar, published)."""


def ranked(paths: Sequence[LevelPath], ties: Ties = "first") -> list[LevelPath]:
    """`paths`, best first."""
    match ties:
        case "first":
            return sorted(paths, key=lambda path: -path.score)
        case "later":
            return sorted(paths, key=lambda path: path.score)[::-1]
        case "argsort":
            return [paths[i] for i in np.argsort([path.score for path in paths])[::-1]]
        case _:
            assert_never(ties)


def distinct(tree: Tree, paths: Sequence[LevelPath], by: RepeatsBy = "step") -> list[LevelPath]:
    """The first of all paths with equal text below one parent. Different parents already have different texts."""
    if by == "text":
        return first_of([(path.parent, untagged(tree, path.nodes)) for path in paths], paths)
    places = [(path.parent, tree.length(path.tip)) for path in paths]
    counts = Counter(places)
    said = [
        tuple(tree.content_key(node) for node in path.nodes) if counts[place] > 1 else ()
        for path, place in zip(paths, places, strict=True)
    ]
    return first_of(list(zip(places, said, strict=True)), paths)


def first_of(keys: Sequence[object], items: Sequence[T]) -> list[T]:
    """The first item of each key, in order."""
    found: dict[object, T] = {}
    for key, item in zip(keys, items, strict=True):
        found.setdefault(key, item)
    return list(found.values())


def untagged(tree: Tree, nodes: Sequence[int]) -> str:
    """What the model said in `nodes`, up to the stop word that ended the last of them."""
    segments = [segment for node in nodes for segment in tree.segments(node) if segment.is_sampled]
    if not segments:
        return ""
    ids = [token for segment in segments for token in segment.ids.tolist()]
    said = tree.codec_of(nodes[-1]).decode(ids)
    matched = segments[-1].finish.matched if segments[-1].finish is not None else None
    return said.rpartition(matched)[0] if matched is not None and matched in said else said


def first_answer(tree: Tree, tips: Sequence[int], word: str) -> list[int]:
    """`tips`, nodes grown at one place; if the model ended some of them at this stop word, the first of those alone
    (rStar, published)."""
    return [tip for tip in tips if _ends_at(tree, tip, word)][:1] or list(tips)


def _ends_at(tree: Tree, node: int, word: str) -> bool:
    """Whether the last generation of `node` ended at this stop word."""
    finishes = [segment.finish for segment in tree.segments(node) if segment.finish is not None]
    return bool(finishes) and finishes[-1].matched == word


def tiled(items: Sequence[T], n: int) -> list[T]:
    """`n` items: all items in order, repeated; empty if there are none."""
    return list(islice(cycle(items), n)) if items else []


def best_with_places(paths: Sequence[LevelPath], width: int) -> tuple[list[LevelPath], list[LevelPath]]:
    """The finished paths among the best `width`, each of which takes a place for good, and the live paths for the
    remaining places.

    `paths` must be sorted best first.
    """
    finished = [path for path in paths[: max(0, width)] if path.is_finished]
    live = [path for path in paths if not path.is_ended]
    return finished, live[: max(0, width - len(finished))]


def all_with_places(paths: Sequence[LevelPath], width: int) -> tuple[list[LevelPath], list[LevelPath]]:
    """All finished paths, each of which takes a place for good, and the best of *all* paths for the remaining places
    (published).

    Finished and dead paths take remaining places too. If more paths finished than there were places, the slice counts
    from the end. `paths` must be sorted best first.
    """
    finished = [path for path in paths if path.is_finished]
    return finished, list(paths[: width - len(finished)])
