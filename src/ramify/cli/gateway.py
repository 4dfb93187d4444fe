"""`ramify gateway`: serve searches as models of the chat completions API, until a signal."""

import argparse
import asyncio
import os
import secrets
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ramify.cli.exit_codes import ExitCode, code_of_error, words_of
from ramify.cli.help_text import WHAT, flag_group
from ramify.cli.options import add_budget_flag, add_engine_flags, add_json_flag, add_out_flag, budgets, resolved_preset
from ramify.cli.terminal import Terminal, visible
from ramify.core.errors import ConfigError

if TYPE_CHECKING:
    from ramify.config.configure import Resolved
    from ramify.gateway.offers import Offers
    from ramify.gateway.server import GatewayConfig

RUNS = Path("runs")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    flag_group(parser, WHAT).add_argument(
        "--preset",
        action="append",
        default=[],
        metavar="NAME",
        help="a search to serve; may be repeated (default: every search that the engine can run)",
    )
    add_engine_flags(parser)
    add_budget_flag(parser)
    serving = flag_group(parser, "serving")
    serving.add_argument("--host", default="127.0.0.1", metavar="HOST", help="address to listen on")
    serving.add_argument("--port", type=int, default=0, metavar="N", help="port to listen on; 0: any free port")
    serving.add_argument(
        "--keys", type=Path, metavar="FILE", help="keys of clients, one a line (default: RAMIFY_GATEWAY_KEYS)"
    )
    serving.add_argument(
        "--max-in-flight", type=int, default=64, metavar="N", help="most requests in flight of a client"
    )
    serving.add_argument(
        "--max-answer-tokens",
        type=int,
        default=32_768,
        metavar="N",
        help="most tokens of an answer that a client may ask for",
    )
    serving.add_argument("--max-tokens", type=int, metavar="N", help="most tokens that a request's tree may sample")
    serving.add_argument("--tokens-a-day", type=int, metavar="N", help="most tokens sampled for a client in a day")
    serving.add_argument(
        "--view", action="store_true", help="serve the viewer too, and link the tree of each answer (x-ramify-view)"
    )
    add_out_flag(parser, runs="the runs")
    add_json_flag(parser)


def execute(options: argparse.Namespace, terminal: Terminal) -> ExitCode:
    from ramify.gateway.clients import KEYS_ENV, ClientLimits, read_keys
    from ramify.gateway.offers import offers_of
    from ramify.gateway.server import GatewayConfig
    from ramify.gateway.tailored import RequestLimits
    from ramify.runner import loop

    config = GatewayConfig(
        host=options.host,
        port=options.port,
        keys=read_keys(options.keys, os.environ.get(KEYS_ENV)),
        clients=ClientLimits(max_in_flight=options.max_in_flight, max_tokens_a_day=options.tokens_a_day),
        requests=RequestLimits(max_answer_tokens=options.max_answer_tokens, max_tokens=options.max_tokens),
    )
    if options.view and config.keys:
        raise ConfigError(
            "--view: its link shows the trees of all clients; leave out --view or the keys, and use `ramify view`"
        )
    offers = offers_of(_resolve(options), options.preset)
    path = options.out or next(path for path in (RUNS / f"gateway-{n}" for n in count(1)) if not path.exists())
    try:
        return loop.run(_serve(offers, config, path, terminal, has_view=options.view, is_json=options.json))
    finally:
        with suppress(OSError):
            path.rmdir()


def _resolve(options: argparse.Namespace):  # noqa: ANN202 - the type is `offers.Resolve`
    """The configuration of the command line with each preset. Its seed is drawn if none is given."""
    always: dict[str, Any] = {**budgets(options)}
    if "seed" not in resolved_preset(options, None).sources:
        always["seed"] = secrets.randbelow(1 << 31)

    def resolve(preset: str | None, settings: Mapping[str, Any]) -> "Resolved":
        return resolved_preset(options, preset, {**always, **settings})

    return resolve


async def _serve(
    offers: "Offers", config: "GatewayConfig", path: Path, terminal: Terminal, *, has_view: bool, is_json: bool
) -> ExitCode:
    """Serve until SIGINT or SIGTERM; a second signal ends the process at once."""
    from ramify.gateway.request_run import RequestRun
    from ramify.gateway.server import Gateway

    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    async with RequestRun(offers, path) as run:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stopped.set)
        async with _viewing(offers, path, is_wanted=has_view) as view, Gateway(run, view.linked(config)) as gateway:
            _tell(offers, gateway.url, path, terminal, view=view.url, is_json=is_json)
            waits = [asyncio.ensure_future(stopped.wait()), asyncio.ensure_future(run.over.wait())]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for each in waits:
                each.cancel()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
            terminal.say("stopping after the requests in flight")
        if run.fault is not None:
            terminal.fault(words_of(run.fault))
            return code_of_error(run.fault)
    return ExitCode.DONE


@dataclass(frozen=True, slots=True)
class _TreeView:
    """The viewer beside a gateway."""

    url: str = ""
    """Empty = there is none."""
    folders: tuple[str, ...] = ()
    """Folders of the offers, by the numbers that the viewer knows them by."""

    def linked(self, config: "GatewayConfig") -> "GatewayConfig":
        """`config`, with links to the trees."""
        return replace(config, tree_link=self._link) if self.url else config

    def _link(self, folder: str, tree: int) -> str:
        return f"{self.url}#v=tree&r={self.folders.index(folder)}&t={tree}"


@asynccontextmanager
async def _viewing(offers: "Offers", path: Path, *, is_wanted: bool) -> "AsyncIterator[_TreeView]":
    """The viewer of the gateway's trees, if it is wanted."""
    if not is_wanted:
        yield _TreeView()
        return
    from ramify.view.documents import Documents
    from ramify.view.followed_run import FollowedRun
    from ramify.view.server import ViewServer

    folders = tuple(dict.fromkeys(offer.folder for offer in offers))
    documents = Documents([FollowedRun.open(path / folder, name=folder) for folder in folders])
    async with ViewServer(documents) as server:
        yield _TreeView(server.url, folders)


def _tell(offers: "Offers", url: str, path: Path, terminal: Terminal, *, view: str, is_json: bool) -> None:
    names = [offer.name for offer in offers]
    if is_json:
        said = {"url": f"{url}/v1", "models": names, "run": str(path), "not_served": dict(offers.not_served)}
        said |= {"view": view} if view else {}
        terminal.result("ramify.gateway/1", said)
        return
    terminal.lines([f"{url}/v1"])
    terminal.out.file.flush()
    terminal.say(f"models: {', '.join(names)}")
    if offers.not_served:
        terminal.say(f"not served: {', '.join(offers.not_served)}; a request for one is told why")
    terminal.say(f"trees: {view or f'ramify view {visible(str(path))}'}; Ctrl-C stops")
