"""Checks of the goldens of Monte Carlo Tree Self-Refine; traces are played by the strategy through the driver."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from tests.strategies.world import Journey, ListDraws, text_step

from ramify.core.command import Command, Grow, Judge
from ramify.core.growth import GrowthRules
from ramify.core.tree import NONE, Step, Tree
from ramify.runner.driver import Start
from ramify.strategies.mctsr.answers import AnswerTree
from ramify.strategies.mctsr.config import AS_PUBLISHED, MATHBLACKBOX, MCTSrConfig
from ramify.strategies.mctsr.scores import (
    Scores,
    importance_weights,
    is_distribution,
    pairwise_weights,
    penalised,
    rescored,
    uct,
)
from ramify.strategies.mctsr.search import MCTSr

Input = Mapping[str, Any]
RULES = GrowthRules(quoting=frozenset({"critique", "rewrite"}))
CONFIGS = {"as_published": AS_PUBLISHED, "corrected": MCTSrConfig()}


class AnswersWorld:
    """Every growth is one step, which ends its path; those that quote begin afresh."""

    def steps(self, tree: Tree, start: Start) -> list[Step]:
        assert isinstance(start.command, Grow)
        action = start.command.action
        role = "critique" if action == "critique" else "policy"
        step = text_step(f"{action} {len(tree)}", stop="answer", role=role, action=action)
        return [replace(step, edge="quotes") if action in RULES.quoting else step]


class Watched(MCTSr):
    """The strategy, noting what it may choose from before each choice, and what it chose."""

    def __init__(self, config: MCTSrConfig, rng: Any) -> None:
        super().__init__(config, rng)
        self.candidates_seen: list[list[int]] = []
        self.scores_seen: list[list[float]] = []
        self.selected: list[int] = []

    def ask(self, tree: Tree) -> Sequence[Command]:
        found = self.answers.open_answers()
        commands = super().ask(tree)
        chosen = [c.node for c in commands if isinstance(c, Grow) and c.action == "critique"]
        if chosen or self.stuck_at is not None:
            self.candidates_seen.append([answer.number for answer in found])
            self.scores_seen.append([self.answers.score(answer) for answer in found])
        self.selected += [answer.number for node in chosen for answer in self.answers.answers if answer.node == node]
        return commands


def played(config: MCTSrConfig, raw_rewards: Sequence[float], draws: Sequence[float]) -> tuple[Watched, Journey]:
    strategy = Watched(config, ListDraws(draws))
    rewards = iter(raw_rewards)
    trip = Journey(strategy, AnswersWorld(), rules=RULES, judge=lambda tree, command: [next(rewards)])
    return strategy, trip.run()


def trace(given: Input, mode: str | None) -> dict[str, object]:
    config = replace(
        CONFIGS[mode or ""],
        selection=given["policy"],
        max_rollouts=given["rollouts"],
        max_children=given["max_children"],
        exploration=given["c"],
        scale=given.get("reward_scale", 1.0),
    )
    strategy, trip = played(config, given["raw_rewards"], given["draws"])
    answers = strategy.answers.answers
    best = max(strategy.candidates(trip.tree), key=lambda candidate: candidate.score)
    found: dict[str, object] = {
        "selected": strategy.selected,
        "parents": [None if answer.parent == NONE else answer.parent for answer in answers],
        "visits": strategy.answers.visits,
        "q": [answer.q for answer in answers],
        "reward_samples": [answer.samples for answer in answers],
        "best_node": next(answer.number for answer in answers if answer.node == best.node),
    }
    if mode == "corrected":
        return found | {"uct_of_candidates": strategy.scores_seen, "own_q": [answer.own_q for answer in answers]}
    stuck = {} if strategy.stuck_at is None else {"crash_at_rollout": strategy.stuck_at}
    return found | {"candidates": strategy.candidates_seen} | stuck


def call_count(given: Input, mode: str | None) -> dict[str, int]:
    """`parse_retries` replies of the judge were no numbers and had it asked again."""
    config = replace(CONFIGS[mode or ""], max_rollouts=given["rollouts"], initialise=given["initialise"])
    if config.selection == "importance":
        config = replace(config, selection="greedy")
    strategy, trip = played(config, [50.0] * (2 * given["rollouts"] + 1), ())
    commands = [command for event in trip.events if hasattr(event, "commands") for command in event.commands]
    asked = Counter(command.action if isinstance(command, Grow) else "judge" for command in commands)
    calls = {
        "answers": asked["policy"],
        "critiques": asked["critique"],
        "rewrites": asked["rewrite"],
        "judgements": asked["judge"] + given["parse_retries"],
    }
    assert all(isinstance(command, Grow | Judge) for command in commands)
    return {**calls, "total": sum(calls.values()), "nodes": len(strategy.answers)}


def q_from_rewards(given: Input, mode: str | None) -> dict[str, object]:
    config = replace(CONFIGS[mode or ""], reward_limit=given["reward_limit"], excess_penalty=given["excess_penalty"])
    tree = AnswerTree(config)
    answer = tree.add(1, NONE, None)
    for value in given["raw_rewards"]:
        tree.learn(answer, value)
    return {"reward_samples": answer.samples, "q": answer.q}


def score(given: Input, mode: str | None) -> dict[str, float]:
    if given["parent_visits"] is None:
        tree = AnswerTree(replace(CONFIGS[mode or ""], exploration=given["c"], eps=given["eps"]))
        return {"uct": tree.score(tree.add(1, NONE, None))}
    bound = uct(
        given["q"],
        given["visits"],
        given["parent_visits"],
        exploration=given["c"],
        eps=given["eps"],
        log_form="code",
    )
    return {"uct": bound}


def selection_distribution(given: Input, mode: str | None) -> dict[str, object]:
    scores = np.array(given["uct"])
    is_corrected = mode == "corrected"
    importance = importance_weights(scores, CONFIGS[mode or ""].published.importance_weights)
    return {
        "greedy_index": int(scores.argmax()),
        "importance": shares(importance, is_corrected=is_corrected),
        "pairwise": shares(pairwise_weights(scores), is_corrected=is_corrected),
    }


def shares(weights: Scores, *, is_corrected: bool) -> list[float] | None:
    if not is_distribution(weights):
        return [1 / len(weights)] * len(weights) if is_corrected else None
    return (weights / weights.sum()).tolist()


def backpropagate(given: Input, mode: str | None) -> dict[str, object]:
    """The path as the tree keeps it, and one more child at its end."""
    tree = AnswerTree(replace(CONFIGS[mode or ""], reward_limit=1e9))
    parent = NONE
    path = []
    for level in given["path_root_to_selected"]:
        answer = tree.add(len(tree) + 1, parent, level["q"])
        answer.q, tree.visits[answer.number] = level["q"], level["visits"]
        path.append(answer)
        parent = answer.number
    for answer, level in zip(path, given["path_root_to_selected"], strict=True):
        for q in level["q_of_other_children"]:
            tree.add(len(tree) + 1, answer.number, q)
    tree.add(len(tree) + 1, parent, given["new_child_q"])
    tree.back_up(path[-1])
    return {"q": [answer.q for answer in path], "visits": tree.visits[: len(path)]}


def mathblackbox_ucb(given: Input, mode: str | None) -> dict[str, object]:
    """The scores after a round, and what may be chosen by them."""
    config = replace(MATHBLACKBOX, exploration=given["c"], eps=given["eps"], max_children=given["max_expand"])
    tree = AnswerTree(config)
    for number, (parent, rewards) in enumerate(zip(given["parents"], given["rewards"], strict=True)):
        answer = tree.add(number + 1, NONE if parent is None else parent, None)
        for reward in rewards:
            tree.learn(answer, reward)
    averages = [answer.own_q for answer in tree.answers]
    before = {int(number): value for number, value in given["ucb_before"].items()}
    scores = rescored(
        given["parents"],
        averages,
        [len(rewards) for rewards in given["rewards"]],
        before,
        exploration=given["c"],
        eps=given["eps"],
    )
    expandable = sorted(answer.number for answer in tree.open_answers())
    scored = [number for number in expandable if number in scores]
    return {
        "avg": averages,
        "ucb": {str(number): value for number, value in scores.items()},
        "expandable": expandable,
        "selected": max(scored, key=scores.__getitem__) if scored else None,
    }


def mathblackbox_reward(given: Input, mode: str | None) -> dict[str, float]:
    config = MATHBLACKBOX
    return {
        "reward": penalised(given["score"], config.penalty, limit=config.reward_limit, excess=config.excess_penalty)
    }
