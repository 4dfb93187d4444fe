"""Tree row: what the page of a run shows of one finished tree, and what the figures of the run are summed from."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ramify.core.command import Failed
from ramify.core.growth import Ended, Failure
from ramify.core.ledger import Spend
from ramify.core.segment import Segment, ToolCall
from ramify.store.replay import Replayed
from ramify.view.tree_values import Value, values_of

ANSWERED: Final = frozenset({"ok", "empty"})
"""Status of tool calls that did not fail."""
RIGHT: Final = 1.0
"""The full reward. A tree with such a leaf is solved."""


@dataclass(slots=True)
class ToolCalls:
    """The calls of one tool. Mutated by `add` and `include` only."""

    num_calls: int = 0
    num_executed: int = 0
    """Calls that ran the tool; the others were answered without it."""
    statuses: Counter[str] = field(default_factory=Counter[str])
    total_s: float = 0.0
    max_s: float = 0.0

    def add(self, call: ToolCall) -> None:
        """Count one call."""
        seconds = call.duration_s if math.isfinite(call.duration_s) else 0.0
        self.num_calls += 1
        self.num_executed += call.is_executed
        self.statuses[call.status] += 1
        self.total_s += seconds
        self.max_s = max(self.max_s, seconds)

    def include(self, other: "ToolCalls") -> None:
        """Add the calls of another tree."""
        self.num_calls += other.num_calls
        self.num_executed += other.num_executed
        self.statuses.update(other.statuses)
        self.total_s += other.total_s
        self.max_s = max(self.max_s, other.max_s)

    @property
    def failed(self) -> dict[str, int]:
        """Status of failed calls -> number of them."""
        return {status: count for status, count in sorted(self.statuses.items()) if status not in ANSWERED}


@dataclass(frozen=True, slots=True)
class TreeRow:
    """One finished tree. Tokens are those that engines billed as sampled."""

    values: Mapping[str, Value]
    """The columns of `tree_values`, with None for numbers that are not finite."""
    rewards: tuple[float, ...]
    """Of its judged leaves."""
    stops: Mapping[str, int]
    """Stop word -> leaves that ended so."""
    tools: Mapping[str, ToolCalls]
    """Name -> calls; an empty name = the action named none."""
    faults: Mapping[str, int]
    """Reason -> commands that failed. A spent budget and a cancelled command are no faults."""
    spent: Spend
    winning: int | None
    """Sampled tokens on the paths to the leaves of the best reward; 0 if that is not above 0; None = no leaf is
    judged."""
    flat: int
    """Sampled tokens that independent chains would have needed for the same leaves."""
    solved_at: int | None
    """Sampled tokens of the tree when its first right leaf was delivered; None = no leaf is right."""
    sampled_version: int | None
    """Highest version of the weights that sampled a token; None = no version is recorded."""

    @property
    def is_solved(self) -> bool | None:
        """None = no leaf is judged."""
        return max(self.rewards) >= RIGHT if self.rewards else None


def tree_row(replayed: Replayed) -> TreeRow:
    """The row of a finished tree. Does not mutate it."""
    tree = replayed.tree
    segments = [tree.segments(node) for node in range(len(tree))]
    billed = [sum(segment.usage.num_billed for segment in step) for step in segments]
    paths = {leaf: tree.path(leaf) for leaf in tree.leaves()}
    rewards = {leaf: reward for leaf in paths if (reward := tree.reward(leaf)) is not None and math.isfinite(reward)}
    right = [leaf for leaf, reward in rewards.items() if reward >= RIGHT]
    delivered = _delivered(replayed, billed) if right else []
    tools, spent = _tools(segments), tree.spent()
    values = values_of(tree, replayed.index, spent=spent, tools=tools)
    return TreeRow(
        values={name: _finite(value) for name, value in values.items()},
        rewards=tuple(rewards.values()),
        stops=Counter(stop for leaf in paths if (stop := tree.stop(leaf)) is not None),
        tools=tools,
        faults=_faults(replayed),
        spent=_total(spent.values()),
        winning=_winning(rewards, paths, billed),
        flat=sum(billed[node] for path in paths.values() for node in path),
        solved_at=min((delivered[leaf] for leaf in right), default=None),
        sampled_version=_sampled_version(segments),
    )


def _total(spends: Iterable[Spend]) -> Spend:
    total = Spend()
    for spend in spends:
        total.add(spend)
    return total


def _sampled_version(segments: Iterable[Sequence[Segment]]) -> int | None:
    versions = (s.version for step in segments for s in step if s.is_sampled and s.version is not None)
    return max(versions, default=None)


def _finite(value: Value) -> Value:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _tools(segments: Iterable[Sequence[Segment]]) -> dict[str, ToolCalls]:
    tools: dict[str, ToolCalls] = {}
    for call in (segment.tool_call for step in segments for segment in step):
        if call is not None:
            tools.setdefault(call.tool, ToolCalls()).add(call)
    return tools


def _faults(replayed: Replayed) -> Counter[str]:
    endings = (event.ending for event in replayed.events if isinstance(event, Ended))
    reasons = (ending.reason for ending in endings if isinstance(ending, Failure))
    return Counter(reason for reason in reasons if Failed(0, reason).is_fault)


def _winning(rewards: Mapping[int, float], paths: Mapping[int, list[int]], billed: list[int]) -> int | None:
    if not rewards:
        return None
    best = max(rewards.values())
    won = {node for leaf, reward in rewards.items() if reward == best and best > 0 for node in paths[leaf]}
    return sum(billed[node] for node in won)


def _delivered(replayed: Replayed, billed: list[int]) -> list[int]:
    """Of every node: the tokens of the tree when it had been delivered. The head of a split counts as delivered with
    its tail."""
    tree = replayed.tree
    turn = [0] * len(tree)
    heads: set[int] = set()
    before = 1
    for number, (event, after) in enumerate(zip(replayed.events, replayed.sizes, strict=True), 1):
        for node in range(before, after):
            turn[node] = number
            if not isinstance(event, Ended):
                heads.add(node)
        before = after
    for head in heads:
        tail = head
        while tail in heads:
            tail = tree.children(tail)[0]
        turn[head] = turn[tail]
    sums = [0] * (len(replayed.events) + 1)
    for node, tokens in enumerate(billed):
        sums[turn[node]] += tokens
    for number in range(1, len(sums)):
        sums[number] += sums[number - 1]
    return [sums[number] for number in turn]
