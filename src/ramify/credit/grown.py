"""Grown: a tree -> the forest that its credit is computed on.

Only nodes of role `policy` that continue their parent count. Paths that failed for a reason other than their own tokens
are dropped, and their siblings' shares are renormalised. Every other loss is named, and then no credit is called exact:
a path cut by a budget or a deadline, a path that was cancelled or never ended, a planned sibling that never came, a
fork decided because of tokens already drawn. A path that its own tokens ended (`length`, `tool_limit`, ...) is a leaf
with its reward. A path ended by random termination (a coin) is a leaf with return 0; the shares of the paths that it
let go on make up for it. Reasons name counts and rules, never node ids, so equal trees give equal reasons.

Limits: one tree does not show whether a rule *would* have forked elsewhere. A strategy whose rule is not predictable
says so (`post_hoc_reasons`), even for trees in which it did not fork.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from ramify.core.command import ForkRecord
from ramify.core.environment import EARNED, ENVIRONMENT
from ramify.core.errors import ExportError
from ramify.core.segment import Floats_T
from ramify.core.stems import tree_number
from ramify.core.stop import KEPT, ROULETTE, STOP_WORDS
from ramify.core.tree import ROOT, Tree
from ramify.credit.forest import STEM, Forest

Unjudged = Literal["error", "drop"]
"""How to treat a leaf without a reward: raise an error that names it, or leave its path out (which depends on its
tokens)."""
CANCELLED: Final = "cancelled"
MEAN_SURPRISAL: Final = "mean_surprisal"
"""The one measure that does not come from the engine: minus the mean logprob of a node's sampled tokens."""


def forest_of(
    tree: Tree,
    *,
    unjudged: Unjudged = "error",
    post_hoc_reasons: tuple[str, ...] = (),
    selected: Collection[int] | None = None,
    measures: Iterable[str] = (),
) -> Forest:
    """The forest of a finished tree, with nodes in canonical order.

    `post_hoc_reasons`: reasons known in advance why the strategy's forks depend on tokens. `selected`: the leaves that
    become rows; None = all. `measures`: names of the measures that the credit reads. Raises `ExportError` for a leaf
    without a reward. Mutates nothing.
    """
    survey = _Survey(tree, unjudged)
    survey.look()
    index = {node: i for i, node in enumerate(survey.kept)}
    return Forest(
        parent=np.array([index.get(survey.parent[n], STEM) for n in survey.kept], np.int32),
        share=np.array([survey.shares[n] for n in survey.kept], np.float64),
        reward=np.array([survey.rewards.get(n, np.nan) for n in survey.kept], np.float64),
        num_tokens=np.array([tree.num_sampled(n) for n in survey.kept], np.int32),
        nodes=np.array(survey.kept, np.int32),
        post_hoc_reasons=(*post_hoc_reasons, *survey.post_hoc_reasons()),
        caveats=tuple(survey.caveats()),
        measures={name: _measured(tree, survey.kept, name) for name in measures},
        decision=np.array([_decision(tree, n) for n in survey.kept], np.int32),
        has_coins=any(_has_coin(tree, n) for n in survey.kept),
        selected=None if selected is None else np.array([n in selected for n in survey.kept], bool),
        tree=np.array(_tree_numbers(tree, survey.kept), np.int32),
        earned=_earned(tree, survey.kept),
    )


def _earned(tree: Tree, nodes: Sequence[int]) -> npt.NDArray[np.float64] | None:
    """What each node's own step adds to returns; None if some leaf's reward is not the environment's, or no step gave
    a reward."""
    notes = [tree.notes(node).get(EARNED) for node in nodes]
    is_of_steps = all(
        (score := tree.reward_score(leaf)) is None or score.judge == ENVIRONMENT for leaf in nodes if tree.is_leaf(leaf)
    )
    if not is_of_steps or all(note is None for note in notes):
        return None
    return np.array([math.nan if note is None else note for note in notes], np.float64)


