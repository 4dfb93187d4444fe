"""verl: a batch for `verl.DataProto.from_single_dict`, with prompts padded on the left and responses on the right.

`response_mask` is 1 where a row trains a token, so the rows' policy decides how often a token shared by several rows is
trained. `rm_scores` carries each token's own advantage, including its weight: an estimator registered in verl returns
`token_level_rewards * response_mask`. With `credit_by="trainer"` it carries the reward at the last token instead, for
verl's own estimators, which group by `uid`; the tree's credit is then not exported.

With verl's `seq-mean-token-sum` and rows of one `normaliser`, the loss is that of `docs/concepts/rows.md`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ramify.rows.arrays import Arrays, padded
from ramify.rows.gold import scored_by_rule
from ramify.rows.groups import GroupBy
from ramify.rows.records import about
from ramify.rows.row import Row
from ramify.rows.tensors import CreditBy, public_columns, write_tensors, writes_columns

NUM_TURNS = "__num_turns__"
OWN_COLUMNS = ("uid", NUM_TURNS, "ramify")


@dataclass(frozen=True, slots=True)
class VerlBatch:
    """B rows of P prompt tokens and R response tokens."""

    tensors: dict[str, npt.NDArray[Any]]
    """`prompts` (B, P), `responses`, `response_mask`, `rm_scores` (B, R), `input_ids`, `attention_mask`, `position_ids`
    (B, P + R). `rollout_log_probs` (B, R), 0 where nothing was sampled, if every trained token has one."""
    non_tensors: dict[str, list[Any]]
    """B values each: `uid`, `__num_turns__`, the problem's public columns, and `ramify`: everything else that the row
    says."""

    def single_dict(self) -> dict[str, npt.NDArray[Any]]:
        """The tensors, and the other columns as object arrays of shape (B,)."""
        return {**self.tensors, **{name: np.fromiter(values, object) for name, values in self.non_tensors.items()}}


def batch(
    rows: Sequence[Row],
    *,
    pad_id: int = 0,
    credit_by: CreditBy = "tree",
    group_by: GroupBy = "uid",
    gold: str | None = None,
    data_source: str | None = None,
) -> VerlBatch:
    """The batch of `rows`, in their order. `gold` is the column of the gold answers, for verl's reward manager.

    Raises `ExportError` for two trees in one group and for two codecs."""
    arrays = padded(rows, pad_id=pad_id, group_by=group_by)
    tensors: dict[str, npt.NDArray[Any]] = {
        "prompts": arrays.prompts,
        "responses": arrays.responses,
        "response_mask": (arrays.loss_weights > 0).astype(np.int64),
        "input_ids": arrays.input_ids,
        "attention_mask": arrays.attention_mask,
        "position_ids": arrays.position_ids,
        "rm_scores": _scores(rows, arrays, credit_by),
    }
    if arrays.old_logprobs is not None:
        tensors["rollout_log_probs"] = arrays.old_logprobs
    non_tensors = {
        "uid": arrays.uids.tolist(),
        NUM_TURNS: [1 + sum(origin != "prompt" for origin, _ in row.runs) for row in rows],
        **scored_by_rule(public_columns(rows, OWN_COLUMNS), gold, data_source, is_target=False),
        "ramify": [about(row) for row in rows],
    }
    return VerlBatch(tensors, non_tensors)


@writes_columns
def write(
    rows: Iterable[Row],
    path: Path,
    *,
    pad_id: int = 0,
    credit_by: CreditBy = "tree",
    group_by: GroupBy = "uid",
    gold: str | None = None,
    data_source: str | None = None,
    force: bool = False,
) -> int:
    """Write the batch of all rows to `path` (.safetensors or .npz), and its non-tensors beside it as JSON lines.

    - `pad_id`: token id that fills rows to one length.
    - `gold`: public column of the gold answers, for verl's reward manager; None = no ground truth.
    - `data_source`: value of the column `data_source`, by which the reward manager chooses its function; None = the
      rows' own column.
    - `force`: whether to replace what an earlier export made; anything else there raises `ExportError`.
    """
    made = list(rows)
    whole = batch(made, pad_id=pad_id, credit_by=credit_by, group_by=group_by, gold=gold, data_source=data_source)
    write_tensors(whole.tensors, whole.non_tensors, path, force=force)
    return len(whole.non_tensors["uid"])


def _scores(rows: Sequence[Row], arrays: Arrays, credit_by: CreditBy) -> npt.NDArray[np.float32]:
    """(B, R) each token's advantage, or each row's reward at its last token."""
    if credit_by == "tree":
        return np.where(arrays.loss_weights > 0, arrays.loss_weights * arrays.advantages, 0)
    scores = np.zeros(arrays.responses.shape, np.float32)
    for number, row in enumerate(rows):
        scores[number, len(row) - row.num_prompt - 1] = row.reward
    return scores
