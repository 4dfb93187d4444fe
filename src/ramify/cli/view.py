"""`ramify view`: look at runs in a browser while they grow, or write them as one HTML file."""

import argparse
import asyncio
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from ramify.cli.exit_codes import ExitCode
from ramify.cli.help_text import WHAT, flag_group
from ramify.cli.options import add_json_flag
from ramify.cli.terminal import Terminal, visible
from ramify.core.errors import ConfigError, StoreError

if TYPE_CHECKING:
    from ramify.view.documents import Documents


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = flag_group(parser, WHAT)
    what.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a run, or a folder of runs")
    what.add_argument("--port", type=int, default=0, metavar="N", help="port to listen on; 0: any free port")
    page = flag_group(parser, "one file")
    page.add_argument("--html", type=Path, metavar="FILE", help="write one page to a new file, which opens by itself")
    page.add_argument("--tree", action="append", type=int, metavar="N", help="only this tree; may be repeated")
    page.add_argument("--max-nodes", type=int, metavar="N", help="put trees in until there are so many nodes")
    page.add_argument("--no-tokens", action="store_true", help="leave out tokens; of each step only 80 characters stay")
    add_json_flag(parser)


def execute(options: argparse.Namespace, terminal: Terminal) -> ExitCode:
    from ramify.runner import loop
    from ramify.view.documents import Documents

    _refuse_flags(options)
    documents = Documents.open(options.runs)
    if options.html is not None:
        return _write(documents, options, terminal)
    return loop.run(_serve(documents, options, terminal))


def _refuse_flags(options: argparse.Namespace) -> None:
    given = [
        flag for flag, value in (("--tree", options.tree), ("--max-nodes", options.max_nodes)) if value is not None
    ]
    given += ["--no-tokens"] if options.no_tokens else []
    if given and options.html is None:
        raise ConfigError(f"{given[0]}: it is about the file of --html FILE; name one, or leave it out")
    if options.max_nodes is not None and options.max_nodes < 1:
        raise ConfigError(f"--max-nodes {options.max_nodes}: at least 1 is needed")


def _write(documents: "Documents", options: argparse.Namespace, terminal: Terminal) -> ExitCode:
    from ramify.view.html_file import write_html

    list(documents.look())
    if all(run.faults and not run.trees for run in documents.runs):
        raise StoreError(documents.runs[0].faults[0])
    size = write_html(
        documents,
        options.html,
        trees=options.tree,
        max_nodes=options.max_nodes,
        has_tokens=not options.no_tokens,
    )
    for run in documents.runs:
        for fault in run.faults:
            terminal.warn(f"{run.name}: {fault}")
    if options.json:
        terminal.result("ramify.view/1", {"html": str(options.html), "bytes": size})
    else:
        terminal.lines([str(options.html)])
    terminal.say(f"{size / 1e6:.1f} MB; open it in a browser; it needs nothing else")
    return ExitCode.DONE


async def _serve(documents: "Documents", options: argparse.Namespace, terminal: Terminal) -> ExitCode:
    """Serve until SIGINT or SIGTERM."""
    from ramify.view.server import ViewServer

    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    async with ViewServer(documents, port=options.port) as server:
        _tell(documents, server.url, terminal, is_json=options.json)
        await stopped.wait()
    return ExitCode.DONE


def _tell(documents: "Documents", url: str, terminal: Terminal, *, is_json: bool) -> None:
    runs = [run.name for run in documents.runs]
    if is_json:
        terminal.result("ramify.view/1", {"url": url, "runs": runs})
    else:
        terminal.lines([url])
    terminal.out.file.flush()
    port = url.split("/")[2].rpartition(":")[2]
    if os.environ.get("SSH_CONNECTION"):
        terminal.say(
            f"from your own machine: ssh -L {port}:127.0.0.1:{port} {os.uname().nodename}, then open the address"
        )
    terminal.say(f"{visible(', '.join(runs))}; only this machine can open it; Ctrl-C stops")
