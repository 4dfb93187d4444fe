"""Rows: finished trees as training examples, and one exporter a file."""

from ramify.rows.arrays import Arrays, padded
from ramify.rows.batch import entropy_scaled, whitened
from ramify.rows.groups import group_keys
from ramify.rows.positional import positional_rows
from ramify.rows.row import Row, Span, rows_of
from ramify.rows.sample import Sample
from ramify.rows.select import kept_leaves, mark_not_selected, select_leaves
from ramify.rows.weights import row_weights

__all__ = [
    "Arrays",
    "Row",
    "Sample",
    "Span",
    "entropy_scaled",
    "group_keys",
    "kept_leaves",
    "mark_not_selected",
    "padded",
    "positional_rows",
    "row_weights",
    "rows_of",
    "select_leaves",
    "whitened",
]
