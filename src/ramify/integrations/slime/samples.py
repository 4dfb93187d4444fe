"""Slime samples: turns a group of a trainer's samples into a problem, and fills a tree's rows back into the samples.

Samples may be of any class that the data source makes: they are read and filled by attribute names, `Status` by its
values. Invariant: a sample's index, group_index, prompt and label do not change.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from ramify.core.codec import Codec
from ramify.core.errors import ConfigError
from ramify.core.problem import Problem
from ramify.integrations.prompts import question_of
from ramify.integrations.slime.rewards import ASKED, RewardRequest
from ramify.judges.exact import ANSWER
from ramify.rows.row import Row
from ramify.rows.sample import Sample
from ramify.rows.slime import Rollouts, samples, was_ended_by_coin

FILLED: Final = (
    "tokens", "response", "response_length", "loss_mask", "rollout_log_probs", "weight_versions", "train_metadata"
)  # fmt: skip
"""Attributes that are copied from a row's sample unchanged."""


@dataclass(frozen=True, slots=True, eq=False)
class SlimeGroup:
    """The samples of one prompt; each will hold one leaf of one tree."""

    number: int
    """Position in the draws of a call."""
    samples: list[Any]
    problem: Problem

    @property
    def asked(self) -> RewardRequest:
        return self.problem.secret[ASKED]


def group_of(
    given: Sequence[Any], number: int, *, rollout_id: int | str, system: str | None = None, args: Any = None,
    reward_key: str | None = None,
) -> SlimeGroup:  # fmt: skip
    """A group as a problem. Its uid names the group and the batch, so a prompt that is drawn again grows another tree.

    `system`: the text that the run's format puts before every question; messages may repeat it. Raises `ConfigError`.
    """
    first = given[0]
    metadata = dict(first.metadata or {})
    secret = {} if first.label is None else {ANSWER: first.label}
    problem = Problem(
        uid=f"{_name(first, number)}@{rollout_id}",
        question=question_of(first.prompt, system),
        public={key: value for key, value in metadata.items() if key != "ramify"},
        secret={**secret, ASKED: RewardRequest(args, first, reward_key)},
    )
    return SlimeGroup(number, list(given), problem)


def fill(group: SlimeGroup, rows: Sequence[Row], *, codec: Codec, rollouts: Rollouts, reward_key: str | None) -> None:
    """Fill the group's samples with the rows of its tree, one row per sample, in order. Mutates the samples."""
    _refuse_shared_rollout(group, rollouts)
    # Parts that the trainer's reward returned are passed on unchanged. Random termination of a path gives no parts.
    key = None if group.asked.said else reward_key
    # The problem's columns are already in the sample's metadata, with their own types.
    made = samples([replace(row, public={}) for row in rows], group_by="tree", reward_key=key, codec=codec)
    first = group.samples[0]
    for sample, row, leaf in zip(group.samples, rows, made, strict=True):
        for name in FILLED:
            setattr(sample, name, getattr(leaf, name))
        sample.status = type(sample).Status(leaf.status.value)
        said = group.asked.said.get((row.ids.tobytes(), row.reward))
        sample.reward = _reward(leaf, reward_key) if said is None else dict(said)
        sample.metadata = {**(sample.metadata or {}), **leaf.metadata}
        sample.rollout_id = sample.index if rollouts == "leaf" else first.index


def _reward(leaf: Sample, reward_key: str | None) -> Any:
    """The reward of a leaf for which the trainer's function returned no mapping, in the form that the trainer reads."""
    return {reward_key: 0.0} if reward_key is not None and was_ended_by_coin(leaf) else leaf.reward


def plain_samples(batch: Sequence[Any]) -> list[Sample]:
    """A trainer's samples as ours."""
    return [sample if isinstance(sample, Sample) else Sample.from_dict(sample.to_dict()) for sample in batch]


def _name(sample: Any, number: int) -> str:
    """A name for the group: from its `group_index`, else from the index of the sample, else from its draw number."""
    if sample.group_index is not None:
        return f"group-{sample.group_index}"
    return f"draw-{number}" if sample.index is None else f"sample-{sample.index}"


def _refuse_shared_rollout(group: SlimeGroup, rollouts: Rollouts) -> None:
    """Refuse to make a tree one rollout if the samples have no index to name it."""
    if rollouts == "tree" and len(group.samples) > 1 and group.samples[0].index is None:
        raise ConfigError("ramify_rollouts = 'tree' needs samples with an index: the data source must set it")
