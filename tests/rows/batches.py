"""Batches for the tests of exports: rows of several random trees, each a problem of its own."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st
from tests.credit.trees import bare, end, fork, step, wild

from ramify.core.tree import ROOT, Tree
from ramify.rows import Row, rows_of
from ramify.rows.weights import Policy

SEEDS = st.lists(st.integers(0, 10_000), min_size=1, max_size=3, unique=True)
Token = tuple[str, int, int]
"""(uid, canonical number of its node, position on the branch)."""


def batch_of(seeds: Iterable[int], policy: Policy = "once") -> list[Row]:
    """Rows of a wild tree for each seed, with as many leaves as it happens to have."""
    return [replace(row, uid=f"p{seed}") for seed in seeds for row in rows_of(wild(seed), policy=policy)]


def chains(*rewards: float) -> Tree:
    """A chain of two turns for each reward."""
    growth = bare()
    fork(growth, ROOT, *[[step("ab"), end("c" * (i + 1), reward)] for i, reward in enumerate(rewards)])
    return growth.tree


def totals(rows: Sequence[Row], responses: Sequence[npt.NDArray[np.generic]]) -> dict[Token, float]:
    """Token -> the sum over rows of what they have for it; `responses` are each row's (R,) values, then padding."""
    found: defaultdict[Token, float] = defaultdict(float)
    for row, values in zip(rows, responses, strict=True):
        for position in range(row.num_prompt, len(row)):
            if row.is_sampled[position]:
                token = (row.uid, int(row.nodes[position]), position)
                found[token] += float(values[position - row.num_prompt])
    return found


def not_sampled(row: Row, width: int) -> npt.NDArray[np.bool_]:
    """(R,) true for every observation, forced and padding token of a response of `width` tokens."""
    response = ~row.is_sampled[row.num_prompt :]
    return np.concatenate([response, np.ones(width - len(response), bool)])
