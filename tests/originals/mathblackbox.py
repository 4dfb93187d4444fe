"""trotsky1997/MathBlackBox: `main_loop` of run_with_earlystopping.py on scripted answers and grades.

Answers are numbered as they come; each has a text of its own, unless the scenario lets a text come twice. What is
compared: which answers could be refined at every choice, their scores, which one was refined, and in the end the
parent, grades, visits and score of every answer. A scenario in which the loop does otherwise than the library, as
docs/methods/mctsr.md says, is counted apart, and compared as `DIFFERENCES` says.
"""

import random
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
from tests.golden.mctsr import RULES, AnswersWorld, Watched
from tests.originals.sources import imports, source
from tests.strategies.world import Journey, ListDraws

from ramify.config.presets import preset
from ramify.core.command import Judge
from ramify.core.tree import NONE, Tree
from ramify.strategies.mctsr.config import MCTSrConfig

Given = Mapping[str, Any]
DIFFERENCES: Mapping[str, str] = {"texts": "up to the first answer whose text is another's"}
"""Kind of a scenario -> how it is compared."""
DUMMY = 1
"""Number of the answer that nobody asked the model for."""


def scenario(rng: random.Random) -> Given:
    """Grades with fractions and without, and ones that are worth 50; few different ones make equal scores."""
    kind = rng.choice(["", "", "", "", *DIFFERENCES])
    rollouts = rng.randint(1, 16)
    grades = rng.choice([[-100, -50, 0, 50], [0], [40, 94, 94.75, 95, 96, 100], [x / 4 for x in range(-400, 404)]])
    return {
        "but": DIFFERENCES.get(kind, ""),
        "kind": kind,
        "rollouts": rollouts,
        "max_children": rng.choice([1, 2, 3, 3, 4]),
        "c": rng.choice([0.0, 0.5, 1.4, 1.4, 20.0]),
        "grades": [rng.choice(grades) for _ in range(2 * rollouts + 2)],
        "unreadable": [rng.choice([0, 0, 0, 1, 2]) for _ in range(2 * rollouts + 2)],
        "right": rng.choice([None, None, None, rng.randint(0, rollouts + 1)]),
        "texts": [str(rng.randrange(4) if kind == "texts" else number) for number in range(rollouts + 1)],
    }


# -- the original ------------------------------------------------------------------------------------------------------


class Repeated(Exception):
    """The next answer has the text of another."""


def original() -> Callable[[Given], Mapping[str, object]]:
    root = source("RAMIFY_MATHBLACKBOX", "trotsky1997/MathBlackBox", "run_with_earlystopping.py")
    arguments = sys.argv
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        sys.argv = ["", "model", f"{folder}/data"]
        try:
            with imports(root, absent=("datasets", "openai", "retry", "tqdm")) as get:
                module = get("run_with_earlystopping")
        finally:
            sys.argv = arguments
    module.cal_reward = retried(module.cal_reward)
    defaults = module.filter_mature_node, module.update_ucb, module.get_best_explore_from_ucb
    return lambda given: _played(module, given, *defaults)


def retried(function: Callable[..., Any]) -> Callable[..., Any]:
    """What the decorator `retry` makes of a function: called until it raises nothing."""

    def called(*args: Any) -> Any:
        while True:
            try:
                return function(*args)
            except Exception:  # noqa: BLE001
                continue

    return called


class Model:
    """Answers the requests of the original by what their prompts ask for."""

    def __init__(self, given: Given) -> None:
        self._texts = iter(given["texts"])
        self._known: set[str] = set()
        self._grades = graded(given)
        self._right = given["right"]
        self.num_answers = 0
        self.chat = SimpleNamespace(completions=self)

    def create(self, messages: Sequence[Mapping[str, str]], **how: object) -> Any:
        said = self._said(messages[-1]["content"])
        return SimpleNamespace(choices=[SimpleNamespace(message=SimpleNamespace(content=said))])

    def _said(self, prompt: str) -> str:
        if "Output a score" in prompt:
            return next(self._grades)
        return "a critique" if "relection" in prompt else self._answer()

    def _answer(self) -> str:
        text = next(self._texts)
        if text in self._known:
            raise Repeated
        self._known.add(text)
        number = self.num_answers
        self.num_answers += 2 if number == 0 else 1
        return f"answer {text} #### {int(number == self._right)}"


