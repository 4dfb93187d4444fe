"""`ramify check`: replay a run and check every invariant; the exit code is 5 if one is broken.

With `--against LOG` every id is also compared with the log that the run's engine kept (`engine.log`).
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ramify.cli.exit_codes import ExitCode
from ramify.cli.options import add_json_flag, add_look_flags, saved_run
from ramify.cli.terminal import Terminal, visible
from ramify.core.errors import ExportError, StoreError

if TYPE_CHECKING:
    from ramify.experiments.log_check import LogComparison
    from ramify.runner.saved import Saved
    from ramify.store.replay import Replayed


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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_look_flags(parser)
    parser.add_argument("--against", type=Path, metavar="LOG", help="compare every token id with the engine's own log")
    add_json_flag(parser)


def execute(options: argparse.Namespace, terminal: Terminal) -> ExitCode:
    checked = checked_run(options.run, options.against, opened=lambda: saved_run(options))
    if options.json:
        values = {name: getattr(checked, name) for name in CheckReport.__slots__}
        terminal.result("ramify.check/1", {"run": str(options.run), **values})
    else:
        terminal.lines(_lines(checked))
    return ExitCode.CHECK if checked.breaches else ExitCode.DONE


def checked_run(path: Path, log: Path | None = None, *, opened: "Callable[[], Saved] | None" = None) -> CheckReport:
    """Replay the run at `path` and check it all, also against its engine's `log`. `opened` opens it for reading; None =
    no plug-in is loaded.

    Raises `StoreError` only if there is no run, or no log, at all.
    """
    from ramify.engines.logged import read_log
    from ramify.experiments.log_check import EngineLog, LogComparison
    from ramify.runner.saved import Saved
    from ramify.store.layout import read_by_copy
    from ramify.store.replay import replay_each
    from ramify.store.store import stream
    from ramify.store.survey import survey

    checked = CheckReport()
    against = None if log is None else EngineLog(read_log(log))
    checked.against = None if against is None else LogComparison()
    try:
        saved = Saved.open(path) if opened is None else opened()
        checked.breaches += read_by_copy(path)
        for replayed in replay_each(stream(path), saved.codec, saved.rules):
            _check_tree(replayed, saved, checked)
            if against is not None and checked.against is not None:
                against.compare(replayed.tree, replayed.index, checked.against)
        checked.breaches += [f"journal: {torn}" for torn in survey(path).torn]
    except StoreError as error:
        checked.breaches.append(f"journal: {error}")
    if against is not None and checked.against is not None:
        checked.breaches += against.finish(checked.against).differences
    return checked


def _check_tree(replayed: "Replayed", saved: "Saved", checked: CheckReport) -> None:
    """Check one tree. Mutates `checked`."""
    from ramify.store.check import ledger_faults, tree_faults

    tree = replayed.tree
    checked.trees += 1
    checked.nodes += len(tree)
    found = [*tree_faults(tree)]
    if replayed.shut is None:
        checked.unfinished += 1
    else:
        found += [*ledger_faults(tree, replayed.shut.spent), *_row_faults(replayed, saved, checked)]
    checked.breaches += [f"tree {replayed.index}: {fault}" for fault in found]


def _row_faults(replayed: "Replayed", saved: "Saved", checked: CheckReport) -> Iterator[str]:
    from ramify.plugins import NotLoaded
    from ramify.store.check import row_faults

    try:
        rows = saved.rows_of(replayed.tree)
    except NotLoaded as error:
        checked.without_rows["all trees"] = str(error)
        return
    except ExportError as error:
        checked.without_rows[replayed.tree.problem.uid] = str(error)
        return
    checked.rows += len(rows)
    yield from row_faults(replayed.tree, rows)


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
