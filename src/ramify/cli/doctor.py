"""`ramify doctor [COMMAND]`: what this machine has, what is missing, what to do, and whether a command can run.

Every finding is a line with a mark; the last line is the verdict. A fault stops the command. A missing part limits it,
and the verdict only counts it. Without COMMAND everything is checked.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import Final, Literal, get_args

from rich.text import Text

from ramify.cli import machine_checks as checks
from ramify.cli.exit_codes import ExitCode
from ramify.cli.machine_checks import EXTRAS, Finding, Mark
from ramify.cli.options import add_json_flag
from ramify.cli.terminal import Terminal
from ramify.core.errors import ConfigError

STYLES: Final[Mapping[Mark, str]] = {"ok": "green", "missing": "yellow", "fault": "bold red"}

Part = Literal["model", "disk", "threads", "sandbox", "engines"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What matters for a command, besides Python and the packages that ramify installs."""

    parts: Sequence[Part] = ()
    extras: Sequence[str] = ()
    """Extras that it can use."""
    needed_extras: Sequence[str] = ()
    """Extras without which it does not start."""
    needs_engine: bool = False
    """Whether it does not start without an engine's package."""


PARTS: Final[tuple[Part, ...]] = get_args(Part)
EVERYTHING: Final = Needs(parts=PARTS, extras=tuple(EXTRAS))
INPUTS: Final = ("http", "chat", "hf", "search", "math", "mcp", "parquet")
"""Extras of engines, tools, judges and data."""
TRACKERS: Final = ("tensorboard", "trackio", "wandb")
ENVIRONMENTS: Final = ("gym", "textworld", "textarena", "openenv", "verifiers", "inspect")
RUN: Final = Needs(parts=PARTS, extras=(*INPUTS, *TRACKERS, "metrics", "ray"))
COMPARISON: Final = Needs(parts=("model", "threads", "sandbox", "engines"), extras=(*INPUTS, "plot"))
NEEDS: Final[Mapping[str, Needs]] = {
    "init": Needs(parts=("disk",)),
    "demo": Needs(parts=("model", "disk", "threads")),
    "plan": replace(COMPARISON, extras=INPUTS),
    "compare": COMPARISON,
    "noise": Needs(parts=("model", "threads"), needed_extras=("hf",)),
    "search": replace(RUN, extras=(*INPUTS, *TRACKERS)),
    "eval": replace(COMPARISON, extras=(*COMPARISON.extras, *TRACKERS)),
    "rollout": RUN,
    "service": RUN,
    "train": replace(RUN, needed_extras=("train",)),
    "resume": RUN,
    "repair": Needs(parts=("disk",)),
    "show": Needs(),
    "view": Needs(needed_extras=("view",)),
    "export": Needs(parts=("disk",), extras=("parquet",)),
    "env": Needs(extras=ENVIRONMENTS),
    "index": Needs(parts=("disk",), extras=("search", "parquet")),
    "retriever": Needs(extras=("search",), needed_extras=("http",)),
    "gateway": Needs(parts=PARTS, extras=tuple(name for name in INPUTS if name != "http"), needed_extras=("http",)),
    "serve": Needs(parts=("engines",), needed_extras=("http",), needs_engine=True),
    "capacity": Needs(parts=("model", "engines"), extras=("http", "chat", "hf")),
    "certify": Needs(),
    "check": Needs(),
    "presets": Needs(),
}
"""Command -> what matters for it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    about = "check only what matters for this command (default: check everything)"
    parser.add_argument("subject", nargs="?", metavar="COMMAND", help=about)
    parser.add_argument("--python", metavar="PATH", help="interpreter of the engines (default: this one)")
    add_json_flag(parser)


def execute(options: argparse.Namespace, terminal: Terminal) -> ExitCode:
    subject: str | None = options.subject
    needs = _needs(subject)
    if options.python is not None and "engines" not in needs.parts:
        raise ConfigError(f"--python {options.python}: `ramify {subject}` starts no engine; leave --python out")
    found = list(findings(needs, options.python or sys.executable))
    is_ready = not any(each.mark == "fault" for each in found)
    said = verdict(subject, found)
    if options.json:
        listed = [asdict(each) for each in found]
        values = {"command": subject, "is_ready": is_ready, "verdict": said, "findings": listed}
        terminal.result("ramify.doctor/2", values)
    else:
        for each in found:
            mark = Text(f"{each.mark:8}", STYLES[each.mark])
            terminal.out.print(mark + Text(f"{each.name:12}", "bold") + Text(str(each)), soft_wrap=True)
        terminal.out.print(Text(said, "bold green" if is_ready else "bold red"), soft_wrap=True)
    return ExitCode.DONE if is_ready else ExitCode.ENVIRONMENT


def _needs(command: str | None) -> Needs:
    if command is None:
        return EVERYTHING
    if command not in NEEDS:
        raise ConfigError(f"doctor has nothing to check for {command!r}; name one of {', '.join(NEEDS)}, or none")
    return NEEDS[command]


def findings(needs: Needs, python: str) -> Iterator[Finding]:
    """What was found of what a command needs and can use. `python` is the interpreter of the engines.

    Where a package of ramify itself is missing, nothing else is checked: the other checks import it."""
    base = [*checks.python(), *checks.base()]
    yield from base
    if any(each.mark == "fault" for each in base):
        return
    look: Mapping[Part, Callable[[], Iterator[Finding]]] = {
        "model": lambda: chain(checks.model(), checks.fused_step()),
        "disk": checks.disk,
        "threads": checks.threads,
        "sandbox": checks.sandbox,
        "engines": lambda: _engines(python, is_needed=needs.needs_engine),
    }
    for part in needs.parts:
        yield from look[part]()
    yield from checks.extras((*needs.needed_extras, *needs.extras), needed=needs.needed_extras)


def _engines(python: str, *, is_needed: bool) -> Iterator[Finding]:
    """The engines of an interpreter. The first is a fault if one is needed and there is none."""
    first, *others = checks.engines(python)
    has_engine = any(each.mark == "ok" and each.name != "router" for each in (first, *others))
    yield replace(first, mark="fault") if is_needed and not has_engine else first
    yield from others


def verdict(command: str | None, found: Sequence[Finding]) -> str:
    """One line: whether a command can run here (None = the built-in model), and what to do if not."""
    if faults := [each for each in found if each.mark == "fault"]:
        said = "; ".join(f"{each.name}: {each.text} — {each.remedy}" for each in faults)
        return f"not ready: {' '.join(said.split())}"
    subject = "the built-in model" if command is None else f"`ramify {command}`"
    missing = [each.name for each in found if each.mark == "missing"]
    without = f", without {', '.join(missing)}" if missing else ""
    return f"ready: {subject} runs here{without}"
