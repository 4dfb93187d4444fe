"""Batching stats: counts of a batching loop."""

from dataclasses import dataclass


@dataclass(slots=True)
class Stats:
    """Counts of what a loop has done so far. Mutable; read it at any time."""

    num_steps: int = 0
    """Model steps."""
    num_decoded: int = 0
    """Tokens sampled."""
    num_sampling_steps: int = 0
    """Model steps in which at least one token was sampled."""
    prefill_cached: int = 0
    """Context tokens whose keys and values were already there or copied."""
    prefill_uncached: int = 0
    """Context tokens computed."""
    num_copies: int = 0
    """Prefixes copied from one slot to another."""
    num_evictions: int = 0
    """Slots whose tokens were dropped for another context."""
    recomputed_after_eviction: int = 0
    """Part of `prefill_uncached`: tokens that a slot had held before an eviction."""
    recomputed_after_update: int = 0
    """Tokens of running requests computed again because the weights changed; not part of `prefill_uncached`."""

    @property
    def mean_batch(self) -> float:
        """Mean number of tokens per sampling step."""
        return self.num_decoded / max(1, self.num_sampling_steps)
