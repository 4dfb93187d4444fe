"""A search in an environment beside chains at equal turns: how often is the goal found, and the best reward.

The policy draws a legal move at random, so only the spending of turns differs. Each problem is grown by each method
with the same limit of turns; the best leaf of a tree is its answer. Intervals are of the paired difference over
problems.

Run: python bench/environment_search.py [--problems 40] [--env FrozenLake|TextWorld|all]
Needs: pip install 'ramify[gym,textworld]'.
"""

import argparse
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from smoke import few

import ramify
from ramify.core.errors import ConfigError
from ramify.core.tree import Tree
from ramify.environments.task import EnvironmentTask
from ramify.experiments.paired import paired_difference
from ramify.testing import Scripted, ScriptedTurn

ALIVE: Final = {"judge": "environment", "published": {"room": "full", "repeats": "kept"}}
"""A fallen path leaves the beam, and another takes its place."""
METHODS: Final[Mapping[str, Mapping[str, Any]]] = {
    "chains": {"strategy.options": {"n": 2000}},
    "beam": {"strategy.options": {**ALIVE, "width": 3, "samples": 2}},
    "particle_filter": {"strategy.options": {"judge": "environment", "n": 32}},
    "mcts": {"strategy.options": {"n": 2000, "in_flight": 1, "judge": "environment", "outcome": "reward"}},
    "mcts, probes": {
        "strategy": "mcts",
        "strategy.options": {"n": 2000, "in_flight": 1, "judge": "", "value": "rollout", "outcome": "environment"},
        "actions.rollout.role": "probe",
    },
}


@dataclass(frozen=True, slots=True)
class Setting:
    """An environment, and what a random player says."""

    environment: Callable[[], Any]
    move: Callable[[random.Random, str], str]
    turns: int


def frozen_lake() -> Any:
    from ramify.environments.gym import Gym

    return Gym(id="FrozenLake-v1", kwargs={"is_slippery": False}, max_steps=30)


def text_world() -> Any:
    from ramify.environments.textworld import TextWorld

    return TextWorld(max_steps=20, shows_commands=True)


def lake_move(rng: random.Random, context: str) -> str:
    return rng.choice(("left", "down", "right", "up"))


def world_move(rng: random.Random, context: str) -> str:
    """One of the commands that the last observation offers."""
    shown = context.rpartition("Commands:")[2].partition("\n")[0]
    return rng.choice([each.strip(" .") for each in shown.split(",") if each.strip()] or ["look"])


SETTINGS: Final[Mapping[str, Setting]] = {
    "FrozenLake": Setting(frozen_lake, lake_move, turns=200),
    "TextWorld": Setting(text_world, world_move, turns=10),
}


def grown(setting: Setting, method: str, *, problems: int) -> list[Tree]:
    def says(turn: ScriptedTurn) -> str:
        return setting.move(random.Random(turn.seed), turn.context)

    rollout = ramify.rollout_sync(
        task=EnvironmentTask(setting.environment()),
        engine=Scripted(says),
        **{
            "strategy": method,
            "prompts": problems,
            "seed": 1,
            "limits.tool_calls": setting.turns,
            "growth.max_response_tokens": 100_000,
            "growth.max_turns": 1000,
            "max_failed_share": 1.0,
            **METHODS[method],
        },
    )
    return list(rollout.trees)


def best(tree: Tree) -> float:
    return max((reward for leaf in tree.leaves() if (reward := tree.reward(leaf)) is not None), default=0.0)


def compare(name: str, *, problems: int) -> None:
    """A line a method."""
    found: dict[str, list[float]] = {}
    for method in METHODS:
        trees = grown(SETTINGS[name], method, problems=problems)
        found[method] = [best(tree) for tree in trees]
        spent = sum(spend.tool_calls for tree in trees for spend in tree.spent().values()) / len(trees)
        leaves = sum(tree.num_leaves for tree in trees) / len(trees)
        difference = paired_difference(found[method], found["chains"])
        mean = sum(found[method]) / len(found[method])
        low, high = f"{difference.low:+.3f}", f"{difference.high:+.3f}"
        print(
            f"{name:10} {method:15} best {mean:.3f}  beside chains {difference.value:+.3f} [{low}, {high}]"
            f"  turns {spent:.0f}  leaves {leaves:.1f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--problems", type=int, default=few(40, 1))
    parser.add_argument("--env", default="all")
    options = parser.parse_args()
    for name in SETTINGS if options.env == "all" else [options.env]:
        try:
            compare(name, problems=options.problems)
        except ConfigError as error:
            print(f"skipped: {error}")


if __name__ == "__main__":
    main()
