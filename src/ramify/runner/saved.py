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
from ramify.rows.gold import with_gold
from ramify.rows.row import Row
from ramify.runner.answers import Answering, Answers
from ramify.runner.build import prepared_run
from ramify.runner.folder import header_of
from ramify.runner.reread import RereadProblems, secret_of
from ramify.runner.rows import tree_rows
from ramify.store.layout import RunPart, parts, records
from ramify.store.records import Header
from ramify.store.replay import replay_each
from ramify.store.store import header_and_config


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
        shards = map(self._trees_of, parts(self.path))
        return (tree for _, tree in heapq.merge(*shards, key=itemgetter(0)))

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

    def rows(self, *, per_tree: int | None = None, gold: str | None = None) -> Iterator[Row]:
        """Rows of all finished trees, in canonical order. With `per_tree`, exactly that many rows of each tree. With
        `gold`, the secret of that name is a public column of each row; it is read again, because no run folder holds
        it. Raises `ExportError` if the run's questions are no longer the ones it grew from."""
        problems = None if gold is None else RereadProblems.of(self.config)
        for tree in self.trees():
            rows = tree_rows(tree, self.config, self.post_hoc_reasons, post_hoc=self.post_hoc, per_tree=per_tree)
            if problems is None or gold is None:
                yield from rows
            else:
                answer = secret_of(problems.like(tree.problem), gold, column=self.config.data.answer)
                yield from with_gold(rows, gold, answer)

    def answers(self) -> Iterator[Answers]:
        """The answers of each finished tree, in the order of their problems."""
        return (self.answering.of(tree) for tree in self.trees())
