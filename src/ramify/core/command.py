"""Commands, outcomes and forks: everything that a strategy and the runner tell each other.

A strategy's `ask` returns commands. They are numbered in the order asked, and each is answered by exactly one outcome.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from ramify.core.errors import ContractError
from ramify.core.quick_init import quick_init
from ramify.core.stop import ROULETTE

Edge = Literal["continues", "quotes"]
EDGES: tuple[Edge, ...] = ("continues", "quotes")
Role = Literal["policy", "critique", "judge", "user", "probe"]
"""user: a model that an environment asks, such as a simulated user."""
ROLES: tuple[Role, ...] = ("policy", "critique", "judge", "user", "probe")
BESIDE: Final = frozenset({"judge", "user"})
"""Roles of models that a judge or an environment asks, beside what a strategy grows."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Grow by `n` sampled tokens. More are sampled only to finish a stop word or a character that the n-th token
    began."""

    n: int

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ContractError(f"Tokens({self.n}) grows nothing; ask for at least 1")


Until = Tokens | Literal["step", "end"]


@quick_init
@dataclass(frozen=True, slots=True)
class Option:
    """One option that a decision weighed, with the named terms of its score at that time; for the viewer."""

    node: int
    score: float
    terms: tuple[tuple[str, float], ...] = ()

    def __eq__(self, other: object) -> bool:
        """A `Candidate` with the same values is equal: for one version, `why` may also hold candidates."""
        if not isinstance(other, Option | Candidate):
            return NotImplemented
        return (self.node, self.score, self.terms) == (other.node, other.score, other.terms)

    def __hash__(self) -> int:
        return hash((self.node, self.score, self.terms))


SHOWN: Final = 8
"""The most options of a decision that a strategy shows in the viewer."""


@quick_init
@dataclass(frozen=True, slots=True)
class Candidate:
    """An answer that a search found: the node where it ends, and the score it votes with."""

    node: int
    score: float
    terms: tuple[tuple[str, float], ...] = ()
    """Named terms of the score."""


@quick_init
@dataclass(frozen=True, slots=True)
class Fork:
    """A decision to grow `num_siblings` children at one place, made before their first token is drawn.

    `shares` are equal by default. The tree turns a Fork into a `ForkRecord` when its first command is asked. Commands
    of the same decision carry the same Fork object. In a later ask they may carry the decision id of its record
    instead.
    """

    num_siblings: int
    rule: str
    shares: tuple[float, ...] = ()
    probability: float | None = None
    """Probability that the rule makes this decision; None = deterministic."""
    score: float | None = None
    select_prob: float | None = None
    """For post-hoc rules: probability that the rule picks this position on its trunk (lemma 5 of
    `docs/concepts/exactness.md`)."""

    def __post_init__(self) -> None:
        if self.num_siblings < 1:
            raise ContractError(f"a fork plans at least one child, got {self.num_siblings!r}")
        if self.shares and len(self.shares) != self.num_siblings:
            raise ContractError(f"{len(self.shares)} shares for {self.num_siblings} siblings")
        if not all(0 <= share < math.inf for share in self.shares):
            raise ContractError(f"shares {self.shares!r}: they are finite and at least 0")
        for name in ("probability", "score", "select_prob"):
            value = getattr(self, name)
            if not (value is None or (isinstance(value, int | float) and math.isfinite(value))):
                raise ContractError(f"a fork's {name} is a finite number or None, got {value!r}")


def roulette(keep: float) -> Fork:
    """The decision to continue a path that random termination (a coin) might have ended, with probability 1 - `keep`.
    Its share 1 / `keep` also stands for the paths that were ended.

    An ended path is closed with the stop word `roulette` instead.
    """
    return Fork(1, ROULETTE, shares=(1 / keep,), probability=keep)


@dataclass(frozen=True, slots=True)
class ForkRecord:
    """Why children exist. It is written once, before the first child is asked for."""

    decision_id: int
    node: int
    """The parent of the children."""
    position: int
    """Token position on the node's branch."""
    rule: str
    num_siblings: int
    shares: tuple[float, ...]
    """Planned share of each child, in order of request. Shares fixed in advance sum to 1, or to 1 / probability if the
    rule is `roulette` (random termination, which might have ended the path here)."""
    is_post_hoc: bool
    """Whether a continuation had already been sampled here. The tree computes it; a strategy cannot set it."""
    probability: float | None = None
    score: float | None = None
    select_prob: float | None = None

    @property
    def is_shared_out(self) -> bool:
        """Whether the shares sum to what they should: 1, or 1 / probability if random termination let the path go
        on."""
        odds = self.probability if self.rule == ROULETTE and self.probability is not None else 1.0
        return math.isclose(sum(self.shares) * odds, 1.0, abs_tol=1e-9)


