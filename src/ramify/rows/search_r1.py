"""Search-R1: the batch that PeterGriffinJin/Search-R1 `LLMGenerationManager.run_llm_loop` returns.

Names and shapes are those of Search-R1: B rows, prompts of P tokens padded on the left, responses of R tokens padded on
the right. The loss is over `info_mask[:, -R:]`, which is 1 exactly where a row trains a token. It is never 1 on an
observation, a forced text or padding. If rows of a tree share tokens, it is 1 once over all rows (policy `once`).

In the published code, masks are `ids != pad`, so a pad id that the model sampled is neither attended nor trained. Here,
masks come from what the tokens are. Such a token looks like a replaced one in `responses_with_info_mask`, so use
`info_mask` and do not derive it again.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ramify.rows.arrays import padded
from ramify.rows.gold import scored_by_rule
from ramify.rows.groups import GroupBy
from ramify.rows.records import about, sampled_by
from ramify.rows.row import Row
from ramify.rows.tensors import public_columns, write_tensors, writes_columns

OWN_COLUMNS = ("uid", "ramify")


@dataclass(frozen=True, slots=True)
class SearchR1Batch:
    """B rows."""

    tensors: dict[str, npt.NDArray[np.int64]]
    """`input_ids`, `attention_mask`, `position_ids`, `info_mask` (B, P + R); `prompts` (B, P); `responses` and
    `responses_with_info_mask` (B, R): the responses, with the pad id for every token that the row does not train."""
    columns: dict[str, list[Any]]
    """`uid`, the problem's public columns, and `ramify`: everything else that the row says about itself."""
    meta_info: dict[str, list[Any]]
    """Per row: `turns_stats`, `active_mask` (whether it ended without an answer), `valid_action_stats` (number of tool
    calls and answers) and `valid_search_stats` (number of tool calls)."""


def batch(
    rows: Sequence[Row],
    *,
    pad_id: int = 0,
    group_by: GroupBy = "uid",
    gold: str | None = None,
    data_source: str | None = None,
) -> SearchR1Batch:
    """The batch of `rows`, in their order. `gold` is the column of the gold answers, for Search-R1's reward manager.

    Raises `ExportError` for two trees in one group and for two codecs."""
    arrays = padded(rows, pad_id=pad_id, group_by=group_by)
    is_trained = arrays.loss_weights > 0
    info_mask = arrays.attention_mask.copy()
    info_mask[:, arrays.prompts.shape[1] :] = is_trained
    tensors = {
        "prompts": arrays.prompts,
        "responses": arrays.responses,
        "responses_with_info_mask": np.where(is_trained, arrays.responses, pad_id),
        "input_ids": arrays.input_ids,
        "attention_mask": arrays.attention_mask,
        "info_mask": info_mask,
        "position_ids": arrays.position_ids * arrays.attention_mask,
    }
    public = scored_by_rule(public_columns(rows, OWN_COLUMNS), gold, data_source, is_target=True)
    columns = {"uid": arrays.uids.tolist(), **public, "ramify": [{**about(row), **sampled_by(row)} for row in rows]}
    return SearchR1Batch(tensors, columns, _meta_info(rows))


@writes_columns
def write(
    rows: Iterable[Row],
    path: Path,
    *,
    pad_id: int = 0,
    group_by: GroupBy = "uid",
    gold: str | None = None,
    data_source: str | None = None,
    force: bool = False,
) -> int:
    """Write the batch of all rows to `path` (.safetensors or .npz, with meta info as tensors), and its columns beside
    it.

    - `pad_id`: token id that fills rows to one length.
    - `gold`: public column of the gold answers, for Search-R1's reward manager; None = no ground truth.
    - `data_source`: value of the column `data_source`, by which the reward manager chooses its function; None = the
      rows' own column.
    - `force`: whether to replace what an earlier export made; anything else there raises `ExportError`.
    """
    whole = batch(list(rows), pad_id=pad_id, group_by=group_by, gold=gold, data_source=data_source)
    meta_info = {f"meta_info.{name}": np.array(values, np.int64) for name, values in whole.meta_info.items()}
    write_tensors({**whole.tensors, **meta_info}, whole.columns, path, force=force)
    return len(whole.columns["uid"])


def _meta_info(rows: Sequence[Row]) -> dict[str, list[Any]]:
    has_answered = [row.stop == "answer" for row in rows]
    num_calls = [sum(s.call is not None and s.call.status != "invalid" for s in row.spans) for row in rows]
    return {
        "turns_stats": [row.num_turns for row in rows],
        "active_mask": [not is_done for is_done in has_answered],
        "valid_action_stats": [calls + is_done for calls, is_done in zip(num_calls, has_answered, strict=True)],
        "valid_search_stats": num_calls,
    }
