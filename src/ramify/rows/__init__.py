"""Rows: finished trees as training examples, and one exporter a file."""

from ramify.rows.arrays import Arrays, padded
from ramify.rows.row import Row, Span, rows_of
from ramify.rows.select import kept_leaves, mark_not_selected, select_leaves
from ramify.rows.weights import row_weights

__all__ = [
    "Arrays",
    "Row",
    "Span",
    "kept_leaves",
    "mark_not_selected",
    "padded",
    "row_weights",
    "rows_of",
    "select_leaves",
]
