"""Found: what a search over a user's states has found: its tree, the states in it, and the best of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ramify.core.errors import ContractError, StoreError
from ramify.core.prices import PICODOLLARS
from ramify.core.tree import Tree
from ramify.engines.state_memory import BrokenFunction, ScoredState, StateMemory
from ramify.formats.states import IS_FINAL, SCORE, STATE, state_message
from ramify.runner.events import EngineFault, Event, TreeClosed, TreeOpened
from ramify.runner.report import RunReport
from ramify.runner.saved import Saved


class Found:
    """A search and its states. It follows the search while that runs; `observe` is an observer of it."""

    def __init__(self, memory: StateMemory) -> None:
        self.report: RunReport | None = None
        """Totals of the calls of this process; None = the search runs, or was only read."""
        self.reason = ""
        """Why the search ended: `done`, or `stopped`; '' = it runs."""
        self.last_fault = ""
        """What was wrong with the call that failed last."""
        self._memory = memory
        self._tree: Tree | None = None
        self._num_seen = 0
        """Nodes of the tree that were looked at."""
        self._nodes: list[int] = []
        self._best: int | None = None
        self._rank = (False, -1.0)
        """Whether the best state is final, and its score."""

    @classmethod
    def open(cls, path: str | Path, *, decode: Callable[[str], Any] | None = None) -> "Found":
        """The finished search in the folder `path`. Calls no function but `decode`. Raises `StoreError`."""
        found = cls(StateMemory(decode=decode))
        found.read(Path(path))
        return found

    def read(self, path: Path) -> None:
        """Take the finished tree of a run folder. Raises `StoreError`."""
        tree = Saved.open(path).tree(0)
        if tree is None:
            raise StoreError(f"{path} holds no finished search; go on with ramify.search(…, out=…, resume=True)")
        self._tree = tree
        self._memory.learn(message for node in range(len(tree)) if (message := state_message(tree.segments(node))))
        self.reason = "done" if not tree.is_broken else "stopped"

    def observe(self, event: Event) -> None:
        match event:
            case TreeOpened(_, tree):
                self._tree = tree
            case TreeClosed(_, tree, reason):
                self._tree, self.reason = tree, reason
            case EngineFault(said=said):
                self.last_fault = said
            case _:
                pass

    @property
    def tree(self) -> Tree:
        """The tree; node 0 is the start of the search and has no state."""
        if self._tree is None:
            raise ContractError("the search has not begun, so it has no tree")
        return self._tree

    @property
    def nodes(self) -> Sequence[int]:
        """Nodes that have a state, in the order in which they were asked for."""
        tree = self.tree
        for node in range(self._num_seen, len(tree)):
            message = state_message(tree.segments(node))
            if message is None:
                continue
            self._nodes.append(node)
            rank = (bool(message.get(IS_FINAL)), message[SCORE])
            if rank > self._rank:
                self._best, self._rank = node, rank
        self._num_seen = len(tree)
        return self._nodes

    @property
    def node(self) -> int | None:
        """The node of the best state: of the highest score, the first of equals, among the final states if there are
        any; None = there is no state."""
        return self._best if self.nodes else None

    @property
    def best(self) -> Any:
        """The best state; None = there is none."""
        return None if self.node is None else self.state(self.node)

    @property
    def score(self) -> float | None:
        """The score of the best state."""
        return None if self.node is None else self._rank[1]

    @property
    def dollars(self) -> float:
        """What the calls cost, as far as the functions said it or `dollars_per_call` says it."""
        return sum(spend.picodollars for spend in self.tree.spent().values()) / PICODOLLARS

    def state(self, node: int) -> Any:
        """The state of a node. Raises `ContractError` if it has none."""
        return self.at(node).state

    def at(self, node: int) -> ScoredState:
        """The state of a node with its score. Raises `ContractError` if it has none, or it cannot be decoded."""
        message = state_message(self.tree.segments(node)) if 0 <= node < len(self.tree) else None
        if message is None:
            raise ContractError(f"node {node!r} has no state; `found.nodes` lists those that have one")
        try:
            state = self._memory.state(message[STATE])
        except BrokenFunction as error:
            raise ContractError(error.detail) from error.__cause__
        return ScoredState(state, message[SCORE], bool(message.get(IS_FINAL)))

    def top(self, k: int) -> list[ScoredState]:
        """The `k` best states, final ones first, then by score; of equal ones the first asked for."""
        every = [self.at(node) for node in self.nodes]
        return sorted(every, key=lambda each: (each.is_final, each.score), reverse=True)[:k]


@dataclass(frozen=True, slots=True)
class FoundStep:
    """A new state of a search that runs."""

    node: int
    state: Any
    score: float
    found: Found
    """The search so far."""