@quick_init
@dataclass(frozen=True, slots=True)
class Grow:
    """Grow a child of `node`: at the end of its branch, or at token position `at` of it."""

    node: int
    at: int | None = None
    until: Until = "end"
    action: str = "policy"
    fork: Fork | int | None = None
    """None = a decision with one planned child."""
    why: tuple[Option, ...] = ()


def siblings(first: Grow) -> list[Grow]:
    """As many copies of `first` as its Fork plans. Only the first copy keeps `why`."""
    number = first.fork.num_siblings if isinstance(first.fork, Fork) else 1
    return [first, *([replace(first, why=())] * (number - 1))]


@quick_init
@dataclass(frozen=True, slots=True)
class Judge:
    """Score `nodes` with the judge called `judge`; `attempt` numbers repeated samples."""

    nodes: tuple[int, ...]
    judge: str
    attempt: int = 0
    why: tuple[Option, ...] = ()


@dataclass(frozen=True, slots=True)
class Close:
    """End the path at `node`: it is never continued, and everything in flight below it is cancelled."""

    node: int
    reason: str
    why: tuple[Option, ...] = ()
    stop: Literal["closed", "roulette"] = "closed"
    """roulette: random termination ended the path, without looking at anything below it."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop a command in flight. It ends as `Failed("cancelled")` and keeps what it grew so far."""

    command_id: int


Command = Grow | Judge | Close | Cancel
"""What a strategy may ask for."""


@quick_init
@dataclass(frozen=True, slots=True)
class Score:
    """A judge's score of a node."""

    judge: str
    value: float | None
    """None = the judge gave no score (a failed parse is not 0)."""
    parts: tuple[tuple[str, float], ...] = ()
    attempt: int = 0
    is_oracle: bool = False
    """Whether the judge saw the problem's secret."""
    is_of_step: bool = False
    """Whether a prune rule was given this score for a path that had not ended; such a score is never a reward."""


@quick_init
@dataclass(frozen=True, slots=True)
class Grown:
    """A Grow succeeded: the nodes it added, in order, and the last of them."""

    command_id: int
    nodes: tuple[int, ...]
    tip: int


@dataclass(frozen=True, slots=True)
class Judged:
    """A Judge succeeded: one score per node, and the nodes that the judge itself sampled."""

    command_id: int
    scores: tuple[Score, ...]
    nodes: tuple[int, ...] = ()


@quick_init
@dataclass(frozen=True, slots=True)
class Closed:
    """A Close or Cancel was carried out."""

    command_id: int


@dataclass(frozen=True, slots=True)
class Failed:
    """A command failed. `nodes` were grown before the failure and stay on the tree."""

    command_id: int
    reason: str
    is_retryable: bool = False
    nodes: tuple[int, ...] = field(default=())

    @property
    def is_fault(self) -> bool:
        """Whether something went wrong. A spent budget and a cancelled command are not faults."""
        return self.reason not in ("budget", "cancelled")


Outcome = Grown | Judged | Closed | Failed
"""What a strategy is told of a command."""
