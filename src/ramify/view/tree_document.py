"""Tree document: one tree as plain JSON values, for the page of the viewer.

What is known of each node stands in columns: a list for each name, indexed by node id. The page shows the tree as of
any event: `born` says which event put a node there. Candidates of decisions keep the scores that they had then. Token
ids and what belongs to single tokens are in `token_document`.

Texts are untrusted. Labels are spelt out by `core.visible`; all other texts are exact, and the page shows them as text.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Final

import msgspec
import numpy as np

from ramify.config.run_config import StrategyConfig
from ramify.core.command import EDGES, ROLES
from ramify.core.errors import RamifyError
from ramify.core.growth import Asked, Ended, Recorded
from ramify.core.limits import Limits
from ramify.core.segment import Segment
from ramify.core.stop import STOP_WORDS
from ramify.core.tree import STOPS, Tree
from ramify.core.visible import shortened
from ramify.rows.row import Row
from ramify.store.recording import COMMAND, ENDING, SCORE
from ramify.store.records import AskedRecord, ClosedRecord, OutcomeRecord, TreeRecord
from ramify.store.replay import Replayed
from ramify.view.node_text import step_text
from ramify.view.token_document import chunks
from ramify.view.valued import valued

Document = dict[str, Any]
LABEL_WIDTH: Final = 80
MAX_LABEL_TOKENS: Final = 200
"""Tokens of a segment that a label is made from."""


def tree_document(
    replayed: Replayed,
    *,
    records: Sequence[TreeRecord] = (),
    strategy: StrategyConfig,
    limits: Limits = Limits(),
    rows_of: Callable[[Tree], Sequence[Row]] | None = None,
    facts: Mapping[str, Any] = MappingProxyType({}),
    firsts: Sequence[int] | None = None,
) -> Document:
    """The document of a tree that is finished or grows. `records`: what the run wrote of it; they say what was allotted
    to commands and what these spent. `rows_of` makes its training rows; None = it has none. An error of `rows_of`
    becomes `rows_refused`. `facts`: what the file of another project says besides. `firsts`: the `chunks` of the tree,
    for a caller that has them."""
    tree = replayed.tree
    steps = [tree.segments(node) for node in range(len(tree))]
    rows, refused = _rows(tree, rows_of) if replayed.is_closed else ([], "rows are made when the tree is finished")
    return {
        "tree": replayed.index,
        "uid": tree.problem.uid,
        "question": tree.problem.question,
        "split": tree.problem.split,
        "public": plain(tree.problem.public),
        "facts": plain(facts),
        "seed": str(tree.seed),
        "codec": tree.codec.name,
        "codec_sha256": tree.codec.sha256,
        "is_open": not replayed.is_closed,
        "reason": replayed.reason,
        "is_broken": tree.is_broken,
        "caveats": list(tree.caveats),
        "num_leaves": tree.num_leaves,
        "roles": list(ROLES),
        "edges": list(EDGES),
        "actions": sorted({tree.action(node) for node in range(len(tree))}),
        "stops": list(STOPS),
        "stop_meanings": {word: meaning.when for word, meaning in STOP_WORDS.items()},
        "nodes": _columns(tree, steps, strategy, born=_born(replayed), rows=rows),
        "scores": _by_node(tree, lambda node: [_score(score) for score in tree.scores(node)]),
        "notes": _by_node(tree, lambda node: plain(tree.notes(node))),
        "calls": _by_node(tree, lambda node: _calls(steps[node])),
        "forks": [plain(asdict(fork)) for fork in tree.forks],
        "candidates": [plain(asdict(candidate)) for candidate in tree.candidates],
        "events": _events(replayed, records),
        "closed": next((plain(record) for record in records if isinstance(record, ClosedRecord)), None),
        "pending": _pending(replayed),
        "limits": {name: value for name, value in asdict(limits).items() if value is not None},
        "spent": {role: spend.as_dict() for role, spend in tree.spent().items()},
        "rows": rows,
        "rows_refused": refused,
        "chunks": chunks(tree) if firsts is None else list(firsts),
    }


def plain(value: Any) -> Any:
    """`value` as JSON values. Numbers that JSON cannot hold become None, integers that a page cannot hold exactly
    become text."""
    match value:
        case bool() | str() | None:
            return value
        case int():
            return value if abs(value) < 2**53 else str(value)
        case float() | np.floating():
            return float(value) if math.isfinite(value) else None
        case bytes():
            return value.hex()
        case Mapping():
            return {str(key): plain(each) for key, each in value.items()}
        case list() | tuple() | set() | frozenset():
            return [plain(each) for each in value]
        case _:
            return plain(msgspec.to_builtins(value))


# -- nodes ------------------------------------------------------------------------------------------------------------


def _columns(
    tree: Tree,
    steps: Sequence[Sequence[Segment]],
    strategy: StrategyConfig,
    *,
    born: Sequence[int],
    rows: Sequence[Document],
) -> Document:
    """`steps`: the segments of each node."""
    nodes = range(len(tree))
    actions = sorted({tree.action(node) for node in nodes})
    places = {action: place for place, action in enumerate(actions)}
    stops = {word: place for place, word in enumerate(STOPS)}
    worth = {one.node: one for one in valued(tree, strategy).nodes}
    trained = _trained(rows)
    names = sorted({name for step in steps for segment in step for name in segment.measures})
    return {
        "parent": [-1 if (parent := tree.parent(node)) is None else parent for node in nodes],
        "edge": [EDGES.index(tree.edge(node)) for node in nodes],
        "role": [ROLES.index(tree.role(node)) for node in nodes],
        "action": [places[tree.action(node)] for node in nodes],
        "stop": [-1 if (stop := tree.stop(node)) is None else stops[stop] for node in nodes],
        "index": [tree.index(node) for node in nodes],
        "seed": [str(tree.node_seed(node)) for node in nodes],
        "fork": [-1 if (fork := tree.fork(node)) is None else fork.decision_id for node in nodes],
        "born": list(born),
        "is_leaf": [int(tree.is_leaf(node)) for node in nodes],
        **{
            origin: [sum(len(s) for s in step if s.origin == origin) for step in steps]
            for origin in ("prompt", "sampled", "given", "written")
        },
        "billed": [tree.num_billed(node) for node in nodes],
        **{f"step {name}": [plain(tree.measure(node, name)) for node in nodes] for name in tree.measure_names},
        "label": [_label(tree, node, steps[node]) for node in nodes],
        "reward": [plain(worth[node].reward) for node in nodes],
        "value": [plain(worth[node].value) for node in nodes],
        "q": [plain(worth[node].q) for node in nodes],
        "visits": [worth[node].visits for node in nodes],
        "is_oracle": [int(worth[node].is_oracle) for node in nodes],
        "advantage": [None] * len(nodes),
        "logprob": [_mean([s.logprobs for s in step if s.is_sampled]) for step in steps],
        **{name: [_mean([s.measures.get(name) for s in step if s.is_sampled]) for step in steps] for name in names},
        **_training(trained, nodes),
        "version": [max((s.version for s in step if s.version is not None), default=None) for step in steps],
    }


def _training(trained: Mapping[int, tuple[float | None, float]], nodes: range) -> Document:
    """Advantage and loss weight of each node. Without rows, a measure `advantage` of the file stays as it is."""
    if not trained:
        return {"weight": [None] * len(nodes)}
    values = [trained.get(node, (None, None)) for node in nodes]
    return {"advantage": [advantage for advantage, _ in values], "weight": [weight for _, weight in values]}


def _label(tree: Tree, node: int, segments: Sequence[Segment]) -> str:
    """The beginning of what the step says, and of what answered it."""
    if all(segment.origin == "prompt" for segment in segments):
        return shortened(tree.problem.question, LABEL_WIDTH)
    short = [Segment(segment.origin, segment.ids[:MAX_LABEL_TOKENS]) for segment in segments]
    said = step_text(short, tree.codec_of(node))
    return shortened(f"{said.said} → {said.observed}" if said.observed else said.said, LABEL_WIDTH)


def _mean(parts: Sequence[np.ndarray | None]) -> float | None:
    """The mean over the tokens of all parts; None = there are none, or one part has no values."""
    known = [part for part in parts if part is not None]
    number = sum(map(len, known))
    if not number or len(known) < len(parts):
        return None
    with np.errstate(invalid="ignore"):  # The numbers may be anybody's: infinities of both signs have no sum.
        mean = sum(float(np.sum(part, dtype=np.float64)) for part in known) / number
    return plain(round(mean, 6)) if math.isfinite(mean) else None


def _calls(segments: Sequence[Segment]) -> list[Document]:
    """The tool calls of a node, without arguments and results: they are in its tokens' document."""
    calls = [segment.tool_call for segment in segments]
    return [
        {
            "tool": call.tool,
            "status": call.status,
            "duration_s": plain(call.duration_s),
            "num_retries": call.num_retries,
            "reward": None if call.reward is None else plain(call.reward),
            "end": call.end,
        }
        for call in calls
        if call is not None
    ]


