"""Valued: the tree of a search as plain nodes, each with its value, q and visits.

A node's value is the score of the search's judge: the judge of outcomes where a path ended, elsewhere the judge of
steps. Several scores are averaged. q is the mean of the values at a node and below it, and visits are their number.
Steps of rStar and answers of MCTSr have the q and visits of their own methods, from `rstar` and `mctsr`. Figures from a
judge that saw the answer are marked.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from ramify.config.run_config import StrategyConfig
from ramify.config.strategy_options import read_options
from ramify.core.command import Edge, Role, Score
from ramify.core.tree import Tree
from ramify.rows.values import below
from ramify.strategies.mctsr.config import MCTSrConfig
from ramify.strategies.parts.steering import REWARD
from ramify.view.mctsr import mctsr_nodes
from ramify.view.rstar import RStarReading, statistics


@dataclass(frozen=True, slots=True, kw_only=True)
class ValuedNode:
    """One node. Ids are those of the tree."""

    node: int
    parent: int | None
    edge: Edge
    role: Role
    text: str
    """What was sampled, observed or written in it."""
    stop: str | None
    """Why the path ends here; None = it goes on."""
    scores: tuple[Score, ...]
    """Scores of all judges."""
    reward: float | None
    """Reward of an ended path; None = it goes on, or was not judged."""
    value: float | None
    """None = the search's judge gave it no score."""
    q: float | None
    """None = nothing here or below has a value."""
    visits: int
    is_oracle: bool
    """Whether `reward`, `value` or `q` depends on a judge that saw the answer."""

    def as_dict(self) -> dict[str, Any]:
        scores = [{"judge": s.judge, "value": s.value, "is_oracle": s.is_oracle} for s in self.scores]
        return asdict(self) | {"scores": scores}


@dataclass(frozen=True, slots=True, kw_only=True)
class ValuedTree:
    """A whole tree."""

    judge: str
    """Judge whose scores are the values of nodes that go on; `reward` = those nodes have no values."""
    outcome: str
    """Judge whose scores are the values of ended paths; `reward` = the values are their rewards."""
    nodes: tuple[ValuedNode, ...]
    """In canonical order."""

    def as_dict(self) -> dict[str, Any]:
        return {"judge": self.judge, "outcome": self.outcome, "nodes": [node.as_dict() for node in self.nodes]}


def valued(tree: Tree, strategy: StrategyConfig) -> ValuedTree:
    """The view of a finished tree that was grown by `strategy`."""
    judge, outcome = _judges(strategy.options)
    said = {node: _said(tree, node, outcome if tree.is_leaf(node) else judge) for node in tree.subtree()}
    values = {node: fmean(s.value for s in scores if s.value is not None) for node, scores in said.items() if scores}
    marked = {above for node, scores in said.items() if any(s.is_oracle for s in scores) for above in tree.path(node)}
    visits = {node: (worth.num_values, worth.q) for node, worth in below(tree, values).items()}
    visits |= _visits_of_method(tree, strategy)

    def seen(node: int) -> ValuedNode:
        num_visits, q = visits.get(node, (0, None))
        reward = tree.reward_score(node) if tree.is_leaf(node) else None
        return ValuedNode(
            node=node,
            parent=tree.parent(node),
            edge=tree.edge(node),
            role=tree.role(node),
            text=_text(tree, node),
            stop=tree.stop(node),
            scores=tree.scores(node),
            reward=None if reward is None else reward.value,
            value=values.get(node),
            q=q,
            visits=num_visits,
            is_oracle=node in marked or (reward is not None and reward.is_oracle),
        )

    return ValuedTree(judge=judge, outcome=outcome, nodes=tuple(seen(node) for node in said))


def _judges(options: Mapping[str, Any]) -> tuple[str, str]:
    """The judge of steps and the judge of outcomes that a strategy's options name."""
    judge = options.get("judge") or REWARD
    return judge, REWARD if options.get("ends") == REWARD else options.get("outcome") or judge


def _said(tree: Tree, node: int, judge: str) -> list[Score]:
    """The scores that make a node's value. Scores of None are left out."""
    scores = tree.scores(node)
    if judge == REWARD:
        reward = tree.reward_score(node) if tree.is_leaf(node) else None
        scores = () if reward is None else (reward,)
    else:
        scores = tuple(score for score in scores if score.judge == judge)
    return [score for score in scores if score.value is not None]


def _visits_of_method(tree: Tree, strategy: StrategyConfig) -> dict[int, tuple[int, float | None]]:
    """Visits and q by the method's own rules, for the nodes that it defines them for."""
    if strategy.name == "mctsr":
        config, *_ = read_options(MCTSrConfig, strategy.options)
        assert config is not None
        return {one.node: (one.visits, one.Q if one.reward_samples else None) for one in mctsr_nodes(tree, config)}
    if strategy.name == "rstar_mcts":
        visits = statistics(tree, RStarReading.of(strategy))
        return {node: (one.count, one.q_value if one.count else None) for node, one in visits.items()}
    return {}


def _text(tree: Tree, node: int) -> str:
    own = [segment for segment in tree.segments(node) if segment.origin != "prompt"]
    return tree.codec_of(node).decode([int(i) for segment in own for i in segment.ids])
