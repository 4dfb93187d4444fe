"""Saved: reads a run folder: its configuration, its trees one by one, its rows and its answers."""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path

from ramify.config.configure import from_toml
from ramify.config.run_config import RunConfig
from ramify.core.codec import Codec
from ramify.core.errors import StoreError
from ramify.core.growth import GrowthRules
from ramify.core.tree import Tree
from ramify.credit import PostHocRule
from ramify.rows.row import Row
from ramify.runner.answers import Answering, Answers
from ramify.runner.build import prepared_run
from ramify.runner.folder import header_of
from ramify.runner.rows import tree_rows
from ramify.store.layout import RunPart, parts, records
from ramify.store.records import Header
from ramify.store.replay import replay_each
from ramify.store.store import header_and_config
from ramify.store.survey import records_of, survey


def _refuse_other_judges(recorded: Header, now: Header) -> None:
    """Refuse a change of the tokenizers of judges: their recorded replies could not be read. The run's own tokenizer is
    in the record of each tree."""
    was, is_now = ([weights.codec_sha256 for weights in header.weights[1:]] for header in (recorded, now))
    if was != is_now:
        raise StoreError(f"the run was begun with {recorded.weights} and would be read with {now.weights}")


@dataclass(frozen=True, slots=True)
class Saved:
    """A run folder, opened for reading: its configuration, its trees one by one, its rows and its answers."""

    path: Path
    config: RunConfig
    codec: Codec
    rules: GrowthRules
    answering: Answering
    post_hoc_reasons: tuple[str, ...] = ()
    post_hoc: PostHocRule | None = None

    @classmethod
    def open(cls, path: Path) -> "Saved":
        """Raises `StoreError` if `path` is not a readable run."""
        header, text = header_and_config(path)
        config = from_toml(text)
        run = prepared_run(replace(config, engine=replace(config.engine, log=None)))
        _refuse_other_judges(header, header_of(run))
        return cls(path, config, run.codec, run.rules, run.answering, run.post_hoc_reasons, run.post_hoc)

    def trees(self) -> Iterator[Tree]:
        """Finished trees in the order of their problems."""
        return (tree for _, tree in self.numbered_trees())

    def numbered_trees(self) -> Iterator[tuple[int, Tree]]:
        """Finished trees with the numbers of their problems, in that order."""
        return heapq.merge(*map(self._trees_of, parts(self.path)), key=itemgetter(0))

    def tree(self, number: int) -> Tree | None:
        """The finished tree of one problem; None = there is none. No other tree is replayed."""
        owners = [part for part in parts(self.path) if part.shard.owns(number)]
        found = (each for part in owners for each in replay_each(records_of(part, number), self.codec, self.rules))
        return next((each.tree for each in found if each.is_closed), None)

    def gaps(self) -> list[str]:
        """What is missing: the trees that are not finished, and what is torn or damaged. Empty = nothing is."""
        try:
            found = survey(self.path)
        except StoreError as error:
            return [str(error)]
        gaps = [f"the journal ends with a torn record, which is not read: {torn}" for torn in found.torn]
        if found.num_unfinished:
            gaps.append(f"{found.num_unfinished} of {found.num_opened} trees that were begun are not finished")
        if self.config.service is None and found.num_opened < self.config.prompts:
            gaps.append(f"{found.num_opened} trees were begun of the {self.config.prompts} asked for")
        return gaps

    def _trees_of(self, part: RunPart) -> Iterator[tuple[int, Tree]]:
        """Finished trees of one journal with their indices, in the order of their problems."""
        early: dict[int, Tree] = {}
        wanted = part.shard.index
        for replayed in replay_each(records(part), self.codec, self.rules):
            if replayed.is_closed:
                early[replayed.index] = replayed.tree
            while wanted in early:
                yield wanted, early.pop(wanted)
                wanted += part.shard.count
        yield from sorted(early.items())

    def rows(self, *, per_tree: int | None = None) -> Iterator[Row]:
        """Rows of all finished trees, in canonical order. With `per_tree`, exactly that many rows of each tree."""
        for tree in self.trees():
            yield from tree_rows(tree, self.config, self.post_hoc_reasons, post_hoc=self.post_hoc, per_tree=per_tree)

    def answers(self) -> Iterator[Answers]:
        """The answers of each finished tree, in the order of their problems."""
        return (self.answering.of(tree) for tree in self.trees())
