"""Steering: which values may steer a search.

A search uses the scores of one judge of the run, named in its configuration, or the rewards of ended paths. Ground
truth may steer only where this is declared: a tree steered by the answer is good for training but not for evaluation
figures. A score of None means no value. It never counts as 0.
"""

from typing import Final, Literal

from ramify.core.command import Score
from ramify.core.errors import ContractError
from ramify.core.tree import Tree

Oracle = Literal["refused", "declared"]
"""Whether scores of a judge that saw the answer may steer. If declared, leaves, rows and report say so."""
REWARD: Final = "reward"
"""Name for the judge whose score of a leaf is its reward. Only ended paths have one."""


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
