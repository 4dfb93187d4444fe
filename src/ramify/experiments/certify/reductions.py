"""Reductions: how a trainer makes one number of the terms of all tokens in a batch, and what that does to a gradient.

Each says by which factor it weighs `weight * advantage` of every token of a row, and by what the whole batch is
divided. A batch is one tree here. A divisor that depends on tokens is correlated with the rewards: the mean of the
quotient is not the quotient of the means. In the limit of large batches it is, so `batch="many"` divides the
expectation by the mean divisor.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from ramify import plugins
from ramify.core.errors import ConfigError, ContractError, RamifyError, nearest_or_file
from ramify.rows.row import Row

Batch = Literal["one", "many"]
"""one: the batch is one tree. many: the limit of large batches."""
Factors_T = npt.NDArray[np.float64]
SUM: Final = "sum_over_constant"


@dataclass(frozen=True, slots=True)
class Reduction:
    """One way to reduce the rows of a batch to a loss."""

    name: str
    factors: Callable[[Sequence[Row]], Sequence[Any]]
    """Rows -> for each of them, a factor or (T,) factors."""
    divisor: Callable[[Sequence[Row]], float] | None = None
    """Rows -> their part in what the batch is divided by; None = it is divided by nothing."""

    def factors_of(self, rows: Sequence[Row]) -> list[Factors_T]:
        """For each row, (T,) factors without the divisor. Raises `ContractError` if a user's function gives others."""
        given = self.factors(rows)
        if not isinstance(given, Sequence) or len(given) != len(rows):
            raise ContractError(
                f"reduction {self.name!r} gave {given!r:.80} for {len(rows)} rows; give a factor, or (T,), a row"
            )
        return [self._checked(each, row) for each, row in zip(given, rows, strict=True)]

    def _checked(self, factors: Any, row: Row) -> Factors_T:
        try:
            found = np.broadcast_to(np.asarray(factors, np.float64), (len(row),))
        except (TypeError, ValueError) as error:
            raise ContractError(f"reduction {self.name!r}, a row of {len(row)} tokens: {error}") from error
        if not np.isfinite(found).all():
            raise ContractError(f"reduction {self.name!r} gave factors that are not finite: {found.tolist()!r:.80}")
        return found


def _ones(rows: Sequence[Row]) -> list[float]:
    return [1.0] * len(rows)


def _num_trained(row: Row) -> int:
    return int((row.weights > 0).sum())


REDUCTIONS: Final[Mapping[str, Reduction]] = MappingProxyType(
    {
        each.name: each
        for each in (
            Reduction(SUM, lambda rows: [1 / row.normaliser for row in rows]),
            Reduction("mean_over_rows", _ones, len),
            Reduction("token_mean", _ones, lambda rows: sum(map(_num_trained, rows))),
            Reduction("sequence_mean", lambda rows: [1 / max(1, _num_trained(row)) for row in rows], len),
        )
    }
)
"""`sum_over_constant`: by the normaliser that rows carry, one for all trees (exact). `mean_over_rows`: by the number of
rows. `token_mean`: by the number of trained tokens. `sequence_mean`: the mean over rows of each row's mean over its
trained tokens."""


def reduction_named(name: str) -> Reduction:
    """The reduction that `name` names: a built-in one, or `path/to/file.py:function`, which maps the rows of a batch to
    a factor, or (T,) factors, for each row. Raises `ConfigError`."""
    if ":" not in name:
        if name not in REDUCTIONS:
            hint = nearest_or_file(name, REDUCTIONS, "function")
            raise ConfigError(f"unknown reduction {name!r}; {hint}")
        return REDUCTIONS[name]
    function = plugins.located("reduction", name)
    if not callable(function):
        raise ConfigError(f"reduction {name!r} ({plugins.place_of(name)}) is {function!r:.80}; a function is needed")

    def factors(rows: Sequence[Row]) -> Any:
        try:
            return function(rows)
        except RamifyError:
            raise
        except Exception as error:  # boundary to a user's function
            at = plugins.place_of(name)
            raise ContractError(f"reduction {name!r} ({at}) raised {type(error).__name__}: {error}") from error

    return Reduction(name, factors)
