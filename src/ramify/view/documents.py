"""Documents: what the page of the viewer reads, by name, of one or several runs that are followed together.

| name | is |
|---|---|
| `index` | the runs |
| `run/0` | figures of a run, and a table of its trees (`run_document`) |
| `run/0/tree/5` | a tree (`tree_document`), or only `error` |
| `run/0/tree/5/tokens/1` | the segments of some of its nodes (`token_document`) |

A tree is replayed when somebody asks for it. The last few are kept, so that their tokens cost no second replay. Nothing
of a run is executed. Not for several threads at one time.
"""

import os
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from ramify.core.errors import ConfigError, StoreError
from ramify.core.tree import Tree
from ramify.runner.saved import Saved
from ramify.store.layout import JOURNAL, LAYOUT
from ramify.store.replay import Replayed
from ramify.version import __version__
from ramify.view.followed_run import FollowedRun
from ramify.view.loose_run import LooseRun, TreeTerms
from ramify.view.readers import foreign_run
from ramify.view.run_document import run_document
from ramify.view.token_document import chunks, token_document
from ramify.view.tree_document import tree_document

KEPT: Final = 8
"""Replayed trees that are kept."""
MAX_HITS: Final = 1000
MAX_RUNS: Final = 200
EXCERPT: Final = (40, 80)
"""Characters before and behind the place that a search found."""
_TREE: Final = re.compile(r"run/(\d{1,6})/tree/(\d{1,9})(?:/tokens/(\d{1,9}))?")
_RUN: Final = re.compile(r"run/(\d{1,6})")

Document = dict[str, Any]


@dataclass(slots=True)
class _Kept:
    """A replayed tree, and the revision of its lines that it was replayed from."""

    replayed: Replayed
    revision: int
    firsts: list[int]
    """The first node of each token document."""


class Documents:
    """The documents of some runs."""

    def __init__(self, runs: Sequence[FollowedRun | LooseRun]) -> None:
        self.runs = tuple(runs)
        self._kept: OrderedDict[tuple[int, int], _Kept] = OrderedDict()
        self._terms: dict[int, TreeTerms] = {}
        self._states: dict[int, tuple[bool, list[str], list[str]]] = {}
        """What the last look found of each run besides its trees."""
        self._noticed: dict[int, set[int]] = {}
        """Changes that were found between two looks, because somebody asked for a tree that was not known yet."""

    @classmethod
    def open(cls, paths: Iterable[Path]) -> "Documents":
        """Follow the runs at `paths`; a folder of runs stands for the runs in it. A file of another project is read
        once. Raises `ConfigError` if there is none, and `StoreError` if such a file is damaged."""
        found = [run for path in paths for run in _opened(path)]
        if len(found) > MAX_RUNS:
            raise ConfigError(f"{len(found)} runs are too many to open together; name at most {MAX_RUNS}")
        return cls(found)

    def index(self, *, is_live: bool) -> Document:
        named = [{"id": number, "name": run.name} for number, run in enumerate(self.runs)]
        return {"version": __version__, "is_live": is_live, "runs": named}

    def get(self, name: str) -> Document:
        """The document of that name. Raises `KeyError` if there is none, and `StoreError`."""
        if name == "index":
            return self.index(is_live=True)
        if found := _RUN.fullmatch(name):
            return run_document(self._run(int(found[1])))
        if found := _TREE.fullmatch(name):
            run, tree = int(found[1]), int(found[2])
            return self.tree_or_error(run, tree) if found[3] is None else self.tokens(run, tree, int(found[3]))
        raise KeyError(name)

    def tree_or_error(self, run: int, number: int) -> Document:
        """A tree; of a tree that cannot be replayed, why. Raises `KeyError` if there is none."""
        try:
            return self.tree(run, number)
        except StoreError as error:
            return {"error": str(error)}

    def tree(self, run: int, number: int) -> Document:
        shown, kept = self._run(run), self._found(run, number)
        terms = self._terms_of(run)
        return tree_document(
            kept.replayed,
            records=shown.records(number),
            strategy=terms.strategy,
            limits=terms.limits,
            rows_of=terms.rows_of,
            facts=shown.facts.get(number, {}) if isinstance(shown, LooseRun) else {},
            firsts=kept.firsts,
        )

    def tokens(self, run: int, number: int, chunk: int) -> Document:
        try:
            kept = self._found(run, number)
            return token_document(kept.replayed.tree, chunk, firsts=kept.firsts)
        except IndexError as error:
            raise KeyError(str(error)) from None

    def search(self, run: int, text: str) -> Document:
        """The nodes whose text has `text` in it, whatever its case; `/…/` is a regular expression. Raises
        `ConfigError` if it is none. `note` says what was not searched."""
        fits = _pattern(text)
        hits: list[Document] = []
        faults: list[str] = []
        for number in sorted(self._run(run).trees):
            try:
                hits += _hits(self._found(run, number).replayed.tree, fits, number)
            except StoreError as error:
                faults.append(str(error))
            if len(hits) >= MAX_HITS:
                return {"hits": hits[:MAX_HITS], "note": f"the first {MAX_HITS}, up to tree {number}"}
        return {"hits": hits, "note": f"{len(faults)} trees were not searched: {faults[0]}" if faults else ""}

    def look(self) -> Iterator[tuple[int, set[int]]]:
        """Take in what is new. Yields runs that changed, with the numbers of the trees that did."""
        for number, run in enumerate(self.runs):
            changed = run.look() | self._noticed.pop(number, set())
            state = (run.is_growing, list(run.faults), list(run.gaps))
            if changed or state != self._states.get(number):
                self._states[number] = state
                yield number, changed

    @property
    def has_unfilled(self) -> bool:
        """Whether `fill` has something left to do."""
        return any(not run.is_filled for run in self.runs)

    def fill(self, budget_s: float) -> list[int]:
        """Compute rows of tables for about `budget_s` seconds. Returns the runs in which something was computed."""
        due = [number for number, run in enumerate(self.runs) if not run.is_filled]
        for number in due:
            self.runs[number].fill(budget_s / len(due))
        return due

    def _run(self, number: int) -> FollowedRun | LooseRun:
        if number >= len(self.runs):
            raise KeyError(f"run {number}")
        return self.runs[number]

    def _found(self, run: int, number: int) -> _Kept:
        """A tree, replayed if it changed since it was asked for last. Raises `KeyError` and `StoreError`."""
        followed = self._run(run)
        if number not in followed.trees:
            self._noticed.setdefault(run, set()).update(followed.look())
        tree = followed.trees.get(number)
        if tree is None:
            raise KeyError(f"run {run} has no tree {number}")
        kept = self._kept.pop((run, number), None)
        if kept is None or kept.revision != tree.revision:
            replayed = followed.replayed(number)
            kept = _Kept(replayed, tree.revision, chunks(replayed.tree))
        self._kept[run, number] = kept
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return kept

    def _terms_of(self, run: int) -> TreeTerms:
        """How the trees of a run are read. No plug-in is loaded for it."""
        if run not in self._terms:
            shown = self._run(run)
            self._terms[run] = shown.terms if isinstance(shown, LooseRun) else _recorded_terms(shown)
        return self._terms[run]


