"""Shard: which problems of a run one process grows, when several processes share the run."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ramify.core.errors import ConfigError
from ramify.core.problem import Problem


@dataclass(frozen=True, slots=True)
class Shard:
    """One of `count` parts of a run: the problems whose index modulo `count` is `index`. Indices, seeds and shares of
    the run's limits stay those of the whole run, so a tree does not depend on how the run was divided."""

    index: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise ConfigError(f"shard {self.index!r} of {self.count!r}: shards are counted from 0")

    def owns(self, problem_index: int) -> bool:
        """Whether the problem with that index in its source belongs to this shard."""
        return problem_index % self.count == self.index

    def size(self, num_problems: int) -> int:
        """How many problems of a run belong to this shard."""
        return len(range(self.index, num_problems, self.count))

    def of(self, problems: Sequence[Problem]) -> "Portion":
        """The part of all problems of a run that belongs to this shard."""
        return Portion(self, tuple(problems[self.index :: self.count]), len(problems))


@dataclass(frozen=True, slots=True)
class Portion:
    """The problems of one shard. Growing it does not need the problems of the others."""

    shard: Shard
    problems: tuple[Problem, ...]
    num_problems: int
    """In the whole run."""

    def __post_init__(self) -> None:
        if len(self.problems) != self.shard.size(self.num_problems):
            raise ConfigError(f"{self.shard!r} of {self.num_problems} problems has not {len(self.problems)} of them")

    def items(self) -> Iterator[tuple[int, Problem]]:
        """Each problem with its index in the whole run."""
        return zip(range(self.shard.index, self.num_problems, self.shard.count), self.problems, strict=True)


WHOLE = Shard()
"""The whole run as one shard."""


def shards_of(count: int) -> tuple[Shard, ...]:
    """All shards of a run that is divided into `count`."""
    return tuple(Shard(index, count) for index in range(count))
