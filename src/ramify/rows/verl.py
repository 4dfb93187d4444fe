"""verl: a batch for `verl.DataProto.from_single_dict`, with prompts padded on the left and responses on the right.

`response_mask` is 1 where a row trains a token, so the rows' policy decides how often a token shared by several rows is
trained. `rm_scores` carries each token's own advantage, including its weight, which the estimator of
`integrations.verl` hands on. With `credit_by="trainer"` it carries the reward at the last token instead, for verl's own
estimators, which group by `uid`; the tree's credit is then not exported.

With verl's `seq-mean-token-sum` and rows of one `normaliser`, the loss is that of `docs/concepts/rows.md`.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ramify.rows.arrays import Arrays, padded
from ramify.rows.gold import scored_by_rule
from ramify.rows.groups import GroupBy
from ramify.rows.records import about, sampled_by
from ramify.rows.row import Row
from ramify.rows.tensors import CreditBy, public_columns, refuse_several_scales, write_tensors, writes_columns

NUM_TURNS = "__num_turns__"
LOGGER: Final = logging.getLogger("ramify")
OWN_COLUMNS = ("uid", NUM_TURNS, "ramify")


@dataclass(frozen=True, slots=True)
class VerlBatch:
    """B rows of P prompt tokens and R response tokens."""

    tensors: dict[str, npt.NDArray[Any]]
    """`prompts` (B, P), `responses`, `response_mask`, `rm_scores` (B, R), `input_ids`, `attention_mask`, `position_ids`
    (B, P + R). `versions` (B, R): the policy version that sampled a token, -1 = none. `rollout_log_probs` (B, R), 0
    where nothing was sampled, if every trained token has one."""
    non_tensors: dict[str, list[Any]]
    """B values each: `uid`, `__num_turns__`, the problem's public columns, and `ramify`: everything else that the row
    says, with its `versions`, whether it `has_logprobs`, and its `num_tokens`."""

    def single_dict(self) -> dict[str, Any]:
        """What `verl.DataProto.from_single_dict` takes: tensors of torch (arrays where torch is not installed), and the
        other columns as object arrays of shape (B,)."""
        columns = {name: np.fromiter(values, object) for name, values in self.non_tensors.items()}
        try:
            import torch  # pyright: ignore[reportMissingImports] - the trainer has it
        except ModuleNotFoundError:
            return {**self.tensors, **columns}
        return {**{name: torch.from_numpy(array) for name, array in self.tensors.items()}, **columns}


def batch(
    rows: Sequence[Row],
    *,
    pad_id: int = 0,
    credit_by: CreditBy = "tree",
    group_by: GroupBy = "uid",
    gold: str | None = None,
    data_source: str | None = None,
    num_prompt: int | None = None,
    num_response: int | None = None,
) -> VerlBatch:
    """The batch of `rows`, in their order. `gold` is the column of the gold answers, for verl's reward manager.
    `num_prompt`, `num_response`: tokens of the padded prompts and responses; None = as many as needed.

    Raises `ExportError` for two trees in one group, for two codecs, for advantages of several normalisers, and for rows
    that do not fit. Warns where some rows have logprobs, others have none, and so none are exported."""
    if credit_by == "tree":
        refuse_several_scales(rows)
    arrays = padded(rows, pad_id=pad_id, group_by=group_by, num_prompt=num_prompt, num_response=num_response)
    tensors: dict[str, npt.NDArray[Any]] = {
        "prompts": arrays.prompts,
        "responses": arrays.responses,
        "response_mask": (arrays.loss_weights > 0).astype(np.int64),
        "input_ids": arrays.input_ids,
        "attention_mask": arrays.attention_mask,
        "position_ids": arrays.position_ids,
        "rm_scores": _scores(rows, arrays, credit_by),
        "versions": arrays.versions,
    }
    if arrays.old_logprobs is not None:
        tensors["rollout_log_probs"] = arrays.old_logprobs
    elif num_known := sum(row.has_logprobs for row in rows):
        LOGGER.warning(
            "%d of %d rows have trained tokens without logprobs: rollout_log_probs is left out for all rows",
            len(rows) - num_known,
            len(rows),
        )
    non_tensors = {
        "uid": arrays.uids.tolist(),
        NUM_TURNS: [1 + sum(origin != "prompt" for origin, _ in row.runs) for row in rows],
        **scored_by_rule(public_columns(rows, OWN_COLUMNS), gold, data_source, is_target=False),
        "ramify": [{**about(row), **sampled_by(row)} for row in rows],
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