def _tree_numbers(tree: Tree, nodes: Sequence[int]) -> list[int]:
    """Number of the tree of each node. `nodes` must list parents before their children."""
    numbers: dict[int, int] = {}
    for node in nodes:
        parent = tree.parent(node)
        assert parent is not None
        numbers[node] = tree_number(tree, node) if parent == ROOT else numbers[parent]
    return list(numbers.values())


def _measured(tree: Tree, nodes: Sequence[int], name: str) -> npt.NDArray[np.float64]:
    """A measure of each node's own step, NaN where not computed."""
    if name == MEAN_SURPRISAL:
        return np.array([_mean_surprisal(tree.sampled_logprobs(node)) for node in nodes], np.float64)
    values = [tree.measure(node, name) for node in nodes]
    return np.array([np.nan if value is None else value for value in values], np.float64)


def _mean_surprisal(logprobs: Floats_T | None) -> float:
    """Minus the mean logprob of a step's sampled tokens; NaN where there are none."""
    return -float(logprobs.mean(dtype=np.float64)) if logprobs is not None and len(logprobs) else math.nan


def _decision(tree: Tree, node: int) -> int:
    fork = tree.fork(node)
    return -1 if fork is None else fork.decision_id


def _has_coin(tree: Tree, node: int) -> bool:
    """Whether random termination ended the path at `node`, or let it go on at `node` or after it."""
    fork = tree.fork(node)
    is_forked = fork is not None and fork.rule == ROULETTE
    return is_forked or tree.stop(node) == ROULETTE or tree.notes(node).get(KEPT, 1.0) < 1


