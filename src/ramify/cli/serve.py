"""`ramify serve`: start servers of a model, print their URLs, and keep them running until Ctrl-C or SIGTERM.

The first signal stops everything in order. A second signal, or any other end of this process, leaves that to the
guards, which kill at once.
"""

import argparse
import asyncio
import functools
import os
import shlex
import signal
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_args

from ramify.cli.exit_codes import ExitCode
from ramify.cli.help_text import OUTPUT, flag_group
from ramify.cli.options import add_json_flag
from ramify.cli.terminal import Terminal, visible
from ramify.servers.home import Here, Home, log_folder
from ramify.servers.launch import Kind, Launch, Policy, RouterLaunch, command
from ramify.servers.server_config import Device, ServerConfig

if TYPE_CHECKING:
    from ramify.servers.router import Router
    from ramify.servers.server_pool import Event, ServerPool
    from ramify.servers.site import Site

TEXT_ONLY: Final = (
    "note: for vLLM's servers this router takes prompts of text only and refuses token ids (422): the engine `openai` "
    "works through it, `vllm` does not; without --router ramify places requests itself"
)

SAME_SIGNAL_S: Final = 1.0
"""Signals so close to the first one are the same: `timeout` sends one to us and one to our process group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOrder:
    """What the command line asks to serve."""

    launch: Launch
    router: RouterLaunch | None
    count: int
    home: Home
    """Of the router if there is one, else of the servers."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "ramify serve MODEL [options] [-- arguments handed on to the server]"
    parser.add_argument("model", metavar="MODEL", help="name or folder of a model, or `builtin`")
    _add_server_flags(flag_group(parser, "servers"))
    router = flag_group(parser, "router")
    one = "router that gives all servers one address"
    router.add_argument("--router", choices=("none", "sglang"), default="none", help=one)
    theirs = "interpreter with the router installed (default: --python)"
    router.add_argument("--router-python", metavar="PATH", help=theirs)
    router.add_argument("--policy", choices=get_args(Policy), default="cache_aware", help="policy of the router")
    address = flag_group(parser, "address")
    address.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="address to listen on")
    first = "port of the router, or of the first server (default: any free port)"
    address.add_argument("--port", type=int, metavar="N", help=first)
    logs = "folder of the servers' logs (default: a new one)"
    flag_group(parser, OUTPUT).add_argument("--logs", type=Path, metavar="DIR", help=logs)
    add_json_flag(parser)


def _add_server_flags(group: argparse._ArgumentGroup) -> None:
    replicas = "number of servers, each with the whole model"
    group.add_argument("--replicas", type=int, default=1, metavar="N", help=replicas)
    group.add_argument("--kind", choices=get_args(Kind), default="vllm", help="kind of server")
    group.add_argument("--python", metavar="PATH", help="interpreter with the server installed (default: this one)")
    group.add_argument("--device", choices=get_args(Device), help="device (default: that of the installed build)")
    group.add_argument("--served-name", metavar="NAME", default="", help="model name in requests (default: MODEL)")
    dtype = "number type of the weights (default: the model's; on a CPU float32)"
    group.add_argument("--dtype", metavar="NAME", help=dtype)
    length = "longest context in tokens (default: the model's)"
    group.add_argument("--max-model-len", type=int, metavar="N", help=length)
    variable = "environment variable for the servers; NAME alone passes ours on"
    group.add_argument("--env", action="append", default=[], metavar="NAME[=VALUE]", help=variable)
    seconds = "seconds a server has to become ready"
    group.add_argument("--start-s", type=float, default=ServerConfig().start_s, metavar="S", help=seconds)


def execute(options: argparse.Namespace, terminal: Terminal) -> ExitCode:
    from ramify.runner import loop

    order = ordered(options)
    if order.router is not None and order.launch.kind == "vllm":
        terminal.say(TEXT_ONLY)
    return loop.run(serve(order, terminal, is_json=options.json))


def ordered(options: argparse.Namespace) -> ServeOrder:
    """The order of a command line. Raises `ConfigError`, also if the environment has no such engine."""
    from ramify.servers.installed import settled

    given: Sequence[str] = options.env
    launch = Launch(
        model=options.model,
        kind=options.kind,
        served_name=options.served_name,
        config=ServerConfig(
            python=options.python,
            device=options.device,
            dtype=options.dtype,
            max_model_len=options.max_model_len,
            arguments=tuple(options.handed_on),
            environment=dict(pair.split("=", 1) for pair in given if "=" in pair),
            hand_on=tuple(name for name in given if "=" not in name),
            start_s=options.start_s,
        ),
    )
    router = RouterLaunch(python=options.router_python or options.python or "", policy=options.policy)
    return ServeOrder(
        launch=settled(launch, ours=os.environ),
        router=None if options.router == "none" else router,
        count=options.replicas,
        home=Home(logs=log_folder(options.logs), host=options.host, port=options.port),
    )


