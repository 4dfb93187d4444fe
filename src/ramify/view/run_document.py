"""Run document: a run as plain JSON values, for the page of the viewer: its trees in columns, and their figures.

Trees that are not replayed yet have None in most columns (`FollowedRun.fill`). Texts are untrusted and exact; the page
shows them as text.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, Protocol

import msgspec

from ramify.store.layout import SHARDS
from ramify.store.store import LOG
from ramify.view.followed_tree import FollowedTree
from ramify.view.opened_run import OpenedRun
from ramify.view.run_figures import budgets, figures_of
from ramify.view.run_news import RunNews
from ramify.view.run_timeline import timeline
from ramify.view.tree_document import plain
from ramify.view.tree_row import ANSWERED
from ramify.view.tree_values import COLUMNS

Document = dict[str, Any]
ColumnKind = Literal["number", "text", "words", "flag"]
"""`flag`: true, false, or null where it is not known."""

OWN_COLUMNS: Final[Mapping[str, ColumnKind]] = {
    "open": "flag",
    "steps": "number",
    "reason": "text",
    "solved": "flag",
    "rollout": "number",
    "version": "number",
    "sampled_version": "number",
    "tool_faults": "number",
    "tool_s": "number",
    "winning": "number",
    "faults": "number",
}
"""Column -> what it holds, besides those of `tree_values`.

`rollout` and `version` are of the batch that the tree was handed over in, `sampled_version` is the highest version that
sampled one of its tokens. `tool_faults` counts calls that failed, `tool_s` is seconds in tools. `winning` are sampled
tokens on the paths to the leaves of the best reward. `faults` counts commands that failed.
"""


class ShownRun(Protocol):
    """What the document of a run is made of: a run that is followed, or anything that has its properties."""

    @property
    def name(self) -> str: ...

    @property
    def title(self) -> str: ...

    @property
    def facts_of_file(self) -> Mapping[str, Any]:
        """What the file of another project says of all its trees."""
        ...

    @property
    def path(self) -> Path: ...

    @property
    def opened(self) -> OpenedRun | None: ...

    @property
    def trees(self) -> Mapping[int, FollowedTree]: ...

    @property
    def news(self) -> RunNews: ...

    @property
    def revision(self) -> int: ...

    @property
    def is_growing(self) -> bool: ...

    @property
    def faults(self) -> Sequence[str]: ...

    @property
    def gaps(self) -> Sequence[str]: ...

    @property
    def folders(self) -> Sequence[Path]: ...


def run_document(run: ShownRun) -> Document:
    """The whole document of a run."""
    opened = run.opened
    points, num_skipped = timeline(_logs(run))
    numbers = sorted(run.trees)
    return {
        "name": run.name,
        "path": str(run.path),
        "title": run.title,
        "facts": plain(run.facts_of_file),
        "config": "" if opened is None else opened.text,
        "strategy": {} if opened is None else plain(opened.config.strategy),
        "header": {} if opened is None else _fields(opened.header),
        "num_asked": None if opened is None else opened.config.prompts,
        "columns": {**COLUMNS, **OWN_COLUMNS},
        **_state(run),
        "trees": _columns(run, numbers),
        "timeline": points,
        "timeline_skipped": num_skipped,
        "service": _service(run),
    }


def _state(run: ShownRun) -> Document:
    """What may be another with every look."""
    return {
        "revision": run.revision,
        "is_growing": run.is_growing,
        "faults": list(run.faults),
        "gaps": list(run.gaps),
        "num_trees": len(run.trees),
        "num_closed": sum(tree.closed is not None for tree in run.trees.values()),
        "filled": sum(tree.row is not None for tree in run.trees.values()),
        "figures": _figures(run),
    }


def _figures(run: ShownRun) -> Document:
    trees = run.trees.values()
    if run.opened is None:
        return figures_of([], has_prices=False) | {"budget": {"run": {}, "tree": {}}}
    config = run.opened.config
    engines = (config.engine, *config.engines.values())
    rows = [tree.row for _, tree in sorted(run.trees.items()) if tree.row is not None]
    figures = figures_of(rows, has_prices=any(engine.prices.is_known for engine in engines))
    return figures | {"budget": budgets(trees, of_run=config.run_limits, of_tree=config.limits)}


# -- trees ------------------------------------------------------------------------------------------------------------


def _columns(run: ShownRun, numbers: Iterable[int]) -> Document:
    rows = [_row(run, run.trees[number]) for number in numbers]
    return {name: [row.get(name) for row in rows] for name in (*COLUMNS, *OWN_COLUMNS)}


def _row(run: ShownRun, tree: FollowedTree) -> Document:
    handed, row = run.news.batches.get(tree.number), tree.row
    known: Document = {
        **tree.values(),
        "open": tree.closed is None,
        "steps": tree.num_steps,
        "reason": tree.closed.reason if tree.closed is not None else "",
        "rollout": None if handed is None else handed.rollout_id,
        "version": None if handed is None else handed.version,
    }
    if row is None:
        return known
    calls = row.tools.values()
    return {
        **known,
        "solved": row.is_solved,
        "sampled_version": row.sampled_version,
        "tool_faults": sum(n for each in calls for status, n in each.statuses.items() if status not in ANSWERED),
        "tool_s": sum(each.total_s for each in calls),
        "winning": row.winning,
        "faults": sum(row.faults.values()),
    }


# -- log and service --------------------------------------------------------------------------------------------------


def _logs(run: ShownRun) -> list[Path]:
    """The logs of the run: its own, and those of its shards."""
    folders = [run.path, *(folder for folder in run.folders if folder.parent.name == SHARDS and folder != run.path)]
    return [folder / LOG for folder in folders]


def _service(run: ShownRun) -> Document:
    news = run.news
    return {
        "handed": [_fields(each) for each in news.handed],
        "updated": [_fields(each) for each in news.updated],
        "dropped": [_fields(each) for each in news.dropped],
        "marked": [_fields(each) for each in news.marked],
        "accepted": [_fields(each) for each in news.accepted],
    }


def _fields(value: Any) -> Any:
    """A record as plain values: all fields, those included that are left out on disk."""
    match value:
        case msgspec.Struct():
            return {name: _fields(getattr(value, name)) for name in value.__struct_fields__}
        case tuple() | list():
            return [_fields(each) for each in value]
        case _:
            return plain(value)
