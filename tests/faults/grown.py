"""A run that is kept whole to be looked at, and what must hold of it whatever failed in it.

The facts come as words, one for each thing that is broken; nothing yielded = all holds.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ramify.config.run_config import RunConfig
from ramify.core.command import Failed
from ramify.core.engine import Engine
from ramify.core.ledger import Spend
from ramify.core.problem import Problem
from ramify.core.stop import STOP_WORDS
from ramify.core.task import Task
from ramify.core.tree import ROOT, Tree
from ramify.rows.row import rows_of
from ramify.runner.driver import Driver
from ramify.runner.events import CommandsAsked, Event, OutcomeTold, TreeClosed
from ramify.runner.folder import header_of
from ramify.runner.prepared import Prepared, prepare
from ramify.runner.recorder import Recorder
from ramify.runner.run import Run, Seedling
from ramify.runner.scheduler import TreeRun
from ramify.store.check import ledger_faults, row_faults, tree_faults
from ramify.store.replay import Replayed, replay
from ramify.store.store import MemoryStore

UNLIKE = frozenset({"prefill_cached", "prefill_uncached", "tool_retries"})
"""What a fault may cost where it changes nothing else: contexts computed again, calls made again."""


class Kept(Run):
    """A run whose drivers stay to be looked at."""

    def __init__(self, prepared: Prepared) -> None:
        self.drivers: dict[str, Driver] = {}
        super().__init__(prepared)

    def _tree_run(self, seedling: Seedling, *, emit: Callable[[Event], None]) -> TreeRun:
        made = super()._tree_run(seedling, emit=emit)
        self.drivers[seedling.problem.uid] = made.driver
        return made


@dataclass
class Grown:
    """What a run came to."""

    run: Kept
    store: MemoryStore
    trees: dict[str, Tree] = field(default_factory=dict)
    asked: Counter[tuple[int, int]] = field(default_factory=Counter)
    told: Counter[tuple[int, int]] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    spent_up: set[int] = field(default_factory=set)
    """Trees that were refused something for their budget."""

    @property
    def stops(self) -> Counter[str]:
        """How paths ended."""
        return Counter(stop for tree in self.trees.values() for node in tree.subtree() if (stop := tree.stop(node)))

    def observe(self, event: Event) -> None:
        match event:
            case CommandsAsked(index, asked):
                self.asked.update((index, asked.first_id + i) for i in range(len(asked.commands)))
            case OutcomeTold(index, told):
                self.told[index, told.command_id] += 1
                if isinstance(told.outcome, Failed) and told.outcome.reason == "budget":
                    self.spent_up.add(index)
            case TreeClosed(_, tree, reason):
                self.trees[tree.problem.uid] = tree
                self.reasons[reason] += 1
            case _:
                pass


async def grown(
    config: RunConfig,
    *,
    task: Task,
    engine: Engine,
    problems: Sequence[Problem],
    known: dict[int, Replayed] | None = None,
) -> Grown:
    """A run to its end; `known` is what an earlier one had recorded. The engine is closed."""
    run = Kept(prepare(config, task=task, engine=engine, problems=problems))
    found = Grown(run, MemoryStore(header_of(run.prepared)))
    try:
        await run.grow([Recorder(found.store).observe, found.observe], replayed=known)
    finally:
        await run.close()
    return found


# -- what must hold of any run ----------------------------------------------------------------------------------------


def faults(found: Grown) -> Iterator[str]:
    """One outcome a command, one reason a tree, sound trees, ledgers and rows, and a record that replays to them."""
    if found.reasons != {"done": len(found.run.prepared.problems)}:
        yield f"trees ended by {found.reasons}"
    if found.told != found.asked or set(found.told.values()) != {1}:
        yield f"not one outcome a command: {(found.asked - found.told) + (found.told - found.asked)}"
    for index, problem in enumerate(found.run.prepared.problems):
        tree, driver = found.trees[problem.uid], found.run.drivers[problem.uid]
        broken = [*_tree_faults(tree, driver), *_ending_faults(tree, may_be_open=index in found.spent_up)]
        yield from (f"{problem.uid}: {fault}" for fault in broken)
    yield from _replay_faults(found)


def _tree_faults(tree: Tree, driver: Driver) -> Iterator[str]:
    yield from tree_faults(tree)
    yield from _version_faults(tree)
    if tree.pending:
        yield f"commands in flight: {tree.pending}"
    yield from ledger_faults(tree, {role: spend.as_dict() for role, spend in driver.ledger.spent_by_role.items()})
    spent = driver.ledger.spent.as_dict()
    yield from (
        f"{spent[name]} of {limit} {name}"
        for name, limit in driver.ledger.limits.counted().items()
        if spent[name] > limit
    )
    rows = rows_of(tree, unjudged="drop")
    yield from row_faults(tree, rows)
    yield from (f"leaf {row.leaf} is trained: {row.stop}" for row in rows if not STOP_WORDS[row.stop].is_trainable)


def _ending_faults(tree: Tree, *, may_be_open: bool) -> Iterator[str]:
    """A path goes on or has a stop word, unless there was nothing left to go on with; what failed has no reward, and
    what could not be judged has none but says so."""
    for node in tree.subtree():
        stop = tree.stop(node)
        if stop is not None if tree.children(node) else stop is None and not may_be_open:
            yield f"node {node} ends with {stop!r} and has children {tree.children(node)}"
        is_failed = stop is not None and STOP_WORDS[stop].is_failure
        if is_failed and tree.scores(node):
            yield f"node {node} failed ({stop}) and was judged: {tree.scores(node)}"
        if tree.is_leaf(node) and (tree.reward(node) is None) != ("judge" in tree.notes(node)):
            yield f"leaf {node} has the reward {tree.reward(node)} and the notes {tree.notes(node)}"


def _version_faults(tree: Tree) -> Iterator[str]:
    """No path hears of older weights than it has heard of."""
    for leaf in tree.leaves():
        versions = [s.version for node in tree.path(leaf) for s in tree.segments(node) if s.version is not None]
        if versions != sorted(versions):
            yield f"leaf {leaf} was sampled by the versions {versions}"


def _replay_faults(found: Grown) -> Iterator[str]:
    for again in replay(found.store.records, found.run.prepared.codec, found.run.prepared.rules).values():
        uid = again.tree.problem.uid
        if again.shut is None:
            yield f"{uid}: its record does not end"
            continue
        yield from (f"{uid}, replayed: {fault}" for fault in ledger_faults(again.tree, again.shut.spent))
        if shape(again.tree) != shape(found.trees[uid]):
            yield f"{uid}: its record replays to another tree"


# -- what must hold of two runs ---------------------------------------------------------------------------------------


def shape(tree: Tree) -> list[tuple[Any, ...]]:
    """Everything of a tree in canonical order, without ids and without what faults may cost."""
    return [
        (
            tree.depth(node),
            tree.branch(node).ids.tolist(),
            tree.stop(node),
            tree.node_seed(node),
            tree.reward(node),
            {role: _alike(spend) for role, spend in tree.spent().items()} if node == ROOT else None,
        )
        for node in tree.subtree()
    ]


def _alike(spend: Spend) -> dict[str, int]:
    return {name: value for name, value in spend.as_dict().items() if name not in UNLIKE}


class Ended(NamedTuple):
    """A path that ended, without ids."""

    tokens: list[int]
    stop: str | None
    reward: float | None

    def is_like(self, other: "Ended") -> bool:
        """Whether they are equal, or one is as much of the other as the budget left of it: what failed elsewhere in
        the tree has cost less or more of that."""
        if "budget" not in (self.stop, other.stop):
            return self == other
        length = min(len(self.tokens), len(other.tokens))
        return self.tokens[:length] == other.tokens[:length]


def ended(tree: Tree, leaf: int) -> Ended:
    return Ended(tree.branch(leaf).ids.tolist(), tree.stop(leaf), tree.reward(leaf))


def common(found: Grown, calm: Grown, *, has_struck: Callable[[Tree, int], bool]) -> Iterator[tuple[Ended, Ended]]:
    """The paths that both runs grew, by their seeds, and that nothing struck: as they are in each."""
    for uid, tree in found.trees.items():
        other = calm.trees[uid]
        known = {other.node_seed(leaf): leaf for leaf in other.leaves()}
        for leaf in tree.leaves():
            if tree.node_seed(leaf) in known and not has_struck(tree, leaf):
                yield ended(tree, leaf), ended(other, known[tree.node_seed(leaf)])
