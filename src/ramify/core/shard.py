"""Shard: which of a run's problems one process grows, where several share the run."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ramify.core.errors import ConfigError
from ramify.core.problem import Problem


@dataclass(frozen=True, slots=True)
class Shard:
    """One of `count` parts of a run: the problems whose index leaves the remainder `index`. Indices, seeds and shares
    of the run's limits stay those of the whole run, so that a tree does not depend on how the run was divided."""

    index: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise ConfigError(f"shard {self.index!r} of {self.count!r}: shards are counted from 0")

    def owns(self, problem_index: int) -> bool:
        """Whether the problem at that place of its source is this shard's."""
        return problem_index % self.count == self.index

    def size(self, num_problems: int) -> int:
        """How many of a run's problems are this shard's."""
        return len(range(self.index, num_problems, self.count))

    def of(self, problems: Sequence[Problem]) -> "Portion":
        """This shard's of all problems of a run."""
        return Portion(self, tuple(problems[self.index :: self.count]), len(problems))


@dataclass(frozen=True, slots=True)
class Portion:
    """The problems of one shard; those of the others are not needed to grow it."""

    shard: Shard
    problems: tuple[Problem, ...]
    num_problems: int
    """Of the whole run."""

    def __post_init__(self) -> None:
        if len(self.problems) != self.shard.size(self.num_problems):
            raise ConfigError(f"{self.shard!r} of {self.num_problems} problems has not {len(self.problems)} of them")

    def items(self) -> Iterator[tuple[int, Problem]]:
        """Each with its index in the whole run."""
        return zip(range(self.shard.index, self.num_problems, self.shard.count), self.problems, strict=True)


WHOLE = Shard()
"""All of a run."""


def shards_of(count: int) -> tuple[Shard, ...]:
    """All parts of a run that is divided into `count`."""
    return tuple(Shard(index, count) for index in range(count))
