"""`ramify check`: replay a run and check every invariant; the exit code is 5 if one is broken.

With `--against LOG` every id is also compared with the log that the run's engine kept (`engine.log`).
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

from ramify.cli.exit_codes import ExitCode
from ramify.cli.options import add_json_flag, add_look_flags, saved_run
from ramify.cli.terminal import Terminal, visible
from ramify.core.errors import ExportError, StoreError

if TYPE_CHECKING:
    from ramify.core.shard import Shard
    from ramify.core.tree import Tree
    from ramify.experiments.log_check import EngineLog, LogComparison
    from ramify.runner.saved import Saved
    from ramify.store.replay import Replayed


@dataclass(slots=True)
class TreeCheck:
    """What was found of one tree. Mutated while it is checked."""

    number: int
    uid: str
    num_nodes: int
    is_finished: bool
    num_rows: int = 0
    not_loaded: str | None = None
    """Why the run gives no rows without the parts that it names."""
    without_rows: str | None = None
    """Why the tree gives no rows."""
    faults: list[str] = field(default_factory=list[str])


@dataclass(slots=True)
class CheckReport:
    """What was checked, and what is broken."""

    trees: int = 0
    unfinished: int = 0
    nodes: int = 0
    rows: int = 0
    without_rows: dict[str, str] = field(default_factory=dict)
    """Problem uid -> why its tree gives no rows. This is no breach."""
    breaches: list[str] = field(default_factory=list)
    against: "LogComparison | None" = None
    """The comparison with the engine's log; None = there was none."""

    def add(self, tree: TreeCheck) -> None:
        """Count one tree."""
        self.trees += 1
        self.unfinished += not tree.is_finished
        self.nodes += tree.num_nodes
        self.rows += tree.num_rows
        if tree.not_loaded is not None:
            self.without_rows["all trees"] = tree.not_loaded
        if tree.without_rows is not None:
            self.without_rows[tree.uid] = tree.without_rows
        self.breaches += [f"tree {tree.number}: {fault}" for fault in tree.faults]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_look_flags(parser)
    parser.add_argument("--against", type=Path, metavar="LOG", help="compare every token id with the engine's own log")
    add_json_flag(parser)


def execute(options: argparse.Namespace, terminal: Terminal) -> ExitCode:
    opened = partial(saved_run, options) if options.trust else None
    checked = checked_run(options.run, options.against, opened=opened)
    if options.json:
        values = {name: getattr(checked, name) for name in CheckReport.__slots__}
        terminal.result("ramify.check/1", {"run": str(options.run), **values})
    else:
        terminal.lines(_lines(checked))
    return ExitCode.CHECK if checked.breaches else ExitCode.DONE


def checked_run(path: Path, log: Path | None = None, *, opened: "Callable[[], Saved] | None" = None) -> CheckReport:
    """Replay the run at `path` and check it all, also against its engine's `log`. `opened` opens it for reading; None =
    no plug-in is loaded, and a large run is read by several processes.

    Raises `StoreError` only if there is no log.
    """
    from ramify.cli.tree_shares import each_tree
    from ramify.core.shard import WHOLE
    from ramify.engines.logged import read_log
    from ramify.experiments.log_check import EngineLog, LogComparison
    from ramify.runner.saved import Saved
    from ramify.store.layout import read_by_copy
    from ramify.store.survey import survey

    checked = CheckReport()
    against = None if log is None else EngineLog(read_log(log))
    checked.against = None if against is None else LogComparison()
    faults: list[str] = []
    try:
        saved = Saved.open(path) if opened is None else opened()
        checked.breaches += read_by_copy(path)
        if against is None or checked.against is None:
            found = each_tree(_checked_trees, saved)
        else:
            found = _checked_trees(saved, WHOLE, seen=partial(_compare, against, checked.against))
        for _, tree in sorted(found, key=itemgetter(0)):
            if isinstance(tree, TreeCheck):
                checked.add(tree)
            elif tree not in faults:
                faults.append(tree)
        faults += [] if faults else map(str, survey(path).torn)
    except StoreError as error:
        faults.append(str(error))
    checked.breaches += [f"journal: {fault}" for fault in faults]
    if against is not None and checked.against is not None:
        checked.breaches += against.finish(checked.against).differences
    return checked


def _checked_trees(
    saved: "Saved", share: "Shard", *, seen: "Callable[[Replayed], object] | None" = None
) -> Iterator[tuple[int, TreeCheck | str]]:
    """Check the trees of a share, in the order in which they were closed. Where the journal cannot be read on, the last
    item says why. `seen` is given each tree."""
    from ramify.runner.saved import of_share
    from ramify.store.replay import replay_each
    from ramify.store.store import stream

    try:
        for replayed in replay_each(of_share(stream(saved.path), share), saved.codec, saved.rules):
            yield replayed.index, _checked_tree(replayed, saved)
            if seen is not None:
                seen(replayed)
    except StoreError as error:
        yield sys.maxsize, str(error)


def _compare(against: "EngineLog", into: "LogComparison", replayed: "Replayed") -> None:
    """Compare a tree with the engine's log. Mutates both."""
    against.compare(replayed.tree, replayed.index, into)


def _checked_tree(replayed: "Replayed", saved: "Saved") -> TreeCheck:
    from ramify.store.check import ledger_faults, tree_faults

    tree = replayed.tree
    checked = TreeCheck(replayed.index, tree.problem.uid, len(tree), is_finished=replayed.shut is not None)
    checked.faults += tree_faults(tree)
    if replayed.shut is not None:
        checked.faults += ledger_faults(tree, replayed.shut.spent)
        _check_rows(tree, saved, checked)
    return checked


def _check_rows(tree: "Tree", saved: "Saved", checked: TreeCheck) -> None:
    """Check the rows of a finished tree. Mutates `checked`."""
    from ramify.plugins import NotLoaded
    from ramify.store.check import row_faults

    try:
        rows = saved.rows_of(tree)
    except NotLoaded as error:
        checked.not_loaded = str(error)
    except ExportError as error:
        checked.without_rows = str(error)
    else:
        checked.num_rows = len(rows)
        checked.faults += row_faults(tree, rows)


def _lines(checked: CheckReport) -> Iterator[str]:
    yield f"{checked.trees} trees ({checked.unfinished} unfinished), {checked.nodes} nodes, {checked.rows} rows"
    for uid, reason in checked.without_rows.items():
        yield f"no rows: {visible(uid)}: {visible(reason)}"
    if (found := checked.against) is not None:
        yield (
            f"against the engine's log: {found.turns} turns, {found.ids_fed} ids fed, {found.ids_sampled} ids sampled, "
            f"{len(found.differences)} differences; {found.only_in_log} turns are only in the log"
        )
    for breach in checked.breaches:
        yield f"BROKEN {visible(breach)}"
    yield f"{len(checked.breaches)} broken" if checked.breaches else "everything holds"
