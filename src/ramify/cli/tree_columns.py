"""Tree columns: the table of `ramify show`: a row for each tree, a column for each value that is asked for."""

from collections.abc import Collection, Sequence
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from ramify.cli.terminal import shortened
from ramify.view.tree_values import COLUMNS, Value, Values

SHOWN: Final = ("tree", "question", "nodes", "leaves", "tokens", "tools", "best", "reward", "stop")
"""Columns of the table if nobody names others."""
MAX_TEXT: Final = 40


def tree_table(rows: Sequence[Values], names: Collection[str] = ()) -> Table:
    """A table of trees with the columns that are always shown, and those called `names`."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    shown = list(dict.fromkeys((*SHOWN, *names)))
    for name in shown:
        is_number = COLUMNS[name] == "number"
        table.add_column(name, justify="right" if is_number else "left", no_wrap=name == "question")
    for row in rows:
        table.add_row(*(Text(_cell(name, row[name])) for name in shown))
    return table


def sorted_rows(rows: Sequence[Values], name: str, *, is_descending: bool) -> list[Values]:
    """`rows` by the values of a column. Rows without a value come last, equal ones keep their order."""

    def value(row: Values) -> Any:
        return row[name]

    known = [row for row in rows if row[name] is not None]
    known.sort(key=value, reverse=is_descending)
    return [*known, *(row for row in rows if row[name] is None)]


def _cell(name: str, value: Value) -> str:
    match value:
        case None:
            return "-"
        case int() | float() if name in ("best", "reward", "worst"):
            return f"{value:.2f}"
        case tuple():
            return shortened(" ".join(value), MAX_TEXT)
        case str():
            return shortened(value, MAX_TEXT)
        case _:
            return str(value)
