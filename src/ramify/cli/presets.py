"""`ramify presets`: list published settings, with leaves, cost per leaf, assumptions, sources and credit."""

import argparse

from rich.table import Table
from rich.text import Text

from ramify.cli.exit_codes import ExitCode
from ramify.cli.options import add_json_flag
from ramify.cli.terminal import Terminal
from ramify.config.presets import Preset, preset, preset_names


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="show one preset with its settings")
    add_json_flag(parser)


def execute(options: argparse.Namespace, terminal: Terminal) -> ExitCode:
    listed = [preset(name) for name in ([options.name] if options.name else preset_names())]
    if options.json:
        terminal.result("ramify.presets/1", {"presets": listed})
    else:
        terminal.out.print(_table(listed))
        if options.name:
            terminal.out.print(_settings(listed[0]), markup=False)
    return ExitCode.DONE


def _table(presets: list[Preset]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 1, 0))
    table.add_column("preset", no_wrap=True)
    table.add_column("leaves", justify="right", no_wrap=True)
    table.add_column("chains a leaf", justify="right")
    table.add_column("credit")
    table.add_column("what it is")
    for each in presets:
        about = Text(each.title).append(f"\n{each.notes}").append(f"\nassumes {each.assumes}")
        about.append(f"\n{each.cites}", style="dim")
        credit = Text("exact", "green") if each.is_exact else Text("approximate", "yellow")
        table.add_row(Text(each.name, "bold"), f"≤ {each.leaves}", _cost(each), credit, about)
    return table


def _cost(each: Preset) -> str:
    return "varies" if each.cost_a_leaf is None else f"{each.cost_a_leaf:.2f}"


def _settings(each: Preset) -> str:
    from ramify.config.toml import toml_text

    small = {"small": each.small} if each.small else {}
    return toml_text({**each.values, **small})
