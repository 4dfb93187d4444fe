"""Factor: the gradient that a trainer gives each token, over the coefficient that our rows state for it.

A trainer is exact, up to a learning rate, if and only if the factor is one number for all tokens of a batch. The other
side's own loss is differentiated by the log-probabilities of the tokens, at the policy that sampled.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final
from unittest.mock import patch

import numpy as np
import numpy.typing as npt

import ramify
from ramify.rows import Row, padded

EXACT: Final = 1 + 1e-5
"""Largest max / min of a factor that counts as float32 rounding."""
INEXACT: Final = 1.01
"""Least max / min of a mode that is known to be inexact, so that the test can fail."""
Matrix = npt.NDArray[np.float64]
"""(B, R): rows, tokens of their responses."""
UNEVEN: Final = {"children": [4.0, 0.6, 2.0]}
"""`planned`: trees of 4 to 8 leaves."""


@dataclass(frozen=True)
class Factor:
    """Of the tokens of a batch that have a coefficient."""

    smallest: float
    largest: float
    strays: float
    """Largest gradient, relative to the largest one, of a token whose coefficient is 0."""

    @property
    def spread(self) -> float:
        """max / min; infinite if some token is trained the other way, or not at all."""
        return self.largest / self.smallest if self.smallest > 0 else float("inf")

    @property
    def is_exact(self) -> bool:
        return self.spread <= EXACT and self.strays < 1e-6


def factor(gradient: Matrix, stated: Matrix) -> Factor:
    """`gradient`: of the loss by each token's log-probability. `stated`: weight * advantage of each token."""
    is_trained = stated != 0
    values = -gradient[is_trained] / stated[is_trained]
    others = np.abs(gradient[~is_trained]).max(initial=0.0) / np.abs(gradient).max()
    return Factor(float(values.min()), float(values.max()), float(others))


def stated(rows: Sequence[Row]) -> Matrix:
    """(B, R) what each token of each row is trained with, padded on the right."""
    found = np.zeros((len(rows), padded(rows).responses.shape[1]))
    for number, row in enumerate(rows):
        found[number, : len(row) - row.num_prompt] = row.trained[row.num_prompt :]
    return found


def drift(like: Matrix) -> Matrix:
    """(B, R) how far log-probabilities have moved since the tokens were sampled, within every clip."""
    return np.random.default_rng(0).normal(scale=0.03, size=like.shape)


def differentiated(loss: Callable[[Any], Any], logprobs: Any) -> Matrix:
    """The gradient of a loss at (B, R) log-probabilities."""
    import torch

    leaf = logprobs.detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(leaf), leaf)
    return gradient.double().numpy()


def uncompiled() -> AbstractContextManager[Any]:
    """Functions that are decorated with `torch.compile` stay as they are written."""
    import torch

    return patch.object(torch, "compile", lambda function=None, **_: function or (lambda each: each))


# -- batches -----------------------------------------------------------------------------------------------------------


def grown(preset: str, uid: str = "", **settings: Any) -> list[Row]:
    """Rows of trees of the built-in model; `uid` is put before the names of their problems."""
    rows = ramify.rollout_sync(preset=preset, prompts=5, seed=2, **settings).rows(normaliser=8.0)
    assert any(row.trained.any() for row in rows)
    return [replace(row, uid=f"{uid}{row.uid}") for row in rows]


BATCHES: Final = ("even", "uneven", "mixed", "shared by fractions")
"""Trees of one size, trees of several sizes, two strategies at once, shared tokens divided among their rows."""


@cache
def rows_of(name: str) -> list[Row]:
    """The rows of that name."""
    if name == "even":
        return grown("chains")
    if name == "shared by fractions":
        return grown("planned", strategy__options=UNEVEN, rows__policy="fraction")
    uneven = grown("planned", strategy__options=UNEVEN)
    assert len({sum(row.uid == uid for row in uneven) for uid in {row.uid for row in uneven}}) > 1
    return uneven if name == "uneven" else [*uneven, *grown("arpo", "other ", strategy__options={"n": 16})]
