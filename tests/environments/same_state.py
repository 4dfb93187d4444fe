"""Compares episodes that were forked, replayed and left alone."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ramify.core.environment import AgentTurn, Environment, Episode, Observation
from ramify.core.problem import Problem

Moves = Callable[[random.Random, str], str]
"""Chooses an action: a generator, and the last text."""
MAX_PARKED = 6


@dataclass(slots=True)
class Path:
    """An episode, and how it came to its state."""

    episode: Episode
    steps: list[tuple[str, int, Observation, str | None]] = field(default_factory=list[Any])
    text: str = ""

    @property
    def is_over(self) -> bool:
        return bool(self.steps) and self.steps[-1][2].end is not None

    async def step(self, action: str, seed: int) -> Observation:
        observed = await self.episode.step(AgentTurn(action), seed)
        self.steps.append((action, seed, observed, self.episode.digest()))
        self.text = observed.text
        return observed


async def compare_forks_with_replays(
    environment: Environment, problem: Problem, moves: Moves, *, num_turns: int = 1000, is_digested: bool = True
) -> None:
    """Step at random for `num_turns` turns. Every child has the state that a replay has, and moves nobody else."""
    rng = random.Random(0)
    fork = environment.branching == "fork"
    paths = [Path(await environment.open(problem, 1), text=problem.question)]
    done = 0
    while done < num_turns:
        parent = rng.choice(paths)
        before = parent.episode.digest()
        assert (before is not None) == is_digested
        if fork and not parent.is_over:
            child = Path(await parent.episode.fork(), list(parent.steps), parent.text)
            assert child.episode.digest() == before
        else:
            child = Path(await environment.open(problem, 1), text=problem.question)
        while not child.is_over and rng.random() < 0.85:
            await child.step(moves(rng, child.text), rng.getrandbits(64))
            done += 1
        assert parent.episode.digest() == before
        other = await environment.open(problem, 1)
        for action, seed, observed, digest in child.steps:
            assert await other.step(AgentTurn(action), seed) == observed
            assert other.digest() == digest
            done += 1
        await other.close()
        if not parent.is_over and parent.steps:  # The parent goes on as if there were no child.
            await parent.step(moves(rng, parent.text), rng.getrandbits(64))
            done += 1
        paths.append(child)
        if len(paths) > MAX_PARKED:
            await paths.pop(rng.randrange(len(paths))).episode.close()
    for path in paths:
        await path.episode.close()


async def compare_siblings(environment: Environment, problem: Problem, actions: Sequence[str]) -> None:
    """Two copies that do the same with the same seeds stay equal; with an episode between them that does other things,
    too."""
    first = await environment.open(problem, 1)
    second = await (first.fork() if environment.branching == "fork" else environment.open(problem, 1))
    third = await (first.fork() if environment.branching == "fork" else environment.open(problem, 1))
    for number, action in enumerate(actions):
        observed = await first.step(AgentTurn(action), number)
        await third.step(AgentTurn(actions[-1 - number]), number + 1000)
        assert await second.step(AgentTurn(action), number) == observed
        assert first.digest() == second.digest()
        if observed.end is not None or number == len(actions) // 2:
            break
    for episode in (first, second, third):
        await episode.close()
