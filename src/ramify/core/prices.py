"""Prices: what an engine's tokens cost. Amounts are whole picodollars, so that sums of them are exact."""

import math
from dataclasses import dataclass, fields
from typing import Final

from ramify.core.errors import ConfigError
from ramify.core.segment import Usage

PICODOLLARS: Final = 10**12
"""Picodollars in a dollar."""
A_TOKEN: Final = PICODOLLARS // 10**6
"""Picodollars per token at a price of one dollar per million tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Dollars per million tokens, as vendors state them. Without prices, the cost of tokens is unknown."""

    prompt: float | None = None
    """Price of context tokens that the engine computes. None = unknown; `output` must be set too."""
    cached: float | None = None
    """Price of context tokens that the vendor's cache held; None = the same as `prompt`."""
    output: float | None = None
    """Price of sampled tokens, thinking included. None = unknown."""

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if value is not None and not 0 <= value < math.inf:
                raise ConfigError(f"prices.{f.name} = {value!r}: dollars a million tokens are finite and at least 0")
        if (self.prompt is None) != (self.output is None) or (self.cached is not None and self.prompt is None):
            raise ConfigError("prices: prompt and output go together, and cached goes with them")

    @property
    def is_known(self) -> bool:
        return self.prompt is not None

    def cost(self, usage: Usage) -> int:
        """Price in picodollars of what a generation used."""
        cached = self.prompt if self.cached is None else self.cached
        return (
            usage.num_prefilled * _a_token(self.prompt)
            + usage.num_cached * _a_token(cached)
            + usage.num_billed * _a_token(self.output)
        )

    def most(self, num_context: int, num_sampled: int) -> int:
        """Upper bound in picodollars for this many tokens, whatever a cache holds."""
        return num_context * self._a_context_token + num_sampled * _a_token(self.output)

    def num_affordable(self, picodollars: int, num_context: int) -> int | None:
        """Most tokens that may be sampled after this much context. 0 = the context alone costs too much; None = any
        number."""
        left, a_token = picodollars - self.most(num_context, 0), _a_token(self.output)
        if left < 0:
            return 0
        return left // a_token if a_token else None

    @property
    def _a_context_token(self) -> int:
        return max(_a_token(self.prompt), _a_token(self.cached))


UNPRICED: Final = Prices()


def _a_token(price: float | None) -> int:
    return round((price or 0.0) * A_TOKEN)
