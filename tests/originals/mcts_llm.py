"""BrendanGraham14/mcts-llm: `MCTSr.run` on scripted answers, grades and random numbers."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tests.originals.sources import imports, source

Given = Mapping[str, Any]


def scenario(rng: random.Random) -> Given:
    """Grades inside and outside of -100 to 100; with a small bonus negative ones weigh."""
    rollouts, low = rng.randint(1, 12), rng.choice([-150, -100, 0])
    return {
        "policy": rng.choice(["greedy", "importance", "importance", "pairwise"]),
        "rollouts": rollouts,
        "max_children": rng.randint(1, 3),
        "c": rng.choice([0.0, 1e-4, 0.5, 1.0, 2.0]),
        "raw_rewards": [rng.randint(low, 110) for _ in range(2 * rollouts)],
        "draws": [rng.random() for _ in range(rollouts)],
    }


def original() -> Callable[[Given], Mapping[str, object]]:
    root = source("RAMIFY_MCTS_LLM", "BrendanGraham14/mcts-llm", "src/mcts_llm/mctsr.py")
    chat = ("openai.types.chat.chat_completion_message_param", "openai.types.chat.chat_completion")
    with imports(root / "src", absent=("openai", "openai.types", "openai.types.chat", *chat, "dotenv", "tqdm")) as get:
        module = get("mcts_llm.mctsr")
    module.tqdm.tqdm = lambda numbers: numbers
    return lambda given: _played(module, given)


def _played(module: Any, given: Given) -> Mapping[str, object]:
    rewards: Iterator[int] = iter(given["raw_rewards"])
    module.random = _Fed(given["draws"])
    answers: list[Any] = []
    selected: list[int] = []
    seen: list[list[int]] = []

    class Scripted(module.MCTSr):
        def zero_shot(self) -> str:
            return "0"

        def self_refine(self, node: Any) -> Any:
            return module.MCTSNode(answer=str(len(answers)), parent=node)

        def _evaluate_answer(self, node: Any) -> int:
            if node not in answers:
                answers.append(node)
            return next(rewards)

        def select_node(self) -> Any:
            open_answers = [n for n in breadth_first(self.root) if not self.is_fully_expanded(n)]
            seen.append([int(node.answer) for node in open_answers])
            node = super().select_node()
            selected.append(int(node.answer))
            return node

    policy = {"greedy": 1, "importance": 2, "pairwise": 3}[given["policy"]]
    search = Scripted(
        problem="",
        max_rollouts=given["rollouts"],
        max_children=given["max_children"],
        exploration_constant=given["c"],
        selection_policy=module.SelectionPolicy(policy),
    )
    stuck = {}
    try:
        search.run()
    except ValueError:
        stuck = {"crash_at_rollout": len(selected)}
    nodes = sorted(breadth_first(search.root), key=lambda node: int(node.answer))
    return {
        "selected": selected,
        "candidates": seen,
        "parents": [None if node.parent is None else int(node.parent.answer) for node in nodes],
        "visits": [node.visits for node in nodes],
        "q": [node.Q for node in nodes],
        "reward_samples": [node.reward_samples for node in nodes],
        "best_node": int(search.get_best_answer()),
        **stuck,
    }


def breadth_first(root: Any) -> list[Any]:
    found = [root]
    for node in found:
        found.extend(node.children)
    return found


class _Fed(random.Random):
    """The uniform numbers of a list, one after the other."""

    def __init__(self, numbers: Sequence[float]) -> None:
        super().__init__()
        self._numbers = iter(numbers)

    def random(self) -> float:
        return next(self._numbers)
