"""Tree values: what is known of each tree of a run, by name. Tables, conditions and the page of the viewer use them."""

from collections.abc import Iterable, Mapping
from typing import Final, Literal

from ramify.core.ledger import Spend
from ramify.core.tree import Tree

Kind = Literal["number", "text", "words"]
"""What a column holds. `words`: several texts."""
Value = float | str | tuple[str, ...] | None
Values = Mapping[str, Value]
"""A row: column -> its value."""

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


def tree_values(tree: Tree, index: int) -> dict[str, Value]:
    """The value of every column of one tree; None = it has none, such as the reward of a tree without a judged leaf."""
    calls = (segment.tool_call for node in tree.subtree() for segment in tree.segments(node))
    return values_of(tree, index, spent=tree.spent(), tools={call.tool for call in calls if call is not None})


def values_of(tree: Tree, index: int, *, spent: Mapping[str, Spend], tools: Iterable[str]) -> dict[str, Value]:
    """As `tree_values`, for a caller that knows already what the tree spent, and the tools that were called."""
    leaves = tree.leaves()
    rewards = [reward for leaf in leaves if (reward := tree.reward(leaf)) is not None]
    return {
        "tree": index,
        "question": tree.problem.question,
        "nodes": len(tree),
        "leaves": len(leaves),
        "tokens": sum(spend.decode for spend in spent.values()),
        "tools": sum(spend.tool_calls for spend in spent.values()),
        "best": max(rewards, default=None),
        "reward": sum(rewards) / len(rewards) if rewards else None,
        "stop": tuple(sorted({stop for leaf in leaves if (stop := tree.stop(leaf)) is not None})),
        "worst": min(rewards, default=None),
        "depth": max((tree.depth(leaf) for leaf in leaves), default=0),
        "forks": sum(fork.num_siblings > 1 for fork in tree.forks),
        "context": sum(spend.prefill_uncached for spend in spent.values()),
        "cached": sum(spend.prefill_cached for spend in spent.values()),
        "tool": tuple(sorted(name for name in tools if name)),
        "uid": tree.problem.uid,
    }