def _by_node(tree: Tree, value: Callable[[int], Any]) -> Document:
    """Node -> its value, where it has one."""
    return {str(node): found for node in range(len(tree)) if (found := value(node))}


def _score(score: Any) -> Document:
    return plain(msgspec.to_builtins(SCORE.pack(score)))


# -- events -----------------------------------------------------------------------------------------------------------


def _spans(replayed: Replayed) -> list[tuple[int, int]]:
    """Number of nodes before and behind each event."""
    return list(pairwise([1, *replayed.sizes]))


def _born(replayed: Replayed) -> list[int]:
    """For each node: the number of the event that put it on the tree. The root, and nodes of no event: 0."""
    born = [0] * len(replayed.tree)
    for number, (before, after) in enumerate(_spans(replayed)):
        born[before:after] = [number] * (after - before)
    return born


def _events(replayed: Replayed, records: Sequence[TreeRecord]) -> list[Document]:
    """The events in order, each with what its record says besides."""
    besides = [
        {"allotments": plain(record.allotments)} if isinstance(record, AskedRecord) else {"spent": plain(record.spent)}
        for record in records
        if isinstance(record, AskedRecord | OutcomeRecord)
    ]
    events = [_event(event, *span) for event, span in zip(replayed.events, _spans(replayed), strict=True)]
    return [event | more for event, more in zip(events, besides, strict=True)] if besides else events