@dataclass(slots=True)
class _Survey:
    """One walk over a tree: which paths count, with which shares, and what was lost."""

    tree: Tree
    unjudged: Unjudged
    parent: dict[int, int] = field(default_factory=dict[int, int])
    kept: list[int] = field(default_factory=list[int])
    shares: dict[int, float] = field(default_factory=dict[int, float])
    rewards: dict[int, float] = field(default_factory=dict[int, float])
    lost: Counter[str] = field(default_factory=Counter[str])
    """Reasons why paths, ended or not, are left out."""
    num_unshared: int = 0
    post_hoc: Counter[str] = field(default_factory=Counter[str])
    num_lost_survivors: int = 0
    """Paths that random termination let go on and that then failed. A path that it ends cannot fail."""
    num_missing: int = 0
    """Planned siblings that never came."""

    def look(self) -> None:
        children = self._children()
        is_kept = {node: self._is_counted(node) for node in self.parent if not children[node]}
        for node in reversed(self.parent):
            if children[node]:
                is_kept[node] = any(is_kept[child] for child in children[node])
        self.kept = [node for node in self.parent if is_kept[node]]
        self.num_lost_survivors = sum(_has_coin(self.tree, node) for node in self.parent if not is_kept[node])
        for parent, siblings in children.items():
            if siblings:
                self._share_out(siblings, [node for node in siblings if is_kept[node]], kept=self._kept(parent))

    def post_hoc_reasons(self) -> list[str]:
        return [
            f"{number} decision(s) of rule {rule!r} forked where a continuation had already been sampled"
            for rule, number in sorted(self.post_hoc.items())
        ]

    def caveats(self) -> list[str]:
        found = [f"{number} path(s) left out: {why}" for why, number in sorted(self.lost.items())]
        if self.num_unshared:
            found.append(f"{self.num_unshared} decision(s) whose shares do not sum to 1")
        if self.num_lost_survivors:
            found.append(f"{self.num_lost_survivors} path(s) failed that a coin had let go on")
        if self.num_missing:
            found.append(f"{self.num_missing} planned sibling(s) never came")
        found += self.tree.caveats
        if self.tree.is_broken:
            found.append("growing ended before the strategy was done")
        if self.tree.pending:
            found.append(f"{len(self.tree.pending)} command(s) were still in flight")
        return found

    def _children(self) -> dict[int, list[int]]:
        """Policy children of the root and of every node below it, in canonical order; fills `parent`."""
        children: dict[int, list[int]] = {}
        nodes = [ROOT]
        for node in nodes:
            children[node] = self.tree.policy_children(node)
            nodes.extend(children[node])
            self.parent.update((child, node) for child in children[node])
        return children

    def _is_counted(self, node: int) -> bool:
        """Whether a childless node is a leaf that counts. Records its reward, or why it does not count."""
        stop = self.tree.stop(node)
        if stop is None:
            self.lost["never ended"] += 1
            return False
        if STOP_WORDS[stop].is_failure and stop != CANCELLED:
            return False
        if not STOP_WORDS[stop].is_trainable:
            self.lost[f"ended with {stop!r}"] += 1
            return False
        reward = 0.0 if stop == ROULETTE else self.tree.reward(node)
        if reward is None or not math.isfinite(reward):
            self._refuse_unjudged(node, stop, reward)
            self.lost["no judge gave a reward" if reward is None else f"its reward is {reward}"] += 1
            return False
        self.rewards[node] = reward
        return True

    def _refuse_unjudged(self, node: int, stop: str, reward: float | None) -> None:
        if self.unjudged == "error":
            has = "has no reward; a missing reward is not 0" if reward is None else f"its reward is {reward}"
            raise ExportError(
                f"leaf {node} of tree {self.tree.problem.uid!r} ended with {stop!r} and {has}: name a leaf judge, "
                "find its fault in the node's notes, or pass unjudged='drop'"
            )

    def _kept(self, node: int) -> float:
        """Probability with which random termination let the path go on after `node`; 1 = it was not used there."""
        return 1.0 if node == ROOT else self.tree.notes(node).get(KEPT, 1.0)

    def _share_out(self, siblings: list[int], counted: list[int], *, kept: float) -> None:
        """Shares of the children of one node. The shares of dropped children go to the others in proportion. If random
        termination let the path go on, the shares are divided by its probability."""
        if len(siblings) == 1 and self.tree.fork(siblings[0]) is None:  # As most nodes of a path.
            self.shares.update((node, 1 / kept) for node in counted)
            return
        planned = self._planned(siblings)
        counted_sum = sum(planned[node] for node in counted)
        is_whole = len(counted) == len(siblings) or not counted_sum
        factor = 1.0 if is_whole else sum(planned.values()) / counted_sum
        self.shares.update((node, planned[node] * factor / kept) for node in counted)

    def _planned(self, siblings: list[int]) -> dict[int, float]:
        """Shares as the decision fixed them. If several decisions were made at one place, shares are equal."""
        forks = [self.tree.fork(node) for node in siblings]
        decisions = {fork.decision_id: fork for fork in forks if fork is not None}
        late = [fork for fork in decisions.values() if fork.is_post_hoc]
        for fork in late:
            self.post_hoc[fork.rule] += 1
        if late or len(decisions) != 1 or None in forks:
            return dict.fromkeys(siblings, 1 / len(siblings))
        (fork,) = decisions.values()
        self.num_unshared += not fork.is_shared_out
        return self._as_decided(siblings, fork)

    def _as_decided(self, siblings: list[int], fork: ForkRecord) -> dict[int, float]:
        """Shares by order among all children of the decision, whatever their role. Missing children's shares go to the
        others."""
        children = self.tree.children(fork.node) + self.tree.derived(fork.node)
        came = sorted((c for c in children if self.tree.fork(c) == fork), key=self.tree.index)
        self.num_missing += fork.num_siblings - len(came)
        planned = dict(zip(came, fork.shares, strict=False))
        total = sum(planned[node] for node in siblings)
        if len(siblings) == fork.num_siblings or not total:
            return {node: planned[node] for node in siblings}
        return {node: planned[node] * sum(fork.shares) / total for node in siblings}
