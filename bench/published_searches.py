"""Published search loops, timed alone: what `search_speed.py` is measured against. Prints JSON.

Standard library, so that it runs in any interpreter; `treequest` and `its_hub` are timed where they can be imported.
Each grows trees of 1,000 and of 10,000 nodes from numbers made beforehand, with no model and no tools.

`rStar MCTS` is the selection and backup of microsoft/rStar (branch rStar-math) agents/mcts.py and nodes/mcts_node.py as
written, a rollout at a time, with its nodes as plain classes, which is faster than the published pydantic ones. The
searches of its_hub are timed whole, with a model that says the same step at once and a judge that draws numbers: they
hold texts, and write those of a path anew for each request.
"""

import asyncio
import json
import math
import random
import statistics
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from smoke import few

SIZES = few((1_000, 10_000), (20, 40), book=(1_000, 4_000))
IN_FLIGHT = (1, 16)
RUNS = few(5, 1)
ANSWER_DEPTH = 12
WIDTH = 8
MAX_DEPTH = 16
LEVEL = few(64, 4)
"""Steps of a level of beam search and of particle filtering."""


class Node:
    """rStar's MCTSNode, its state left out."""

    def __init__(self, parent: "Node | None", c_puct: float) -> None:
        self.parent, self.c_puct = parent, c_puct
        self.children: list[Node] = []
        self.depth = parent.depth + 1 if parent else 0
        self.is_terminal = False
        self.has_answer = False
        self._visit_count, self._value_sum = 0, 0.0

    def q_value(self) -> float:
        return self._value_sum / self._visit_count if self._visit_count else 0

    def visit_count(self) -> int:
        return self._visit_count

    def update(self, value: float) -> None:
        self._visit_count += 1
        self._value_sum += value

    def update_recursive(self, value: float) -> None:
        self.update(value)
        if self.parent:
            self.parent.update_recursive(value)

    def puct(self) -> float:
        if not self.parent:
            return 0
        q_value = self.q_value() if self.visit_count() > 0 else 0
        if self.parent.visit_count() == 0 or self.visit_count() == 0:
            return q_value
        return q_value + self.c_puct * math.sqrt(math.log(self.parent.visit_count()) / self.visit_count())


def select_child(node: Node) -> Node | None:
    best_value, best = -math.inf, []
    for child in node.children:
        if child.is_terminal:
            continue
        value = child.puct()
        if value == best_value:
            best.append(child)
        elif value > best_value:
            best_value, best = value, [child]
    return best[0] if best else None


def selection(node: Node) -> Node | None:
    if node.children or node.is_terminal:
        following = select_child(node)
        if following is None:
            node.is_terminal = True
        return following
    return node


def rstar(num_nodes: int) -> int:
    """Rollouts until the tree is so large; returns its nodes."""
    rng = random.Random(1)
    root, count = Node(None, 2.0), 1
    while count < num_nodes and not root.is_terminal:
        node = selection(root)
        for _ in range(MAX_DEPTH):
            if node is None:
                break
            if not node.children:
                count += expand(node, rng)
            node = selection(node)
    return count


def expand(node: Node, rng: random.Random) -> int:
    """Children and their values: answers to the root, steps to themselves, failures to themselves."""
    for _ in range(WIDTH):
        child = Node(node, node.c_puct)
        node.children.append(child)
        if child.depth > ANSWER_DEPTH and rng.random() < 1 / 3:
            child.is_terminal = True
            child.update_recursive(rng.random())
        elif child.depth > MAX_DEPTH:
            child.is_terminal = True
            child.update(-1)
        else:
            child.update(rng.random())
    return WIDTH


def standard_mcts(num_nodes: int, in_flight: int) -> int:
    """treequest's: ask for a batch, tell all of it."""
    from treequest import StandardMCTS  # pyright: ignore

    rng = random.Random(1)
    search = StandardMCTS()
    state = search.init_tree()
    while len(state.tree) < num_nodes:
        state, trials = search.ask_batch(state, in_flight, ["policy"])
        for trial in trials:
            state = search.tell(state, trial.trial_id, ("text", rng.random()))
    return len(state.tree)


def by_levels(name: str, num_nodes: int) -> int:
    """An algorithm of its_hub that grows `LEVEL` steps at a time."""
    from its_hub.api import AbstractLanguageModel, AbstractProcessRewardModel  # pyright: ignore
    from its_hub.core.algorithms import beam_search, particle_gibbs  # pyright: ignore
    from its_hub.core.lms.step_generation import StepGeneration  # pyright: ignore

    rng, num_steps = random.Random(1), 0

    class Model(AbstractLanguageModel):
        async def agenerate(self, messages: Any, stop: str | None = None, **_: Any) -> Any:
            nonlocal num_steps
            num_steps += len(messages)
            return [{"role": "assistant", "content": "a step"} for _ in messages]

    class Judge(AbstractProcessRewardModel):
        def score(self, prompt_or_messages: Any, steps: Any) -> Any:
            return [rng.random() for _ in steps]

        async def ascore(self, prompt_or_messages: Any, steps: Any) -> Any:
            return self.score(prompt_or_messages, steps)

    steps = StepGeneration(num_nodes // LEVEL - 1, "\n")
    if name == "beam":
        search = beam_search.BeamSearch(steps, Judge(), math.isqrt(LEVEL))
    else:
        search = particle_gibbs.ParticleFiltering(steps, Judge())
    asyncio.run(search.ainfer(Model(), "a question", LEVEL))
    return num_steps


def microseconds(grow: Callable[[], int], runs: int) -> float:
    """A node: the median of the runs."""
    found: list[float] = []
    for _ in range(runs):
        began = time.perf_counter()
        count = grow()
        found.append((time.perf_counter() - began) / count * 1e6)
    return statistics.median(found)


def main() -> None:
    import logging

    logging.disable(logging.CRITICAL)
    found = {"rStar MCTS": {f"{n}/1": microseconds(lambda n=n: rstar(n), RUNS) for n in SIZES}}
    if find_spec("treequest"):
        found["treequest StandardMCTS"] = {
            f"{n}/{k}": microseconds(lambda n=n, k=k: standard_mcts(n, k), RUNS if n < 5_000 else 1)
            for n in SIZES
            for k in IN_FLIGHT
        }
    if find_spec("its_hub"):
        for name in ("beam", "particle filtering"):
            found[f"its_hub {name}"] = {
                f"{n}/{LEVEL}": microseconds(lambda n=n, name=name: by_levels(name, n), RUNS) for n in SIZES
            }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
