"""Rows: makes the rows of a tree as configured: which credit, how many leaves, how often a shared token counts."""

from collections.abc import Iterable, Iterator, Sequence

from ramify import plugins
from ramify.config.run_config import RowsConfig, RunConfig
from ramify.core.tree import Tree
from ramify.credit import PostHocRule
from ramify.rows.positional import positional_rows
from ramify.rows.row import Row, rows_of
from ramify.rows.select import kept_leaves, mark_not_selected

EVEN = frozenset({"as_planned", "copies_of_last", "uniform"})
"""Rules that keep every leaf of a tree with the same probability, so the kept leaves may stand for the rest."""


def tree_rows(
    tree: Tree,
    config: RunConfig,
    post_hoc_reasons: tuple[str, ...],
    *,
    post_hoc: PostHocRule | None = None,
    per_tree: int | None = None,
) -> list[Row]:
    """Rows of a finished tree in canonical order. Raises `ExportError` if none can be made.

    A leaf that no judge could score is left out, and the rows of its tree are marked as not exact. `post_hoc_reasons`:
    why the strategy's forks depend on tokens already drawn, whatever this tree shows. `post_hoc`: the rule by which it
    forks finished paths. `per_tree`: exactly that many rows, for trainers with positional groups, instead of the number
    the configuration keeps.
    """
    wanted = config.rows
    if per_tree is not None:
        return positional_rows(
            tree,
            per_tree,
            credit=config.credit,
            policy=wanted.policy,
            unjudged="drop",
            post_hoc_reasons=post_hoc_reasons,
            post_hoc=post_hoc,
        )
    kept, caveats = None, ()
    if wanted.leaves is not None:
        kept = kept_leaves(tree, wanted.leaves, rule=plugins.find("sample", wanted.sample), unjudged="drop")
        if wanted.sample not in EVEN and len(set(kept)) < tree.num_leaves:
            caveats = (
                f"the rows kept were chosen by the rule {wanted.sample!r}, which does not draw all leaves alike",
            )
    return rows_of(
        tree,
        credit=config.credit,
        policy=wanted.policy,
        kept=kept,
        unjudged="drop",
        post_hoc_reasons=post_hoc_reasons,
        post_hoc=post_hoc,
        caveats=caveats,
    )


def marked(trees: Iterable[Tree], wanted: RowsConfig) -> Iterator[Tree]:
    """`trees`, with a note on each leaf that is not kept, for exports made from trees."""
    if (n := wanted.leaves) is None:
        return iter(trees)
    rule = plugins.find("sample", wanted.sample)
    return (_with_notes(tree, kept_leaves(tree, n, rule=rule, unjudged="drop")) for tree in trees)


def _with_notes(tree: Tree, kept: Sequence[int]) -> Tree:
    mark_not_selected(tree, kept)
    return tree
