"""The command line: finds the command, runs it, and turns errors into one line and an exit code.

A command is a module with `add_arguments(parser)` and `execute(options, terminal) -> ExitCode`; only the module of the
command that was asked for is imported.
"""

import argparse
import importlib
import os
import sys
from collections.abc import Mapping, Sequence

from ramify.core.errors import RamifyError
from ramify.version import __version__

COMMANDS: Mapping[str, str] = {
    "demo": "grow trees from the built-in model and compare strategies at equal tokens",
    "plan": "grow a pilot, and say where to fork, where to give up, and what it gains",
    "compare": "run presets on the same problems, each against chains of as many tokens",
    "noise": "measure what presets' gradients cost: their noise, times the tokens of a tree",
    "search": "answer questions by searching for the best answer within a budget",
    "eval": "let presets answer the same problems within the same budgets, and grade them",
    "rollout": "grow a tree for every problem into a new run folder",
    "resume": "go on with a run that was interrupted or killed",
    "repair": "keep what can be trusted of a damaged run",
    "show": "draw a run's trees",
    "export": "write a run's rows for a trainer",
    "index": "make a search index from a corpus",
    "retriever": "serve a search index over HTTP, by Search-R1's protocol",
    "serve": "start servers of a model, keep them up, and stop them",
    "check": "replay a run and check every invariant",
    "presets": "list published settings",
    "doctor": "say what of this machine can be used, and what is missing",
}

HAND_ON = frozenset({"serve"})
"""Commands that hand what stands behind `--` on to somebody else."""

ABOUT = "ramify: rollout trees for language-model agents, for training and for answering."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. argparse itself exits with 2 on a bad command line."""
    arguments, handed_on = _divided(sys.argv[1:] if arguments is None else arguments)
    parser = _parser(arguments)
    options = parser.parse_args(arguments, argparse.Namespace(handed_on=handed_on))
    if options.command is None:
        parser.print_help(sys.stderr)
        return 2
    try:
        return _run(options)
    except BrokenPipeError:
        # Whoever read our output has gone; Python would complain again when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _run(options: argparse.Namespace) -> int:
    from ramify.cli.exit_codes import ExitCode, code_of_error
    from ramify.cli.terminal import terminal

    verbosity = -1 if options.quiet else options.verbose
    to = terminal(verbosity=verbosity, has_color=not options.no_color)
    command = importlib.import_module(f"ramify.cli.{options.command}")
    try:
        return int(command.execute(options, to))
    except RamifyError as error:
        if verbosity >= 2:
            raise
        to.fault(str(error))
        code = code_of_error(error)
        if vars(options).get("json"):
            to.result("ramify.error/1", {"error": str(error), "exit_code": int(code)})
        return int(code)
    except KeyboardInterrupt:
        to.fault("interrupted")
        return int(ExitCode.INTERRUPTED)


def _divided(arguments: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """What is ours, and what is handed on."""
    if "--" not in arguments or HAND_ON.isdisjoint(arguments[:1]):
        return arguments, ()
    end = list(arguments).index("--")
    return arguments[:end], arguments[end + 1 :]


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """The parser, with the flags of the command that `arguments` name and of no other."""
    parser = argparse.ArgumentParser(prog="ramify", description=ABOUT)
    parser.add_argument("--version", action="version", version=f"ramify {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    wanted = next((a for a in arguments if not a.startswith("-")), None)
    for name, help_text in COMMANDS.items():
        command = commands.add_parser(name, help=help_text, description=help_text, allow_abbrev=False)
        if name == wanted:
            from ramify.cli.options import add_terminal_flags

            importlib.import_module(f"ramify.cli.{name}").add_arguments(command)
            add_terminal_flags(command)
    return parser


if __name__ == "__main__":
    sys.exit(main())
