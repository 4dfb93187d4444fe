"""Rows: the rows of a tree as the configuration wants them: which credit, how many leaves, how often a token counts."""

from ramify.core.tree import Tree
from ramify.rows.row import Row, rows_of
from ramify.rows.select import kept_leaves
from ramify.runner.config import RunConfig


def tree_rows(tree: Tree, config: RunConfig) -> list[Row]:
    """Rows of a finished tree in canonical order. Raises `ExportError` where none can be made."""
    wanted = config.rows
    kept = None if wanted.leaves is None else kept_leaves(tree, wanted.leaves, rule=wanted.sample)
    return rows_of(tree, credit=config.credit, policy=wanted.policy, kept=kept)