def _recorded_terms(run: FollowedRun) -> TreeTerms:
    assert run.opened is not None
    config = run.opened.config
    saved = Saved.open(run.path)
    return TreeTerms(config.strategy, config.limits, saved.rows_of)


def _opened(path: Path) -> list[FollowedRun | LooseRun]:
    """What is at `path`: runs, or the file of another project."""
    foreign = None if is_run(path) else foreign_run(path)
    if foreign is None:
        return [FollowedRun.open(each) for each in runs_in(path)]
    trees = {each.number: each.tree for each in foreign.trees}
    facts = {each.number: each.facts for each in foreign.trees}
    return [LooseRun(str(path), trees, title=foreign.title, facts=facts, facts_of_file=foreign.facts, path=path)]


def runs_in(path: Path) -> list[Path]:
    """The run at `path`, or the runs in that folder and in its folders. Raises `ConfigError` if there is none."""
    if is_run(path):
        return [path]
    try:
        inside = sorted(path.iterdir()) if path.is_dir() else []
        deeper = [each for folder in inside if folder.is_dir() for each in sorted(folder.iterdir())]
        found = [each for each in (*inside, *deeper) if is_run(each)]
    except OSError as error:
        raise ConfigError(f"cannot look into {path}: {error.strerror or error}") from error
    if not found and not path.exists():
        raise ConfigError(f"{path} does not exist; name a run folder, a folder of runs, or a file of another project")
    if not found:
        raise ConfigError(
            f"{path} is no run and has no runs in it; name a run folder, a folder of runs, or a file of verifiers, "
            "verl, TRL, Inspect or TreeQuest"
        )
    return found


def is_run(path: Path) -> bool:
    """Whether a folder looks like a run's."""
    return (path / JOURNAL).is_dir() or os.path.lexists(path / LAYOUT)


# -- searching --------------------------------------------------------------------------------------------------------


class _Fits(Protocol):
    def search(self, string: str, /) -> re.Match[str] | None: ...


def _pattern(text: str) -> _Fits:
    is_expression = len(text) > 2 and text[0] == text[-1] == "/"
    try:
        return re.compile(text[1:-1] if is_expression else re.escape(text), re.IGNORECASE)
    except (re.error, RecursionError) as error:
        raise ConfigError(f"{text!r} is no regular expression: {error}; plain words need no / around them") from error


def _hits(tree: Tree, fits: _Fits, number: int) -> Iterator[Document]:
    before, behind = EXCERPT
    for node in range(len(tree)):
        codec = tree.codec_of(node)
        text = "".join(codec.decode(segment.ids) for segment in tree.segments(node))
        if found := fits.search(text):
            at = found.start()
            yield {"tree": number, "node": node, "excerpt": text[max(0, at - before) : at + behind]}
