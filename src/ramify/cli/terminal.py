"""Terminal: results go to stdout, messages for people to stderr.

Text from a model, a tool or a data file is untrusted. It is printed as `visible` text, so that no control, direction or
markup character of it acts on the terminal.
"""

import errno
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ramify.core.visible import shortened, visible
from ramify.edge.url_keys import without_url_keys

__all__ = ["MAX_WIDTH_WITHOUT_TERMINAL", "Terminal", "figure_table", "shortened", "terminal", "visible"]

MAX_WIDTH_WITHOUT_TERMINAL = 120


@dataclass(frozen=True, slots=True)
class Terminal:
    """Where a command writes."""

    out: Console
    """stdout: results."""
    err: Console
    """stderr: progress and messages for people."""
    verbosity: int = 0
    """-1 quiet, 0 normal, 1 a line a phase, 2 tracebacks too."""

    def say(self, text: str | Text) -> None:
        """A message for people; none if quiet."""
        if self.verbosity >= 0:
            self.err.print(text, markup=False, soft_wrap=True)

    def whole(self, table: Table) -> None:
        """A table on stdout at its full width, so that no figure is cut off."""
        width = self.out.width
        self.out.width = max(width, self.out.measure(table, options=self.out.options.update(width=1000)).maximum)
        self.out.print(table)
        self.out.width = width

    def lines(self, texts: Iterable[str]) -> None:
        """Plain lines on stdout, none of them wrapped."""
        self.out.print("\n".join(texts), markup=False, soft_wrap=True)

    def fault(self, text: str) -> None:
        """An error message, also if quiet."""
        self.err.print(
            Text("error: ", style="bold red") + Text(visible(without_url_keys(text), keep="\n")), soft_wrap=True
        )

    def warn(self, text: str) -> None:
        """A warning, also if quiet: something is missing from what the command says."""
        self.err.print(
            Text("warning: ", style="bold yellow") + Text(visible(without_url_keys(text), keep="\n")), soft_wrap=True
        )

    def result(self, schema: str, values: Mapping[str, Any]) -> None:
        """One JSON object on stdout, with its schema."""
        import msgspec  # the only use: most commands print no JSON

        self.out.file.write(msgspec.json.encode({"schema": schema, **values}).decode() + "\n")
        self.out.file.flush()


def terminal(*, verbosity: int = 0, has_color: bool = True) -> Terminal:
    """The consoles of this process; plain where they are no terminal or NO_COLOR is set."""
    return Terminal(_console(is_err=False, has_color=has_color), _console(is_err=True, has_color=has_color), verbosity)


def figure_table(label: str, names: Iterable[str], *, title: str | None = None) -> Table:
    """An empty table of figures: a column of names called `label`, then the columns `names`, right-justified.

    A heading may have several lines.
    """
    table = Table(title=title, title_justify="left", box=None, header_style="bold", pad_edge=False)
    table.add_column(label, no_wrap=True, vertical="bottom")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True, vertical="bottom")
    return table


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Raise, so that the caller decides. Rich would end the process, and close stdout for a closed stderr."""
        raise BrokenPipeError(errno.EPIPE, "the reader is gone")


def _console(*, is_err: bool, has_color: bool) -> Console:
    console = _Console(stderr=is_err, no_color=True if not has_color else None, highlight=False, emoji=False)
    if not console.is_terminal:
        console.width = MAX_WIDTH_WITHOUT_TERMINAL
    return console
