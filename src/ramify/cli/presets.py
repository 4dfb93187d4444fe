"""`ramify presets`: one line for each preset, grouped by kind; `ramify presets NAME`: all about one."""

import argparse
from collections.abc import Iterator

from rich.table import Table
from rich.text import Text

from ramify.cli.exit_codes import ExitCode
from ramify.cli.options import add_json_flag
from ramify.cli.terminal import Terminal
from ramify.config.presets import KINDS, Preset, preset, preset_names


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="show one preset with its settings")
    add_json_flag(parser)


def execute(options: argparse.Namespace, terminal: Terminal) -> ExitCode:
    listed = [preset(name) for name in ([options.name] if options.name else preset_names())]
    if options.json:
        terminal.result("ramify.presets/2", {"presets": listed})
    elif options.name:
        terminal.out.print(_about(listed[0]))
        terminal.out.print(_settings(listed[0]), markup=False)
    else:
        for line in _lines(listed):
            terminal.out.print(line, soft_wrap=True)
    return ExitCode.DONE


def _lines(presets: list[Preset]) -> Iterator[Text]:
    width = max(len(each.name) for each in presets) + len("* ")
    for kind, about in KINDS.items():
        yield Text(kind, "bold").append(f": {about}", "not bold")
        for each in presets:
            if each.kind == kind:
                yield Text(f"{each.name}{'*' if each.is_exact else ''}".ljust(width)).append(each.summary)
        yield Text()
    yield Text('* exact credit: the gradient of the rows is unbiased with credit = "auto"')
    yield Text("`ramify presets NAME` shows the settings, the source and the assumptions of one.")


def _about(each: Preset) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column()
    cells = {
        each.name: each.summary,
        "kind": f"{each.kind}: {KINDS[each.kind]}",
        "leaves": f"at most {each.leaves}",
        "cost": "varies" if each.cost_a_leaf is None else f"{each.cost_a_leaf:.2f} chains a leaf",
        "credit": "exact" if each.is_exact else "approximate",
        "assumes": each.assumes,
        "source": each.cites,
        "notes": each.notes,
    }
    for name, text in cells.items():
        if text:
            table.add_row(Text(name, "bold"), Text(text))
    return table


def _settings(each: Preset) -> str:
    from ramify.config.toml import toml_text

    small = {"small": each.small} if each.small else {}
    return "\n" + toml_text({**each.values, **small}).strip()
