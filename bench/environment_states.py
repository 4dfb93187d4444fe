"""Wrong states: every state of a tree is compared with that of a fresh episode that makes the same turns alone.

Each environment grows with eight presets until about 1,000 turns are made; a random player acts. Then the path to every
leaf is played again in a fresh episode with the recorded seeds, and each text, status, reward, end and digest must be
the same. A leaky environment, whose copies are itself, shows that the comparison finds what it looks for.

Run: python bench/environment_states.py [--turns 1000] [--env NAME]
Libraries that are not installed are left out.
"""

import argparse
import asyncio
import importlib.util
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import ramify
from ramify.core.environment import AgentTurn, Environment, Observation
from ramify.core.problem import Problem
from ramify.core.seeds import world_seed
from ramify.core.segment import ToolCall
from ramify.core.tool import STATE_DIGEST
from ramify.core.tree import Tree
from ramify.environments.blocking import BlockingEnvironment
from ramify.environments.episodes import EpisodeSession, environment_tools
from ramify.environments.hops import HopsLibrary
from ramify.environments.task import EnvironmentTask
from ramify.testing import Scripted, ScriptedTurn

PRESETS: Final = ("chains", "arpo", "offline", "tree_grpo", "treerl", "treepo", "at2po", "spo")
MOVES: Final = ("left", "down", "right", "up", "pickup", "stick", "hit", "0", "1", "look", "go east", "open door")


@dataclass
class Counter:
    """A world that counts, and whose copies are itself."""

    number: int = 0

    def step(self, turn: AgentTurn, seed: int) -> Observation:
        self.number += 1 + seed % 3
        return Observation(f"now {self.number}", reward=1.0)

    def copy(self) -> "Counter":
        return self

    def digest(self) -> str:
        return str(self.number)

    def score(self, said: str, problem: Problem) -> None:
        return None

    def close(self) -> None:
        pass


class Leaky(BlockingEnvironment):
    """An environment with shared state."""

    name = "leaky"

    def problems(self, split: str, num_problems: int, seed: int) -> list[Problem]:
        return [Problem(f"leaky-{i}", "count") for i in range(num_problems)]

    def world(self, problem: Problem, seed: int) -> Counter:
        return Counter()


def gym(name: str, **options: Any) -> Callable[[], Environment]:
    def made() -> Environment:
        from ramify.environments.gym import Gym

        return Gym(id=name, **options)

    return made


def text_world() -> Environment:
    from ramify.environments.textworld import TextWorld

    return TextWorld(max_steps=20)


def text_arena() -> Environment:
    from ramify.environments.textarena import TextArena

    return TextArena(id="2048-v0")


def repair() -> Environment:
    from ramify.environments.repair import CodeRepair

    return CodeRepair()


@dataclass(frozen=True, slots=True)
class Case:
    """An environment, what it needs, and what a random player says."""

    environment: Callable[[], Environment]
    library: str = ""
    moves: tuple[str, ...] = MOVES
    options: Mapping[str, Any] | None = None


CASES: Final[Mapping[str, Case]] = {
    "leaky": Case(Leaky),
    "hops": Case(HopsLibrary, moves=tuple(f"<search> {word} </search>" for word in ("friend", "town", "boss", "pet"))),
    "repair": Case(repair, moves=tuple(f"<shell>{c}</shell>" for c in ("ls", "echo a >> b", "cat b", "rm -f b; ls"))),
    "FrozenLake": Case(gym("FrozenLake-v1", max_steps=20), "gymnasium"),
    "Blackjack": Case(gym("Blackjack-v1", max_steps=20), "gymnasium"),
    "CartPole": Case(gym("CartPole-v1", max_steps=20), "gymnasium"),
    "FrozenLake, process": Case(gym("FrozenLake-v1", max_steps=20, runs_in="process"), "gymnasium"),
    "TextWorld": Case(text_world, "textworld"),
    "TextArena 2048": Case(text_arena, "textarena", moves=("[up]", "[down]", "[left]", "[right]")),
}


def grown(case: Case, preset: str, prompts: int) -> tuple[EnvironmentTask, list[Tree], dict[str, Problem]]:
    def says(turn: ScriptedTurn) -> str:
        return random.Random(turn.seed).choice(case.moves)

    task = EnvironmentTask(case.environment())
    settings = {"prompts": prompts, "seed": 3, "growth.max_response_tokens": 4000, "growth.max_tool_calls": 8}
    rollout = ramify.rollout_sync(task=task, engine=Scripted(says), preset=preset, **settings, max_failed_share=1.0)
    problems = {problem.uid: problem for problem in task.problems("heldout", prompts, 3)}
    return task, list(rollout.trees), problems


async def wrong(task: EnvironmentTask, tree: Tree, problem: Problem) -> tuple[int, int]:
    """Steps of the paths to all leaves, and those that a fresh episode does not make so."""
    score = task.judges[0]
    num_steps = num_wrong = 0
    for leaf in tree.leaves():
        tool = environment_tools(task.environment)[0]
        session = await tool.open_seeded(problem, world_seed(tree.seed))
        try:
            for call in score.steps(tree.branch(leaf).tool_calls):  # type: ignore[attr-defined]
                num_steps += 1
                num_wrong += not _is_same(
                    call, await EpisodeSession(session.episode, call.tool).step(call.arguments, call.seed or 0)
                )
        finally:
            await session.close()
    await environment_tools(task.environment)[0].let_go()
    return num_steps, num_wrong


def _is_same(call: ToolCall, made: Observation) -> bool:
    status = "empty" if made.status == "ok" and not made.text else made.status
    then = (call.result, call.status, call.reward, call.end, call.metadata.get(STATE_DIGEST))
    return then == (made.text, status, made.reward, made.end, made.metadata.get(STATE_DIGEST))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=1000)
    parser.add_argument("--env")
    options = parser.parse_args()
    print(f"{'environment':22} " + " ".join(f"{preset:>11}" for preset in PRESETS))
    for name, case in CASES.items():
        if (options.env and options.env != name) or (case.library and not importlib.util.find_spec(case.library)):
            continue
        row = []
        for preset in PRESETS:
            steps = bad = 0
            prompts = 2
            while steps < options.turns and prompts <= 64:
                task, trees, problems = grown(case, preset, prompts)
                each = [asyncio.run(wrong(task, tree, problems[tree.problem.uid])) for tree in trees]
                steps, bad = sum(n for n, _ in each), sum(n for _, n in each)
                prompts *= 2
            row.append(f"{bad}/{steps}")
        print(f"{name:22} " + " ".join(f"{cell:>11}" for cell in row), flush=True)


if __name__ == "__main__":
    main()
