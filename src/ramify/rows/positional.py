"""Positional: exactly n rows of every tree, for trainers that know groups by position only.

If a tree has N >= n leaves, n are drawn uniformly without replacement, with the tree's own seed. The drawn leaves stand
for all leaves: coefficients are scaled (by N/n where all of a node's leaves are drawn) so that their mean over the
draws is the credit of the whole tree. If a tree has fewer leaves, an error is raised; empty rows or copies are never
added.
"""

from ramify.core.errors import ExportError
from ramify.core.tree import Tree
from ramify.credit import OwnCredit, PostHocRule
from ramify.credit.grown import Unjudged
from ramify.rows.row import Row, is_fitting, rows_of
from ramify.rows.select import kept_leaves
from ramify.rows.weights import Policy


def positional_rows(
    tree: Tree,
    n: int,
    *,
    credit: str | OwnCredit = "auto",
    policy: Policy = "once",
    normaliser: float | None = None,
    unjudged: Unjudged = "error",
    post_hoc_reasons: tuple[str, ...] = (),
    post_hoc: PostHocRule | None = None,
    max_tokens: int | None = None,
) -> list[Row]:
    """n rows of a finished tree, each with a trained token, in canonical order.

    Under `once`, a row can be empty because earlier rows train all its tokens. Then the tree's rows share tokens by
    `fraction` instead; while the policy is the one that sampled, this is the same. `normaliser`: None = n. Raises
    `ExportError` if the tree does not have n leaves, or one that is drawn has more than `max_tokens`. Mutates nothing.
    """
    kept = kept_leaves(tree, n, unjudged=unjudged)
    if len(kept) < n:
        raise ExportError(
            f"tree {tree.problem.uid!r} has {len(kept)} leaves that may be trained, {n} rows are wanted; set "
            f"rows.min_leaves = {n}, so that fresh chains top it up, or ask for fewer"
        )
    if num_long := sum(not is_fitting(tree, leaf, max_tokens) for leaf in kept):
        raise ExportError(
            f"tree {tree.problem.uid!r}: {num_long} of the {n} rows have more than rows.max_tokens = {max_tokens} "
            "tokens, and exactly n are wanted; raise it, or let paths be shorter (growth.max_response_tokens)"
        )
    for sharing in (policy, "fraction") if policy == "once" else (policy,):
        rows = rows_of(
            tree,
            credit=credit,
            policy=sharing,
            kept=kept,
            normaliser=normaliser or n,
            unjudged=unjudged,
            post_hoc_reasons=post_hoc_reasons,
            post_hoc=post_hoc,
        )
        if len(rows) == n:
            return rows
    raise ExportError(f"tree {tree.problem.uid!r} has leaves on whose path nothing was sampled; close them before")
