"""Run news: what a journal says besides how trees grow: batches of a service, versions of weights, inputs accepted."""

from dataclasses import dataclass, field
from typing import Final

from ramify.store.records import Accepted, Dropped, Handed, Marked, Record, Updated

NEWS: Final = frozenset({"handed", "dropped", "updated", "marked", "accepted"})
"""Names of these records on disk."""


@dataclass(slots=True)
class RunNews:
    """Records that are no part of a tree's growth, in order. Only `add` mutates it."""

    handed: list[Handed] = field(default_factory=list[Handed])
    dropped: list[Dropped] = field(default_factory=list[Dropped])
    updated: list[Updated] = field(default_factory=list[Updated])
    marked: list[Marked] = field(default_factory=list[Marked])
    accepted: list[Accepted] = field(default_factory=list[Accepted])
    batches: dict[int, Handed] = field(default_factory=dict[int, Handed])
    """Tree -> the batch that it was handed over in."""

    def add(self, record: Record) -> tuple[int, ...]:
        """Take in one record. Returns the trees of which it says something."""
        match record:
            case Handed():
                self.handed.append(record)
                self.batches.update(dict.fromkeys(record.trees, record))
                return record.trees
            case Dropped():
                self.dropped.append(record)
                return (record.tree,)
            case Updated():
                self.updated.append(record)
            case Marked():
                self.marked.append(record)
            case Accepted():
                self.accepted.append(record)
            case _:
                pass
        return ()