def _event(event: Recorded, before: int, after: int) -> Document:
    match event:
        case Asked(first_id, commands):
            asked = [plain(msgspec.to_builtins(COMMAND.pack(command))) for command in commands]
            return {"asked": first_id, "commands": asked, "nodes": list(range(before, after)), "size": after}
        case Ended(command_id, ending):
            told = plain(msgspec.to_builtins(ENDING.pack(ending)))
            return {"told": command_id, **told, "nodes": list(range(before, after)), "size": after}


def _pending(replayed: Replayed) -> list[Document]:
    """The commands in flight: where each began, and how many steps it has grown."""
    return [
        {
            "id": command_id,
            "node": -1 if flight.place is None else flight.place.parent,
            "num_steps": len(flight.steps),
            "command": plain(msgspec.to_builtins(COMMAND.pack(flight.command))),
        }
        for command_id, flight in replayed.growth.flights.items()
    ]


# -- rows -------------------------------------------------------------------------------------------------------------


def _rows(tree: Tree, rows_of: Callable[[Tree], Sequence[Row]] | None) -> tuple[list[Document], str]:
    """The training rows of a tree, or why it has none."""
    if rows_of is None:
        return [], "no training rows are known of this tree"
    try:
        rows = rows_of(tree)
    except RamifyError as error:
        return [], str(error)
    canonical = tree.subtree()
    return [_row(row, canonical) for row in rows], ""


def _row(row: Row, canonical: Sequence[int]) -> Document:
    """One row: what its leaf is trained with, node by node along its path. All tokens that were sampled in a node have
    the same weight and advantage."""
    firsts = np.cumsum([0, *(span.num_tokens for span in row.spans)])
    sampled = {
        canonical[span.node]: (float(row.weights[first]), float(row.advantages[first]))
        for span, first in zip(row.spans, firsts, strict=False)
        if span.origin == "sampled" and span.num_tokens
    }
    return {
        "leaf": row.leaf_id,
        "reward": plain(row.reward),
        "parts": plain(row.parts),
        "credit": row.credit,
        "policy": row.policy,
        "normaliser": row.normaliser,
        "reasons": list(row.reasons),
        "is_oracle": row.is_oracle,
        "stop": row.stop,
        "nodes": list(sampled),
        "weights": [plain(weight) for weight, _ in sampled.values()],
        "advantages": [plain(advantage) for _, advantage in sampled.values()],
    }


def _trained(rows: Sequence[Document]) -> dict[int, tuple[float | None, float]]:
    """Node -> the advantage and the loss weight of its sampled tokens, over all rows: the mean by weight, and the
    sum."""
    sums: dict[int, list[float]] = {}
    for row in rows:
        for node, weight, advantage in zip(row["nodes"], row["weights"], row["advantages"], strict=True):
            total = sums.setdefault(node, [0.0, 0.0])
            total[0] += weight
            total[1] += weight * advantage
    return {node: (plain(total / weight) if weight else None, plain(weight)) for node, (weight, total) in sums.items()}