def site(order: ServeOrder, say: Callable[[str], None]) -> "Site":
    """The servers of `order`, and its router if it has one. Starts nothing."""
    from ramify.servers.member import Care
    from ramify.servers.router import CARE as ROUTER_CARE
    from ramify.servers.router import Router
    from ramify.servers.server_pool import ServerPool
    from ramify.servers.site import Site

    def pool(observe: "Callable[[Event], None]") -> "ServerPool":
        home = replace(order.home, port=None) if order.router else order.home
        return ServerPool(
            Here(functools.partial(command, order.launch, ours=os.environ), home=home),
            count=order.count,
            probe=order.launch.probe,
            care=Care(start_s=order.launch.config.start_s),
            observe=observe,
        )

    def router(workers: Sequence[str], observe: "Callable[[Event], None]") -> "Router":
        assert order.router is not None, "only an order with a router makes one"
        return Router(
            order.router,
            workers,
            home=order.home,
            ours=os.environ,
            # A restarted router may find all servers starting.
            care=replace(ROUTER_CARE, start_s=max(ROUTER_CARE.start_s, order.launch.config.start_s)),
            observe=observe,
        )

    return Site(pool, None if order.router is None else router, say=say)


async def serve(order: ServeOrder, terminal: Terminal, *, is_json: bool) -> ExitCode:
    """Start, print the URLs, wait for a signal or the end of all servers, and stop."""
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, _asked_to_stop, loop, asked)
    say = functools.partial(_say, terminal)
    served = site(order, say)
    say(f"starting {order.count} x {order.launch.name} ({order.launch.kind}); logs in {order.home.logs}")
    try:
        if not await _before(served.start(), asked):
            return ExitCode.INTERRUPTED
        _tell(order, served, terminal, is_json=is_json)
        say("Ctrl-C stops everything")
        is_over = await _before(served.over.wait(), asked)
        say("all servers ended" if is_over else "stopping")
        return ExitCode.ENVIRONMENT if is_over else ExitCode.DONE
    finally:
        await served.stop()


def _say(terminal: Terminal, text: str) -> None:
    """Print a line for people. A closed stderr stops no server. `text` may quote a server's log, which is untrusted."""
    try:
        terminal.say(visible(text, keep="\n"))
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), terminal.err.file.fileno())


def _asked_to_stop(loop: asyncio.AbstractEventLoop, asked: asyncio.Event) -> None:
    """Handle the first signal; a later one has its usual effect."""
    if not asked.is_set():
        asked.set()
        loop.call_later(SAME_SIGNAL_S, _let_signals_through, loop)


def _let_signals_through(loop: asyncio.AbstractEventLoop) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.remove_signal_handler(number)


async def _before(work: Coroutine[Any, Any, object], asked: asyncio.Event) -> bool:
    """Run `work`. Returns whether it ended before the signal; if not, it is cancelled and awaited."""
    from ramify.servers.member import cancelled

    working, asking = asyncio.ensure_future(work), asyncio.ensure_future(asked.wait())
    try:
        await asyncio.wait({working, asking}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
            return True
        return False
    finally:
        await cancelled((working, asking))


def _tell(order: ServeOrder, served: "Site", terminal: Terminal, *, is_json: bool) -> None:
    if is_json:
        terminal.result(
            "ramify.serve/1",
            {
                "base_url": served.base_url,
                "urls": served.urls,
                "pids": served.pids,
                "router": served.router_url,
                "model": order.launch.name,
                "kind": order.launch.kind,
                "logs": str(order.home.logs),
            },
        )
    else:
        lines = [*served.urls, *([f"router {served.router_url}"] if served.router_url else []), _flags(order, served)]
        terminal.lines(lines)
        terminal.out.file.flush()


def _flags(order: ServeOrder, served: "Site") -> str:
    """The flags of `ramify rollout` that use these servers."""
    if order.router is not None and order.launch.kind == "vllm":
        return f"--engine openai --model {shlex.quote(order.launch.name)} --base-url {served.base_url}"
    return f"--engine {order.launch.kind} --model {shlex.quote(order.launch.path)} --base-url {served.base_url}"
