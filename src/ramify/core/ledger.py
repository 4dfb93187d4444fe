"""Ledger: what a tree or a run has spent and reserved, by role, under limits.

Invariant: work starts only after its amount is reserved, and the unused part is given back, so no limit is exceeded.
The ledger of a tree equals the sums of what its segments, tool calls and scores billed (`Tree.spent` computes them
again).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from ramify.core.limits import Limits
from ramify.core.prices import PICODOLLARS
from ramify.core.segment import Usage


@dataclass(slots=True)
class Spend:
    """Amounts of everything that is counted. Mutable: `add`, `subtract` and `bill` work in place."""

    leaves: int = 0
    """Ended paths, kept or not. Failed paths count in `failed_leaves`."""
    failed_leaves: int = 0
    decode: int = 0
    """Tokens sampled, including those cut off or discarded later."""
    prefill_cached: int = 0
    prefill_uncached: int = 0
    engine_calls: int = 0
    picodollars: int = 0
    """Cost of engines that have prices."""
    turns: int = 0
    """Steps of the policy: nodes that hold sampled tokens."""
    tool_calls: int = 0
    """Executions started. Retries are counted separately; a reused observation does not count."""
    tool_retries: int = 0
    judge_calls: int = 0

    def add(self, other: "Spend") -> "Spend":
        self.leaves += other.leaves
        self.failed_leaves += other.failed_leaves
        self.decode += other.decode
        self.prefill_cached += other.prefill_cached
        self.prefill_uncached += other.prefill_uncached
        self.engine_calls += other.engine_calls
        self.picodollars += other.picodollars
        self.turns += other.turns
        self.tool_calls += other.tool_calls
        self.tool_retries += other.tool_retries
        self.judge_calls += other.judge_calls
        return self

    def subtract(self, other: "Spend") -> "Spend":
        self.leaves -= other.leaves
        self.failed_leaves -= other.failed_leaves
        self.decode -= other.decode
        self.prefill_cached -= other.prefill_cached
        self.prefill_uncached -= other.prefill_uncached
        self.engine_calls -= other.engine_calls
        self.picodollars -= other.picodollars
        self.turns -= other.turns
        self.tool_calls -= other.tool_calls
        self.tool_retries -= other.tool_retries
        self.judge_calls -= other.judge_calls
        return self

    def bill(self, usage: Usage) -> "Spend":
        """Add what one generation cost."""
        self.decode += usage.num_billed
        self.prefill_cached += usage.num_cached
        self.prefill_uncached += usage.num_prefilled
        self.engine_calls += usage.num_calls
        self.picodollars += usage.picodollars
        return self

    @property
    def dollars(self) -> float:
        return self.picodollars / PICODOLLARS

    def as_dict(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in SPEND_FIELDS}


SPEND_FIELDS = tuple(f.name for f in fields(Spend))


@dataclass(slots=True)
class Ledger:
    """Spent and reserved amounts under limits, which do not change. Only reserve, settle and bill mutate it."""

    limits: Limits = field(default_factory=Limits)
    spent: Spend = field(default_factory=Spend)
    reserved: Spend = field(default_factory=Spend)
    spent_by_role: dict[str, Spend] = field(default_factory=dict[str, Spend])
    _counted: Mapping[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._counted = self.limits.counted()

    def room(self) -> dict[str, int]:
        """What is left of every counted limit, minus reservations."""
        return {
            name: limit - getattr(self.spent, name) - getattr(self.reserved, name)
            for name, limit in self._counted.items()
        }

    def missing(self, need: Spend) -> dict[str, int]:
        """The limits that `need` does not fit into, with the room each has."""
        if not self._counted:
            return {}
        return {name: room for name, room in self.room().items() if room < getattr(need, name)}

    def reserve(self, need: Spend) -> None:
        self.reserved.add(need)

    def settle(self, reserved: Spend, used: Mapping[str, Spend]) -> None:
        """Release a reservation and bill what was used of it, by role."""
        self.reserved.subtract(reserved)
        for role, spend in used.items():
            self.bill(role, spend)

    def bill(self, role: str, spend: Spend) -> None:
        self.spent.add(spend)
        self.spent_by_role.setdefault(role, Spend()).add(spend)
