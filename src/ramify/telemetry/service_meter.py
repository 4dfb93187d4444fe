"""ServiceMeter: the service's own metrics, updated after every batch (`metrics.py` has their names)."""

from collections import Counter
from collections.abc import Mapping, Sequence

from ramify.rows.sample import Sample
from ramify.telemetry.telemetry import Telemetry

DROPPED = "dropped/"
"""Prefix of the counts of dropped groups; the reason follows."""


class ServiceMeter:
    """Mutable."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._dropped: Counter[str] = Counter()

    def batch(self, samples: Sequence[Sample], *, version: int, counts: Mapping[str, int]) -> None:
        """A batch was handed over. `counts` are the buffer's counts after it, `version` is that of the weights."""
        told = self._telemetry
        told.count("ramify.batches")
        told.gauge("ramify.weight_version", version)
        for state, num in counts.items():
            if not state.startswith(DROPPED):
                told.gauge("ramify.buffer.groups", num, state=state)
                continue
            reason = state.removeprefix(DROPPED)
            told.count("ramify.groups.dropped", num - self._dropped[reason], reason=reason)
            self._dropped[reason] = num
        for sample in samples:
            if sample.weight_versions:
                told.record("ramify.staleness", version - min(map(int, sample.weight_versions)))
