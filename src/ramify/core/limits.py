"""Limits: upper bounds on what a tree or a run may spend. Values only; the `Ledger` holds them."""

import math
from dataclasses import dataclass, fields

from ramify.core.errors import ConfigError
from ramify.core.prices import PICODOLLARS


@dataclass(frozen=True, slots=True)
class Limits:
    """Upper bounds for a tree or a run; None = unlimited."""

    leaves: int | None = None
    """Ended paths that are no failures."""
    decode: int | None = None
    """Sampled tokens, of all roles."""
    prefill_uncached: int | None = None
    """Context tokens that the engine computes. They depend on what its cache held, so where this limit binds a tree
    depends on time."""
    engine_calls: int | None = None
    """Requests to engines."""
    tool_calls: int | None = None
    """Calls of tools, retries not counted."""
    judge_calls: int | None = None
    """Judgements, of one branch each."""
    turns: int | None = None
    """Turns of the policy: runs of sampled tokens between observations."""
    dollars: float | None = None
    """Dollars, by the prices of the engines; every engine that is asked must then have prices. If cached context has
    its own price, a tree depends on time, as with `prefill_uncached`."""
    seconds: float | None = None
    """Wall-clock seconds on a monotonic clock. Where this limit binds, runs are not deterministic."""

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"limit {f.name} = {value!r}: a limit is positive, or left out")

    def counted(self) -> dict[str, int]:
        """The counted limits, without seconds; dollars are given in picodollars."""
        counted = {name: v for name in COUNTED_LIMITS if (v := getattr(self, name)) is not None}
        return counted if self.dollars is None else counted | {"picodollars": round(self.dollars * PICODOLLARS)}

    def share(self, num_parts: int, part: int) -> "Limits":
        """The `part`-th of `num_parts` equal shares of these limits. The first shares get the remainder."""
        shares: dict[str, int] = {}
        for name, value in self.counted().items():
            quotient, remainder = divmod(value, num_parts)
            shares[name] = quotient + (part < remainder)
            if not shares[name]:
                raise ConfigError(f"limit {name} = {value} leaves nothing for one of {num_parts} trees")
        picodollars = shares.pop("picodollars", None)
        dollars = None if picodollars is None else picodollars / PICODOLLARS
        return Limits(**shares, dollars=dollars, seconds=self.seconds)

    def within(self, other: "Limits") -> "Limits":
        """The tighter of two limits, field by field."""
        tighter: dict[str, int | float | None] = {}
        for f in fields(self):
            values = [v for v in (getattr(self, f.name), getattr(other, f.name)) if v is not None]
            tighter[f.name] = min(values) if values else None
        return Limits(**tighter)  # pyright: ignore[reportArgumentType]


COUNTED_LIMITS = ("leaves", "decode", "prefill_uncached", "engine_calls", "tool_calls", "judge_calls", "turns")
