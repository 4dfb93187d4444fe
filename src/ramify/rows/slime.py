"""slime: rows as samples, and samples as the training data that slime's default converter makes.

Source: THUDM/slime slime/ray/rollout.py `_convert_samples_to_train_data`. Groups are numbered by uid, so trees of
different sizes need no fixed positions. Only one field carries per-token numbers through slime unchanged: `rewards`. It
holds each row's per-token advantages, with weights, for a `--custom-advantage-function-path` to read. `raw_reward`
stays one number per row. On a sample, the advantages are in `train_metadata["advantages"]`. Files are JSON lines;
samples may also be a debug file of slime (`slime_files`).
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count, groupby
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from ramify.core.codec import Codec
from ramify.core.errors import ExportError
from ramify.core.stop import ROULETTE
from ramify.credit import group_advantages
from ramify.credit.group import Kind
from ramify.rows.files import write_lines
from ramify.rows.gold import as_text
from ramify.rows.groups import GroupBy, group_keys, numbered
from ramify.rows.records import about, decimals, plain, sampled_by
from ramify.rows.row import Row
from ramify.rows.sample import Sample, SampleStatus
from ramify.rows.sft import Example
from ramify.rows.slime_files import write_samples
from ramify.rows.tensors import CreditBy, refuse_several_scales

Mean = Literal["tokens", "rollouts"]
"""How slime's loss weighs tokens. tokens: each alike. rollouts: slime's own mean over each rollout first, which is not
exact."""
Rollouts = Literal["leaf", "tree"]
"""Which samples share a `rollout_id`. leaf: none, each leaf is a rollout. tree: all samples of a tree are one
rollout."""
ADVANTAGES = "advantages"
POSITIVE = "positive"
"""The part of each advantage that leaves with positive advantages give (`RowSpan.positive`)."""
UNTRAINED: Final = ("rollout_routed_experts", "rollout_top_p_token_ids", "multimodal_train_inputs")
"""Attributes that slime's samples may carry for its trainer. Training data made here does not hold them."""


def samples(
    rows: Sequence[Row],
    *,
    rollouts: Rollouts = "leaf",
    group_by: GroupBy = "uid",
    credit_by: CreditBy = "tree",
    reward_key: str | None = None,
    codec: Codec | None = None,
    gold: str | None = None,
) -> list[Sample]:
    """One sample per row, numbered in their order.

    `reward_key`: the part of the reward that is trained; rewards are then mappings of parts. `codec`: if given, prompt
    and response are also written as text, for people. `gold`: the public column of the gold answers, which becomes the
    label. Raises `ExportError` for two trees in one group, for a missing part, and for advantages of several
    normalisers.
    """
    if credit_by == "tree":
        refuse_several_scales(rows)
    groups = numbered(group_keys(rows, by=group_by))
    return [
        replace(
            _labelled(_sample(row, codec, reward_key, credit_by), gold),
            index=index,
            group_index=group,
            rollout_id=index if rollouts == "leaf" else group,
        )
        for index, (row, group) in enumerate(zip(rows, groups, strict=True))
    ]


def sft_samples(examples: Iterable[Example]) -> list[Sample]:
    """One sample per example, with reward 0. The response begins at the first trained token. Raises `ExportError` for
    an example without tokens."""
    made: list[Sample] = []
    for index, example in enumerate(examples):
        if example.ids is None or example.mask is None:
            raise ExportError(f"example {index} of {example.uid!r} has messages and no tokens, which slime trains")
        start = _first(example.mask)
        made.append(
            Sample(
                status=SampleStatus.COMPLETED,
                index=index,
                group_index=index,
                rollout_id=index,
                tokens=example.ids.tolist(),
                response_length=len(example.ids) - start,
                reward=0.0,
                loss_mask=example.mask[start:].astype(int).tolist(),
                metadata=plain(example.public, "public"),
            )
        )
    return made


