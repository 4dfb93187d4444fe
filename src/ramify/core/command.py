"""Commands, outcomes and forks: the whole conversation between a strategy and the runner.

A strategy's `ask` returns commands; each is numbered in the order asked and answered by exactly one outcome.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from ramify.core.errors import ContractError
from ramify.core.stop import ROULETTE

Edge = Literal["continues", "quotes"]
EDGES: tuple[Edge, ...] = ("continues", "quotes")
Role = Literal["policy", "critique", "judge", "probe"]
ROLES: tuple[Role, ...] = ("policy", "critique", "judge", "probe")


@dataclass(frozen=True, slots=True)
class Tokens:
    """Grow by `n` sampled tokens (more only to finish a stop word or a character that the n-th token began)."""

    n: int

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ContractError(f"Tokens({self.n}) grows nothing; ask for at least 1")


Until = Tokens | Literal["step", "end"]


@dataclass(frozen=True, slots=True)
class Option:
    """One option that a decision weighed, with the named terms of its score then; for the viewer."""

    node: int
    score: float
    terms: tuple[tuple[str, float], ...] = ()

    def __eq__(self, other: object) -> bool:
        """A `Candidate` of the same values is equal: strategies that give one in `why` are read for one version."""
        if not isinstance(other, Option | Candidate):
            return NotImplemented
        return (self.node, self.score, self.terms) == (other.node, other.score, other.terms)

    def __hash__(self) -> int:
        return hash((self.node, self.score, self.terms))


SHOWN: Final = 8
"""Most options of a decision that a strategy names for the viewer."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """An answer of a search: the node it ends at, and the score it votes with."""

    node: int
    score: float
    terms: tuple[tuple[str, float], ...] = ()
    """Named terms of the score."""


@dataclass(frozen=True, slots=True)
class Fork:
    """A decision to grow `num_siblings` children at one place, made before their first token is drawn.

    `shares` default to equal ones. The tree turns a Fork into a `ForkRecord` when its first command is asked; commands
    of the same decision carry the same Fork object, or, in a later ask, the decision id of its record.
    """

    num_siblings: int
    rule: str
    shares: tuple[float, ...] = ()
    probability: float | None = None
    """Probability with which the rule decided so; None = deterministic."""
    score: float | None = None
    select_prob: float | None = None
    """For post-hoc rules: probability that the rule picks this position on its trunk (`docs/credit.md`, lemma 5)."""

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
    """The decision that a path goes on, where a coin might have ended it: it counts for those that the coin ends.

    Had the coin fallen the other way, the path would have been closed with the stop word `roulette`.
    """
    return Fork(1, ROULETTE, shares=(1 / keep,), probability=keep)


@dataclass(frozen=True, slots=True)
class ForkRecord:
    """Why children exist; written once, at the decision, before the first child is asked for."""

    decision_id: int
    node: int
    """Where the children hang."""
    position: int
    """Token position on the node's branch."""
    rule: str
    num_siblings: int
    shares: tuple[float, ...]
    """Planned share of each child, in order of request; predictable ones sum to 1, or to 1 / probability where the
    rule is `roulette`: a coin, which might have ended the path here."""
    is_post_hoc: bool
    """Whether a continuation had already been sampled here: computed by the tree, never claimed."""
    probability: float | None = None
    score: float | None = None
    select_prob: float | None = None

    @property
    def is_shared_out(self) -> bool:
        """Whether the shares sum to what they should: 1, or 1 / probability of the coin that let the path go on."""
        odds = self.probability if self.rule == ROULETTE and self.probability is not None else 1.0
        return math.isclose(sum(self.shares) * odds, 1.0, abs_tol=1e-9)


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
    """As many growths like `first` as its Fork plans; it alone says why."""
    number = first.fork.num_siblings if isinstance(first.fork, Fork) else 1
    return [first, *([replace(first, why=())] * (number - 1))]


@dataclass(frozen=True, slots=True)
class Judge:
    """Score `nodes` with the judge called `judge`; `attempt` numbers repeated samples."""

    nodes: tuple[int, ...]
    judge: str
    attempt: int = 0
    why: tuple[Option, ...] = ()


@dataclass(frozen=True, slots=True)
class Close:
    """End the path at `node`: never asked again, whatever is in flight below is cancelled."""

    node: int
    reason: str
    why: tuple[Option, ...] = ()
    stop: Literal["closed", "roulette"] = "closed"
    """roulette: a coin ended it, thrown without regard to anything below."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop a command in flight; it ends as `Failed("cancelled")` with what it had."""

    command_id: int


Command = Grow | Judge | Close | Cancel


@dataclass(frozen=True, slots=True)
class Score:
    """What a judge said of a node."""

    judge: str
    value: float | None
    """None = the judge gave no score (a failed parse is not 0)."""
    parts: tuple[tuple[str, float], ...] = ()
    attempt: int = 0
    is_oracle: bool = False
    """Whether the judge saw the problem's secret."""
    is_of_step: bool = False
    """Whether it is what a prune rule was given about a path that had not ended: never a reward."""


@dataclass(frozen=True, slots=True)
class Grown:
    """A Grow ended well: the nodes it added, in order, and the last of them."""

    command_id: int
    nodes: tuple[int, ...]
    tip: int


@dataclass(frozen=True, slots=True)
class Judged:
    """A Judge ended well: one score a node, and the nodes the judge itself sampled."""

    command_id: int
    scores: tuple[Score, ...]
    nodes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Closed:
    """A Close or Cancel was carried out."""

    command_id: int


@dataclass(frozen=True, slots=True)
class Failed:
    """A command could not be carried out. `nodes` were grown before it failed and are on the tree."""

    command_id: int
    reason: str
    is_retryable: bool = False
    nodes: tuple[int, ...] = field(default=())

    @property
    def is_fault(self) -> bool:
        """Whether something went wrong: neither a budget that is spent nor a command taken back is a fault."""
        return self.reason not in ("budget", "cancelled")


Outcome = Grown | Judged | Closed | Failed
