"""The command line: find the command, run it, and turn errors into one line and an exit code.

A command is a module with `add_arguments(parser)` and `execute(options, terminal) -> ExitCode`. Only the module of the
requested command is imported.
"""

import argparse
import atexit
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from ramify.cli.help_text import HelpWithDefaults
from ramify.core.errors import RamifyError, is_interrupt, nearest
from ramify.edge.interrupts import interrupts_kept
from ramify.version import __version__

COMMANDS: Mapping[str, str] = {
    "init": "write a small project that runs at once: settings, questions, a tool and a judge",
    "demo": "grow one tree of the built-in model on the screen; --compare: strategies at equal tokens",
    "plan": "grow a small pilot, and advise where to fork and where to prune",
    "compare": "compare presets with chains of equal tokens on the same problems",
    "noise": "measure the gradient noise of presets at equal tokens",
    "search": "answer questions: search for the best answer within a budget",
    "eval": "answer the same problems with several presets and budgets, and grade the answers",
    "rollout": "grow a tree for every problem into a new run folder",
    "service": "grow batch after batch of rows for a trainer, and go on where the last call stopped",
    "train": "train a model on trees, and evaluate it on held-out problems meanwhile",
    "resume": "continue a run that was interrupted or killed",
    "repair": "keep the intact part of a damaged run",
    "show": "sum up a run, list its trees, or draw one",
    "view": "look at runs in a browser while they grow, or write them as one HTML file",
    "export": "write a run's rows for a trainer",
    "env": "check an environment: open it, play, fork, replay, and say what was found",
    "index": "build a search index from a corpus",
    "retriever": "serve a search index over HTTP, by Search-R1's protocol",
    "gateway": "serve searches as models of the chat completions API",
    "serve": "start servers of a model, and keep them running until Ctrl-C",
    "capacity": "say how long a run takes on so many GPUs, and what holds it up",
    "certify": "find out whether a strategy with a credit is an exact policy gradient",
    "check": "replay a run and check every invariant",
    "presets": "list published settings",
    "doctor": "report what this machine can use, what is missing, and whether a command can run",
}

HAND_ON = frozenset({"serve"})
"""Commands that pass the arguments behind `--` on to another program."""

INTERRUPTED: Final = 130
"""Exit code after Ctrl-C: `cli.exit_codes`, which is not imported before the command."""
ABOUT = "ramify: rollout trees for language-model agents, for training and for answering."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. A bad command line exits with 2 by `SystemExit`, as argparse does."""
    try:
        code = _command(sys.argv[1:] if arguments is None else arguments)
    except BaseException as error:
        if not is_interrupt(error):
            raise
        # Ctrl-C while a command is imported: there is no terminal of ours yet.
        sys.stderr.write("error: interrupted\n")
        code = INTERRUPTED
    finally:
        # CPython notes a Ctrl-C that fell into an `exec`, as a dataclass is made by one, and then ends by the signal,
        # whatever the exit code. The next `exec` of a text deletes the note.
        exec("")
    return code


def console() -> int:
    """`main`, as the whole of a process. Ray's threads crash a process that ends while they connect (4 of 25 tries), so
    after a Ctrl-C that process ends at once, with nothing of Ray's torn down."""
    code = main()
    if code == INTERRUPTED and "ray" in sys.modules:
        sys.stdout.flush()
        sys.stderr.flush()
        atexit._run_exitfuncs()  # Ray's kill the processes that it has begun.
        os._exit(code)
    return code


def _command(arguments: Sequence[str]) -> int:
    arguments, handed_on = _divided(arguments)
    arguments = _joined(arguments)
    with interrupts_kept():
        parser, command = parsers(arguments)
    options, unknown = parser.parse_known_args(arguments, argparse.Namespace(handed_on=handed_on))
    if unknown:
        flags = [flag for action in command._actions for flag in action.option_strings]  # argparse has no public list
        name = unknown[0].partition("=")[0]
        command.error(f"unknown argument {name!r}; {nearest(name, flags)}")
    if options.command is None:
        parser.print_help(sys.stderr)
        return 2
    try:
        return _run(options)
    except BrokenPipeError:
        # The reader of our output has gone. Without this Python raises again when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _run(options: argparse.Namespace) -> int:
    with interrupts_kept():
        from ramify.cli.exit_codes import ExitCode, code_of_error, words_of
        from ramify.cli.terminal import terminal
        from ramify.edge.open_files import out_of_files

        command = importlib.import_module(f"ramify.cli.{options.command}")
    verbosity = -1 if options.quiet else options.verbose
    to = terminal(verbosity=verbosity, has_color=not options.no_color)
    try:
        return int(command.execute(options, to))
    except BaseException as error:
        if is_interrupt(error):
            to.fault("interrupted")
            return int(ExitCode.INTERRUPTED)
        is_ours = isinstance(error, RamifyError) or (isinstance(error, OSError) and out_of_files(error))
        if not is_ours or verbosity >= 2:
            raise
        said = words_of(error)
        to.fault(said)
        code = code_of_error(error) if isinstance(error, RamifyError) else ExitCode.ENVIRONMENT
        if vars(options).get("json"):
            to.result("ramify.error/1", {"error": said, "exit_code": int(code)})
        return int(code)


def _divided(arguments: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Our arguments, and those to pass on."""
    if "--" not in arguments or HAND_ON.isdisjoint(arguments[:1]):
        return arguments, ()
    end = list(arguments).index("--")
    return arguments[:end], arguments[end + 1 :]


def _joined(arguments: Sequence[str]) -> list[str]:
    """`--sort -COLUMN` as `--sort=-COLUMN`: argparse takes a word behind a dash for a flag."""
    joined: list[str] = []
    for argument in arguments:
        if joined and joined[-1] == "--sort" and argument[:1] == "-" and argument[:2] != "--":
            joined[-1] = f"--sort={argument}"
        else:
            joined.append(argument)
    return joined


def parsers(arguments: Sequence[str]) -> tuple[argparse.ArgumentParser, argparse.ArgumentParser]:
    """The parser of all arguments, and that of the requested command, the only one that has its flags."""
    parser = argparse.ArgumentParser(prog="ramify", description=ABOUT)
    parser.add_argument("--version", action="version", version=f"ramify {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    wanted = next((a for a in arguments if not a.startswith("-")), None)
    if wanted is not None and wanted not in COMMANDS:
        parser.error(f"unknown command {wanted!r}; {nearest(wanted, COMMANDS)}")
    requested = parser
    for name, help_text in COMMANDS.items():
        command = commands.add_parser(
            name, help=help_text, description=help_text, allow_abbrev=False, formatter_class=HelpWithDefaults
        )
        if name == wanted:
            from ramify.cli.options import add_terminal_flags

            requested = command
            importlib.import_module(f"ramify.cli.{name}").add_arguments(command)
            add_terminal_flags(command)
    return parser, requested


if __name__ == "__main__":
    sys.exit(console())
