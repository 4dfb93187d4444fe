"""What AB-MCTS costs beside its random draws: microseconds an answer, and of the same draws made alone.

One search of 10,000 answers whose scores drift up from answer to answer, played without a driver. Its calls are timed
over the 100 answers before the 1,000th and the 10,000th; then the gammas, normals and betas that these drew, with the
same parameters, in a loop of their own; the best of some runs each. Target: at most 1.5 times, flat in the number.
"""

import copy
import time
from collections import deque
from itertools import product
from typing import Any

import numpy as np
from smoke import few

from ramify.core.codec import ByteCodec
from ramify.core.command import Command, Grow, Grown, Judged, Outcome, Score
from ramify.core.problem import Problem
from ramify.core.segment import Segment
from ramify.core.tree import Tree
from ramify.strategies.ab_mcts.a import ABMCTS, ABMCTSConfig, Family, Pending
from ramify.strategies.parts.posteriors import Variates

MARKS = few((900, 1_000, 9_900, 10_000), (9, 10, 19, 20))
RUNS = few(5, 1)
FAMILIES: tuple[Family, ...] = ("gaussian", "beta")
PENDING: tuple[Pending, ...] = ("pessimistic", "none")


class Noted:
    """A generator that notes the parameters of its draws, each call as an item: numbers or arrays."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)
        self.gammas: list[Any] = []
        self.betas: list[tuple[Any, Any]] = []

    def standard_gamma(self, shape: Any, /) -> Any:
        self.gammas.append(shape if isinstance(shape, float) else shape.copy())
        return self._rng.standard_gamma(shape)

    def standard_normal(self, size: Any = None, /) -> Any:
        return self._rng.standard_normal(size)

    def beta(self, a: Any, b: Any, /) -> Any:
        self.betas.append((a, b) if isinstance(a, float) else (a.copy(), b.copy()))
        return self._rng.beta(a, b)

    def random(self) -> float:
        return self._rng.random()

    def integers(self, low: int, /) -> int:
        return int(self._rng.integers(low))


class Growing(Tree):
    """A tree on which every node that the strategy is told of still grows. They are on no tree: it reads only that."""

    def stop(self, node: int) -> str | None:
        return None


class Play:
    """One search, and what its calls took up to each mark."""

    def __init__(self, config: ABMCTSConfig, rng: Variates) -> None:
        self.strategy = ABMCTS(config, rng)
        self.tree = Growing(
            Problem("p", "q"), ByteCodec(is_exact=True), [Segment("prompt", np.zeros(1, np.int32))], seed=0
        )
        self._waiting: deque[tuple[int, Command]] = deque()
        self._num_asked = self._num_told = 0
        self.scores = [0.4]
        """By node."""
        self._drift = np.random.default_rng(1)

    def run(self, num_answers: int) -> float:
        """Go on until so many answers were told, the longest in flight first; seconds of the calls."""
        seconds = 0.0
        while self._num_told < num_answers:
            began = time.perf_counter()
            commands = self.strategy.ask(self.tree)
            seconds += time.perf_counter() - began
            self._waiting.extend(enumerate(commands, self._num_asked))
            self._num_asked += len(commands)
            command_id, command = self._waiting.popleft()
            self._num_told += not isinstance(command, Grow)
            outcome = self._outcome(command_id, command)
            began = time.perf_counter()
            self.strategy.tell(self.tree, outcome)
            seconds += time.perf_counter() - began
        return seconds

    def _outcome(self, command_id: int, command: Command) -> Outcome:
        if isinstance(command, Grow):
            self.scores.append(float(np.clip(self.scores[command.node] + self._drift.normal(0.01, 0.15), 0, 1)))
            return Grown(command_id, (len(self.scores) - 1,), len(self.scores) - 1)
        node = command.nodes[0]  # pyright: ignore
        return Judged(command_id, (Score("llm", self.scores[node]),))


def seconds(config: ABMCTSConfig) -> list[float]:
    """Of the calls between the marks, in one search."""
    play = Play(config, np.random.default_rng(0))
    return [play.run(mark) for mark in MARKS]


def noted(config: ABMCTSConfig) -> list[Noted]:
    """The draws up to each mark."""
    rng, found = Noted(), list[Noted]()
    play = Play(config, rng)
    for mark in MARKS:
        play.run(mark)
        found.append(copy.deepcopy(rng))
    return found


def draws(rng: np.random.Generator, gammas: list[Any], betas: list[tuple[Any, Any]]) -> float:
    """Seconds of the draws alone."""
    began = time.perf_counter()
    for shape in gammas:
        rng.standard_gamma(shape)
        rng.standard_normal(None if isinstance(shape, float) else len(shape))
    for a, b in betas:
        rng.beta(a, b)
    return time.perf_counter() - began


def main() -> None:
    print(f"{'family':10} {'in flight':12} {'answers':>7} {'draws':>7} {'us/answer':>10} {'us draws':>9} {'ratio':>6}")
    for family, pending in product(FAMILIES, PENDING):
        config = ABMCTSConfig(num_answers=2 * MARKS[-1], family=family, in_flight=pending)
        took = np.min([seconds(config) for _ in range(RUNS)], axis=0)
        made = noted(config)
        for i in (1, 3):
            gammas, betas = made[i].gammas[len(made[i - 1].gammas) :], made[i].betas[len(made[i - 1].betas) :]
            num = MARKS[i] - MARKS[i - 1]
            us = 1e6 * took[i] / num
            alone = 1e6 * min(draws(np.random.default_rng(0), gammas, betas) for _ in range(RUNS)) / num
            count = (sum(map(np.size, gammas)) + sum(np.size(a) for a, _ in betas)) / num
            print(
                f"{family:10} {pending:12} {MARKS[i]:7} {count:7.1f} {us:10.1f} {alone:9.1f} {us / alone:6.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
