"""Patience: how long a request may take before it counts as hanging. Long contexts get more time."""

import math
from dataclasses import dataclass
from typing import Final

from ramify.core.engine import Request
from ramify.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds a request may take: a fixed time, plus time for each token of context and each token that may be
    sampled."""

    start_s: float = 60.0
    """Time any request may take, however small."""
    prefill_s: float = 0.01
    """More time for each token of context: a long prompt takes long to compute (sgl-project/sglang #22511)."""
    token_s: float = 0.5
    """More time for each token that may be sampled."""

    def __post_init__(self) -> None:
        times = (self.start_s, self.prefill_s, self.token_s)
        if self.start_s <= 0 or not all(0 <= seconds < math.inf for seconds in times):
            raise ConfigError(f"impossible patience {self!r}: start_s above 0, every value finite and not negative")

    def deadline_s(self, request: Request) -> float:
        """Seconds after which `request` counts as hanging."""
        return self.start_s + self.prefill_s * len(request.ids) + self.token_s * request.max_tokens


PATIENCE: Final = Patience()
