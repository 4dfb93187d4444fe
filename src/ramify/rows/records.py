"""Records: a row as plain data, the one schema of the file exports. `docs/concepts/rows.md` describes it.

The order of columns is fixed. Nothing in a record depends on a clock or on the order in which nodes arrived. Two fields
of a row are left out: `leaf_id`, which is not canonical, and `entropies`, one a token, which only `entropy_scaled`
reads.
"""

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from ramify.core.errors import ExportError
from ramify.core.segment import Floats_T, ToolCall
from ramify.rows.json_numbers import shortest
from ramify.rows.row import Row, RowSpan

SCHEMA_VERSION: Final = 1


def record(row: Row) -> dict[str, Any]:
    """A row as JSON data. Raises `ExportError` for a public column that is no JSON data."""
    values = columns(row)
    numbers = {name: values[name].tolist() for name in ("ids", "weights", "advantages")}
    return {**values, **numbers, "logprobs": decimals(row.logprobs)}


def columns(row: Row) -> dict[str, Any]:
    """As `record`, with the arrays of a row as they are: (T,) `ids`, `weights`, `advantages`, `logprobs`."""
    return {
        "schema_version": SCHEMA_VERSION,
        "uid": row.uid,
        **about(row),
        "num_prompt": row.num_prompt,
        "ids": row.ids,
        "weights": row.weights,
        "advantages": row.advantages,
        "logprobs": row.logprobs,
        "spans": [_span(span) for span in row.spans],
        "codec": {"name": row.codec, "sha256": row.codec_sha256},
        "public": plain(row.public, "public"),
    }


def about(row: Row) -> dict[str, Any]:
    """What a row says about itself besides its tokens and its problem's columns, as JSON data."""
    return {
        "tree_seed": row.tree_seed,
        "leaf": row.leaf,
        "split": row.split,
        "stop": row.stop,
        "is_truncated": row.is_truncated,
        "reward": row.reward,
        "parts": dict(row.parts),
        "is_oracle": row.is_oracle,
        "credit": row.credit,
        "is_unbiased": row.is_unbiased,
        "reasons": list(row.reasons),
        "policy": row.policy,
        "normaliser": row.normaliser,
    }


def sampled_by(row: Row) -> dict[str, Any]:
    """How a row was sampled, for exports without spans: what a trainer needs to drop stale, or too long, rows."""
    return {
        "versions": sorted({span.version for span in row.spans if span.version is not None}),
        "has_logprobs": row.has_logprobs,
        "num_tokens": len(row),
    }


def decimals(values: Floats_T) -> list[float | None]:
    """float32 values as the shortest decimals that give the same float32 again; None for NaN."""
    return [None if number != number else number for number in shortest(values).tolist()]


def plain(value: Any, where: str) -> Any:
    """JSON data with sorted keys. A number that is not finite becomes None. Raises `ExportError` for anything else."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else None
        case np.generic():
            return plain(value.item(), where)
        case Mapping():
            return {str(key): plain(value[key], f"{where}.{key}") for key in sorted(value, key=str)}
        case list() | tuple():
            return [plain(item, f"{where}[{i}]") for i, item in enumerate(value)]
        case _:
            raise ExportError(f"column {where} holds {value!r} of type {type(value).__name__}, which is not JSON")


def _span(span: RowSpan) -> dict[str, Any]:
    source = span.source
    return {
        "num_tokens": span.num_tokens,
        "node": span.node,
        "origin": span.origin,
        "version": span.version,
        "engine": None if source is None else source.engine,
        "temperature": None if source is None else source.sampling.temperature,
        "top_p": None if source is None else source.sampling.top_p,
        "top_k": None if source is None else source.sampling.top_k,
        "logprobs": None if source is None else source.logprobs,
        "step_entropy": plain(span.step_entropy, "spans.step_entropy"),
        "positive": span.positive,
        "share": span.share,
        "call": None if span.call is None else _call(span.call),
    }


def _step(call: ToolCall) -> dict[str, Any]:
    """What an environment gave for a step; nothing for the call of a tool."""
    given = {"reward": call.reward, "end": call.end, "parts": dict(call.parts) or None}
    return {name: value for name, value in given.items() if value is not None}


def _call(call: ToolCall) -> dict[str, Any]:
    """The part of a call that is not in the tokens of its observation."""
    return {
        "tool": call.tool,
        "arguments": call.arguments,
        "status": call.status,
        "metadata": plain(call.metadata, "metadata"),
        "attachments": list(call.attachments),
        **_step(call),
    }
