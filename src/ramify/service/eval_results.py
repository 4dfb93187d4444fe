"""Eval results: the results of each data set, from samples or from a user's function, whose result is checked here.

A missing reward is None, never 0. A sample's uid, or its group, says which problem it answers; its position does not.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np

from ramify.core.errors import ContractError, ExportError
from ramify.rows.sample import Sample, SampleStatus, sample_of


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalResult:
    """The results of one data set; every sequence has one value per sample. Raises `ContractError`."""

    name: str
    rewards: tuple[float | None, ...]
    """None = not judged."""
    problems: tuple[str, ...] | None = None
    """The problem that each sample answers; None = unknown, so there is no pass@k and no standard error."""
    is_truncated: tuple[bool, ...] | None = None
    response_lengths: tuple[int, ...] | None = None
    """Tokens, including observations."""
    samples: tuple[Sample, ...] | None = None

    def __post_init__(self) -> None:
        if not self.name or not self.name.isprintable():
            raise ContractError(
                f"data set {self.name!r}: its name is part of those of its figures, and must be printable"
            )
        if not self.rewards:
            raise ContractError(f"data set {self.name!r} has no sample: there is nothing to evaluate")
        lengths = {
            "problems": self.problems,
            "truncated": self.is_truncated,
            "response lengths": self.response_lengths,
            "samples": self.samples,
        }
        for what, values in lengths.items():
            if values is not None and len(values) != len(self.rewards):
                raise ContractError(
                    f"data set {self.name!r} has {len(self.rewards)} rewards and {len(values)} {what}: "
                    "give one per reward"
                )
        if odd := [reward for reward in self.rewards if reward is not None and not math.isfinite(reward)]:
            raise ContractError(f"data set {self.name!r} has the reward {odd[0]!r}; give a finite number, or None")

    @property
    def judged(self) -> list[float]:
        """The rewards that are not None."""
        return [reward for reward in self.rewards if reward is not None]

    @property
    def by_problem(self) -> dict[str, list[float]]:
        """Problem -> its rewards, for problems that have any. Empty if the problems are unknown."""
        return grouped(self.problems, self.rewards)


def eval_result(name: str, samples: Sequence[Sample], *, reward_key: str | None = None) -> EvalResult:
    """The result of one data set from its samples, in any order, with several samples per problem.

    Raises `ContractError` for no samples, `ExportError` for a reward that has parts but none called `reward_key`.
    """
    return EvalResult(
        name=name,
        rewards=tuple(reward_of(sample, reward_key) for sample in samples),
        problems=_problems(samples),
        is_truncated=tuple(sample.status == SampleStatus.TRUNCATED for sample in samples),
        response_lengths=tuple(sample.response_length for sample in samples),
        samples=tuple(samples),
    )


def eval_results(data: Any, *, function: str) -> list[EvalResult]:
    """Check what a user's function returned for its data sets: name -> `rewards`, and optionally `truncated` and
    `samples`.

    `function` is its name in messages. Raises `ContractError` that names the function and the faulty key.
    """
    if not isinstance(data, Mapping) or not data:
        raise ContractError(f"{function} gave {data!r:.200}; it must give a mapping of data sets to their rewards")
    return [_given(name, entry, f"{function} gave data[{name!r}]") for name, entry in data.items()]


def numbers(metrics: Any, *, function: str) -> dict[str, float]:
    """The user's own metrics, checked: names and numbers. A number may be infinite or NaN. Raises `ContractError`."""
    if not isinstance(metrics, Mapping) or not all(isinstance(name, str) and name for name in metrics):
        raise ContractError(f"{function} gave the metrics {metrics!r:.200}; it must give a mapping of names to numbers")
    return {name: number(value, f"{function} gave metrics[{name!r}]") for name, value in metrics.items()}


def number(value: Any, what: str) -> float:
    """`value` as a number. Raises `ContractError`, with a message that begins with `what`, for anything else."""
    if not isinstance(value, Real | np.bool_):
        raise ContractError(f"{what} = {value!r:.200}; it must be a number")
    return float(value)


def reward_of(sample: Sample, reward_key: str | None) -> float | None:
    """A sample's reward; None = not judged. Raises `ExportError` if it has parts but none called `reward_key`."""
    parts = sample.reward
    if not isinstance(parts, Mapping):
        return None if parts is None else sample.reward_value()
    return None if parts.get(reward_key or "", parts) is None else sample.reward_value(reward_key)


def groups_of(samples: Sequence[Sample]) -> tuple[str, ...] | None:
    """Each sample's group; None = no sample has one. Raises `ContractError` if only some samples have one."""
    return _of_all("group_index", [None if s.group_index is None else str(s.group_index) for s in samples])


def grouped(keys: Sequence[str] | None, rewards: Sequence[float | None]) -> dict[str, list[float]]:
    """Key -> the rewards of its judged samples; keys without any are left out."""
    groups: dict[str, list[float]] = {}
    for key, reward in zip(keys or (), rewards if keys else (), strict=True):
        if reward is not None:
            groups.setdefault(key, []).append(reward)
    return groups


def _problems(samples: Sequence[Sample]) -> tuple[str, ...] | None:
    """The problem of each sample: its uid, or the number of its group if samples have no uid."""
    return _of_all("uid", [_uid(sample) for sample in samples]) or groups_of(samples)


def _uid(sample: Sample) -> str | None:
    ours = sample.metadata.get("ramify")
    uid = ours.get("uid") if isinstance(ours, Mapping) else None
    return None if uid is None else str(uid)


def _of_all(what: str, keys: Sequence[str | None]) -> tuple[str, ...] | None:
    known = tuple(key for key in keys if key is not None)
    if known and len(known) < len(keys):
        raise ContractError(
            f"sample {keys.index(None)} has no {what} and others have one: give it to all samples or to none"
        )
    return known or None


def _given(name: Any, entry: Any, what: str) -> EvalResult:
    """One data set as a user's function returned it."""
    if not isinstance(name, str) or not isinstance(entry, Mapping) or "rewards" not in entry:
        raise ContractError(f"{what} = {entry!r:.200}; it needs a name and 'rewards', one per sample")
    rewards = _listed(entry, "rewards", what)
    truncated = None if entry.get("truncated") is None else _flags(entry, what)
    has_samples = entry.get("samples") is not None
    try:
        samples = tuple(map(sample_of, _listed(entry, "samples", what))) if has_samples else None
        return EvalResult(
            name=name,
            rewards=tuple(None if r is None else number(r, f"rewards[{i}]") for i, r in enumerate(rewards)),
            problems=None if samples is None else _problems(samples),
            is_truncated=truncated,
            response_lengths=None if samples is None else tuple(sample.response_length for sample in samples),
            samples=samples,
        )
    except (ContractError, ExportError) as error:
        raise ContractError(f"{what}: {error}") from None


def _listed(entry: Mapping[str, Any], key: str, what: str) -> Sequence[Any]:
    if not isinstance(values := entry[key], list | tuple | np.ndarray):
        raise ContractError(f"{what}[{key!r}] = {values!r:.200}; it must be a list, one value per sample")
    return list(values)


def _flags(entry: Mapping[str, Any], what: str) -> tuple[bool, ...]:
    values = _listed(entry, "truncated", what)
    if odd := [value for value in values if not isinstance(value, Real | np.bool_) or value not in (0, 1)]:
        raise ContractError(f"{what}['truncated'] holds {odd[0]!r:.200}; each must be 0 or 1")
    return tuple(map(bool, values))
