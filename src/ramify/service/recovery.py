"""Recovery: rebuilds the state of a killed service from its journal alone.

It keeps only the trees in memory that are in no batch.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from ramify.core.codec import Codec
from ramify.core.errors import StoreError
from ramify.core.growth import GrowthRules
from ramify.core.tree import Tree
from ramify.service.buffer import Buffer
from ramify.store.records import (
    Accepted,
    ClosedRecord,
    Dropped,
    Handed,
    Marked,
    OpenedRecord,
    RunRecord,
    ServiceRecord,
    Updated,
)
from ramify.store.replay import Replayed, feed


@dataclass(slots=True, eq=False)
class Recovered:
    """The state after the records read so far. Mutated by `read`."""

    codec: Codec
    rules: GrowthRules
    buffer: Buffer = field(default_factory=Buffer)
    trees: dict[int, Replayed] = field(default_factory=dict)
    """The trees in the buffer."""
    version: int = 0
    weights: str = ""
    """Where the weights were loaded from; empty = the engine's first weights, or weights that the trainer pushed."""
    source: dict[str, Any] | None = None
    """State of the sample source at the last save; None = no save."""
    marks: list[int] = field(default_factory=list)
    """Rollout ids after which the trainer saved, in order."""
    _given_up: set[int] = field(default_factory=set)
    """Trees that were dropped while they grew; their later records are skipped."""

    def read(self, record: RunRecord) -> None:
        """Apply the next record. Raises `StoreError` for a record that does not follow from those before it."""
        match record:
            case Handed():
                self.buffer.handed(record)
                for index in record.trees:
                    self.trees.pop(index, None)
            case Dropped(tree=tree, reason=reason):
                if tree in self.buffer.growing:
                    self._given_up.add(tree)
                self.buffer.drop(tree, reason)
                self.trees.pop(tree, None)
            case Updated(version=version, source=source):
                self.version, self.weights = version, source
            case Marked(rollout_id=rollout_id, source=source):
                self.source = dict(source)
                self.marks.append(rollout_id)
            case Accepted():
                pass
            case _ if record.tree in self._given_up:
                if isinstance(record, ClosedRecord):
                    self._given_up.remove(record.tree)
            case _:
                feed(self.trees, record, self.codec, rules=self.rules)
                self._count(record)

    def _count(self, record: RunRecord) -> None:
        if isinstance(record, OpenedRecord):
            self.buffer.opened(record.tree, self.trees[record.tree].tree)
        elif isinstance(record, ClosedRecord):
            self.buffer.closed(record.tree)


def trees_again(records: Iterable[RunRecord], wanted: Collection[int], codec: Codec, rules: GrowthRules) -> list[Tree]:
    """Finished trees by their numbers, in the order of `wanted`. Raises `StoreError` if one is not complete in the
    records."""
    trees: dict[int, Replayed] = {}
    for record in records:
        if not isinstance(record, ServiceRecord | Accepted) and record.tree in wanted:
            feed(trees, record, codec, rules=rules)
    if missing := [index for index in wanted if index not in trees or not trees[index].is_closed]:
        raise StoreError(f"trees {missing[:8]} were handed over, but the journal does not have all their records")
    return [trees[index].tree for index in wanted]
