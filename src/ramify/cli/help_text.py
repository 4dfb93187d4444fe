"""Help texts: a flag that has a default names it, and flags of one purpose form a group with a name."""

import argparse
from typing import Final

WHAT: Final = "what to run"
ENGINE: Final = "engine"
OUTPUT: Final = "output"


class HelpWithDefaults(argparse.HelpFormatter):
    """The help of argparse, with `(default: X)` behind the text of each flag that has a default."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        if not has_default(action):
            return text
        shown = f"{action.default:g}" if isinstance(action.default, float) else str(action.default)
        return f"{text} (default: {shown.replace('%', '%%')})"


def has_default(action: argparse.Action) -> bool:
    """Whether a flag takes a value and has one if it is not given. An empty text or list counts as none."""
    takes_value = bool(action.option_strings) and action.nargs != 0
    return takes_value and action.default not in (None, "", [], argparse.SUPPRESS)


def flag_group(
    parser: argparse.ArgumentParser, title: str, *, description: str | None = None
) -> argparse._ArgumentGroup:
    """The group of flags called `title`, which is added if `parser` has none."""
    for group in parser._action_groups:  # argparse has no public list
        if group.title == title:
            return group
    return parser.add_argument_group(title, description)
