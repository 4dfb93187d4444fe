"""Selected: functions for credits that, as published, see only the leaves that become rows."""

from typing import Any

import numpy as np
import numpy.typing as npt

from ramify.credit.forest import Array_N, Forest


def selected_leaves(forest: Forest) -> npt.NDArray[np.bool_]:
    """(num_leaves,) whether a leaf becomes a row."""
    return np.ones(forest.num_leaves, bool) if forest.selected is None else forest.selected[forest.leaves]


def num_selected(forest: Forest) -> npt.NDArray[np.float64]:
    """(N,) number of selected leaves below each node; a selected leaf counts itself."""
    return forest.over_leaves(selected_leaves(forest).astype(np.float64))


def of_selected(forest: Forest, coefficients: Array_N) -> npt.NDArray[Any]:
    """(N,) the selected leaves' own coefficients, adjusted so that rows train them unchanged.

    In rows, the selected leaves of a node stand for all its leaves (`rows/row.py`). This function reverses that
    scaling.
    """
    kept, grown = num_selected(forest), forest.over_leaves(np.ones(forest.num_leaves))
    return np.divide(coefficients * grown, kept, out=np.zeros(len(forest)), where=kept > 0)