def train_data(batch: Sequence[Sample], *, reward_key: str | None = None) -> dict[str, list[Any]]:
    """Key -> a value for each sample, as the default converter makes them.

    `rewards` are the samples' per-token advantages if all samples have them, otherwise their plain rewards; see
    `normalised`. Raises `ExportError` if some samples have a key and others lack it, and for a sample that carries
    what the data would not hold.
    """
    for sample in batch:
        sample.check()
        _refuse_untrained(sample)
    rollout_ids = _rollout_ids(batch)
    masks = [sample.mask() for sample in batch]
    sums: dict[int, int] = {}
    for rollout, mask in zip(rollout_ids, masks, strict=True):
        sums[rollout] = sums.get(rollout, 0) + sum(mask)
    raw = [sample.reward_value(reward_key) for sample in batch]
    advantages = _of_all(batch, ADVANTAGES, [(sample.train_metadata or {}).get(ADVANTAGES) for sample in batch])
    data: dict[str, list[Any]] = {
        "tokens": [list(sample.tokens) for sample in batch],
        "response_lengths": [sample.response_length for sample in batch],
        "rewards": advantages or raw,
        "raw_reward": [s.metadata.get("raw_reward", value) for s, value in zip(batch, raw, strict=True)],
        "truncated": [int(sample.status == SampleStatus.TRUNCATED) for sample in batch],
        "sample_indices": [sample.index for sample in batch],
        "rollout_ids": rollout_ids,
        "loss_masks": masks,
        "rollout_mask_sums": [sums[rollout] for rollout in rollout_ids],
        "source_names": [sample.metadata.get("source_name") or "unknown" for sample in batch],
    }
    optional = {
        "round_number": [sample.metadata.get("round_number") for sample in batch],
        "rollout_log_probs": [sample.rollout_log_probs for sample in batch],
        "teacher_log_probs": [sample.teacher_log_probs for sample in batch],
        "metadata": [sample.train_metadata for sample in batch],
    }
    return {**data, **{name: found for name, values in optional.items() if (found := _of_all(batch, name, values))}}


def even_sums(data: Mapping[str, Sequence[Any]]) -> list[float]:
    """`rollout_mask_sums` by which each trained token weighs the same: the mean number of trained tokens per rollout,
    for every row. slime divides a rollout's loss by it."""
    num_tokens = sum(map(sum, data["loss_masks"]))
    return [num_tokens / len(set(data["rollout_ids"]))] * len(data["rollout_ids"])


def normalised(
    batch: Sequence[Sample], *, kind: Kind = "grpo", reward_key: str | None = None
) -> tuple[list[float], list[float]]:
    """(raw rewards, advantages in their groups), for a `--custom-reward-post-process-path`.

    If groups differ in size, slime's own function treats the whole batch as one group. This one uses `group_index`.
    Raises `ExportError` for a sample without `group_index`.
    """
    if lone := [sample.index for sample in batch if sample.group_index is None]:
        raise ExportError(f"samples {lone[:8]} have no group_index, so nothing says whose rewards they compare with")
    raw = np.array([sample.reward_value(reward_key) for sample in batch])
    groups = numbered([str(sample.group_index) for sample in batch])
    advantages = np.zeros(len(batch))
    for group in set(groups):
        places = np.flatnonzero(np.array(groups) == group)
        advantages[places] = group_advantages(raw[places], kind)
    return raw.tolist(), advantages.tolist()


def write(
    rows: Iterable[Row],
    path: Path,
    *,
    rollouts: Rollouts = "leaf",
    group_by: GroupBy = "uid",
    credit_by: CreditBy = "tree",
    reward_key: str | None = None,
    gold: str | None = None,
    force: bool = False,
) -> int:
    """Write one sample per line; a name that ends in `.pt` gets slime's debug file, which needs torch.

    - `reward_key`: part of the reward that is trained, if rewards have parts; None = the reward itself.
    - `gold`: public column of the gold answers; None = rows have none.
    - `force`: whether to replace what an earlier export made; anything else there raises `ExportError`.
    """
    made = samples(
        list(rows), rollouts=rollouts, group_by=group_by, credit_by=credit_by, reward_key=reward_key, gold=gold
    )
    return write_samples(made, path, force=force)


def write_train_data(
    rows: Iterable[Row],
    path: Path,
    *,
    rollouts: Rollouts = "leaf",
    group_by: GroupBy = "uid",
    credit_by: CreditBy = "tree",
    reward_key: str | None = None,
    mean: Mean = "tokens",
    force: bool = False,
) -> int:
    """Write the training data of all rows, one line per row with its value for every key.

    - `mean`: what slime's loss divides by, where advantages go along: `tokens` weighs every trained token alike;
      `rollouts` is slime's own mean over each rollout first.
    - `reward_key`: part of the reward that is trained, if rewards have parts; None = the reward itself.
    - `force`: whether to replace what an earlier export made; anything else there raises `ExportError`.
    """
    made = samples(list(rows), rollouts=rollouts, group_by=group_by, credit_by=credit_by, reward_key=reward_key)
    data = train_data(made, reward_key=reward_key)
    if made and credit_by == "tree" and mean == "tokens":
        data["rollout_mask_sums"] = even_sums(data)
    lines = (dict(zip(data, values, strict=True)) for values in zip(*data.values(), strict=True))
    return write_lines(lines, path, force=force)


