"""Strategy: looks at a tree and asks for commands.

A strategy is built from its config and a generator, one a tree. It owns no clock, no I/O, no model and no randomness
but that generator, drawn at ask in a fixed order. It keeps ids and numbers, never text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from ramify.core.command import Candidate, Command, Outcome
from ramify.core.tree import Tree

Vote = Literal["best", "first", "majority", "weighted"]
"""How several candidates become one answer: the highest score, the first of all, the answer given most often, the
answer whose scores sum highest. Ties go to the candidate that was asked for first."""


@dataclass(frozen=True, slots=True)
class Phase:
    """What a strategy is doing, for progress and logs: `build`, `initial chains`, `expansion`, `collection`, …"""

    name: str
    round: int = 0
    num_rounds: int | None = None
    """How many there are in all; None = that is not known."""


@runtime_checkable
class Strategy(Protocol):
    """Grow one tree by asking for commands.

    Built as `Strategy(config, rng)`, where `config` is the dataclass named by the class attribute `Config` and `rng` a
    `numpy.random.Generator`. Must be picklable between any two calls.

    A field of `Config` may name a function: `field(default="uniform", metadata={"plugin": "choose"})` takes the name of
    any plug-in of the kind `choose`, and the function found is a keyword of the constructor, called as the field is.
    """

    @property
    def measures(self) -> frozenset[str]:
        """Names of the measures it reads as configured; an engine that cannot give one is refused before the start."""
        ...

    is_order_free: bool
    """Whether its tree does not depend on the order of outcomes; then they are told eagerly unless a budget binds."""
    post_hoc_reason: str
    """Why, as configured, its forks depend on tokens already drawn (restarts, expansion of grown trees, …); '' = they
    do not. What one tree shows cannot tell: a restart that did not happen leaves no trace, and biases all the same."""

    def ask(self, tree: Tree) -> Sequence[Command]:
        """Commands to start now. Called after every outcome; may be empty while something is in flight."""
        ...

    def tell(self, tree: Tree, outcome: Outcome) -> None:
        """Learn how one command ended. The tree already holds what it added."""
        ...

    def is_done(self, tree: Tree) -> bool:
        """Whether nothing more will be asked. O(1)."""
        ...

    def phase(self, tree: Tree) -> Phase: ...


@runtime_checkable
class SearchStrategy(Strategy, Protocol):
    """A strategy that ends with an answer. It knows nodes and scores; which answers are the same the task says."""

    vote: Vote

    def candidates(self, tree: Tree) -> Sequence[Candidate]:
        """Nodes at whose ends whole answers stand, in order of request, each with the score it votes with."""
        ...


@runtime_checkable
class OptionsReader(Protocol):
    """A `Config` that also reads another layout of its options, such as an older one."""

    @classmethod
    def read(cls, options: Mapping[str, Any]) -> tuple[Mapping[str, Any], str | None]:
        """The options as fields of the dataclass, and how they were read; None = as they are. Raises `ConfigError`."""
        ...


class PostHocRule(Protocol):
    """A rule that forks finished paths, as arithmetic: it answers for any path, whichever was the trunk. Pure."""

    @property
    def max_forks(self) -> int:
        """The most forks it makes of one trunk; a constant."""
        ...

    def forks(self, tree: Tree, leaf: int) -> Mapping[int, float]:
        """Token position on the branch of `leaf` -> mean number of forks there, were that path a trunk."""
        ...


@runtime_checkable
class PostHocStrategy(Strategy, Protocol):
    """A strategy that can say where it would fork any finished path, so that credit can be exact for its forks.

    Only a rule that looks at nothing but its trunk can, and only where it runs once.
    """

    def post_hoc_rule(self, words: Sequence[str]) -> PostHocRule | None:
        """The rule as configured; None = it has none. `words`: stop words that a fork does not cut."""
        ...


def post_hoc_rule(strategy: object, words: Sequence[str] = ()) -> PostHocRule | None:
    """The rule by which `strategy` forks finished paths. None = it has none that can be asked of any path.

    `words`: stop words that a fork does not cut. A subclass may fork otherwise, so it does not inherit a rule.
    """
    is_own = "post_hoc_rule" in vars(type(strategy))
    return strategy.post_hoc_rule(words) if is_own and isinstance(strategy, PostHocStrategy) else None
