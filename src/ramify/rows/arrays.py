"""Arrays: rows as the padded arrays that a trainer takes.

Prompts are padded on the left and responses on the right, so all responses begin in the same column. Rows that only
fill up the batch are marked and have weight 0 everywhere; they are never copies of a leaf. Nothing is cut: a row that
does not fit raises an error.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ramify.core.errors import ExportError
from ramify.rows.files import whole
from ramify.rows.groups import GroupBy, group_keys
from ramify.rows.row import Row

Ints_BT = npt.NDArray[np.int64]
Floats_BR = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Arrays:
    """B rows of P prompt tokens and R response tokens."""

    input_ids: Ints_BT
    """(B, P + R) prompts and responses."""
    attention_mask: Ints_BT
    """(B, P + R) 1 where there is a token. A padding row has one 1, so that no softmax runs over an empty row."""
    position_ids: Ints_BT
    """(B, P + R) 0 for a row's first token. It is 0 on the left padding and continues to count on the right padding."""
    responses: Ints_BT
    """(B, R) the response part of `input_ids`."""
    response_mask: Ints_BT
    """(B, R) 1 where the model wrote the token; 0 where a tool wrote it or there is no token. This is the result
    mask."""
    loss_weights: Floats_BR
    """(B, R) the weight of each token; 0 = context. Only tokens with a weight other than 0 are trained."""
    advantages: Floats_BR
    """(B, R) advantages. The loss sums them times `loss_weights` and divides by the row's `normaliser`."""
    positive: Floats_BR
    """(B, R) the part of `advantages` that leaves with positive advantages give, for a clipped loss."""
    shares: Floats_BR
    """(B, R) what terms of the loss without an advantage (KL, entropy) are multiplied by in place of it."""
    old_logprobs: Floats_BR | None
    """(B, R) in nats, as sampled; 0 where nothing was sampled. None = the engine gave none for some trained token."""
    versions: Ints_BT
    """(B, R) policy version that sampled each token; -1 = none."""
    rewards: npt.NDArray[np.float32]
    """(B,) 0 for padding rows, which must not enter any mean."""
    normaliser: npt.NDArray[np.float32]
    """(B,) the normaliser of the row's tree; 1 for padding rows."""
    is_padding: npt.NDArray[np.bool_]
    """(B,) whether the row only fills up the batch."""
    uids: npt.NDArray[np.str_]
    """(B,) key of the group: the problem's uid, or the key of the tree; empty for padding rows."""

    @property
    def prompts(self) -> Ints_BT:
        """(B, P) the prompt part of `input_ids`."""
        return self.input_ids[:, : self.input_ids.shape[1] - self.responses.shape[1]]


def padded(
    rows: Sequence[Row],
    *,
    pad_id: int = 0,
    num_rows: int | None = None,
    num_prompt: int | None = None,
    num_response: int | None = None,
    group_by: GroupBy = "uid",
) -> Arrays:
    """Pad `rows` to one shape: `num_rows` rows of `num_prompt` + `num_response` tokens; None = as many as needed.

    Raises `ExportError` for a row that does not fit, for rows of different codecs, and for two trees in one group.
    """
    _refuse_mixed(rows)
    size = _fitting("rows", len(rows), num_rows)
    width = _fitting("prompt tokens", max((row.num_prompt for row in rows), default=1), num_prompt)
    length = _fitting("response tokens", max((len(row) - row.num_prompt for row in rows), default=1), num_response)
    is_padding = np.arange(size) >= len(rows)
    ids = np.full((size, width + length), pad_id, np.int64)
    attention = np.zeros((size, width + length), np.int64)
    attention[is_padding, width - 1] = 1
    for number, row in enumerate(rows):
        start = width - row.num_prompt
        ids[number, start : start + len(row)] = row.ids
        attention[number, start : start + len(row)] = 1
    return Arrays(
        input_ids=ids,
        attention_mask=attention,
        position_ids=np.maximum(np.cumsum(attention[:, :width], axis=1)[:, -1:] + np.arange(-width, length), 0),
        responses=ids[:, width:],
        response_mask=_responses([row.is_sampled for row in rows], rows, np.zeros((size, length), np.int64)),
        loss_weights=_responses([row.weights for row in rows], rows, np.zeros((size, length), np.float32)),
        advantages=_responses([row.advantages for row in rows], rows, np.zeros((size, length), np.float32)),
        positive=_responses([row.positive for row in rows], rows, np.zeros((size, length), np.float32)),
        shares=_responses([row.shares for row in rows], rows, np.zeros((size, length), np.float32)),
        old_logprobs=_old_logprobs(rows, np.zeros((size, length), np.float32)),
        versions=_responses([row.versions for row in rows], rows, np.full((size, length), -1, np.int64)),
        rewards=_column([row.reward for row in rows], size, missing=0.0),
        normaliser=_column([row.normaliser for row in rows], size, missing=1.0),
        is_padding=is_padding,
        uids=np.array([*group_keys(rows, by=group_by), *[""] * (size - len(rows))], dtype=np.str_),
    )


def write(rows: Iterable[Row], path: Path, *, force: bool = False) -> int:
    """Write the padded arrays of all rows to `path` as .npz, with uids and masks, and return the number of rows.

    `old_logprobs` is left out if it is None.

    - `force`: whether to replace what an earlier export made; anything else there raises `ExportError`.
    """
    all_rows = list(rows)
    arrays = {name: array for name, array in asdict(padded(all_rows)).items() if array is not None}
    with whole(path, force=force) as part, part.open("wb") as stream:
        np.savez(stream, **arrays)
    return len(all_rows)


def _refuse_mixed(rows: Sequence[Row]) -> None:
    codecs = {row.codec_sha256: row.codec for row in rows}
    if len(codecs) > 1:
        raise ExportError(f"rows of the codecs {sorted(codecs.values())} share no ids; export the rows of each apart")


def _fitting(what: str, needed: int, wanted: int | None) -> int:
    if wanted is not None and needed > wanted:
        raise ExportError(f"{needed} {what} do not fit {wanted}; nothing is cut: raise the limit")
    return needed if wanted is None else wanted


def _responses(values: Sequence[npt.NDArray[np.generic]], rows: Sequence[Row], filled: npt.NDArray) -> npt.NDArray:
    """(B, R) the response part of each row's (T,) values. Fills and returns `filled`."""
    for number, (row, of_row) in enumerate(zip(rows, values, strict=True)):
        filled[number, : len(row) - row.num_prompt] = of_row[row.num_prompt :]
    return filled


def _old_logprobs(rows: Sequence[Row], filled: Floats_BR) -> Floats_BR | None:
    if not all(row.has_logprobs for row in rows):
        return None
    return _responses([np.nan_to_num(row.logprobs) for row in rows], rows, filled)


def _column(values: Sequence[float], size: int, *, missing: float) -> npt.NDArray[np.float32]:
    return np.array([*values, *[missing] * (size - len(values))], np.float32)
