"""Tree columns: what `ramify show` knows of each tree of a run, by name; the table, `--where` and `--sort` use them."""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from rich.table import Table
from rich.text import Text

from ramify.cli.terminal import shortened
from ramify.cli.where import Kind, Value, Values

if TYPE_CHECKING:
    from ramify.core.tree import Tree

COLUMNS: Final[Mapping[str, Kind]] = {
    "tree": "number",
    "question": "text",
    "nodes": "number",
    "leaves": "number",
    "tokens": "number",
    "tools": "number",
    "best": "number",
    "reward": "number",
    "stop": "words",
    "worst": "number",
    "depth": "number",
    "forks": "number",
    "context": "number",
    "cached": "number",
    "tool": "words",
    "uid": "text",
}
"""Column -> what it holds.

`tree` is the number of the problem. `tokens` are sampled, `context` those computed anew, `cached` those reused. `tools`
counts tool calls, `tool` names the tools. `best`, `reward` (the mean) and `worst` are of judged leaves. `stop` says how
paths ended.
"""
SHOWN: Final = ("tree", "question", "nodes", "leaves", "tokens", "tools", "best", "reward", "stop")
"""Columns of the table if nobody names others."""
MAX_TEXT: Final = 40


def tree_values(tree: "Tree", index: int) -> dict[str, Value]:
    """The value of every column of one tree; None = it has none, such as the reward of a tree without a judged leaf."""
    leaves = tree.leaves()
    rewards = [reward for leaf in leaves if (reward := tree.reward(leaf)) is not None]
    spent = tree.spent().values()
    calls = (segment.tool_call for node in tree.subtree() for segment in tree.segments(node))
    return {
        "tree": index,
        "question": tree.problem.question,
        "nodes": len(tree),
        "leaves": len(leaves),
        "tokens": sum(spend.decode for spend in spent),
        "tools": sum(spend.tool_calls for spend in spent),
        "best": max(rewards, default=None),
        "reward": sum(rewards) / len(rewards) if rewards else None,
        "stop": tuple(sorted({stop for leaf in leaves if (stop := tree.stop(leaf)) is not None})),
        "worst": min(rewards, default=None),
        "depth": max((tree.depth(leaf) for leaf in leaves), default=0),
        "forks": sum(fork.num_siblings > 1 for fork in tree.forks),
        "context": sum(spend.prefill_uncached for spend in spent),
        "cached": sum(spend.prefill_cached for spend in spent),
        "tool": tuple(sorted({call.tool for call in calls if call is not None and call.tool})),
        "uid": tree.problem.uid,
    }


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
