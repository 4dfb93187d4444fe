"""Own: a credit that a user wrote, as a function of a forest.

It is the boundary to that function: what it raises, and what it returns wrongly, is a `ContractError` that names it.
Rows never call such a credit exact: `ramify certify` checks it on decision problems.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np

from ramify.core.errors import ContractError, RamifyError
from ramify.credit.forest import Array_N, Forest


@dataclass(frozen=True, slots=True)
class OwnCredit:
    """A user's credit, by the name that a configuration gives it."""

    name: str
    """`path/to/file.py:function`, or whatever else names the function."""
    function: Callable[[Forest], Any]
    """Forest -> (num_nodes,) coefficient of every sampled token of each node. It changes nothing of the forest."""

    def coefficients(self, forest: Forest) -> Array_N:
        """(N,) float64. Raises `ContractError` if the function raises, or returns another shape or numbers that are not
        finite."""
        try:
            given = self.function(forest)
        except RamifyError:
            raise
        except Exception as error:  # boundary to a user's function
            at = _place_of(error.__traceback__)
            raise ContractError(f"credit {self.name!r} raised {type(error).__name__}: {error}{at}") from error
        try:
            found = np.asarray(given, np.float64)
        except (TypeError, ValueError) as error:
            raise ContractError(f"credit {self.name!r} returned {given!r:.80}; {self._wanted(forest)}") from error
        if found.shape != (len(forest),):
            raise ContractError(f"credit {self.name!r} returned shape {found.shape}; {self._wanted(forest)}")
        if not np.isfinite(found).all():
            node = int(np.flatnonzero(~np.isfinite(found))[0])
            raise ContractError(
                f"credit {self.name!r} gave {found[node]} to node {node} of {len(forest)}; coefficients must be finite"
            )
        return found

    def _wanted(self, forest: Forest) -> str:
        return f"({len(forest)},) numbers are needed, one for each node of the forest"


def _place_of(trace: TracebackType | None) -> str:
    """` (FILE, line N)` of the last place that an error passed through."""
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else f" ({trace.tb_frame.f_code.co_filename}, line {trace.tb_lineno})"
