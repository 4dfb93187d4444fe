"""A trainer as its rollout functions see it: arguments, a data source of slime's protocol, and a TOML file."""

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ramify.core.problem import Problem
from ramify.rows.sample import Sample

TREES = """
[task]
name = "countdown"
[engine]
name = "scripted"
[strategy]
name = "offline"
[strategy.options]
initial_rollouts = 3
beam_size = 2
expansion_iterations = 1
[judges.countdown]
kind = "tests.service.trainer:length"
"""
"""Trees of 5 leaves of random agents, rewarded by what they say."""


def length(text: str, problem: Problem) -> float:
    """A reward that differs from leaf to leaf."""
    return len(text) % 7 / 6


def question(number: int) -> str:
    return f"make {number + 2} from 1 2"


@dataclass
class Source:
    """Groups of n as slime's `RolloutDataSourceWithBuffer` gives them: the buffer first, counters for all."""

    n: int = 4
    num_left: int = 10_000
    """Groups before the data ends."""
    metadata: dict[str, Any] = field(default_factory=dict)
    label: str | None = "3"
    buffer: list[list[Any]] = field(default_factory=list)
    drawn: list[list[Any]] = field(default_factory=list)
    _num_groups: int = 0

    def get_samples(self, num_samples: int) -> list[list[Any]]:
        groups = [self.buffer.pop(0) for _ in range(min(num_samples, len(self.buffer)))]
        while len(groups) < num_samples and self._num_groups < self.num_left:
            groups.append(self._group())
        self.drawn += groups
        return groups

    def add_samples(self, samples: list[list[Any]]) -> None:
        assert all(len(group) == self.n for group in samples)
        self.buffer += samples

    def _group(self) -> list[Any]:
        number, self._num_groups = self._num_groups, self._num_groups + 1
        return [
            Sample(
                index=number * self.n + place,
                group_index=number,
                prompt=question(number),
                label=self.label,
                metadata=dict(self.metadata),
            )
            for place in range(self.n)
        ]


def arguments(folder: Path, toml: str = TREES, **given: Any) -> Namespace:
    """Arguments of a trainer whose TOML says this; two groups of four a batch."""
    path = folder / "run.toml"
    path.write_text(toml, "utf-8")
    usual = {"n_samples_per_prompt": 4, "rollout_batch_size": 2, "ramify_config": str(path)}
    return Namespace(**{**usual, **given})


def flat(groups: Sequence[Sequence[Any]]) -> list[Any]:
    return [sample for group in groups for sample in group]
