"""Saved: reads a run folder: its configuration, its trees one by one, its rows and its answers."""

import heapq
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Final

from ramify import plugins
from ramify.config.configure import from_toml, recorded
from ramify.config.run_config import RunConfig
from ramify.core.codec import Codec
from ramify.core.errors import ExportError, StoreError
from ramify.core.growth import GrowthRules
from ramify.core.notebook import html_of
from ramify.core.shard import WHOLE, Shard
from ramify.core.tree import Tree
from ramify.rows.gold import with_gold
from ramify.rows.row import Row
from ramify.runner.answers import Answering, Answers
from ramify.runner.build import prepared_run
from ramify.runner.folder import header_of
from ramify.runner.looking import looked
from ramify.runner.reread import RereadProblems, secret_of
from ramify.runner.rows import marked, tree_rows
from ramify.runner.run_strategy import StrategyTraits
from ramify.runner.unread import ALLOW, UnreadCodec
from ramify.store.layout import RunPart, parts, records
from ramify.store.records import Header, RunRecord, TreeRecord
from ramify.store.replay import replay_each
from ramify.store.store import header_and_config
from ramify.store.survey import closed_trees, records_of, survey

MAX_EARLY: Final = 1024
"""Trees to hold that were closed before their turn."""


@dataclass(slots=True)
class _Span:
    """The numbers of the trees that are read, the last included. Mutable: it shrinks while records are read."""

    first: int
    last: int
    share: Shard

    def holds(self, tree: int) -> bool:
        return self.first <= tree <= self.last and self.share.owns(tree)

    def records(self, part: RunPart) -> Iterator[RunRecord]:
        """The records of a journal without those of trees outside of the span."""
        for record in records(part):
            if not isinstance(record, TreeRecord) or self.holds(record.tree):
                yield record