def graded(given: Given) -> Iterator[str]:
    """The judge's replies: each grade behind some that hold none."""
    for grade, unreadable in zip(given["grades"], given["unreadable"], strict=True):
        yield from ["[Analyst] 3 flaws [Score] none"] * unreadable
        yield f"[Analyst] 3 flaws, 12.5 of them grave [Score] {grade}"


def _played(module: Any, given: Given, mature: Any, update: Any, best: Any) -> Mapping[str, object]:
    model = Model(given)
    module.DATA_NAME = "AIME-mcts"
    module.get_client = lambda: model
    module.random = random.Random(str(given))
    module.filter_mature_node = lambda *banks: mature(*banks, max_expand=given["max_children"])
    found: dict[str, Any] = {"candidates": [], "scores": [], "selected": []}
    state: dict[str, Any] = {}

    def updated(**banks: Any) -> None:
        state.update(banks)
        update(**banks, C=given["c"])

    def chosen(candidates: Sequence[str], scores: Mapping[str, float]) -> str:
        number = {text: i for i, text in enumerate(state["to_explore"])}
        choice = best(candidates, scores)
        seen = sorted((number[text], scores[text]) for text in candidates)
        found["candidates"].append([i for i, _ in seen])
        found["scores"].append([score for _, score in seen])
        found["selected"].append(number[choice])
        return choice

    module.update_ucb, module.get_best_explore_from_ucb = updated, chosen
    try:
        made = module.main_loop("", "1", max_iter=given["rollouts"])
    except Repeated:
        return found
    _, answers, to_explore, grades, _, _, _, fathers, _, scores = made
    number = {text: i for i, text in enumerate(to_explore)}
    return found | {
        "num_answers": len(answers),
        "parents": [None if fathers[text] is None else number[fathers[text]] for text in to_explore],
        "grades": [[float(grade) for grade in grades[text]] for text in to_explore],
        "visits": [len(grades[text]) for text in to_explore],
        "ucb": None if stopped(given) else [scores[text] for text in to_explore],
    }


def stopped(given: Given) -> bool:
    """Whether the search stops at the true answer: then the last round changes no scores."""
    return given["right"] is not None and given["right"] != DUMMY


# -- ours --------------------------------------------------------------------------------------------------------------


def ours(given: Given) -> Mapping[str, object]:
    """The strategy through the driver; where a text comes twice, the search has no more rounds than before it."""
    first = next((i for i, text in enumerate(given["texts"]) if text in given["texts"][:i]), None)
    is_cut = first is not None and not (stopped(given) and given["right"] <= first)
    config = replace(
        msgspec.convert(preset("mathblackbox").values["strategy"]["options"], MCTSrConfig),
        max_rollouts=first if is_cut else given["rollouts"],
        max_children=given["max_children"],
        exploration=given["c"],
        stop_judge="truth",
        oracle="declared",
    )
    strategy = Watched(config, ListDraws())
    grades = iter(given["grades"])

    def judged(tree: Tree, command: Judge) -> list[float]:
        (node,) = command.nodes
        if command.judge == "grade":
            return [next(grades)]
        number = order(tree).index(node)
        return [float(number == given["right"] != DUMMY)]

    Journey(strategy, AnswersWorld(), rules=RULES, judge=judged).run()
    answers = strategy.answers.answers
    seen = [
        sorted(zip(*found, strict=True)) for found in zip(strategy.candidates_seen, strategy.scores_seen, strict=True)
    ]
    chosen = {
        "candidates": [[i for i, _ in found] for found in seen],
        "scores": [[score for _, score in found] for found in seen],
        "selected": strategy.selected,
    }
    if is_cut:
        return chosen
    return chosen | {
        "num_answers": len(answers),
        "parents": [None if answer.parent == NONE else answer.parent for answer in answers],
        "grades": [answer.samples for answer in answers],
        "visits": strategy.answers.visits,
        "ucb": None if stopped(given) else [strategy.answers.score(answer) for answer in answers],
    }


def order(tree: Tree) -> list[int]:
    """The nodes of answers, as they came."""
    return [node for node in range(1, len(tree)) if tree.role(node) == "policy"]
