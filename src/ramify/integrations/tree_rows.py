"""Tree rows: exactly as many rows of a tree as a trainer asks for, or why there are not so many."""

from ramify.core.errors import ExportError
from ramify.core.tree import Tree
from ramify.rows.row import Row
from ramify.runner.events import TreeClosed
from ramify.runner.rows import tree_rows
from ramify.runner.run import Run


def rows_for(run: Run, event: TreeClosed, num_rows: int) -> list[Row]:
    """Exactly `num_rows` rows of a closed tree. Raises `ExportError`, with the reason, if it does not have that
    many."""
    if not event.is_whole:
        raise ExportError(f"tree {event.tree.problem.uid!r} failed: {event.reason}")
    try:
        return tree_rows(event.tree, run.prepared.config, run.prepared.traits, per_tree=num_rows)
    except ExportError as error:
        if fault := _note(event.tree, "judge"):
            raise ExportError(f"{error}; a leaf has no reward: {fault}") from error
        if fault := _note(event.tree, "fault"):
            raise ExportError(f"{error}; a path failed: {fault}") from error
        raise


def _note(tree: Tree, name: str) -> str | None:
    """The first note of that name on the tree: what a judge or an engine raised."""
    return next((str(note) for node in tree.subtree() if (note := tree.notes(node).get(name)) is not None), None)
