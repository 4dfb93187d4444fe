"""`ramify retriever serve`: serve a search index by Search-R1's HTTP protocol until a signal."""

import argparse
import asyncio
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from ramify.cli.exit_codes import ExitCode
from ramify.cli.options import add_json_flag
from ramify.cli.terminal import Terminal

if TYPE_CHECKING:
    from ramify.tools.retriever_server import RetrieverServer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("serve",), help="serve: answer requests until Ctrl-C or SIGTERM")
    parser.add_argument("index", type=Path, metavar="INDEX", help="index that `ramify index` wrote")
    parser.add_argument("--host", default="127.0.0.1", metavar="HOST", help="address to listen on")
    parser.add_argument("--port", type=int, default=0, metavar="N", help="port to listen on; 0: any free port")
    parser.add_argument("--topk", type=int, default=3, metavar="K", help="passages for a query that names no number")
    add_json_flag(parser)


def execute(options: argparse.Namespace, terminal: Terminal) -> ExitCode:
    from ramify.tools.retriever_server import RetrieverServer
    from ramify.tools.search_index import open_index

    index = open_index(options.index)
    server = RetrieverServer(index, top_k=options.topk, host=options.host, port=options.port)
    asyncio.run(_serve(server, index.num_passages, terminal, is_json=options.json))
    return ExitCode.DONE


async def _serve(server: "RetrieverServer", num_passages: int, terminal: Terminal, *, is_json: bool) -> None:
    """Serve until SIGINT or SIGTERM; a second signal ends the process at once."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    async with server:
        if is_json:
            terminal.result("ramify.retriever/1", {"url": server.url, "passages": num_passages})
        else:
            terminal.lines([server.url])
            terminal.say(f"{num_passages} passages, POST {server.url}/retrieve; Ctrl-C stops")
        await stopped.wait()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
        terminal.say("stopping after the requests in flight")
