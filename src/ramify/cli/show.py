"""`ramify show`: the totals of a run and a table of its trees, or one tree drawn, in the terminal or as a picture."""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ramify.cli.exit_codes import ExitCode
from ramify.cli.help_text import OUTPUT, flag_group
from ramify.cli.options import add_json_flag, add_look_flags, saved_run
from ramify.cli.terminal import Terminal, visible
from ramify.core.errors import ConfigError

if TYPE_CHECKING:
    from ramify.cli.where import Condition
    from ramify.core.shard import Shard
    from ramify.core.tree import Tree
    from ramify.runner.report import RunReport
    from ramify.runner.saved import Saved
    from ramify.view.tree_values import Values

SCHEMA: Final = "ramify.show/1"
TREE_SCHEMA: Final = "ramify.tree/1"
LIMIT: Final = 12
"""Trees in the table if nobody says how many: with the totals they fit on one screen of 24 lines."""
TOLD: Final = (
    "trees", "leaves", "failed_leaves", "turns", "decode_tokens", "prefill_cached", "prefill_uncached", "engine_calls",
    "tool_calls", "judge_calls", "mean_reward", "coverage", "mixed_groups", "truncated_share", "is_oracle",
    "stop_words",
)  # fmt: skip
"""Totals that the trees of a run tell; a report has more, such as its seconds, which no folder holds."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_look_flags(parser)
    parser.add_argument("tree", nargs="?", type=int, metavar="TREE", help="number of the tree to draw")
    group = flag_group(parser, "list of trees")
    group.add_argument(
        "--where",
        metavar="CONDITION",
        help="only trees of which this holds, e.g. 'reward<0.3 and tool==\"python\" and tokens>200'",
    )
    group.add_argument("--sort", metavar="COLUMN", help="sort trees by a column; -COLUMN: the largest first")
    group.add_argument(
        "--limit", type=int, metavar="N", help=f"number of trees in the table (default: {LIMIT}; with --json: all)"
    )
    output = flag_group(parser, OUTPUT)
    picture = "write the drawing of TREE as a picture to a new file"
    output.add_argument("--svg", type=Path, metavar="FILE", help=picture)
    page = "write TREE as a page for a browser to a new file; `ramify view RUN --html FILE` writes the whole run"
    output.add_argument("--html", type=Path, metavar="FILE", help=page)
    add_json_flag(parser)


def execute(options: argparse.Namespace, terminal: Terminal) -> ExitCode:
    asked = _asked(options)
    saved = saved_run(options)
    gaps = saved.gaps()
    for gap in gaps:
        terminal.warn(f"{options.run}: {gap}")
    if options.tree is not None:
        _show_tree(saved, options, terminal)
        return ExitCode.DONE
    from ramify.cli.running import totals
    from ramify.cli.tree_columns import tree_table

    rows, report = _read(saved)
    found = asked.of(rows)
    shown = found if options.limit is None and options.json else found[: options.limit or LIMIT]
    if options.json:
        summary = {name: report.as_dict()[name] for name in TOLD}
        told = {"run": str(options.run), "summary": summary, "gaps": gaps, "matched": len(found), "trees": shown}
        terminal.result(SCHEMA, told)
        return ExitCode.DONE
    terminal.lines([*_heading(saved), *totals(report), ""])
    terminal.out.print(tree_table(shown, asked.names))
    if asked.where is not None:
        terminal.say(f"{len(found)} of {len(rows)} trees match")
    if len(shown) < len(found):
        terminal.say(f"only the first {len(shown)} trees are shown; --limit shows more")
    return ExitCode.DONE


@dataclass(frozen=True, slots=True)
class _Asked:
    """Which trees to show, and in which order."""

    where: "Condition | None"
    sort: str | None
    is_descending: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that the condition and the order name."""
        named = () if self.where is None else self.where.names
        return named if self.sort is None else (*named, self.sort)

    def of(self, rows: "Sequence[Values]") -> "Sequence[Values]":
        from ramify.cli.tree_columns import sorted_rows

        found = rows if self.where is None else [row for row in rows if self.where.holds(row)]
        return found if self.sort is None else sorted_rows(found, self.sort, is_descending=self.is_descending)


