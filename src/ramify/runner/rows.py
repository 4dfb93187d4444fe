"""Rows: makes the rows of a tree as configured: which credit, how many leaves, how often a shared token counts."""

from collections.abc import Iterable, Iterator, Sequence

from ramify import plugins
from ramify.config.run_config import RowsConfig, RunConfig
from ramify.core.tree import Tree
from ramify.credit import NAMES, OwnCredit
from ramify.rows.positional import positional_rows
from ramify.rows.row import Row, rows_of
from ramify.rows.select import kept_leaves, mark_not_selected
from ramify.runner.run_strategy import StrategyTraits

UNPLANNED = (
    "each tree is divided by its own number of leaves: the strategy does not say how many it plans; set rows.normaliser"
)
EVEN = frozenset({"as_planned", "copies_of_last", "uniform"})
"""Rules that keep every leaf of a tree with the same probability, so the kept leaves may stand for the rest."""


def tree_rows(
    tree: Tree,
    config: RunConfig,
    traits: StrategyTraits,
    *,
    per_tree: int | None = None,
    normaliser: float | None = None,
    max_tokens: int | None = None,
    credit: str | OwnCredit | None = None,
) -> list[Row]:
    """Rows of a finished tree in canonical order. Raises `ExportError` if none can be made.

    A leaf that no judge could score is left out, and the rows of its tree are marked as not exact. `per_tree`: exactly
    that many rows, for trainers with positional groups, instead of the number the configuration keeps. `normaliser`,
    `max_tokens` and `credit`: instead of the configuration's.
    """
    wanted = config.rows
    max_tokens = wanted.max_tokens if max_tokens is None else max_tokens
    credit = named_credit(config.credit) if credit is None else credit
    if per_tree is not None:
        return positional_rows(
            tree,
            per_tree,
            credit=credit,
            policy=wanted.policy,
            normaliser=wanted.normaliser if normaliser is None else normaliser,
            unjudged="drop",
            post_hoc_reasons=traits.post_hoc_reasons,
            post_hoc=traits.post_hoc,
            max_tokens=max_tokens,
        )
    normaliser = _normaliser(wanted, traits) if normaliser is None else normaliser
    kept, caveats = None, () if normaliser is not None else (UNPLANNED,)
    if wanted.leaves is not None:
        kept = kept_leaves(tree, wanted.leaves, rule=plugins.find("sample", wanted.sample), unjudged="drop")
        if wanted.sample not in EVEN and len(set(kept)) < tree.num_leaves:
            caveats += (
                f"the rows kept were chosen by the rule {wanted.sample!r}, which does not draw all leaves alike",
            )
    return rows_of(
        tree,
        credit=credit,
        policy=wanted.policy,
        kept=kept,
        normaliser=normaliser,
        unjudged="drop",
        post_hoc_reasons=traits.post_hoc_reasons,
        post_hoc=traits.post_hoc,
        caveats=caveats,
        max_tokens=max_tokens,
    )


def named_credit(name: str) -> str | OwnCredit:
    """The credit that a configuration names: a built-in one by its name, or the function of a user's file. Raises
    `ConfigError`, and `NotLoaded` where only built-in plug-ins may be loaded."""
    return name if name in NAMES else OwnCredit(name, plugins.find("credit", name))


def _normaliser(wanted: RowsConfig, traits: StrategyTraits) -> float | None:
    """The divisor of every tree of the run: as configured, or the planned number of rows; None = nobody says it."""
    if wanted.normaliser is not None or traits.planned_leaves is None:
        return wanted.normaliser
    return min(traits.planned_leaves, wanted.leaves or traits.planned_leaves)


def marked(trees: Iterable[Tree], wanted: RowsConfig) -> Iterator[Tree]:
    """`trees`, with a note on each leaf that is not kept, for exports made from trees."""
    if (n := wanted.leaves) is None:
        return iter(trees)
    rule = plugins.find("sample", wanted.sample)
    return (_with_notes(tree, kept_leaves(tree, n, rule=rule, unjudged="drop")) for tree in trees)


def _with_notes(tree: Tree, kept: Sequence[int]) -> Tree:
    mark_not_selected(tree, kept)
    return tree
