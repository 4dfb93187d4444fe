"""`ramify export`: a run's rows in canonical order, for a trainer.

An exporter is a function `(rows, path, **options) -> number written`; one whose first parameter is called `trees` gets
the finished trees instead, with a note on the leaves that the run does not keep. Options are checked against its
annotations before the run is read. With the option `gold=NAME`, which an exporter takes as a keyword, the rows hold the
gold answers in their public column NAME. One that takes a keyword `force` is told of `--force`, and one that takes
`codec` gets the run's tokenizer. All files are checked before one is written (`rows.files`, `export_files`).
"""

import argparse
import inspect
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_type_hints

from ramify import plugins
from ramify.cli.exit_codes import ExitCode
from ramify.cli.help_text import OUTPUT, flag_group
from ramify.cli.options import add_json_flag, add_look_flags, saved_run
from ramify.cli.terminal import Terminal, visible
from ramify.core.errors import ConfigError, ContractError, RamifyError

if TYPE_CHECKING:
    from ramify.core.shard import Shard
    from ramify.rows import Row
    from ramify.runner.saved import Saved

MAX_REASONS: Final = 5
"""Reasons that are printed."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_look_flags(parser)
    names = ", ".join(plugins.known("export"))
    output = flag_group(parser, OUTPUT)
    output.add_argument("--to", required=True, metavar="FORMAT", help=f"{names} or path/to/file.py:write")
    output.add_argument("--out", required=True, type=Path, metavar="FILE", help="new file to write")
    output.add_argument("--force", action="store_true", help="replace files that an earlier export made")
    output.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="an option of the format")
    rows = flag_group(parser, "rows")
    rows.add_argument(
        "--per-tree", type=int, metavar="N", help="exactly N rows per tree, for trainers with positional groups"
    )
    rows.add_argument(
        "--normaliser", type=float, metavar="N", help="divide every tree by N, for runs that are trained together"
    )
    rows.add_argument("--max-tokens", type=int, metavar="N", help="leave out rows of more than N tokens, and say so")
    rows.add_argument(
        "--accept", choices=["data"], help="with gold=NAME: take gold answers from data that has changed since the run"
    )
    add_json_flag(parser)


def execute(options: argparse.Namespace, terminal: Terminal) -> ExitCode:
    from ramify.cli.export_files import own_fault
    from ramify.cli.tree_shares import each_tree
    from ramify.rows.files import files_of, mark, refuse_files

    if options.per_tree is not None and options.per_tree < 1:
        raise ConfigError(f"--per-tree {options.per_tree}: at least 1 is needed")
    if options.max_tokens is not None and options.max_tokens < 1:
        raise ConfigError(f"--max-tokens {options.max_tokens}: at least 1 is needed")
    if options.normaliser is not None and not 0 < options.normaliser < math.inf:
        raise ConfigError(f"--normaliser {options.normaliser:g}: a finite number above 0 is needed")
    write = plugins.find("export", options.to)
    parameters = inspect.signature(write).parameters
    takes_trees = next(iter(parameters), "") == "trees"
    of_rows = {"--per-tree": options.per_tree, "--normaliser": options.normaliser, "--max-tokens": options.max_tokens}
    flags = [f"{flag} {value:g}" for flag, value in of_rows.items() if value is not None]
    if takes_trees and flags:
        raise ConfigError(f"{flags[0]}: {options.to!r} is made of trees, not of rows; leave the flag out")
    settings = _settings(write, options.to, options.set)
    gold = None if takes_trees else settings.get("gold")
    if options.accept is not None and gold is None:
        raise ConfigError(
            f"--accept {options.accept}: only gold answers are read from the data again; add --set gold=NAME"
        )
    saved = saved_run(options)
    files = files_of(write, options.out)
    refuse_files(files, force=options.force, fault=own_fault(saved.config.data.path))
    if takes_trees or "codec" in parameters:
        saved.refuse_unread_text(f"export {options.to!r}")
    accept = () if options.accept is None else (options.accept,)
    wanted = {
        "per_tree": options.per_tree,
        "normaliser": options.normaliser,
        "max_tokens": options.max_tokens,
        "gold": gold,
        "accept": accept,
    }
    tally = RowTally()
    source = saved.marked_trees() if takes_trees else tally.counted(each_tree(partial(_rows, wanted=wanted), saved))
    ours = {"force": options.force, "codec": saved.codec}
    given = {name: value for name, value in ours.items() if name in parameters}
    number = _written(partial(write, source, options.out, **settings, **given), options.to, write)
    mark(files)
    for gap in saved.gaps():
        terminal.warn(f"{options.run}: {gap}; only finished trees were exported")
    if options.json:
        values = {"run": str(options.run), "rows": number, "to": options.to, "out": str(options.out)}
        terminal.result("ramify.export/1", {**values, "reasons": tally.reasons})
    else:
        terminal.lines([f"{number} rows in {options.out}"])
    tally.tell(terminal)
    return ExitCode.DONE


def _rows(saved: "Saved", share: "Shard", *, wanted: Mapping[str, Any]) -> "Iterator[tuple[int, list[Row]]]":
    return saved.numbered_rows(**wanted, share=share)


@dataclass(slots=True)
class RowTally:
    """What the rows say of themselves while they are written."""

    num_trees: int = 0
    num_empty: int = 0
    """Trees that make no row."""
    reasons: Counter[str] = field(default_factory=Counter[str])
    """Why rows are not exact -> the number of rows that say it."""

    def counted(self, numbered_rows: "Iterable[tuple[int, list[Row]]]") -> "Iterator[Row]":
        for _, rows in numbered_rows:
            self.num_trees += 1
            self.num_empty += not rows
            for row in rows:
                self.reasons.update(list(dict.fromkeys(row.reasons)))
                yield row

    def tell(self, terminal: Terminal) -> None:
        """Trees without a row, and the most frequent reasons, for people."""
        if self.num_empty:
            terminal.warn(f"{self.num_empty} of {self.num_trees} finished trees make no row")
        for reason, number in self.reasons.most_common(MAX_REASONS):
            terminal.say(visible(f"not exact, {number} row(s): {reason}"))
        if (num_more := len(self.reasons) - MAX_REASONS) > 0:
            terminal.say(f"not exact: {num_more} more reason(s), in the column reasons")


def _written(export: Callable[[], Any], name: str, write: Callable[..., int]) -> int:
    """The number of rows that an exporter says it wrote. Raises `ContractError` with the line of a user's exporter."""
    try:
        number = export()
    except (RamifyError, OSError):
        raise
    except Exception as error:  # boundary to a plug-in: whatever it raises is reported with its name and line
        where = plugins.line_in(error, Path(inspect.getfile(write)))
        raise ContractError(f"export {name!r} raised: {where}{type(error).__name__}: {error}") from error
    if not isinstance(number, int):
        raise ContractError(f"export {name!r} returned {number!r}; it must return the number of rows it wrote")
    return number


def _settings(write: Callable[..., int], name: str, texts: Sequence[str]) -> dict[str, Any]:
    """The keyword arguments of `--set`, converted to the types of the exporter's annotations."""
    import msgspec

    from ramify.config.layers import merged, override_layers

    faults: list[str] = []
    given, _ = merged(override_layers(texts, faults))
    faults += plugins.unknown_keywords(write, given).values() if given else []
    faults += ["force is the flag --force"] if "force" in given else []
    faults += ["codec is the tokenizer of the run"] if "codec" in given else []
    if faults:
        raise ConfigError(f"export {name!r}: {'; '.join(faults)}")
    hints = get_type_hints(write)
    settings: dict[str, Any] = {}
    for option, value in given.items():
        try:
            settings[option] = msgspec.convert(value, hints.get(option, Any))
        except msgspec.ValidationError as error:
            raise ConfigError(f"export {name!r}: {option} = {value!r}: {error}") from None
    return settings
