"""Log check: compares a run with the log of its engine: every id fed and every id sampled, turn by turn.

A turn is one generation of the log. Each sampled token of the run names the request that made it (tree and seed). Forks
and changes of version divide generations, so the parts of a turn are joined first. Then one generation of the log must
equal the turn from its first id to its last: the fed ids are those of the path before it, and the sampled ids are on
the tree once and in order, with nothing between them.

Generations that only the log holds are not differences: a kill loses turns, and the log holds every retry. Steps of
commands without an outcome are on no tree and are not compared.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ramify.core.segment import Ids_T, token_array
from ramify.core.tree import Tree
from ramify.engines.logged import Entry
from ramify.runner.sampler import request_id


@dataclass(slots=True)
class LogComparison:
    """Counts of what was compared, and every difference in words. Only `EngineLog` mutates it."""

    turns: int = 0
    ids_fed: int = 0
    ids_sampled: int = 0
    only_in_log: int = 0
    """Generations that the run does not have: lost in a kill, aborted, cancelled or given up."""
    differences: list[str] = field(default_factory=list)


class TurnPart(NamedTuple):
    """Tokens of one turn on one node: positions on its branch."""

    start: int
    end: int
    node: int


class EngineLog:
    """The generations of a log, by request id."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._made: dict[str, list[tuple[Ids_T, Ids_T]]] = {}
        self._num_unheld = 0
        for entry in entries:
            if not entry.sampled:
                continue  # It ended before its first token, so no run has this turn.
            self._made.setdefault(entry.request_id, []).append((token_array(entry.fed), token_array(entry.sampled)))
            self._num_unheld += 1

    def compare(self, tree: Tree, index: int, found: LogComparison) -> None:
        """Compare one tree with the log. Mutates `found`."""
        turns: dict[int, list[TurnPart]] = {}
        for part, seed in _sampled(tree):
            if seed is None:
                at = f"tree {index}, node {part.node}"
                found.differences.append(f"{at}: {part.end - part.start} sampled ids without a request in the run")
            else:
                turns.setdefault(seed, []).append(part)
        for seed, parts in turns.items():
            fault = self._fault(tree, request_id(str(index), seed), sorted(parts), found)
            if fault is not None:
                found.differences.append(f"tree {index}, node {parts[0].node}, request {seed:016x}: {fault}")

    def finish(self, found: LogComparison) -> LogComparison:
        """Count the generations that only the log has. Mutates and returns `found`."""
        found.only_in_log = self._num_unheld
        return found

    def _fault(self, tree: Tree, request: str, parts: Sequence[TurnPart], found: LogComparison) -> str | None:
        """What is wrong with a turn; None = the log has it. Mutates `found`."""
        start, (_, end, last) = parts[0].start, parts[-1]
        path = tree.branch(last).ids[:end]
        fed, sampled = path[:start], path[start:]
        made = self._made.get(request, [])
        self._num_unheld -= bool(made)
        found.turns += 1
        found.ids_fed += len(fed)
        found.ids_sampled += len(sampled)
        if not {part.node for part in parts} <= set(tree.context(last)):
            return "its tokens are on several paths"
        if any(one.end != other.start for one, other in pairwise(parts)):
            return f"its tokens do not follow each other: they are at {', '.join(f'{p.start}..{p.end}' for p in parts)}"
        if not made:
            return "the log has no request with this seed"
        if any(np.array_equal(fed, f) and np.array_equal(sampled, s) for f, s in made):
            return None
        in_log = made[-1]
        if not np.array_equal(fed, in_log[0]):
            return f"fed {_first_difference(in_log[0], fed)}"
        return f"sampled {_first_difference(in_log[1], sampled)}"


def _sampled(tree: Tree) -> Iterator[tuple[TurnPart, int | None]]:
    """Every sampled segment of a tree, and the seed of the request that made it."""
    for node in tree.subtree():
        segments = tree.segments(node)
        start = tree.length(node) - sum(map(len, segments))
        for segment in segments:
            if segment.is_sampled:
                yield TurnPart(start, start + len(segment), node), segment.seed
            start += len(segment)


def _first_difference(one: Ids_T, other: Ids_T) -> str:
    size = min(len(one), len(other))
    places = np.flatnonzero(one[:size] != other[:size])
    at = int(places[0]) if len(places) else size
    log, run = ("the end" if at >= len(ids) else str(int(ids[at])) for ids in (one, other))
    return f"id {at}: the log has {log}, the run {run}"
