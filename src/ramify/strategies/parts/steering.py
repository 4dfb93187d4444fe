"""Steering: the values a search may go by.

A search goes by the scores of one judge of the run, named in its configuration, or by the reward of paths that have
ended. Ground truth may steer it where that is declared, and nowhere else: a tree that was steered by the answer is good
for training and worthless as a figure. A score of None is no value, and no value is never 0.
"""

from typing import Final, Literal

from ramify.core.command import Score
from ramify.core.errors import ContractError
from ramify.core.tree import Tree

Oracle = Literal["refused", "declared"]
"""Whether scores of a judge that saw the answer may steer; leaves, rows and report then say so."""
REWARD: Final = "reward"
"""Stands for the judge whose score of a leaf is its reward: only ended paths have one."""


def steering_value(tree: Tree, node: int, judge: str, *, oracle: Oracle) -> float | None:
    """The last value that `judge` gave `node`; None = it gave none. Raises `ContractError` on an undeclared oracle."""
    if judge == REWARD:
        reward = tree.reward_score(node)
        return None if reward is None else allowed_value(reward, node, oracle=oracle)
    scores = tree.scores(node)
    return next((allowed_value(s, node, oracle=oracle) for s in reversed(scores) if s.judge == judge), None)


def allowed_value(score: Score, node: int, *, oracle: Oracle) -> float | None:
    """The value of one score of `node`. Raises `ContractError` on an undeclared oracle."""
    if score.is_oracle and oracle == "refused":
        raise ContractError(
            f"the score of node {node} is of judge {score.judge!r}, which saw the answer, and scores steer this "
            "search: say so by strategy.options.oracle = 'declared', or name a judge that does not see it"
        )
    return score.value