def _asked(options: argparse.Namespace) -> _Asked:
    """What the flags ask for. Raises `ConfigError` before the run is read."""
    from ramify.cli.where import condition, known_column
    from ramify.view.tree_values import COLUMNS

    if options.limit is not None and options.limit < 1:
        raise ConfigError(f"--limit {options.limit}: at least 1 is needed")
    for flag, file in (("--svg", options.svg), ("--html", options.html)):
        if file is not None and options.tree is None:
            raise ConfigError(
                f"{flag} {str(file)!r}: a picture is of one tree; name it: ramify show RUN TREE {flag} FILE"
            )
        if file is not None and options.json:
            raise ConfigError(f"{flag} {str(file)!r}: a picture is no JSON; leave out {flag} or --json")
    given = [f"--{name}" for name in ("where", "sort", "limit") if vars(options)[name] is not None]
    if options.tree is not None and given:
        raise ConfigError(f"{given[0]}: it is about the table of all trees; leave it out, or the number {options.tree}")
    where = None if options.where is None else condition(options.where, COLUMNS)
    if options.sort is None:
        return _Asked(where, None)
    name = known_column(options.sort.removeprefix("-"), COLUMNS, flag=f"--sort {options.sort!r}")
    return _Asked(where, name, is_descending=options.sort.startswith("-"))


def _show_tree(saved: "Saved", options: argparse.Namespace, terminal: Terminal) -> None:
    """Draw one tree, or write it as JSON or as a picture."""
    from ramify.cli.draw import tree_view

    tree = saved.tree(options.tree) if options.tree >= 0 else None
    if tree is None:
        raise ConfigError(f"{options.run} has no tree {options.tree}; `ramify show {options.run}` lists them")
    if options.svg is not None:
        write_picture(tree, options.svg)
        terminal.say(f"wrote {options.svg}")
    if options.html is not None:
        write_page(options.run, options.html, tree=options.tree)
        terminal.say(f"wrote {options.html}")
    if options.svg is not None or options.html is not None:
        return
    if options.json:
        from ramify.view import valued

        about = {"run": str(options.run), "tree": options.tree, "uid": tree.problem.uid}
        nodes = valued(tree, saved.config.strategy).as_dict()
        terminal.result(TREE_SCHEMA, {**about, "question": tree.problem.question, **nodes})
    else:
        terminal.out.print(tree_view(tree))


def _read(saved: "Saved") -> "tuple[list[Values], RunReport]":
    """A row for each finished tree, and the totals. One tree is in memory at a time, of each process."""
    from ramify.cli.tree_shares import each_tree
    from ramify.runner.report import RunReport

    rows: list[Values] = []
    totals = RunReport.merged([], seconds=0.0)
    for _, (row, report) in each_tree(_shown, saved):
        rows.append(row)
        totals = RunReport.merged([totals, report], seconds=0.0)
    return rows, totals


def _shown(saved: "Saved", share: "Shard") -> "Iterator[tuple[int, tuple[Values, RunReport]]]":
    """The row and the totals of each finished tree of a share."""
    from ramify.runner.events import TreeClosed
    from ramify.runner.report import RunReport
    from ramify.view.tree_values import tree_values

    for number, tree in saved.numbered_trees(share):
        report = RunReport()
        report.observe(TreeClosed(number, tree))
        yield number, (tree_values(tree, number), report)


def _heading(saved: "Saved") -> list[str]:
    from ramify.view.opened_run import run_title

    return [visible(f"{saved.path}: {run_title(saved.config)}")]


def write_page(run: Path, path: Path, *, tree: int | None = None) -> None:
    """Write a run, or one tree of it, as the new file `path` for a browser. Raises `ConfigError` if it cannot be
    made."""
    from ramify.view.documents import Documents
    from ramify.view.html_file import write_html

    write_html(Documents.open([run]), path, trees=None if tree is None else [tree])


def write_picture(tree: "Tree", path: Path) -> None:
    """Write the picture of a tree to the new file `path`. Raises `ConfigError` if it cannot be made."""
    from ramify.view.tree_svg import tree_svg

    if path.suffix != ".svg":
        raise ConfigError(f"cannot write {path}: the name of a picture ends in .svg")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(tree_svg(tree))
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}; name a new file") from error
