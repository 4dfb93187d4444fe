"""Notebook: a tree, a rollout or a run folder as a frame in a notebook: the same page as `ramify view RUN --html`.

The frame is a sandbox with an origin of its own: nothing in it can reach the notebook. What is too large for a notebook
is left out, and told.
"""

from collections.abc import Sequence
from html import escape
from typing import Final

from ramify.core.errors import ConfigError
from ramify.core.tree import Tree
from ramify.rows.row import Row
from ramify.runner.library import Rollout
from ramify.runner.rows import tree_rows
from ramify.runner.saved import Saved
from ramify.view.documents import Documents
from ramify.view.followed_run import FollowedRun
from ramify.view.html_file import html_page
from ramify.view.loose_run import LooseRun, TreeTerms

MAX_NODES: Final = 3000
"""Nodes in a frame. Notebooks keep what they show in their own file."""
HEIGHT: Final = 640


def frame_of(value: Tree | Rollout | Saved) -> str:
    """The HTML of a frame that shows `value`. If it is too large even without tokens, a sentence that says so."""
    try:
        return _frame(_page(value, has_tokens=True))
    except ConfigError:
        pass
    try:
        return _frame(_page(value, has_tokens=False))
    except ConfigError:
        what = escape(repr(value)[:200])
        return f"<p>{what} is too large for a notebook; grow it into a run folder and open that by `ramify view`</p>"


def _page(value: Tree | Rollout | Saved, *, has_tokens: bool) -> str:
    return html_page(Documents([_run(value)]), max_nodes=MAX_NODES, has_tokens=has_tokens)


def _run(value: Tree | Rollout | Saved) -> FollowedRun | LooseRun:
    match value:
        case Tree():
            return LooseRun(repr(value), {0: value})
        case Rollout():
            return LooseRun(f"{len(value.trees)} trees", dict(enumerate(value.trees)), terms=_terms(value))
        case Saved():
            return FollowedRun.open(value.path)


def _terms(rollout: Rollout) -> TreeTerms:
    config = rollout.config

    def rows_of(tree: Tree) -> Sequence[Row]:
        return tree_rows(tree, config, rollout.traits)

    return TreeTerms(config.strategy, config.limits, rows_of)


def _frame(page: str) -> str:
    return (
        f'<iframe sandbox="allow-scripts allow-downloads" style="width:100%;height:{HEIGHT}px;border:0" '
        f'srcdoc="{escape(page, quote=True)}"></iframe>'
    )
