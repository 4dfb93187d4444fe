"""Followed run: one run folder that is looked at again and again, while its run may be going on.

A look takes in the records that are new. Of each tree it keeps the places of its lines; a tree is replayed from them
when somebody asks for it. Nothing of the run is executed, and the run never waits for who looks. Whatever is wrong with
the folder is told in `faults`: neither a look nor a fill raises an error.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final, TypeVar

from ramify.core.errors import RamifyError, StoreError
from ramify.runner.looking import RunReading
from ramify.runner.unread import UnreadCodec
from ramify.store.framing import decode
from ramify.store.records import TreeRecord
from ramify.store.replay import Replayed, replay
from ramify.store.tail import BegunAgain, TailedLine
from ramify.view.followed_tree import FollowedTree, LinePlace, closed_line, opened_line
from ramify.view.opened_run import FollowedPart, OpenedRun, followed_parts, run_title
from ramify.view.record_reader import RecordReader
from ramify.view.run_news import NEWS, RunNews
from ramify.view.tree_row import tree_row

T = TypeVar("T")

MAX_FAULTS: Final = 50
"""Faults of records that are told one by one."""


class FollowedRun:
    """A run folder that is followed. `look` and `fill` mutate it. Not for several threads at one time."""

    def __init__(self, path: Path, *, name: str = "") -> None:
        self.path = path
        self.name = name or str(path)
        self.opened: OpenedRun | None = None
        """None = the folder cannot be read as a run; `faults` says why."""
        self.trees: dict[int, FollowedTree] = {}
        self.news = RunNews()
        self.num_looks = 0
        self.revision = 0
        """Grows with every look and with every fill that computed something."""
        self.anew = 0
        """Revision in which the run was last read again from its beginning."""
        self._parts: list[FollowedPart] = []
        self._trouble = ""
        self._again = ""
        """Why the run was read again."""
        self._faults: dict[str, None] = {}
        self._num_faults = 0
        self._due: dict[int, None] = {}
        """Finished trees without a row, in the order in which they were finished."""
        self._shown: set[int] = set()
        """Trees whose rows were computed because somebody asked for the tree; the next look tells them."""

    @classmethod
    def open(cls, path: Path | str, *, name: str = "") -> "FollowedRun":
        """Follow the run at `path`. What is wrong with it is told in `faults`. No tree is known before the first
        `look`."""
        run = cls(Path(path), name=name or str(path))
        run._open()
        return run

    # -- what is known --------------------------------------------------------------------------------------------

    @property
    def faults(self) -> list[str]:
        """What is wrong with the folder, in words."""
        told = [self._again, self._trouble, "" if self.opened is None else self.opened.refusal]
        for part in self._parts:
            told += part.faults
        more = self._num_faults - len(self._faults)
        told += [*self._faults, f"{more} more records are faulty" if more else ""]
        return [fault for fault in dict.fromkeys(told) if fault]

    @property
    def title(self) -> str:
        """What the run is, on one line; empty = the folder cannot be read."""
        return "" if self.opened is None else run_title(self.opened.config)

    @property
    def facts_of_file(self) -> Mapping[str, Any]:
        """None: its records say everything."""
        return {}

    @property
    def gaps(self) -> list[str]:
        """What is missing: trees that are not finished, and what is torn. Empty = nothing is."""
        if self.opened is None:
            return []
        torn = [] if self.is_growing else [part.tail.torn for part in self._parts if part.tail.torn]
        gaps = [f"the journal ends with a torn record, which is not read: {each}" for each in torn]
        if num_open := len(self.trees) - self.num_closed:
            gaps.append(f"{num_open} of {len(self.trees)} trees that were begun are not finished")
        codec = None if self._reading is None else self._reading.codec
        if isinstance(codec, UnreadCodec):
            gaps.append(f"the tokenizer {codec.name!r} was not found: texts are shown as the numbers of their tokens")
        config = self.opened.config
        if config.service is None and len(self.trees) < config.prompts:
            gaps.append(f"{len(self.trees)} trees were begun of the {config.prompts} asked for")
        return gaps

    @property
    def is_growing(self) -> bool:
        """Whether a process writes the run, as far as the last look saw."""
        return any(part.is_written for part in self._parts)

    @property
    def is_filled(self) -> bool:
        """Whether nothing is left for `fill`."""
        return not self._due or self._reading is None

    @property
    def num_closed(self) -> int:
        return sum(tree.closed is not None for tree in self.trees.values())

    @property
    def num_filled(self) -> int:
        """Finished trees whose rows are computed."""
        return sum(tree.row is not None for tree in self.trees.values())

    @property
    def folders(self) -> list[Path]:
        """The folders that hold its journals."""
        return [part.tail.folder.parent for part in self._parts]

    # -- looking --------------------------------------------------------------------------------------------------

    def look(self) -> set[int]:
        """Take in what is new. Returns the numbers of the trees that changed, those included that are gone."""
        self.num_looks += 1
        self.revision += 1
        if self.opened is None:
            self._open()
        changed, self._shown = self._shown, set()
        for part in self._parts:
            changed |= self._look_at(part)
            if self.anew == self.revision:
                return changed | self._look_anew()
        return changed

    def fill(self, budget_s: float) -> bool:
        """Compute rows of finished trees for about `budget_s` seconds, at least one. Returns whether some are left."""
        ends = time.monotonic() + budget_s
        if self.is_filled:
            return False
        self.revision += 1
        with closing(RecordReader()) as reader:
            while self._due:
                number = next(iter(self._due))
                self._fill(self.trees[number], reader)
                del self._due[number]
                if time.monotonic() >= ends:
                    break
        return bool(self._due)

    def replayed(self, number: int) -> Replayed:
        """One tree, finished or growing, from its lines. If its row was not computed yet, it is now. Raises
        `StoreError` if there is none, or if it cannot be replayed."""
        if number not in self.trees:
            raise StoreError(f"{self.path} has no tree {number}")
        with closing(RecordReader()) as reader:
            return self._made(self.trees[number], reader, self._with_row)

    def records(self, number: int) -> list[TreeRecord]:
        """The records of one tree. Raises `StoreError` if there are none, or if they cannot be read."""
        if number not in self.trees:
            raise StoreError(f"{self.path} has no tree {number}")
        tree = self.trees[number]
        with closing(RecordReader()) as reader:
            found = reader.records(tree.folder, tree.places())
            return [record for record in found if isinstance(record, TreeRecord) and record.tree == number]

    # -- opening --------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        self._trouble, self.opened, self._parts = "", None, []
        try:
            opened = OpenedRun.open(self.path)
            self._parts = followed_parts(self.path, opened.header)
            self.opened = opened
        except (RamifyError, OSError) as error:
            self._trouble = str(error)

    def _forget(self, why: str) -> set[int]:
        """Forget all that was taken in; the run is another one now. Returns the trees that it had."""
        gone = set(self.trees)
        self.trees, self.news = {}, RunNews()
        self._faults.clear()
        self._due.clear()
        self._shown.clear()
        self._num_faults = 0
        self.anew, self._again = self.revision, f"{why}: the run was read again from its beginning"
        return gone

    def _look_anew(self) -> set[int]:
        """Read the run from its beginning."""
        self._open()
        return {number for part in self._parts for number in self._look_at(part)}

    # -- lines ----------------------------------------------------------------------------------------------------

    def _look_at(self, part: FollowedPart) -> set[int]:
        """Take in what is new in one journal."""
        changed: set[int] = set()
        has_news = False
        for line in part.tail.look():
            if isinstance(line, BegunAgain):
                return self._forget(line.why)
            has_news = True
            try:
                changed.update(self._taken(line, part))
            except StoreError as error:
                self._told(f"{part.tail.folder}: {error}")
        part.note_writer(has_news=has_news)
        return changed

    def _taken(self, line: TailedLine, part: FollowedPart) -> tuple[int, ...]:
        """Take in one line. Returns the trees that it changes."""
        if line.kind in NEWS:
            return self._take_news(line, part)
        if line.tree is None:
            return ()
        if line.kind == "opened":
            self._take_opened(line, line.tree, part)
            return (line.tree,)
        tree = self.trees.get(line.tree)
        if tree is None or tree.folder is not part.tail.folder:
            raise StoreError(f"there is a record of tree {line.tree}, which was never opened")
        if tree.closed is not None:
            raise StoreError(f"tree {line.tree}: a record follows its closing")
        if line.kind == "closed":
            tree.closed = closed_line(line)
            part.open_trees.discard(line.tree)
            self._due[line.tree] = None
        tree.num_steps += line.kind == "grown"
        tree.add(line.file, line.offset, line.length)
        tree.revision = self.revision
        return (line.tree,)

    def _take_opened(self, line: TailedLine, number: int, part: FollowedPart) -> None:
        if not part.shard.owns(number):
            raise StoreError(f"this is shard {part.shard.index} of {part.shard.count}, and tree {number} is another's")
        if number in self.trees:
            raise StoreError(f"tree {number} was opened twice")
        tree = FollowedTree(number, part.tail.folder, opened_line(line), self.revision)
        for accepted in part.accepted:
            tree.add(*accepted)
        tree.add(line.file, line.offset, line.length)
        self.trees[number] = tree
        part.open_trees.add(number)

    def _take_news(self, line: TailedLine, part: FollowedPart) -> tuple[int, ...]:
        """Take in a record that is no part of a tree's growth. Trees that are open when inputs are accepted, or opened
        later, are replayed with that record."""
        named = self.news.add(decode(line.body))
        if line.kind == "accepted":
            place = LinePlace(line.file, line.offset, line.length)
            part.accepted.append(place)
            for number in part.open_trees:
                self.trees[number].add(*place)
        known = tuple(number for number in named if number in self.trees)
        for number in known:
            self.trees[number].revision = self.revision
        return known

    def _told(self, what: str) -> None:
        if what not in self._faults:
            self._num_faults += 1
            if len(self._faults) < MAX_FAULTS:
                self._faults[what] = None

    # -- replaying ------------------------------------------------------------------------------------------------

    @property
    def _reading(self) -> RunReading | None:
        """How its trees are replayed; None = they cannot be."""
        return None if self.opened is None else self.opened.reading

    def _fill(self, tree: FollowedTree, reader: RecordReader) -> None:
        tree.revision = self.revision
        try:
            tree.row = self._made(tree, reader, tree_row)
        except StoreError as error:
            tree.fault = str(error)
            self._told(tree.fault)

    def _with_row(self, replayed: Replayed) -> Replayed:
        """Compute the row of a tree that was replayed, if that is due. Returns the tree."""
        number = replayed.index
        if number in self._due:
            with suppress(Exception):  # The records may be anybody's: `fill` tells what is wrong with them.
                self.trees[number].row = tree_row(replayed)
                del self._due[number]
                self._shown.add(number)
        return replayed

    def _made(self, tree: FollowedTree, reader: RecordReader, make: Callable[[Replayed], T]) -> T:
        """What `make` makes of a tree. Raises `StoreError` if it cannot be replayed."""
        reading = self._reading
        if reading is None:
            raise StoreError("; ".join(self.faults))
        records = reader.records(tree.folder, tree.places())
        try:
            return make(replay(records, reading.codec, reading.rules)[tree.number])
        except StoreError as error:
            told = str(error)
            raise StoreError(told if told.startswith("tree ") else f"tree {tree.number}: {told}") from error
        except Exception as error:  # The records may be anybody's: whatever they make a replay raise is told.
            raise StoreError(f"tree {tree.number} cannot be replayed: {error!r:.200}") from error
