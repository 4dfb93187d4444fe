"""Terminal: results go to stdout, words for people to stderr.

Whatever comes from a model, a tool or a data file is untrusted: it is shown through `visible`, which lets no control,
direction or markup character act on the terminal.
"""

import errno
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

MAX_WIDTH_WITHOUT_TERMINAL = 120


@dataclass(frozen=True, slots=True)
class Terminal:
    """Where a command writes."""

    out: Console
    """stdout: results."""
    err: Console
    """stderr: progress and words for people."""
    verbosity: int = 0
    """-1 quiet, 0 normal, 1 a line a phase, 2 tracebacks too."""

    def say(self, text: str | Text) -> None:
        """A line for people; none if quiet."""
        if self.verbosity >= 0:
            self.err.print(text, markup=False, soft_wrap=True)

    def whole(self, table: Table) -> None:
        """A table on stdout, however wide it is: a line that wraps is better than a figure cut short."""
        width = self.out.width
        self.out.width = max(width, self.out.measure(table, options=self.out.options.update(width=1000)).maximum)
        self.out.print(table)
        self.out.width = width

    def fault(self, text: str) -> None:
        """What went wrong, also if quiet."""
        self.err.print(Text("error: ", style="bold red") + Text(visible(text, keep="\n")), soft_wrap=True)

    def result(self, schema: str, values: Mapping[str, Any]) -> None:
        """One JSON object on stdout, with its schema."""
        import msgspec  # the only use: most commands print no JSON

        self.out.file.write(msgspec.json.encode({"schema": schema, **values}).decode() + "\n")
        self.out.file.flush()


def terminal(*, verbosity: int = 0, has_color: bool = True) -> Terminal:
    """The consoles of this process; plain where they are no terminal or NO_COLOR is set."""
    return Terminal(_console(is_err=False, has_color=has_color), _console(is_err=True, has_color=has_color), verbosity)


def visible(text: str, *, keep: str = "") -> str:
    """`text` with every control, format and unassigned character spelt out, but for those in `keep`."""
    return "".join(c if c in keep or c == " " or c.isprintable() else _spelt(c) for c in text)


def shortened(text: str, width: int) -> str:
    """`visible` text of at most `width` characters: its beginning and its end."""
    shown = visible(text)
    if len(shown) <= width:
        return shown
    tail = width // 3
    return f"{shown[: width - tail - 1]}…{shown[-tail:]}"


def _spelt(character: str) -> str:
    code = ord(character)
    if character == "\n":
        return "⏎"
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "␡"
    name = unicodedata.category(character)
    return f"<{name}+{code:04X}>"


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leave it to who prints: rich would end the process, and shut stdout where it is stderr that has no reader."""
        raise BrokenPipeError(errno.EPIPE, "nobody reads it any more")


def _console(*, is_err: bool, has_color: bool) -> Console:
    console = _Console(stderr=is_err, no_color=True if not has_color else None, highlight=False, emoji=False)
    if not console.is_terminal:
        console.width = MAX_WIDTH_WITHOUT_TERMINAL
    return console
