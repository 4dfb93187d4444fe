"""Searches end to end on the built-in model, with its tools and judges."""

from collections import Counter
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import pytest

from ramify.config.configure import resolve
from ramify.config.presets import preset
from ramify.core.format import Action, AnswerAction
from ramify.formats.steps import RStarStep, tagged
from ramify.runner.library import Rollout, rollout_sync
from ramify.store.check import tree_faults

AGAIN: Final = {"edge": "quotes", "template": "<|user|>{question}<|end|><|assistant|>"}
"""Another answer in a context of its own."""
REFINING: Final = preset("mctsr").small
"""The requests that the built-in model has learnt, whatever serves it."""
SEARCHES: Final[Mapping[str, Mapping[str, Any]]] = {
    "best_of_n": {"preset": "best_of_n"},
    "mctsr": {
        "preset": "mctsr",
        "strategy.options": {"max_rollouts": 6, "in_flight": 2},
        "task.name": "countdown",
        "format": REFINING["format"],
        "actions": REFINING["actions"],
    },
    "ab_mcts": {
        "strategy.name": "ab_mcts",
        "strategy.options": {
            "num_answers": 8,
            "judge": "countdown",
            "first_actions": ["policy", "warm"],
            "actions": ["again", "again_warm"],
        },
        "actions.warm": {"sampling": {"temperature": 1.2}},
        "actions.again": AGAIN,
        "actions.again_warm": {**AGAIN, "sampling": {"temperature": 1.2}},
    },
    "rstar_mcts": {"preset": "rstar_mcts", "strategy.options": {"width": 3, "iterations": 4}},
    "mcts": {"preset": "mcts", "strategy.options": {"n": 16}},
}
CODE: Final[Mapping[str, Any]] = {
    "format": "rstar",
    "format_options": {
        "template": "<|user|>{question}<|end|><|assistant|>",
        "tags": {"code": "<calc>", "code_end": "</calc>", "answer_end": "</answer>"},
        "observation": " <result>\n{text}\n</result>",
        "step_parser": f"{__file__}:spoken",
    },
    "tools.use.python": {},
}
"""What the built-in model says to its calculator is Python too, and a code block by other tags."""


def spoken(step: RStarStep) -> Action | None:
    """A parser of steps whose answers stand between tags."""
    _, tag, answer = step.text.rpartition("<answer>")
    return AnswerAction(answer) if tag and step.end == "answer" and not step.is_code else tagged(step)


def searched(name: str, flags: Mapping[str, Any] | None = None) -> Rollout:
    """Eight held-out countdown problems, searched."""
    given = {"growth.max_response_tokens": 256, "judges.process.kind": "value", "prompts": 8, "seed": 11}
    given |= {**SEARCHES[name], **(flags or {})}
    return rollout_sync(config=resolve(preset=given.pop("preset", None), flags=given).config)


@cache
def once(name: str) -> Rollout:
    """A search that several tests look at."""
    return searched(name)


def check_answers(found: Rollout, *, share_answered: float = 1.0) -> None:
    """Every tree is whole, answers within what it spent, and some answer is right; of so many trees a path ended."""
    assert not found.report.failed_trees
    for tree, answers in zip(found.trees, found.answers(), strict=True):
        answering = {candidate.node for candidate in tree.candidates} or set(tree.leaves())
        assert answers.num_candidates == len(answering) > 0
        assert answers.node is None or answers.node in answering
    assert sum(bool(tree.candidates) for tree in found.trees) >= share_answered * len(found.trees)
    assert any(solution.score >= 1 or solution.num_votes for each in found.answers() for solution in each.ranked)


def check_code(found: Rollout) -> None:
    """Every code block on a path was run, in order, and its path went on from what it printed or from its error."""
    statuses: Counter[str] = Counter()
    for tree in found.trees:
        assert list(tree_faults(tree)) == []
        for leaf in tree.leaves():
            said = ""
            for piece in (branch := tree.branch(leaf)).pieces[1:]:
                call, text = piece.segment.tool_call, branch.codec.decode(piece.segment.ids)
                if call is not None and call.is_executed:
                    statuses[call.status] += 1
                    assert said.rpartition("</calc>")[0].rstrip().endswith(call.arguments)
                    if call.status == "ok":
                        assert text == f" <result>\n{eval(call.arguments)}\n</result>"
                said = said + text if piece.segment.is_sampled else ""
    assert statuses["ok"] > 100 and statuses["error"] > 0


@pytest.mark.slow
@pytest.mark.covers("S2.6", "S4.5", engine="builtin")
@pytest.mark.parametrize("name", SEARCHES)
def test_a_search_answers_by_the_built_in_model(name: str) -> None:
    check_answers(once(name))


@pytest.mark.slow
def test_steps_of_code_are_run_by_python_and_searched() -> None:
    found = searched("rstar_mcts", CODE)
    check_answers(found, share_answered=0.5)  # four rollouts need not bring an answer where a step may be no action
    check_code(found)


@pytest.mark.slow
def test_rewrites_are_answers_and_have_the_reward_of_the_task_whatever_the_search_thinks_of_them() -> None:
    trees = once("mctsr").trees
    leaves = [(tree, leaf) for tree in trees for leaf in tree.leaves()]
    assert {tree.action(leaf) for tree, leaf in leaves} == {"policy", "rewrite"}
    scores = [tree.reward_score(leaf) for tree, leaf in leaves]
    assert {(score.judge, score.value) for score in scores if score is not None} == {
        ("countdown", 0.0),
        ("countdown", 1.0),
    }
    assert all(score is not None for score in scores)


@pytest.mark.slow
def test_two_actions_of_a_search_are_both_used() -> None:
    found = once("ab_mcts")
    actions = {tree.action(node) for tree in found.trees for node in range(1, len(tree))}
    assert {"policy", "warm"} <= actions
    assert actions & {"again", "again_warm"}


@pytest.mark.slow
def test_the_same_search_twice_is_the_same() -> None:
    one, other = once("mctsr"), searched("mctsr")
    assert [each.as_dict() for each in one.answers()] == [each.as_dict() for each in other.answers()]
