"""Traces: a tree as the message graph of verifiers, one `WireTrace` a line (verifiers 0.4.0 verifiers/v1/trace.py).

A message is a span of tokens, and its parent the span before it; a branch of the trace is a row. Messages that several
rows share stand once, with all that these rows train their tokens with, because prime-rl trains such a message in the
first branch that has it (PrimeIntellect-ai/prime-rl src/prime_rl/orchestrator/trajectories.py). A turn that a fork
splits is several messages.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ramify.core.codec import Codec
from ramify.core.errors import ExportError
from ramify.core.segment import Floats_T, Ids_T
from ramify.rows.files import write_lines
from ramify.rows.records import about, decimals, plain, sampled_by
from ramify.rows.row import Row, RowSpan
from ramify.rows.tensors import refuse_several_scales

ROLES: Final = {"prompt": "user", "sampled": "assistant"}
"""Other tokens are of a tool where they answer a call, else of the user."""


def traces(rows: Sequence[Row], codec: Codec) -> Iterator[dict[str, Any]]:
    """A trace for each tree, as JSON data; the rows of a tree stand together. `codec` decodes the messages' texts.

    Raises `ExportError` for rows of another codec, of several normalisers, or without logprobs.
    """
    refuse_several_scales(rows)
    for row in rows:
        _refuse(row, codec)
    for _, of_tree in groupby(rows, key=attrgetter("uid", "tree_seed")):
        yield _trace(list(of_tree), codec)


def write(rows: Iterable[Row], path: Path, *, codec: Codec, force: bool = False) -> int:
    """Write a line for each tree of `rows` to `path`, and return the number of rows.

    - `codec`: the tokenizer of the rows; `ramify export` takes that of the run.
    - `force`: whether to replace what an earlier export made; anything else there raises `ExportError`.
    """
    made = list(rows)
    write_lines(traces(made, codec), path, force=force)
    return len(made)


@dataclass(slots=True)
class _Message:
    """T tokens of one span, and what all rows train them with. Mutable."""

    parent: int | None
    span: RowSpan
    ids: Ids_T
    logprobs: Floats_T
    weights: npt.NDArray[np.float64]
    trained: npt.NDArray[np.float64]


@dataclass(slots=True)
class _Graph:
    """The messages of a tree, each once, parents first. Mutable."""

    messages: list[_Message] = field(default_factory=list["_Message"])
    numbers: dict[tuple[int | None, int], int] = field(default_factory=dict[tuple[int | None, int], int])
    """(parent, node of the tree) -> message."""

    def add(self, row: Row) -> None:
        parent, start = None, 0
        for span in row.spans:
            if not span.num_tokens:
                continue
            end = start + span.num_tokens
            number = self.numbers.setdefault((parent, span.node), len(self.messages))
            if number == len(self.messages):
                nothing = np.zeros(span.num_tokens)
                ids, logprobs = row.ids[start:end], row.logprobs[start:end]
                self.messages.append(_Message(parent, span, ids, logprobs, nothing, nothing))
            message = self.messages[number]
            message.weights = message.weights + row.weights[start:end]
            message.trained = message.trained + row.trained[start:end]
            parent, start = number, end


def _trace(rows: Sequence[Row], codec: Codec) -> dict[str, Any]:
    graph, first = _Graph(), rows[0]
    for row in rows:
        graph.add(row)
    nodes = [_node(message, codec) for message in graph.messages]
    prompt = next(node["message"]["content"] for node in nodes if node["parent"] is None)
    said = [{**about(row), **sampled_by(row)} for row in rows]
    return {
        "version": 1,
        "id": f"{first.uid}/{first.tree_seed}",
        "task": {
            "type": "ramify",
            "key": first.uid,
            "data": {"id": first.uid, "prompt": prompt, "public": plain(first.public, "public")},
        },
        "agent": {"config": {}, "name": "policy"},
        "nodes": nodes,
        "rewards": {"reward": {"score": float(np.mean([row.reward for row in rows])), "weight": 1.0}},
        "info": {"ramify": said},
        "is_completed": True,
        "timing": {"start": 0.0},
    }


def _node(message: _Message, codec: Codec) -> dict[str, Any]:
    span, text, is_trained = message.span, codec.decode(message.ids.tolist()), message.weights > 0
    role = ROLES.get(span.origin, "user" if span.call is None else "tool")
    said = {"role": role, "content": text}
    if role == "tool" and span.call is not None:
        said |= {"tool_call_id": span.call.tool, "name": span.call.tool}
    trained = {
        "sampled": span.origin == "sampled",
        "mask": is_trained.tolist(),
        "logprobs": decimals(message.logprobs[is_trained]),
        "advantages": message.trained[is_trained].tolist() if span.origin == "sampled" else None,
    }
    return {"parent": message.parent, "message": said, "timestamp": 0.0, "token_ids": message.ids.tolist(), **trained}


def _refuse(row: Row, codec: Codec) -> None:
    if row.codec_sha256 != codec.sha256:
        raise ExportError(f"rows of the tokenizer {row.codec!r} cannot be read with {codec.name!r}: give their own")
    if not row.has_logprobs:
        raise ExportError(
            f"row {row.leaf} of {row.uid!r} has no logprobs, and prime-rl divides by the probabilities that its tokens "
            "were sampled with: use an engine that gives logprobs"
        )
