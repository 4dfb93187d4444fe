"""MCTSr's arithmetic: the value of judgements, how values propagate up the tree, and which answer is refined next.

Numbers only. Each published quirk is a Literal value here and a switch of the strategy. A score is an upper confidence
bound; N is the number of visits of the parent, n that of the answer.

Source: arXiv 2406.07394; BrendanGraham14/mcts-llm src/mcts_llm/mctsr.py; trotsky1997/MathBlackBox
run_with_earlystopping.py.
"""

import math
from bisect import bisect
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Literal, assert_never

import numpy as np
import numpy.typing as npt

Scores = npt.NDArray[np.float64]
"""(N,) of the answers to choose from."""
Penalty = Literal["excess", "clip95", "fifty"]
"""What happens to a judgement beyond the limit. `excess`: a constant is subtracted, so 96 ends below 95 (mcts-llm).
`clip95`: it is cut to the limit. `fifty`: at or above the limit it becomes 50 (MathBlackBox)."""
LogForm = Literal["code", "paper"]
"""ln(N + 1) as in both codes, or ln N + 1 as in the paper."""
Negative = Literal["kept", "clipped"]
"""Whether scores below 0 keep negative weights, so that there may be no distribution, or weigh 0."""


def penalised(value: float, penalty: Penalty, *, limit: float, excess: float) -> float:
    """A judgement after its penalty."""
    match penalty:
        case "excess":
            return value - excess if value > limit else value
        case "clip95":
            return min(value, limit)
        case "fifty":
            return 50.0 if value >= limit else value
        case _:
            assert_never(penalty)


def q_of(lowest: float, total: float, number: int) -> float:
    """Half the lowest plus half the mean of `number` samples that sum to `total`."""
    return (lowest + total / number) / 2


def halfway(q: float, best_child: float) -> float:
    """The value of an answer, given its own q and the q of its best child."""
    return (q + best_child) / 2


def uct(q: float, visits: int, parent_visits: int, *, exploration: float, eps: float, log_form: LogForm) -> float:
    """q + exploration sqrt(ln(N + 1) / (n + eps)), or with ln N + 1 (`paper`); no bonus if the parent has no visits."""
    if not parent_visits:
        return q
    log = math.log(parent_visits + 1) if log_form == "code" else math.log(parent_visits) + 1
    return q + exploration * math.sqrt(log / (visits + eps))


def importance_weights(scores: Scores, negative: Negative) -> Scores:
    """(N,) the weight of each answer is its score."""
    return scores if negative == "kept" else np.maximum(scores, 0.0)


def published_choice(weights: Sequence[float], u: float) -> int | None:
    """The index that the published code draws, by a binary search in the cumulative weights; None = their total is not
    positive. Where a weight is negative the sums fall, and the search may end elsewhere than at the first sum that
    exceeds `u` times the total."""
    sums = list(accumulate(weights))
    return bisect(sums, u * sums[-1], 0, len(sums) - 1) if sums[-1] > 0 else None


def published_pair(scores: Sequence[float], u: float) -> int | None:
    """The better answer of the ordered pair that the published code draws; None = all scores are equal. O(n^2)."""
    index = published_choice([abs(one - other) for one in scores for other in scores], u)
    return None if index is None else max(divmod(index, len(scores)), key=scores.__getitem__)


def pairwise_weights(scores: Scores) -> Scores:
    """(N,) the weight of each answer is the sum of its leads over all lower ones. This draws the better answer of an
    ordered pair, in proportion to the pair's difference. O(n log n): the sum is updated from rank to rank, not over all
    pairs."""
    ranked = np.argsort(scores, kind="stable")
    weights = np.zeros(len(scores))
    leads = scores[ranked[1:]] - scores[ranked[:-1]]
    weights[ranked[1:]] = np.cumsum(np.arange(1, len(scores)) * leads)
    return weights


def is_distribution(weights: Scores) -> bool:
    """Whether an index can be drawn in proportion to `weights`."""
    return bool(weights.size and weights.min() >= 0 and weights.sum() > 0)


def rescored(
    parents: Sequence[int | None],
    averages: Sequence[float],
    num_samples: Sequence[int],
    before: Mapping[int, float],
    *,
    exploration: float,
    eps: float,
) -> dict[int, float]:
    """MathBlackBox's scores after a round, computed from the scores before it. Answers are numbered in creation order.

    Leaves are scored again, and so are parents of leaves if they have a score already. A parent without a score passes
    the update on to its own parent. A new answer changes nothing further up. O(number of answers).
    """
    children: dict[int, list[int]] = {}
    for child, parent in enumerate(parents):
        if parent is not None:
            children.setdefault(parent, []).append(child)
    scores = dict(before)

    def score(number: int, q: float) -> None:
        parent = parents[number]
        parent_visits = 0 if parent is None else num_samples[parent]
        scores[number] = uct(q, num_samples[number], parent_visits, exploration=exploration, eps=eps, log_form="code")

    wave = [number for number in range(len(parents)) if number not in children]
    for leaf in wave:
        score(leaf, averages[leaf])
    while wave:
        fathers = dict.fromkeys(father for number in wave if (father := parents[number]) is not None)
        wave = [father for father in fathers if father not in scores]
        for father in fathers:
            if father in scores:
                score(father, halfway(averages[father], max(averages[child] for child in children[father])))
    return scores
