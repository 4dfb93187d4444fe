"""Strategy: looks at a tree and asks for commands.

A strategy is built from its config and a generator, one per tree. It uses no clock, no I/O and no model. Its only
randomness is that generator, which it uses in `ask` in a fixed order. It stores ids and numbers. It never stores text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from ramify.core.command import Candidate, Command, Outcome
from ramify.core.tree import Tree

Vote = Literal["best", "first", "majority", "weighted"]
"""How several candidates become one answer: the highest score, the first of all, the most frequent answer, or the
answer with the highest sum of scores. Ties go to the candidate that was asked for first."""


@dataclass(frozen=True, slots=True)
class Phase:
    """What a strategy is doing, for progress and logs: `build`, `initial chains`, `expansion`, `collection`, …"""

    name: str
    round: int = 0
    num_rounds: int | None = None
    """Total number of rounds; None = unknown."""


@runtime_checkable
class Strategy(Protocol):
    """Grows one tree by asking for commands.

    It is built as `Strategy(config, rng)`. `config` is the dataclass named by the class attribute `Config`; `rng` is a
    `numpy.random.Generator`. It must be picklable between any two calls.

    `Config` may have a property `planned_leaves`: how many leaves it plans for a tree. The rows of every tree are
    divided by this one number, whatever the tree has become (`rows.normaliser`).

    A field of `Config` may name a function: `field(default="uniform", metadata={"plugin": "choose"})` takes the name of
    any plug-in of the kind `choose`. The function is passed to the constructor as a keyword with the name of the field.
    """

    @property
    def measures(self) -> frozenset[str]:
        """Names of the measures that it reads as configured. If an engine cannot give one, an error is raised before
        the start."""
        ...

    is_order_free: bool
    """Whether its tree is the same for any order of outcomes. If so, outcomes are told as they arrive unless a budget
    binds."""
    post_hoc_reason: str
    """Why, as configured, its forks depend on tokens already drawn (restarts, expansion of grown trees, ...); '' = they
    do not. One tree alone cannot show this: a restart that did not happen leaves no trace, but still adds bias."""

    def ask(self, tree: Tree) -> Sequence[Command]:
        """Commands to start now. Called after every outcome. May be empty while something is in flight."""
        ...

    def tell(self, tree: Tree, outcome: Outcome) -> None:
        """Learn how one command ended. The tree already holds what the command added."""
        ...

    def is_done(self, tree: Tree) -> bool:
        """Whether nothing more will be asked. O(1)."""
        ...

    def phase(self, tree: Tree) -> Phase: ...


@runtime_checkable
class SearchStrategy(Strategy, Protocol):
    """A strategy that ends with an answer. It knows nodes and scores; the task decides which answers are the same."""

    vote: Vote

    def candidates(self, tree: Tree) -> Sequence[Candidate]:
        """Nodes where complete answers end, in order of request, each with the score it votes with."""
        ...


@runtime_checkable
class OptionsReader(Protocol):
    """A `Config` that can also read its options in another layout, such as an older one."""

    @classmethod
    def read(cls, options: Mapping[str, Any]) -> tuple[Mapping[str, Any], str | None]:
        """The options as fields of the dataclass, and a note on how they were read; None = they were taken as given.
        Raises `ConfigError`."""
        ...


class PostHocRule(Protocol):
    """A rule that forks finished paths, as a pure function: it answers for any path, whichever path was the trunk."""

    @property
    def max_forks(self) -> int:
        """The most forks it makes of one trunk; a constant."""
        ...

    def forks(self, tree: Tree, leaf: int) -> Mapping[int, float]:
        """Token position on the branch of `leaf` -> mean number of forks there, if that path were a trunk."""
        ...


@runtime_checkable
class PostHocStrategy(Strategy, Protocol):
    """A strategy that can say where it would fork any finished path. With this, credit can be exact for its forks.

    Only a rule that looks at its trunk alone, and that runs once, allows this.
    """

    def post_hoc_rule(self, words: Sequence[str]) -> PostHocRule | None:
        """The rule as configured; None = it has none. `words`: stop words that a fork does not cut."""
        ...


def post_hoc_rule(strategy: object, words: Sequence[str] = ()) -> PostHocRule | None:
    """The rule by which `strategy` forks finished paths. None = it has no rule that answers for any path.

    `words`: stop words that a fork does not cut. A subclass may fork differently, so it does not inherit a rule.
    """
    is_own = "post_hoc_rule" in vars(type(strategy))
    return strategy.post_hoc_rule(words) if is_own and isinstance(strategy, PostHocStrategy) else None
