"""Buffer: the trees between the source and a batch, each in exactly one state.

`growing` -> `checking` (its rows are made, a filter is asked) -> `ready` -> handed over. A tree can be dropped from any
of these states; drops are counted by reason. There is no other way out. `recovery.py` builds the same buffer from the
journal's records. No asyncio, no files.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ramify.core.errors import ContractError
from ramify.core.tree import Tree
from ramify.rows.sample import Sample
from ramify.store.records import Handed


@dataclass(frozen=True, slots=True, eq=False)
class ReadyGroup:
    """A finished tree and its samples."""

    index: int
    tree: Tree
    samples: list[Sample]
    """Numbered when the group is handed over."""


@dataclass(slots=True, eq=False)
class Buffer:
    """Mutable."""

    num_drawn: int = 0
    """Trees that have begun or are about to; also the number of the next tree."""
    growing: dict[int, Tree | None] = field(default_factory=dict)
    """None = it has no root yet."""
    checking: dict[int, Tree] = field(default_factory=dict)
    ready: dict[int, ReadyGroup] = field(default_factory=dict)
    batches: dict[int, Handed] = field(default_factory=dict)
    """Batches that were handed over, by `rollout_id`."""
    num_samples: int = 0
    """Samples handed over so far."""
    num_handed: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    """Reason -> number of trees."""

    def __len__(self) -> int:
        """Trees that may still be in a batch."""
        return len(self.growing) + len(self.checking) + len(self.ready)

    @property
    def numbers(self) -> frozenset[int]:
        """Numbers of the trees that may still be in a batch."""
        return frozenset([*self.growing, *self.checking, *self.ready])

    def draw(self) -> int:
        """Begin the next tree."""
        index, self.num_drawn = self.num_drawn, self.num_drawn + 1
        self.growing[index] = None
        return index

    def opened(self, index: int, tree: Tree) -> None:
        """A tree has its root."""
        self.growing[index] = tree
        self.num_drawn = max(self.num_drawn, index + 1)

    def closed(self, index: int) -> None:
        """A tree is finished."""
        tree = self.growing.pop(index)
        assert tree is not None
        self.checking[index] = tree

    def passed(self, group: ReadyGroup) -> None:
        """A finished tree may be trained."""
        del self.checking[group.index]
        self.ready[group.index] = group

    def drop(self, index: int, reason: str) -> None:
        """A tree will be in no batch. `reason`: a word, or `word: details`. Counted by the word."""
        for state in (self.growing, self.checking, self.ready):
            state.pop(index, None)
        self.dropped[reason.partition(":")[0]] += 1

    def handed(self, batch: Handed) -> None:
        """A batch was handed over."""
        for index in batch.trees:
            for state in (self.growing, self.checking, self.ready):
                state.pop(index, None)
        self.batches[batch.rollout_id] = batch
        self.num_samples = batch.first_sample + batch.num_samples
        self.num_handed += len(batch.trees)

    def next(self, num_groups: int, *, in_order: bool) -> list[ReadyGroup] | None:
        """The groups of the next batch; None = not ready yet. With `in_order`, they are the trees that began first,
        even if others are finished sooner. Otherwise they are those of the ready trees that began first."""
        if in_order:
            first = sorted([*self.growing, *self.checking, *self.ready])[:num_groups]
        else:
            first = sorted(self.ready)[:num_groups]
        if len(first) < num_groups or not all(index in self.ready for index in first):
            return None
        return [self.ready[index] for index in first]

    def live(self) -> Iterator[tuple[int, Tree]]:
        """Number and tree of every tree that has a root."""
        yield from ((index, tree) for index, tree in self.growing.items() if tree is not None)
        yield from self.checking.items()
        yield from ((index, group.tree) for index, group in self.ready.items())

    def behind(self, floor: int) -> list[int]:
        """Trees that have tokens of weights older than version `floor`."""
        return sorted(index for index, tree in self.live() if min(versions_of(tree), default=floor) < floor)

    def counts(self) -> dict[str, int]:
        """How many trees are in each state, and how many were dropped for each reason."""
        return {
            "growing": len(self.growing),
            "checking": len(self.checking),
            "ready": len(self.ready),
            "handed": self.num_handed,
            **{f"dropped/{reason}": num for reason, num in sorted(self.dropped.items())},
        }


def versions_of(tree: Tree) -> set[int]:
    """Versions of the weights that sampled the policy's tokens; empty = no token has a version."""
    return {
        segment.version
        for node in tree.subtree()
        if tree.role(node) == "policy"
        for segment in tree.segments(node)
        if segment.version is not None
    }


def chosen(buffer: Buffer, picked: Any, num_groups: int, *, fault: Callable[[str], ContractError]) -> list[ReadyGroup]:
    """The groups that a buffer filter picked, by their `group_index`. Raises `fault` for an invalid result."""
    is_nested = isinstance(picked, Sequence) and all(isinstance(group, Sequence) and len(group) for group in picked)
    if not is_nested:
        raise fault(f"returned {picked!r:.200}; it must return groups of samples")
    indices: list[Any] = [getattr(group[0], "group_index", None) for group in picked]
    if len(set(indices)) != len(indices) or not all(index in buffer.ready for index in indices):
        raise fault(
            f"returned the groups {indices}; it must return different ones of the ready groups {sorted(buffer.ready)}"
        )
    if len(indices) != num_groups:
        raise fault(f"returned {len(indices)} groups; it must return {num_groups}")
    return [buffer.ready[index] for index in indices]