def of_share(records: Iterable[RunRecord], share: Shard) -> Iterator[RunRecord]:
    """The records without those of trees of other shares."""
    return (record for record in records if not isinstance(record, TreeRecord) or share.owns(record.tree))


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
    answering: Callable[[], Answering]
    traits: StrategyTraits = StrategyTraits()  # noqa: RUF009 - frozen
    is_trusted: bool = False
    """Whether parts that the run names may be loaded."""

    @classmethod
    def open(cls, path: Path | str) -> "Saved":
        """Look at anybody's run: no plug-in, tool or engine that it names is loaded, and no command is started. Raises
        `StoreError` if `path` is not a run that is readable so."""
        path = Path(path)
        header, text = header_and_config(path)
        config = recorded(text, source=str(path))
        look = looked(config, header)
        return cls(path, config, look.codec, look.rules, look.answering, look.traits)

    @classmethod
    def trusted(cls, path: Path | str) -> "Saved":
        """Read a run with the parts that it names: their code runs. Raises as `open`, and `ConfigError`."""
        path = Path(path)
        header, text = header_and_config(path)
        config = from_toml(text, source=str(path))
        run = prepared_run(replace(config, engine=replace(config.engine, log=None)))
        _refuse_other_judges(header, header_of(run))
        return cls(
            path,
            config,
            run.codec,
            run.rules,
            lambda: run.answering,
            run.traits,
            is_trusted=True,
        )

    def _repr_html_(self) -> str | None:
        return html_of(self)

    def refuse_unread_text(self, what: str) -> None:
        """Raise `ExportError` if the text of the trees cannot be read. `what` needs it."""
        if isinstance(self.codec, UnreadCodec):
            raise ExportError(f"{what} writes text, and the tokenizer {self.codec.name!r} was not read; {ALLOW}")

    def trees(self) -> Iterator[Tree]:
        """Finished trees in the order of their problems."""
        return (tree for _, tree in self.numbered_trees())

    def numbered_trees(self, share: Shard = WHOLE) -> Iterator[tuple[int, Tree]]:
        """Finished trees with the numbers of their problems, in that order. With a share, its trees alone."""
        return heapq.merge(*(self._trees_of(part, share) for part in parts(self.path)), key=itemgetter(0))

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

    def _trees_of(self, part: RunPart, share: Shard) -> Iterator[tuple[int, Tree]]:
        """Finished trees of one journal with their indices, in the order of their problems. The journal is read again
        where more than `MAX_EARLY` of them are closed before their turn."""
        wanted = deque(filter(share.owns, closed_trees(part)))
        while wanted:
            early: dict[int, Tree] = {}
            span = _Span(wanted[0], wanted[-1], share)
            for replayed in replay_each(span.records(part), self.codec, self.rules):
                if replayed.is_closed and span.holds(replayed.index):
                    early[replayed.index] = replayed.tree
                while wanted and wanted[0] in early:
                    yield wanted[0], early.pop(wanted.popleft())
                if len(early) > MAX_EARLY:
                    del early[last := max(early)]
                    span.last = last - 1
            if wanted and wanted[0] == span.first:
                wanted.popleft()  # It was taken back since it was listed.

    def rows(
        self,
        *,
        per_tree: int | None = None,
        normaliser: float | None = None,
        max_tokens: int | None = None,
        gold: str | None = None,
        accept: Collection[str] = (),
    ) -> Iterator[Row]:
        """Rows of all finished trees, in canonical order. With `per_tree`, exactly that many rows of each tree. With
        `normaliser` or `max_tokens`, these in place of the run's. With `gold`, the secret of that name is a public
        column of each row; it is read again, because no run folder holds it. Raises `ExportError` if the data is no
        longer what the run grew from; with `accept=["data"]`, only if the question of a tree is gone or another one."""
        found = self.numbered_rows(
            per_tree=per_tree, normaliser=normaliser, max_tokens=max_tokens, gold=gold, accept=accept
        )
        return (row for _, rows in found for row in rows)

    def numbered_rows(
        self,
        *,
        per_tree: int | None = None,
        normaliser: float | None = None,
        max_tokens: int | None = None,
        gold: str | None = None,
        accept: Collection[str] = (),
        share: Shard = WHOLE,
    ) -> Iterator[tuple[int, list[Row]]]:
        """As `rows`, those of each tree together, with the number of its problem; a tree may make none. With a share,
        its trees alone."""
        with self._loading():
            problems = None if gold is None else RereadProblems.of(self.path, self.config, accept=accept)
        for number, tree in self.numbered_trees(share):
            tree.caveats += () if problems is None else problems.caveats
            rows = self.rows_of(tree, per_tree=per_tree, normaliser=normaliser, max_tokens=max_tokens)
            if problems is not None and gold is not None:
                answer = secret_of(problems.like(tree.problem), gold, column=self.config.data.answer)
                rows = list(with_gold(rows, gold, answer))
            yield number, rows

    def rows_of(
        self,
        tree: Tree,
        *,
        per_tree: int | None = None,
        normaliser: float | None = None,
        max_tokens: int | None = None,
    ) -> list[Row]:
        """Rows of one of the trees. Raises `ExportError`, and `NotLoaded` if a plug-in draws the leaves that are
        kept."""
        with self._loading():
            return tree_rows(
                tree, self.config, self.traits, per_tree=per_tree, normaliser=normaliser, max_tokens=max_tokens
            )

    def marked_trees(self) -> Iterator[Tree]:
        """Finished trees, with a note on each leaf that is not kept, for exports made from trees."""
        with self._loading():
            return marked(self.trees(), self.config.rows)

    def _loading(self) -> AbstractContextManager[None]:
        """Load the parts that the run names only if it is trusted."""
        return nullcontext() if self.is_trusted else plugins.built_in_only()

    def answers(self) -> Iterator[Answers]:
        """The answers of each finished tree, in the order of their problems."""
        answering = self.answering()
        return (answering.of(tree) for tree in self.trees())
