"""Preference: pairs of a better and a worse step from one place, with the margin between them.

A step's value is the mean reward of the judged leaves below it, or the score of a judge of steps. Where several steps
were sampled at one place, the best is paired with the worst, the second best with the second worst, and so on, if they
differ by the margin. Steps that said the same make no pair. Only sampled tokens are chosen or rejected; the prompt is
everything before them.

Source: rStar-Math, arXiv 2501.04519, section 3.4 (pairs of a process preference model).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ramify.core.segment import Ids_T, token_array
from ramify.core.tree import Tree
from ramify.rows.files import write_lines
from ramify.rows.values import worths

MIN_MARGIN: Final = 0.1
MAX_PAIRS: Final = 2
"""Per place, as published."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Pair:
    """Two steps from one place."""

    uid: str
    place: int
    """Number of the node that the steps follow, in the canonical order of its tree."""
    prompt: str
    chosen: str
    rejected: str
    value_chosen: float
    value_rejected: float
    ids: tuple[Ids_T, Ids_T, Ids_T] | None
    """Ids of the prompt, the chosen step and the rejected step; None = the codec is not the model's."""

    @property
    def margin(self) -> float:
        return self.value_chosen - self.value_rejected


def pairs(
    tree: Tree, *, judge: str | None = None, min_margin: float = MIN_MARGIN, max_pairs: int = MAX_PAIRS
) -> Iterator[Pair]:
    """Pairs of a finished tree, in canonical order. `judge` names a judge of steps; None = use the rewards of
    leaves."""
    values = _values(tree, judge)
    for number, parent in enumerate(tree.subtree()):
        steps = [child for child in tree.policy_children(parent) if child in values]
        ranked = sorted(steps, key=lambda node: -values[node])
        for better, worse in list(zip(ranked, reversed(ranked), strict=True))[: min(max_pairs, len(ranked) // 2)]:
            is_apart = values[better] - values[worse] >= max(min_margin, 1e-12)
            if is_apart and tree.content_key(better) != tree.content_key(worse):
                yield _pair(tree, number, better, worse, values)


def record(pair: Pair) -> dict[str, Any]:
    """A pair as JSON data: `prompt`, `chosen`, `rejected`, `margin`, where they come from, and their ids if it has
    ids."""
    named = zip(("prompt_ids", "chosen_ids", "rejected_ids"), pair.ids or (), strict=False)
    return {
        "uid": pair.uid,
        "place": pair.place,
        "prompt": pair.prompt,
        "chosen": pair.chosen,
        "rejected": pair.rejected,
        "margin": pair.margin,
        "value_chosen": pair.value_chosen,
        "value_rejected": pair.value_rejected,
        **{name: ids.tolist() for name, ids in named},
    }


def write(
    trees: Iterable[Tree],
    path: Path,
    *,
    judge: str | None = None,
    min_margin: float = MIN_MARGIN,
    max_pairs: int = MAX_PAIRS,
    force: bool = False,
) -> int:
    """Write the pairs of `trees` to `path`, one per line, and return their number.

    - `judge`: judge whose scores compare steps; None = the q of the tree's backed-up rewards.
    - `min_margin`: smallest difference of the two values of a pair.
    - `max_pairs`: most pairs of one place, as published.
    - `force`: whether to replace what an earlier export made; anything else there raises `ExportError`.
    """
    found = (pair for tree in trees for pair in pairs(tree, judge=judge, min_margin=min_margin, max_pairs=max_pairs))
    return write_lines(map(record, found), path, force=force)


def _values(tree: Tree, judge: str | None) -> dict[int, float]:
    if judge is None:
        return {node: worth.q for node, worth in worths(tree).items()}
    said = {n: [s.value for s in tree.scores(n) if s.judge == judge and s.value is not None] for n in tree.subtree()}
    return {node: values[-1] for node, values in said.items() if values}


def _pair(tree: Tree, number: int, better: int, worse: int, values: dict[int, float]) -> Pair:
    parent = tree.parent(better)
    assert parent is not None
    before, chosen, rejected = tree.branch(parent).ids, _said(tree, better), _said(tree, worse)
    codec = tree.codec
    return Pair(
        uid=tree.problem.uid,
        place=number,
        prompt=codec.decode(before),
        chosen=codec.decode(chosen),
        rejected=codec.decode(rejected),
        value_chosen=values[better],
        value_rejected=values[worse],
        ids=(before, chosen, rejected) if codec.is_exact else None,
    )


def _said(tree: Tree, node: int) -> Ids_T:
    """Ids that the model sampled in a step."""
    return token_array([i for segment in tree.segments(node) if segment.is_sampled for i in segment.ids.tolist()])
