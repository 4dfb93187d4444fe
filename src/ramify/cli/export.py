"""`ramify export`: a run's rows in canonical order, for a trainer.

An exporter is a function `(rows, path, **options) -> number written`; one whose first parameter is called `trees` gets
the finished trees instead, with a note on the leaves that the run does not keep. Options are checked against its
annotations before the run is read. With the option `gold=NAME`, which an exporter takes as a keyword, the rows hold the
gold answers in their public column NAME. One that takes a keyword `force` is told of `--force`. All files are checked
before one is written (`rows.files`, `export_files`).
"""

import argparse
import inspect
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_type_hints

from ramify import plugins
from ramify.cli.exit_codes import ExitCode
from ramify.cli.options import add_json_flag, add_look_flags, saved_run
from ramify.cli.terminal import Terminal
from ramify.core.errors import ConfigError, ContractError, RamifyError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_look_flags(parser)
    names = ", ".join(plugins.known("export"))
    parser.add_argument("--to", required=True, metavar="FORMAT", help=f"{names} or path/to/file.py:write")
    parser.add_argument("--out", required=True, type=Path, metavar="FILE", help="new file to write")
    parser.add_argument("--force", action="store_true", help="replace files that an earlier export made")
    parser.add_argument(
        "--per-tree", type=int, metavar="N", help="exactly N rows per tree, for trainers with positional groups"
    )
    parser.add_argument(
        "--accept", choices=["data"], help="with gold=NAME: take gold answers from data that has changed since the run"
    )
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="an option of the format")
    add_json_flag(parser)


def execute(options: argparse.Namespace, terminal: Terminal) -> ExitCode:
    from ramify.cli.export_files import own_fault
    from ramify.rows.files import files_of, mark, refuse_files

    if options.per_tree is not None and options.per_tree < 1:
        raise ConfigError(f"--per-tree {options.per_tree}: at least 1 is needed")
    write = plugins.find("export", options.to)
    parameters = inspect.signature(write).parameters
    takes_trees = next(iter(parameters), "") == "trees"
    if takes_trees and options.per_tree is not None:
        raise ConfigError(f"--per-tree {options.per_tree}: {options.to!r} is made of trees, not of rows")
    settings = _settings(write, options.to, options.set)
    gold = None if takes_trees else settings.get("gold")
    if options.accept is not None and gold is None:
        raise ConfigError(
            f"--accept {options.accept}: only gold answers are read from the data again; add --set gold=NAME"
        )
    saved = saved_run(options)
    files = files_of(write, options.out)
    refuse_files(files, force=options.force, fault=own_fault(saved.config.data.path))
    if takes_trees:
        saved.refuse_unread_text(f"export {options.to!r}")
    accept = () if options.accept is None else (options.accept,)
    wanted = {"per_tree": options.per_tree, "gold": gold, "accept": accept}
    source = saved.marked_trees() if takes_trees else saved.rows(**wanted)
    forced = {"force": options.force} if "force" in parameters else {}
    number = _written(partial(write, source, options.out, **settings, **forced), options.to, write)
    mark(files)
    for gap in saved.gaps():
        terminal.warn(f"{options.run}: {gap}; only finished trees were exported")
    if options.json:
        values = {"run": str(options.run), "rows": number, "to": options.to, "out": str(options.out)}
        terminal.result("ramify.export/1", values)
    else:
        terminal.lines([f"{number} rows in {options.out}"])
    return ExitCode.DONE


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
