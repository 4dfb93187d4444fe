"""`ramify export`: a run's rows in canonical order, for a trainer."""

import argparse
from pathlib import Path

from ramify.cli.exit_codes import ExitCode
from ramify.cli.options import add_json_flag, add_run_argument
from ramify.cli.terminal import Terminal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_argument(parser)
    parser.add_argument("--to", required=True, metavar="FORMAT", help="jsonl, parquet, arrays or path/to/file.py:write")
    parser.add_argument("--out", required=True, type=Path, metavar="FILE", help="replaced if it is there")
    add_json_flag(parser)


def execute(options: argparse.Namespace, terminal: Terminal) -> ExitCode:
    from ramify import plugins
    from ramify.runner.api import Saved

    write = plugins.find("export", options.to)
    num_rows = write(Saved.open(options.run).rows(), options.out)
    if options.json:
        values = {"run": str(options.run), "rows": num_rows, "to": options.to, "out": str(options.out)}
        terminal.result("ramify.export/1", values)
    else:
        terminal.out.print(f"{num_rows} rows in {options.out}", markup=False, soft_wrap=True)
    return ExitCode.DONE
