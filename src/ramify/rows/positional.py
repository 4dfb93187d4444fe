"""Positional: exactly n rows of every tree, for trainers that know groups by position alone.

Of a tree's N >= n leaves n are drawn uniformly without replacement, by the tree's own seed, and stand for all: their
coefficients are N/n times as large where they are all that is left of a node's leaves, so that the mean over the draws
is the credit of the whole tree. Where there are fewer, nothing is made up: no empty rows, no copies.
"""

from ramify.core.errors import ExportError
from ramify.core.tree import Tree
from ramify.credit import PostHocRule
from ramify.credit.grown import Unjudged
from ramify.rows.row import Row, rows_of
from ramify.rows.select import kept_leaves
from ramify.rows.weights import Policy


def positional_rows(
    tree: Tree,
    n: int,
    *,
    credit: str = "auto",
    policy: Policy = "once",
    unjudged: Unjudged = "error",
    post_hoc_reasons: tuple[str, ...] = (),
    post_hoc: PostHocRule | None = None,
) -> list[Row]:
    """n rows of a finished tree, each with a trained token, in canonical order.

    Where `once` would leave a row empty, because all its tokens are trained in earlier ones, the tree's rows share by
    `fraction` instead, which is the same at the policy that sampled. Raises `ExportError` if n leaves are not to be
    had. Mutates nothing.
    """
    kept = kept_leaves(tree, n, unjudged=unjudged)
    if len(kept) < n:
        raise ExportError(
            f"tree {tree.problem.uid!r} has {len(kept)} leaves that may be trained, {n} rows are wanted; set "
            f"rows.min_leaves = {n}, so that fresh chains top it up, or ask for fewer"
        )
    for sharing in (policy, "fraction") if policy == "once" else (policy,):
        rows = rows_of(
            tree,
            credit=credit,
            policy=sharing,
            kept=kept,
            unjudged=unjudged,
            post_hoc_reasons=post_hoc_reasons,
            post_hoc=post_hoc,
        )
        if len(rows) == n:
            return rows
    raise ExportError(f"tree {tree.problem.uid!r} has leaves on whose path nothing was sampled; close them before")
