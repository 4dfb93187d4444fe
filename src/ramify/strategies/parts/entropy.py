"""Uncertainty measures: how unsure the model was about a step, from the log-probabilities of its engine.

None = not computed, never 0. Logprobs are in nats. The engine states whether they were taken before or after
temperature, in the `source` of the segment. Formulas: `docs/concepts/growth.md`.
"""

import math
from collections.abc import Sequence
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from ramify.core.errors import ContractError
from ramify.core.tree import Tree

Logprobs = npt.ArrayLike
"""(k,) log-probabilities of the entries returned for one token."""
STEP_ENTROPY: Final = "step_entropy_topk"
"""Name of the step measure that fork rules, choose rules and dynamic rollout numbers read."""
LOGPROBS: Final = "logprobs"
"""A strategy lists this name among its measures if it reads the logprobs of sampled tokens."""


def step_entropy(tree: Tree, node: int) -> float:
    """The measure `step_entropy_topk` of a node, for rules that need it. Raises `ContractError` if absent."""
    value = tree.measure(node, STEP_ENTROPY)
    if value is None:
        raise ContractError(
            f"node {node} has no measure {STEP_ENTROPY!r}, which this strategy reads; use an engine that returns top-k "
            "logprobs"
        )
    return value


def initial_entropy(tree: Tree, node: int) -> float | None:
    """The measure `step_entropy_topk` of the first step on the path to a node; None at the root, or not computed."""
    path = tree.path(node)
    return tree.measure(path[1], STEP_ENTROPY) if len(path) > 1 else None


def step_entropy_topk(
    token_logprobs: Sequence[Logprobs] | None,
    vocab_size: int,
    *,
    max_tokens: int = 20,
    reduce: Literal["sum", "mean"] = "sum",
) -> float | None:
    """Sum of -p ln p over all entries returned for the first `max_tokens` tokens, divided by ln(vocabulary).

    It is a sum, so a short step scores less than an equally uncertain long one; `mean` divides by the tokens used. An
    engine that returns the sampled token besides the top k gives k + 1 entries, and all count. No tokens: 0.0. None in,
    None out. Source: RUC-NLPIR/ARPO vllm_rollout_with_tools.py, `_calc_entropy`.
    """
    if token_logprobs is None:
        return None
    used = token_logprobs[:max_tokens]
    if not used:
        return 0.0
    total = _neg_p_log_p(np.concatenate(used, dtype=np.float64))
    return total / math.log(vocab_size) / (len(used) if reduce == "mean" else 1)


def mean_surprisal(sampled_logprobs: Logprobs | None) -> float | None:
    """Minus the mean logprob of a step's (T,) sampled tokens; None if there are none (AT2PO, DeepSearch)."""
    if sampled_logprobs is None:
        return None
    values = np.asarray(sampled_logprobs, np.float64)
    return -float(values.mean()) if values.size else None


def surprisal(logprob: float) -> float:
    """Minus the logprob of one sampled token (TreeRL)."""
    return -logprob


def renormalised_topk_entropy(token_logprobs: Sequence[Logprobs] | None) -> float | None:
    """Mean over tokens of -sum q ln(q + 1e-9), q = p / (sum p + 1e-9) over the entries returned; None without tokens.

    Source: multimodal-art-projection/TreePO vllm_rollout_tree.py, `compute_sequence_entropy_from_topk`.
    """
    if not token_logprobs:
        return None
    return float(np.mean([_renormalised_entropy(np.asarray(entries, np.float64)) for entries in token_logprobs]))


def _neg_p_log_p(logprobs: npt.NDArray[np.float64]) -> float:
    """Sum of -p ln p; an entry of probability 0 adds nothing."""
    possible = logprobs[logprobs > -np.inf]
    return -float(np.dot(np.exp(possible), possible))


def _renormalised_entropy(logprobs: npt.NDArray[np.float64]) -> float:
    p = np.exp(logprobs)
    q = p / (p.sum() + 1e-9)
    return -float(np.dot(q, np.log(q + 1e-9)))
