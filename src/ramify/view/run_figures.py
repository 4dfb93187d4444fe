"""Run figures: what the rows of a run's finished trees come to. Pure.

Every figure is of the trees whose rows are computed; `filled` says how many these are. Only the budgets count all
finished trees, because the record that closes a tree says what it spent. A tree is solved if it has a leaf of the full
reward 1.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

import numpy as np

from ramify.core.ledger import Spend
from ramify.core.limits import Limits
from ramify.core.prices import PICODOLLARS
from ramify.experiments.proportions import wilson
from ramify.view.followed_tree import FollowedTree
from ramify.view.tree_row import RIGHT, ToolCalls, TreeRow

Figures = dict[str, Any]
NUM_BINS: Final = 10
NUM_BUDGETS: Final = 20


def figures_of(rows: Sequence[TreeRow], *, has_prices: bool) -> Figures:
    """The figures of a run. Without prices, dollars are None."""
    spent = Spend()
    for row in rows:
        spent.add(row.spent)
    stops, faults = Counter[str](), Counter[str]()
    for row in rows:
        stops.update(row.stops)
        faults.update(row.faults)
    return {
        "filled": len(rows),
        "leaves": spent.leaves,
        "failed_leaves": spent.failed_leaves,
        "rewards": _rewards(rows),
        "solved": _share(sum(row.is_solved is True for row in rows), _num_trials(rows)),
        "groups": _groups(rows),
        "stops": dict(sorted(stops.items())),
        "tools": _tools(rows),
        "tokens": _tokens(rows, spent),
        "faults": dict(sorted(faults.items())),
        "dollars": spent.dollars if has_prices else None,
        "solved_over_tokens": solved_over_tokens(rows),
    }


def _num_trials(rows: Sequence[TreeRow]) -> int:
    """All trees; 0 if no leaf of the run is judged, because nobody knows then what is solved."""
    return len(rows) if any(row.rewards for row in rows) else 0


def _share(number: int, trials: int) -> Figures:
    """A share with its interval of 95%; without trials it is None."""
    low, high = wilson(number, trials)
    return {"number": number, "of": trials, "share": number / trials if trials else None, "low": low, "high": high}


def _rewards(rows: Sequence[TreeRow]) -> Figures:
    """A histogram of the judged leaves. The last bin includes its upper edge."""
    values = np.array([reward for row in rows for reward in row.rewards], np.float64)
    low, high = (min(0.0, float(values.min())), max(1.0, float(values.max()))) if len(values) else (0.0, 1.0)
    counts, edges = np.histogram(values, NUM_BINS, (low, high))
    num_leaves = sum(row.spent.leaves for row in rows)
    return {
        "edges": edges.tolist(),
        "counts": counts.tolist(),
        "mean": float(values.mean()) if len(values) else None,
        "judged": len(values),
        "unjudged": num_leaves - len(values),
    }


def _groups(rows: Sequence[TreeRow]) -> Figures:
    """Trees by their judged leaves: all are right, some are, none is, or there is none."""
    groups = {"solved": 0, "mixed": 0, "failed": 0, "unjudged": 0}
    for row in rows:
        num_right = sum(reward >= RIGHT for reward in row.rewards)
        if not row.rewards:
            groups["unjudged"] += 1
        elif num_right == len(row.rewards):
            groups["solved"] += 1
        else:
            groups["mixed" if num_right else "failed"] += 1
    return groups


def _tools(rows: Iterable[TreeRow]) -> Figures:
    """By name; an empty name = the action named no tool. Seconds are of calls that ran the tool."""
    tools: dict[str, ToolCalls] = {}
    for row in rows:
        for name, calls in row.tools.items():
            tools.setdefault(name, ToolCalls()).include(calls)
    return {
        name: {
            "calls": calls.num_calls,
            "failed": calls.failed,
            "mean_s": calls.total_s / calls.num_executed if calls.num_executed else None,
            "max_s": calls.max_s if calls.num_executed else None,
        }
        for name, calls in sorted(tools.items())
    }


def _tokens(rows: Sequence[TreeRow], spent: Spend) -> Figures:
    """`winning` and `elsewhere` are the sampled tokens of trees with a judged leaf. `flat` is what independent chains
    would have sampled for the same leaves."""
    judged = [row for row in rows if row.winning is not None]
    winning = sum(row.winning or 0 for row in judged)
    prefill = spent.prefill_cached + spent.prefill_uncached
    return {
        "sampled": spent.decode,
        "winning": winning,
        "elsewhere": sum(row.spent.decode for row in judged) - winning,
        "cached": spent.prefill_cached,
        "uncached": spent.prefill_uncached,
        "cache_share": spent.prefill_cached / prefill if prefill else None,
        "flat": sum(row.flat for row in rows),
    }


def solved_over_tokens(rows: Sequence[TreeRow]) -> Figures:
    """For a grid of budgets: the share of trees that are solved within so many sampled tokens of the tree, with its
    interval. Leaves count in the order in which they were delivered."""
    most = max((row.spent.decode for row in rows), default=0)
    solved_at = np.sort([row.solved_at for row in rows if row.solved_at is not None])
    budgets = sorted({-(-most * step // NUM_BUDGETS) for step in range(1, NUM_BUDGETS + 1)}) if most else []
    numbers = [int(np.searchsorted(solved_at, budget, side="right")) for budget in budgets]
    num_trials = _num_trials(rows)
    shares = [_share(number, num_trials) for number in numbers]
    columns = {name: [share[name] for share in shares] for name in ("number", "share", "low", "high")}
    return {"of": num_trials, "tokens": budgets, **columns}


# -- budgets ----------------------------------------------------------------------------------------------------------


def budgets(trees: Collection[FollowedTree], *, of_run: Limits, of_tree: Limits) -> Figures:
    """What is spent of the counted limits. `run`: of all finished trees together; `tree`: of the finished tree that
    spent most of it."""
    closed = [tree for tree in trees if tree.closed is not None]

    def each(name: str) -> list[int]:
        return [_spent(tree, name) for tree in closed]

    return {
        "run": {name: _budget(name, limit, sum(each(name))) for name, limit in of_run.counted().items()},
        "tree": {name: _budget(name, limit, max(each(name), default=0)) for name, limit in of_tree.counted().items()},
    }


def _spent(tree: FollowedTree, name: str) -> int:
    if tree.row is not None:
        return getattr(tree.row.spent, name)
    return 0 if tree.closed is None else tree.closed.total(name) or 0


def _budget(name: str, limit: int, spent: int) -> Figures:
    divisor = PICODOLLARS if name == "picodollars" else 1
    amounts = {"limit": limit, "spent": spent, "left": limit - spent}
    return {key: value / divisor if divisor > 1 else value for key, value in amounts.items()}
