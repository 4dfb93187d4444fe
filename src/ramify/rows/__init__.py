"""Rows: finished trees as training examples, with one file per exporter.

It imports core, credit and the draws of strategies, and it writes files. Read `row` first, then `records` and an
exporter.
"""

from ramify.rows.arrays import Arrays, padded
from ramify.rows.batch import entropy_scaled, whitened
from ramify.rows.groups import group_keys
from ramify.rows.positional import positional_rows
from ramify.rows.row import Row, RowSpan, rows_of
from ramify.rows.sample import Sample
from ramify.rows.select import kept_leaves, mark_not_selected, select_leaves
from ramify.rows.weights import row_weights

__all__ = [
    "Arrays",
    "Row",
    "RowSpan",
    "Sample",
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
