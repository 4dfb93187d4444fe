# pyright: reportMissingImports=false
# torch is not in the development environment.
"""Experience: rows of trees as the fields of an OpenRLHF `Experience`, with an advantage for every token.

OpenRLHF's loss `token-mean` divides by the trained tokens of an optimiser step. Advantages are multiplied by that
number here, and divided by trees * normaliser. So the loss is the mean over trees of the loss in docs/concepts/rows.md,
if the batch is one step.

Source: OpenRLHF 0.11.2, openrlhf/trainer/ppo_utils/experience.py `Experience`, trainer/ray/ppo_actor.py
`training_step`, models/loss.py `PolicyLoss`.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from ramify.core.errors import ConfigError, ExportError
from ramify.rows.row import Row
from ramify.rows.tensors import refuse_several_scales


def experience(rows: Sequence[Row], *, pad_id: int = 0) -> dict[str, Any]:
    """The fields of `Experience(**experience(rows))`, for B rows of at most T tokens, padded on the right.

    `sequences`, `attention_mask` (B, T). `action_mask` (True = trained), `advantages`, `returns`, `action_log_probs`,
    `rollout_log_probs` (B, T - 1), for the tokens from the second on. `rewards`, `response_length`, `total_length`,
    `truncated` (B,). Raises `ExportError` for no rows, for rows of several normalisers, and for trained tokens without
    a logprob.
    """
    import torch
    from torch.nn.utils.rnn import pad_sequence

    if not rows:
        raise ExportError("no rows: a batch of experience needs one at least")
    refuse_several_scales(rows)
    if unknown := sum(not row.has_logprobs for row in rows):
        raise ExportError(
            f"{unknown} of {len(rows)} rows have trained tokens without a logprob; use an engine with them"
        )
    num_trees = len({(row.uid, row.tree_seed) for row in rows})
    num_trained = sum(int((row.weights > 0).sum()) for row in rows)
    scale = num_trained / (num_trees * rows[0].normaliser)

    def laid(values: Iterable[np.ndarray], dtype: Any, fill: float = 0) -> Any:
        """(B, T) the values of each row's tokens."""
        return pad_sequence([torch.as_tensor(of_row, dtype=dtype) for of_row in values], True, fill)

    advantages = laid((row.trained * scale for row in rows), torch.float32)[:, 1:]
    logprobs = laid((np.nan_to_num(row.logprobs) for row in rows), torch.float32)[:, 1:]
    return {
        "sequences": laid((row.ids for row in rows), torch.int64, pad_id),
        "attention_mask": laid((np.ones(len(row)) for row in rows), torch.int64),
        "action_mask": laid((row.weights > 0 for row in rows), torch.bool)[:, 1:],
        "action_log_probs": logprobs,
        "rollout_log_probs": logprobs.clone(),
        "advantages": advantages,
        "returns": advantages.clone(),
        "rewards": torch.tensor([row.reward for row in rows], dtype=torch.float32),
        "response_length": torch.tensor([len(row) - row.num_prompt for row in rows], dtype=torch.float32),
        "total_length": torch.tensor([len(row) for row in rows], dtype=torch.float32),
        "truncated": torch.tensor([row.is_truncated for row in rows]),
    }


def check_arguments(args: Any) -> None:
    """Raise `ConfigError` for arguments of OpenRLHF's actor by which tokens would not be trained with their credit."""
    for problem in _problems(args):
        raise ConfigError(problem)


def _problems(args: Any) -> Iterator[str]:
    actor, kl, correction = args.actor, args.algo.kl, args.algo.advantage
    if actor.loss_agg_mode != "token-mean":
        yield f"--actor.loss_agg_mode {actor.loss_agg_mode}: it divides each row by its own tokens; set token-mean"
    if actor.policy_loss_type != "ppo":
        yield f"--actor.policy_loss_type {actor.policy_loss_type}: a ratio of a sequence belongs to a leaf; set ppo"
    if kl.use_loss and kl.init_coef > 0:
        yield "--algo.kl.use_loss: the term would be added once a row, not once a token of the tree; leave it out"
    if actor.entropy_coef:
        yield f"--actor.entropy_coef {actor.entropy_coef:g}: its mean is over rows, not over the tree; leave it out"
    if correction.is_correction_level not in ("off", "token"):
        yield f"--algo.advantage.is_correction_level {correction.is_correction_level}: set off or token"
