"""`--help` of every command: defaults, groups, and how little it loads."""

import argparse
import re
import subprocess
import sys

import pytest

from ramify.cli.help_text import HelpWithDefaults
from ramify.cli.main import COMMANDS, parsers
from ramify.config.run_config import RunConfig

MAX_UNGROUPED = 8
HELP_OF_ALL = """
import contextlib, io, sys
from ramify.cli.main import COMMANDS, main
for arguments in (["--help"], *([name, "--help"] for name in COMMANDS)):
    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.suppress(SystemExit):
        main(arguments)
    assert "usage: ramify" in said.getvalue(), arguments
    assert "numpy" not in sys.modules, arguments
"""


def parser_of(command: str) -> argparse.ArgumentParser:
    _, parser = parsers([command])
    return parser


def shown(action: argparse.Action) -> str:
    """What the help says of one flag, on one line."""
    formatter = HelpWithDefaults("ramify", width=1000)
    formatter.add_argument(action)
    return " ".join(formatter.format_help().split())


@pytest.mark.parametrize("command", COMMANDS)
def test_every_flag_that_has_a_default_names_it(command: str) -> None:
    for action in parser_of(command)._actions:  # argparse has no public list
        text = shown(action)
        if action.option_strings and action.nargs != 0 and action.default not in (None, "", []):
            value = str(action.default).removesuffix(".0")
            assert action.default == argparse.SUPPRESS or text.endswith(f"(default: {value})"), text
        assert len(re.findall("default", re.sub(r"\(default: [^)]+\)", "", text))) == 0, text
        assert text.count("(default: ") <= 1, text


def test_a_default_of_zero_is_named_and_a_share_has_no_zeros_behind_it() -> None:
    parser = argparse.ArgumentParser(formatter_class=HelpWithDefaults)
    parser.add_argument("--seed", type=int, default=0, help="seed")
    parser.add_argument("--wait", type=float, default=600.0, help="seconds")
    parser.add_argument("--share", default="5%", help="share of 100 %%")
    parser.add_argument("--fast", action="store_true", help="hurry")
    parser.add_argument("--out", help="folder")
    lines = [" ".join(line.split()) for line in parser.format_help().splitlines()[-5:]]
    assert lines == [
        "--seed SEED seed (default: 0)",
        "--wait WAIT seconds (default: 600)",
        "--share SHARE share of 100 % (default: 5%)",
        "--fast hurry",
        "--out OUT folder",
    ]


@pytest.mark.parametrize("command", ["rollout", "search", "plan", "gateway"])
def test_the_defaults_that_the_configuration_gives_are_those_that_the_help_names(command: str) -> None:
    config = RunConfig()
    given = {
        "task": config.task.name,
        "strategy": config.strategy.name,
        "engine": config.engine.name,
        "prompts": config.prompts,
        "seed": config.seed,
        "delivery": config.delivery,
    }
    actions = {action.dest: shown(action) for action in parser_of(command)._actions}
    wanted = {name: f"(default: {value}" for name, value in given.items() if name in actions}
    assert {"task", "engine", "seed"} <= wanted.keys()
    assert [name for name, text in wanted.items() if text not in actions[name]] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_the_flags_of_a_long_command_are_in_named_groups(command: str) -> None:
    parser = parser_of(command)
    groups = {str(group.title): group._group_actions for group in parser._action_groups}
    flags = [action for action in parser._actions if action.option_strings and action.dest != "help"]
    assert len(groups["options"]) - 1 <= MAX_UNGROUPED
    if len(flags) - len(groups["output"]) > MAX_UNGROUPED:
        assert [action.dest for action in groups["options"]] == ["help"]
    assert {"json", "verbose", "quiet", "no_color"} <= {action.dest for action in groups["output"]}


def test_help_of_every_command_loads_no_numpy() -> None:
    subprocess.run([sys.executable, "-c", HELP_OF_ALL], check=True, timeout=120)
