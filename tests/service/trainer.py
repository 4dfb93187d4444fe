"""A trainer as its rollout functions see it: arguments, a data source of slime's protocol, and a TOML file."""

import asyncio
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ramify.core.problem import Problem
from ramify.rows.sample import Sample
from ramify.testing.planned_faults import Fault
from ramify.testing.scripted import Scripted

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
expansion_iterations = 2
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


# -- functions that arguments name -------------------------------------------------------------------------------------

LOOPS: list[asyncio.AbstractEventLoop] = []
"""Loops that `noting` ran on."""


async def noting(args: Any, sample: Any) -> float:
    LOOPS.append(asyncio.get_running_loop())
    return 1.0


async def parts(args: Any, sample: Any) -> dict[str, Any]:
    return {"score": len(sample.response) % 3 / 2, "said": sample.response[:5], "gold": sample.label}


async def sized(args: Any, sample: Any) -> dict[str, float]:
    return {"score": len(sample.response) % 3 / 2, "size": float(len(sample.response))}


async def raising(args: Any, sample: Any) -> float:
    raise ValueError("the reward server is away")


async def raising_at_times(args: Any, sample: Any) -> float:
    """For one leaf in thirteen."""
    if sum(sample.tokens) % 13 == 0:
        raise ValueError("the reward server is away")
    return len(sample.response) % 2


async def nan(args: Any, sample: Any) -> float:
    return float("nan")


async def by_group(args: Any, sample: Any) -> float:
    """Equal for all leaves of every other group."""
    return float(sample.group_index % 2 == 1 and len(sample.response) % 2 == 1)


async def equal(args: Any, sample: Any) -> float:
    return 0.5


@dataclass(frozen=True)
class Said:
    """slime's `DynamicFilterOutput`."""

    keep: bool
    reason: str | None = None
    keep_when_insufficient: bool = False


def by_spread(args: Any, samples: list[Any], **_: Any) -> Said:
    return Said(len({sample.reward for sample in samples}) > 1, "zero_std")


def if_there_are_enough(args: Any, samples: list[Any], **_: Any) -> Said:
    return Said(keep=False, keep_when_insufficient=True)


def never(args: Any, samples: list[Any]) -> bool:
    return False


def first_only(args: Any, groups: list[list[Any]]) -> None:
    for sample in flat(groups):
        sample.remove_sample = sample is not groups[0][0]


def counted(args: Any, groups: list[list[Any]], source: Any) -> None:
    args.num_processed = len(groups)


class Flaky(Scripted):
    """An engine of which every other call fails for good."""

    def __init__(self) -> None:
        super().__init__(faults=[Fault("error", share=0.5, is_retryable=False)])