def read(path: Path) -> list[Sample]:
    """The samples that `write` wrote. Raises `ExportError` for a line that is no sample."""
    made: list[Sample] = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            made.append(Sample.from_dict(msgspec.json.decode(line, type=dict[str, Any])))
        except (msgspec.DecodeError, ExportError) as error:
            raise ExportError(f"{path}:{number}: this is no sample: {error}") from error
    return made


def was_ended_by_coin(sample: Sample) -> bool:
    """Whether random termination (a coin) ended the path of the row behind this sample. Its reward of 0 is then no real
    reward."""
    said = (sample.metadata or {}).get("ramify")
    return isinstance(said, Mapping) and said.get("stop") == ROULETTE


def _sample(row: Row, codec: Codec | None, reward_key: str | None, credit_by: CreditBy) -> Sample:
    start = _first(row.is_sampled)
    logprobs = row.logprobs[start:]
    is_known = not np.isnan(logprobs[row.weights[start:] > 0]).any()
    parts = {reward_key: row.reward} if reward_key is not None and row.stop == ROULETTE else dict(row.parts)
    if reward_key is not None and reward_key not in parts:
        raise ExportError(f"row {row.leaf} of {row.uid!r} has no part {reward_key!r}; it has {sorted(row.parts)}")
    public = plain(row.public, "public")
    source = {"source_name": public["data_source"]} if public.get("data_source") else {}
    return Sample(
        status=SampleStatus.TRUNCATED if row.is_truncated else SampleStatus.COMPLETED,
        prompt="" if codec is None else codec.decode(row.ids[:start]),
        tokens=row.ids.tolist(),
        response="" if codec is None else codec.decode(row.ids[start:]),
        response_length=len(row) - start,
        reward=row.reward if reward_key is None else parts,
        loss_mask=(row.weights[start:] > 0).astype(int).tolist(),
        weight_versions=[str(version) for version, _ in groupby(s.version for s in row.spans if s.version is not None)],
        rollout_log_probs=[x or 0.0 for x in decimals(logprobs)] if is_known else None,
        metadata={
            **source,
            **public,
            "round_number": row.num_turns,
            "ramify": {"uid": row.uid, **about(row), **sampled_by(row)},
        },
        train_metadata=_trained(row, start) if credit_by == "tree" else None,
    )


def _trained(row: Row, start: int) -> dict[str, list[float]]:
    """What each token of the response is trained with. The positive parts are said where some token has both."""
    found = {ADVANTAGES: row.trained[start:].tolist()}
    positive = (row.weights * row.positive)[start:]
    is_mixed = (positive > 0) & (row.trained[start:] < positive)
    return {**found, POSITIVE: positive.tolist()} if is_mixed.any() else found


def _labelled(sample: Sample, gold: str | None) -> Sample:
    """The sample with the gold answer in its label and not in its metadata. A list of alternatives is JSON text."""
    if gold is None:
        return sample
    answer = as_text(sample.metadata[gold])
    label = answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
    return replace(sample, label=label, metadata={k: v for k, v in sample.metadata.items() if k != gold})


def _first(flags: npt.NDArray[np.bool_]) -> int:
    """Where the response begins: at the first set flag."""
    return int(np.argmax(flags)) if flags.any() else len(flags)


def _refuse_untrained(sample: Sample) -> None:
    if carried := [name for name in UNTRAINED if vars(sample).get(name) is not None]:
        raise ExportError(
            f"sample {sample.index} carries {', '.join(carried)}, which this converter does not hand on; use slime's "
            "own converter for such samples"
        )


def _rollout_ids(batch: Sequence[Sample]) -> list[int]:
    """The samples' rollout ids. Samples without one get the smallest unused numbers."""
    taken = {sample.rollout_id for sample in batch}
    free = (number for number in count() if number not in taken)
    return [next(free) if sample.rollout_id is None else sample.rollout_id for sample in batch]


def _of_all(batch: Sequence[Sample], name: str, values: Sequence[Any]) -> list[Any] | None:
    """`values` if every sample has one; None if no sample has one. Raises `ExportError` if only some have one."""
    lacking = [sample.index for sample, value in zip(batch, values, strict=True) if value is None]
    if 0 < len(lacking) < len(batch):
        raise ExportError(f"{name}: samples {lacking[:8]} lack what others of the batch have; give it to all, or none")
    return None if lacking or not batch else list(values)
