"""Small worlds for the tests of environments."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import ramify
from ramify.core.environment import AgentTurn, Observation
from ramify.core.judge import Verdict
from ramify.core.problem import Problem
from ramify.environments.blocking import BlockingEnvironment

MCTS = {
    "strategy.options": {
        "n": 12, "in_flight": 1, "value": "rollout", "judge": "", "outcome": "environment", "value_range": None,
    },
}  # fmt: skip
"""A search whose values are the rewards of probes."""


def paths_of(task: Any, preset: str, *, seed: int = 1, prompts: int = 2) -> list[Any]:
    """Grow trees with the scripted engine: for each tree, its nodes in an order that does not depend on which came
    first: the words on the way to a node, its stop word and its reward."""
    options: dict[str, Any] = {"engine.name": "scripted", "max_failed_share": 0.0, **(MCTS if preset == "mcts" else {})}
    grown = ramify.rollout_sync(task=task, preset=preset, prompts=prompts, seed=seed, **options)
    return sorted(map(_nodes, grown.trees))


def _nodes(tree: Any) -> list[tuple[str, str, str]]:
    words: list[str] = []
    for node in range(len(tree)):
        above = "" if (parent := tree.parent(node)) is None else words[parent]
        words.append(above + "".join(tree.codec.decode(segment.ids) for segment in tree.segments(node)))
    return sorted((words[node], str(tree.stop(node)), str(tree.reward(node))) for node in range(len(tree)))


@dataclass
class Walk:
    """A walk on a line with slips: right is +1; each step may slip by the seed. Ends at 3."""

    place: int = 0
    num_steps: int = 0
    said: list[str] = field(default_factory=list)

    def step(self, turn: AgentTurn, seed: int) -> Observation:
        self.num_steps += 1
        self.said.append(turn.text)
        slip = random.Random(seed).random() < 0.3
        self.place += -1 if slip else 1
        end = "done" if self.place >= 3 else "truncated" if self.num_steps >= 8 else None
        return Observation(
            f"you are at {self.place}", reward=1.0 if end == "done" else -0.1, end=end, parts={"slips": float(slip)}
        )

    def copy(self) -> "Walk":
        return Walk(self.place, self.num_steps, list(self.said))

    def digest(self) -> str | None:
        return f"{self.place}:{self.num_steps}"

    def score(self, said: str, problem: Problem) -> Verdict | None:
        return Verdict(float(self.place), {"place": float(self.place)})

    def close(self) -> None:
        pass


@dataclass(frozen=True, kw_only=True)
class Walking(BlockingEnvironment):
    name: ClassVar[str] = "walking"

    def problems(self, split: str, num_problems: int, seed: int) -> Sequence[Problem]:
        return [Problem(f"walk-{seed}-{i}", "walk to 3; you are at 0") for i in range(num_problems)]

    def world(self, problem: Problem, seed: int) -> Walk:
        return Walk()
