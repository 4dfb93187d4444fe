"""Problem source: which problem comes when, in shuffled epochs, and its samples for rollout functions.

The n-th problem depends only on the problems, the seed and n. Each epoch has its own order. So one number is the whole
position, and a source continues exactly from it. In a later epoch a problem has another uid, `uid@1`, `uid@2`, …: it is
another group with other seeds.
"""

from collections.abc import Iterable, Mapping, MutableSequence, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from ramify.core.errors import ConfigError, ContractError
from ramify.core.problem import Problem
from ramify.core.seeds import tree_seed
from ramify.rows.sample import Sample

Groups = list[list[Sample]]


class ProblemSource:
    """An endless sequence of problems. Immutable."""

    def __init__(self, problems: Sequence[Problem], *, seed: int, shuffle: bool) -> None:
        if not problems:
            raise ConfigError("the data has no problem; a service needs at least one")
        self.problems = problems
        self._seed = seed
        self._shuffle = shuffle
        self._order = lru_cache(maxsize=4)(self._order_of)

    def __len__(self) -> int:
        """Problems in an epoch."""
        return len(self.problems)

    def epoch(self, number: int) -> int:
        """The epoch of the problem with this number."""
        return number // len(self.problems)

    def problem(self, number: int) -> Problem:
        """The problem with this number, from 0."""
        epoch, place = divmod(number, len(self.problems))
        problem = self.problems[self._order(epoch)[place]]
        return problem if not epoch else replace(problem, uid=f"{problem.uid}@{epoch}")

    def _order_of(self, epoch: int) -> Sequence[int]:
        if not self._shuffle:
            return range(len(self.problems))
        seed = tree_seed(self._seed, f"epoch {epoch}")
        return np.random.default_rng(seed).permutation(len(self.problems)).tolist()


class SampleSource:
    """Groups of samples for rollout functions; groups that were given back come first (THUDM/slime
    slime/rollout/data_source.py: RolloutDataSourceWithBuffer). Mutable; `state` returns its whole state.

    A group is `group_size` samples of one problem. `label_key` names the secret column that becomes their label; None =
    they have no label.
    """

    def __init__(self, source: ProblemSource, *, group_size: int, label_key: str | None = None) -> None:
        self._source = source
        self._group_size = group_size
        self._label_key = label_key
        self.num_drawn = 0
        """Groups drawn so far."""
        self.buffer: Groups = []
        """Groups that were given back and not taken since, oldest first."""

    def __len__(self) -> int:
        return len(self._source)

    def get_samples(self, num_samples: int) -> Groups:
        """`num_samples` groups, those of the buffer first. The caller may change them."""
        taken = self.buffer[:num_samples]
        del self.buffer[:num_samples]
        return [*taken, *(self._draw() for _ in range(num_samples - len(taken)))]

    def add_samples(self, samples: Iterable[Sequence[Sample]]) -> None:
        """Give groups back, also partial ones; they are taken before new ones. Raises `ContractError` for anything but
        non-empty groups of samples."""
        groups = [list(group) for group in samples]
        for group in groups:
            if not group or not all(isinstance(sample, Sample) for sample in group):
                raise ContractError(f"a group must be a list of samples, got {group!r:.200}")
        self.buffer.extend(groups)

    def state(self) -> dict[str, Any]:
        """The whole state as plain data, without gold answers; `load` reads those from the data again."""
        buffer = [[{**sample.to_dict(), "label": None} for sample in group] for group in self.buffer]
        return {"num_drawn": self.num_drawn, "buffer": buffer}

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state`."""
        self.num_drawn = state["num_drawn"]
        self.buffer = [[self._labelled(Sample.from_dict(sample)) for sample in group] for group in state["buffer"]]

    def _draw(self) -> list[Sample]:
        number, self.num_drawn = self.num_drawn, self.num_drawn + 1
        problem = self._source.problem(number)
        label = self._label_of(problem)
        first = number * self._group_size
        return [
            Sample(
                index=first + place,
                group_index=number,
                prompt=problem.question,
                label=label,
                metadata={**problem.public, "uid": problem.uid, "epoch": self._source.epoch(number)},
            )
            for place in range(self._group_size)
        ]

    def _labelled(self, sample: Sample) -> Sample:
        """The sample with the label of its group's problem. A sample without a group number is unchanged."""
        if sample.group_index is not None:
            sample.label = self._label_of(self._source.problem(sample.group_index))
        return sample

    def _label_of(self, problem: Problem) -> str | None:
        key = self._label_key
        if key is None:
            return None
        if key not in problem.secret:
            raise ConfigError(
                f"service.label_key = {key!r}: the secret of {problem.uid!r} has {sorted(problem.secret)}"
            )
        return str(problem.secret[key])


def flat(nested: Sequence[Any]) -> list[Any]:
    """The elements of nested lists of any depth: prompts, rollouts, samples."""
    found: MutableSequence[Any] = []
    for each in nested:
        found.extend(flat(each) if isinstance(each, list | tuple) else [each])
    return list(found)
