"""Replay: trees as a pure function of their records. No engine, no strategy, no clock.

It feeds `Growth`, the only writer of a tree, with the same events in the same order as the live driver did. Records of
different trees may be interleaved in any way, but the records of one tree must be in order. Records that belong to no
tree change nothing. Raises `StoreError` on a record that does not follow from the ones before it.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import assert_never

from ramify.core.codec import Codec
from ramify.core.errors import ContractError, StoreError
from ramify.core.growth import Asked, Ended, Growth, GrowthRules, Recorded
from ramify.core.tree import Step, Tree
from ramify.store.recording import candidates_of, commands_of, ending_of, problem_of, prompt_of, step_of
from ramify.store.records import (
    Accepted,
    AskedRecord,
    ClosedRecord,
    GrownRecord,
    OpenedRecord,
    OutcomeRecord,
    RunRecord,
    ServiceRecord,
)


@dataclass(slots=True)
class Replayed:
    """One tree in the state after its records."""

    index: int
    growth: Growth
    """Its flights are the commands without an outcome, with the steps they had grown."""
    events: list[Recorded] = field(default_factory=list)
    """What the strategy asked and was told, in order. From it, a fresh driver reaches the same state."""
    sizes: list[int] = field(default_factory=list[int])
    """Number of nodes behind each of the events."""
    steps: dict[int, list[Step]] = field(default_factory=dict)
    """Every step by its command. Emptied when the tree closes, because nobody continues a closed tree."""
    shut: ClosedRecord | None = None
    """The record that closed the tree; None = it was still growing."""

    @property
    def tree(self) -> Tree:
        return self.growth.tree

    @property
    def is_closed(self) -> bool:
        return self.shut is not None

    @property
    def reason(self) -> str:
        """Why the tree closed: `"done"`, a stop word or the text of an error. Empty while it is open."""
        return self.shut.reason if self.shut else ""

    def feed(self, record: AskedRecord | GrownRecord | OutcomeRecord | ClosedRecord) -> None:
        """Apply the next record of this tree."""
        if self.shut is not None:
            raise StoreError(f"tree {self.index}: a record follows its closing: {record!r:.200}")
        try:
            self._apply(record)
        except ContractError as error:
            raise StoreError(f"tree {self.index}: its records cannot be replayed: {error}") from error

    def _apply(self, record: AskedRecord | GrownRecord | OutcomeRecord | ClosedRecord) -> None:
        match record:
            case AskedRecord():
                self._ask(record)
            case GrownRecord():
                self._grow(record)
            case OutcomeRecord():
                self._end(record)
            case ClosedRecord():
                self._close(record)
            case _:
                assert_never(record)

    def _ask(self, record: AskedRecord) -> None:
        self._expect("command", record.first_id, self.growth.num_asked)
        commands = commands_of(record)
        for command in commands:
            self.growth.ask(command)
        self._happened(Asked(record.first_id, commands))

    def _grow(self, record: GrownRecord) -> None:
        self._expect(f"step of command {record.command_id}", record.number, self._num_steps(record.command_id))
        step = step_of(record)
        self.growth.grow(record.command_id, step)
        self.steps.setdefault(record.command_id, []).append(step)

    def _end(self, record: OutcomeRecord) -> None:
        num_steps = self._num_steps(record.command_id)
        self._expect(f"number of steps of command {record.command_id}", record.num_steps, num_steps)
        ending = ending_of(record)
        self.growth.end(record.command_id, ending)
        self._happened(Ended(record.command_id, ending))

    def _close(self, record: ClosedRecord) -> None:
        if record.reason == "done":
            self._expect("number of commands in flight", 0, len(self.growth.flights))
            self._expect("number of leaves", record.num_leaves, self.tree.num_leaves)
        self.shut = record
        self.steps.clear()
        self.tree.is_broken = record.reason != "done"
        self.tree.candidates = candidates_of(record)
        self.tree.trim()

    def _happened(self, event: Recorded) -> None:
        self.events.append(event)
        self.sizes.append(len(self.tree))

    def _num_steps(self, command_id: int) -> int:
        """Number of steps that a command in flight has grown so far."""
        flight = self.growth.flights.get(command_id)
        if flight is None:
            raise ContractError(f"command {command_id} is not in flight")
        return len(flight.steps)

    def _expect(self, what: str, recorded: int, replayed: int) -> None:
        if recorded != replayed:
            raise StoreError(
                f"tree {self.index}: the record says {what} {recorded}, and the replay comes to {replayed}"
            )


def replay(records: Iterable[RunRecord], codec: Codec, rules: GrowthRules) -> dict[int, Replayed]:
    """Every tree by its index. `rules` are the rules of the live run."""
    trees: dict[int, Replayed] = {}
    for record in marking(records, trees):
        feed(trees, record, codec, rules=rules)
    return trees


def replay_each(records: Iterable[RunRecord], codec: Codec, rules: GrowthRules) -> Iterator[Replayed]:
    """Yield every tree as soon as its record closes it, then those still growing. Only open trees are in memory."""
    trees: dict[int, Replayed] = {}
    for record in marking(records, trees):
        feed(trees, record, codec, rules=rules)
        if isinstance(record, ClosedRecord):
            yield trees.pop(record.tree)
    yield from trees.values()


def marking(records: Iterable[RunRecord], trees: Mapping[int, Replayed]) -> Iterator[RunRecord]:
    """The records. Every tree that grows after inputs were accepted as they had become says so. Mutates `trees`."""
    caveats: tuple[str, ...] = ()
    for record in records:
        yield record
        if isinstance(record, Accepted):
            caveats += (f"the run went on with other {', '.join(record.what)} than before, as was accepted",)
            for tree in trees.values():
                if not tree.is_closed:
                    tree.tree.caveats += caveats[-1:]
        elif isinstance(record, OpenedRecord):
            trees[record.tree].tree.caveats = caveats


def feed(trees: dict[int, Replayed], record: RunRecord, codec: Codec, *, rules: GrowthRules) -> None:
    """Apply the next record. Mutates `trees`. A record that belongs to no tree changes nothing."""
    if isinstance(record, ServiceRecord | Accepted):
        return
    if isinstance(record, OpenedRecord):
        if record.tree in trees:
            raise StoreError(f"tree {record.tree} was opened twice")
        trees[record.tree] = Replayed(record.tree, _planted(record, codec, rules))
    elif record.tree in trees:
        trees[record.tree].feed(record)
    else:
        raise StoreError(
            f"the journal has a record of tree {record.tree}, which was never opened or is closed: {record!r:.200}"
        )


def _planted(record: OpenedRecord, codec: Codec, rules: GrowthRules) -> Growth:
    """A tree with only its root."""
    if record.codec_sha256 != codec.sha256:
        raise StoreError(
            f"tree {record.tree} was grown with the tokenizer {record.codec_sha256[:12]}… (SHA-256), and this run has "
            f"{codec.name} {codec.sha256[:12]}…; use the model and tokenizer that began the run"
        )
    tree = Tree(problem_of(record), codec, prompt_of(record), seed=record.seed, codecs=rules.codecs)
    return Growth(tree, rules=rules)
