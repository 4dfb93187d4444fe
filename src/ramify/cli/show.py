"""`ramify show`: a table of a run's trees, or one tree drawn, in the terminal or as a picture."""

import argparse
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from ramify.cli.exit_codes import ExitCode
from ramify.cli.options import add_look_flags, saved_run
from ramify.cli.terminal import Terminal
from ramify.core.errors import ConfigError

if TYPE_CHECKING:
    from ramify.core.tree import Tree


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_look_flags(parser)
    parser.add_argument("tree", nargs="?", type=int, metavar="TREE", help="number of the tree to draw")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="write the drawing of TREE as a picture to a new file")
    parser.add_argument("--limit", type=int, default=50, metavar="N", help="number of trees in the table (default 50)")


def execute(options: argparse.Namespace, terminal: Terminal) -> ExitCode:
    from ramify.cli.draw import summary_row, summary_table, tree_view

    if options.limit < 1:
        raise ConfigError(f"--limit {options.limit}: at least 1 is needed")
    if options.svg is not None and options.tree is None:
        raise ConfigError(
            f"--svg {str(options.svg)!r}: a picture is of one tree; name it: ramify show RUN TREE --svg FILE"
        )
    saved = saved_run(options)
    for gap in saved.gaps():
        terminal.warn(f"{options.run}: {gap}")
    if options.tree is not None:
        tree = saved.tree(options.tree) if options.tree >= 0 else None
        if tree is None:
            raise ConfigError(f"{options.run} has no tree {options.tree}; `ramify show {options.run}` lists them")
        if options.svg is not None:
            write_picture(tree, options.svg)
            terminal.say(f"wrote {options.svg}")
        else:
            terminal.out.print(tree_view(tree))
        return ExitCode.DONE
    table = summary_table()
    trees = saved.numbered_trees()
    for index, tree in islice(trees, options.limit):
        table.add_row(*summary_row(tree, index))
    terminal.out.print(table)
    if next(trees, None) is not None:
        terminal.say(f"only the first {options.limit} trees are shown; --limit shows more")
    return ExitCode.DONE


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
