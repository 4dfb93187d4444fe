"""Against: a run held against the log its engine kept: every id fed and every id sampled, turn by turn.

A turn is one generation of the log. The run says of each sampled segment by which request it was made (tree and seed),
so its place in that generation follows from its position on the branch alone; splits and forks divide generations and
change nothing. What the log alone holds is no difference: a kill loses turns, and a turn tried again is there twice.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from ramify.core.segment import Ids_T
from ramify.core.tree import Tree
from ramify.engines.logged import Entry

Key = tuple[int, int]
"""Index of the tree, seed of the request."""


@dataclass(slots=True)
class Compared:
    """What was compared, and every difference in words. Mutated by `compare_tree` only."""

    turns: int = 0
    ids_fed: int = 0
    ids_sampled: int = 0
    only_in_log: int = 0
    """Generations that the run does not hold: lost with a kill, cancelled or given up."""
    differences: list[str] = field(default_factory=list)


class Log:
    """The generations of a log by tree and seed."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._entries: dict[Key, list[tuple[Ids_T, Ids_T]]] = {}
        for entry in entries:
            ids = np.array(entry.fed, np.int32), np.array(entry.sampled, np.int32)
            self._entries.setdefault(_key(entry.request_id), []).append(ids)
        self._held: set[Key] = set()

    def compare(self, tree: Tree, index: int, found: Compared) -> None:
        """Hold one tree against the log. Mutates `found`."""
        num_seen: Counter[Key] = Counter()
        for node in tree.subtree():
            for start, ids, seed in _sampled(tree, node):
                key = index, seed
                fault = self._fault(key, tree.branch(node).ids[:start], ids)
                if fault is not None:
                    found.differences.append(f"tree {index}, node {node}, token {start}: {fault}")
                num_seen[key] += len(ids)
        for key, number in num_seen.items():
            self._count(key, number, found)

    def finish(self, found: Compared) -> Compared:
        """Count what only the log holds. Mutates and returns `found`."""
        found.only_in_log = sum(len(made) for key, made in self._entries.items() if key not in self._held)
        return found

    def _fault(self, key: Key, before: Ids_T, ids: Ids_T) -> str | None:
        """What is wrong with a segment that follows `before`; None = a generation of the log holds it at its place."""
        made = self._entries.get(key)
        if made is None:
            return f"the log has no request with seed {key[1]:016x}"
        if any(_holds(fed, sampled, before, ids) for fed, sampled in made):
            return None
        fed, sampled = made[-1]
        offset = len(before) - len(fed)
        if not np.array_equal(fed, before[: len(fed)]):
            return f"fed {_first_difference(fed, before[: len(fed)])}"
        return f"sampled {_first_difference(sampled[offset : offset + len(ids)], ids)}"

    def _count(self, key: Key, number: int, found: Compared) -> None:
        self._held.add(key)
        made = self._entries.get(key)
        if made is None:
            return
        fed, sampled = made[-1]
        found.turns += 1
        found.ids_fed += len(fed)
        found.ids_sampled += number
        if all(len(generation) != number for _, generation in made):
            tree, seed = key
            found.differences.append(
                f"tree {tree}: request {seed:016x} sampled {len(sampled)} ids, of which the run holds {number}"
            )


def _holds(fed: Ids_T, sampled: Ids_T, before: Ids_T, ids: Ids_T) -> bool:
    """Whether a generation was fed the beginning of `before`, and sampled its end and then `ids`."""
    if len(fed) > len(before):
        return False
    own = np.concatenate([before[len(fed) :], ids])
    return bool(np.array_equal(fed, before[: len(fed)]) and np.array_equal(sampled[: len(own)], own))


def _sampled(tree: Tree, node: int) -> Iterator[tuple[int, Ids_T, int]]:
    """Position, ids and seed of the sampled segments of a node; those of one request as one, however they are cut."""
    position = tree.length(node) - sum(len(segment) for segment in tree.segments(node))
    for segment in tree.segments(node):
        if segment.is_sampled and segment.seed is not None and len(segment):
            yield position, segment.ids, segment.seed
        position += len(segment)


def _first_difference(one: Ids_T, other: Ids_T) -> str:
    size = min(len(one), len(other))
    places = np.flatnonzero(one[:size] != other[:size])
    at = int(places[0]) if len(places) else size
    log, run = ("the end" if at >= len(ids) else str(int(ids[at])) for ids in (one, other))
    return f"id {at}: the log has {log}, the run {run}"


def _key(request_id: str) -> Key:
    tree, _, seed = request_id.partition("/")
    try:
        return int(tree), int(seed, 16)
    except ValueError:
        return -1, hash(request_id)
