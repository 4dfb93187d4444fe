"""Sampling: next-token distributions of many rows at once: draws from them, and measures on them.

Pure numpy in float64. Invariant: a row's token depends only on its logits, its sampling parameters and its uniform
number, never on other rows: every sum runs over one row, in order of ids (or, under temperature, top-k or top-p, in
order of falling probability, with ties by id).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ramify.core.segment import Floats_T, Ids_T, Sampling

Floats64 = npt.NDArray[np.float64]

RAW = Sampling()
"""Temperature 1 and nothing cut off: the raw distribution."""

_FLOOR = -1e4
"""Scores are clipped to at least this, so that an impossible token adds 0 and not NaN to an entropy; exp of it is 0."""


def uniforms(seed: int, num: int, *, start: int = 0) -> Floats64:
    """Uniform numbers `start` to `start + num` in [0, 1) of `seed`. Number i does not depend on `start` and `num`.

    Philox 4x64 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"), keyed by the seed. It gives four
    numbers per step, so those before `start` need not be computed.
    """
    skipped, first = divmod(start, 4)
    raw = np.random.Philox(key=seed % 2**64).advance(skipped).random_raw(first + num)[first:]
    return (raw >> np.uint64(11)).astype(np.float64) * np.float64(2.0**-53)


@dataclass(frozen=True, slots=True, eq=False)
class RawLaws:
    """Raw distributions (log softmax of the unscaled logits) of N rows over V tokens."""

    scores: Floats64
    """(N, V) logits minus their row's maximum."""
    weights: Floats64
    """(N, V) exp of the scores."""
    sums: Floats64
    """(N, V) running sums of the weights."""

    @classmethod
    def of(cls, logits: npt.NDArray[np.float32]) -> "RawLaws":
        """Distributions of (N, V) logits. A row that defines none (such as one with NaN) gets NaN logprobs."""
        scores = logits.astype(np.float64)
        with np.errstate(invalid="ignore"):
            scores -= scores.max(axis=-1, keepdims=True)
        np.maximum(scores, _FLOOR, out=scores)
        weights = np.exp(scores)
        return cls(scores, weights, weights.cumsum(axis=-1))

    def draw(self, numbers: Floats64, changed: Mapping[int, Sampling]) -> Ids_T:
        """One token per row, by the inverse distribution function; `numbers` (N,) are uniform in [0, 1).

        `changed` holds the sampling parameters of the rows that are not drawn from their raw distribution.
        """
        ids = _inverted(self.sums, numbers)
        rows = list(changed)
        if rows:
            ids[rows] = _drawn_from_changed(self.scores[rows], numbers[rows], list(changed.values()))
        return ids.astype(np.int32)

    def logprobs(self, ids: Ids_T) -> Floats_T:
        """(N,) logprob of one token per row."""
        return (self.scores[np.arange(len(ids)), ids] - np.log(self.sums[:, -1])).astype(np.float32)

    def entropies(self) -> Floats_T:
        """(N,) entropy in nats over the whole vocabulary."""
        totals = self.sums[:, -1]
        means = np.matmul(self.weights[:, None], self.scores[..., None])[:, 0, 0] / totals
        return (np.log(totals) - means).astype(np.float32)

    def top(self, rows: Sequence[int], num: int) -> Floats_T:
        """(len(rows), num) largest logprobs of some rows, in falling order."""
        scores = self.scores[rows]
        num = min(num, scores.shape[1])
        largest = np.sort(np.partition(scores, -num, axis=-1)[:, -num:], axis=-1)[:, ::-1]
        return (largest - np.log(self.sums[rows, -1])[:, None]).astype(np.float32)


def _inverted(sums: Floats64, numbers: Floats64) -> npt.NDArray[np.intp]:
    """First column of each row whose running sum exceeds `number` times the total; its weight is above 0."""
    totals = sums[:, -1]
    targets = np.minimum(numbers * totals, np.nextafter(totals, 0.0))
    return (sums > targets[:, None]).argmax(axis=-1)


def _drawn_from_changed(scores: Floats64, numbers: Floats64, samplings: Sequence[Sampling]) -> npt.NDArray[np.intp]:
    """Draw with temperature, then top-k, then top-p of what is left (the order of vLLM and transformers)."""
    temperatures = np.array([[s.temperature] for s in samplings])
    order = np.argsort(-scores, axis=-1, kind="stable")
    is_greedy = temperatures[:, 0] == 0
    scaled = np.take_along_axis(scores, order, axis=-1) / np.where(temperatures == 0, 1.0, temperatures)
    most = np.array([[s.top_k or scores.shape[1]] for s in samplings])
    weights = np.exp(scaled) * (np.arange(scores.shape[1]) < most)
    before = weights.cumsum(axis=-1) - weights
    shares = np.array([[s.top_p] for s in samplings])
    weights *= before < shares * weights.sum(axis=-1, keepdims=True)
    ranks = _inverted(weights.cumsum(axis=-1), numbers)
    ranks[is_greedy] = 0
    return np.take_along_axis(order, ranks[:, None], axis=-1)[:, 0]
