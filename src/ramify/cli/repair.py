"""`ramify repair`: keep the intact part of a damaged run, and say what was lost."""

import argparse
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ramify.cli.exit_codes import ExitCode
from ramify.cli.options import add_json_flag, add_run_argument
from ramify.cli.terminal import Terminal

if TYPE_CHECKING:
    from ramify.store.repair import Repair


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_argument(parser)
    add_json_flag(parser)


def execute(options: argparse.Namespace, terminal: Terminal) -> ExitCode:
    from ramify.store.layout import JOURNAL, LAYOUT, LAYOUT_COPY, is_sharded, layout_of, repair_layout, shard_path
    from ramify.store.repair import repair

    is_divided = is_sharded(options.run)
    if is_divided and repair_layout(options.run):
        terminal.say(f"{options.run / LAYOUT} was damaged and is written again from {LAYOUT_COPY}")
    if not is_divided:
        repaired = {"": repair(options.run / JOURNAL)}
    else:
        paths = [shard_path(options.run, index) for index in range(layout_of(options.run).num_shards)]
        repaired = {f"{path.name}": repair(path / JOURNAL) for path in paths if (path / JOURNAL).is_dir()}
    if options.json:
        terminal.result("ramify.repair/1", {"run": str(options.run), **_values(repaired)})
    for shard, found in repaired.items() if not options.json else ():
        terminal.out.print(
            f"{f'shard {shard}: ' if shard else ''}{found}".replace("; ", "\n"), markup=False, soft_wrap=True
        )
    if any(found.backup is not None for found in repaired.values()):
        terminal.say(f"continue with: ramify resume {options.run}")
    return ExitCode.DONE


def _values(repaired: "Mapping[str, Repair]") -> dict[str, Any]:
    """What was kept and lost of the journal, or of each shard's journal."""
    values = {
        shard: {**asdict(found), "backup": None if found.backup is None else str(found.backup)}
        for shard, found in repaired.items()
    }
    return values.get("") or {"shards": values}
