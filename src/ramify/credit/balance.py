"""Balance: shares that make one round of post-hoc forks exact (`docs/concepts/exactness.md`, lemma 5).

A post-hoc rule looks at a finished path, the trunk, and grows branches from places on it. Such branches are not
distributed like fresh paths. Balanced shares correct this and keep the branches. At a fork, the trunk and its branches
share in proportion to how many forks, on average, the rule would make exactly here if each of them were the trunk.
Given the tokens before the fork, all of them are equally likely to have been the trunk, so each fork adds zero on
average. Let a_x, a_y be these shares and m the most forks of one trunk. Then a branch weighs a_y / m, and the trunk
weighs 1 minus the sum over its forks of (1 - a_x) / m.

This covers trees of one chain each, forked in one round, whose branches do not fork again. Anything else raises
`ContractError`. A path that was lost for a reason other than its own tokens is left out of its fork, and a tree without
its trunk is left out as a whole; both keep the result exact. Baselines come from other trees only, because the scores
of a fork's siblings depend on where the rule looked.
"""

from dataclasses import dataclass, field, replace

import numpy as np

from ramify.core.command import ForkRecord
from ramify.core.errors import ContractError
from ramify.core.stems import tree_number
from ramify.core.strategy import PostHocRule
from ramify.core.tree import ROOT, Tree
from ramify.credit.forest import STEM, Array_N, Forest
from ramify.credit.split import split


def balanced(forest: Forest, tree: Tree, rule: PostHocRule) -> Forest:
    """Return `forest`, which is the forest of `tree`, with the shares of lemma 5 in `balanced`. Mutates nothing.

    Raises `ContractError` if the lemma does not cover the tree, or if another rule forked it.
    """
    if forest.has_coins:
        raise ContractError(
            "balanced shares follow from where the rule would fork whole paths, and random termination ended some "
            "(growth.keep); set growth.keep = 0, or use a strategy that decides before it samples"
        )
    found = _Round.of(tree, forest)
    weights, num_planned = _weights(tree, rule, found)
    return replace(
        forest,
        balanced=shares_of(forest, np.array([weights.get(int(n), 0.0) for n in forest.nodes[forest.leaves]])),
        tree=forest.tree if found.num_trees > 1 else np.zeros(len(forest), np.int32),
        caveats=(*forest.caveats, *found.caveats(num_planned)),
    )


def rebalanced(forest: Forest) -> Forest:
    """`forest` with its balanced shares in place of the planned ones. If all forks are predictable, `forest` itself.

    Raises `ContractError` for post-hoc forks without balanced shares.
    """
    if forest.balanced is not None:
        return replace(forest, share=forest.balanced)
    if not forest.post_hoc_reasons:
        return forest
    raise ContractError(
        "balanced shares are known for predictable forks and for one round of forks by a rule that can be asked of any "
        f"path (treerl with rounds = 1, tree_grpo with num_rounds = 1) only: {'; '.join(forest.post_hoc_reasons)}"
    )


def shares_of(forest: Forest, weights: Array_N) -> Array_N:
    """(N,) shares whose product on the way to each leaf is the leaf's weight in (num_leaves,) `weights`; 0 below a
    weight of 0."""
    totals = forest.over_leaves(weights).tolist()
    parents = forest.parent.tolist()
    above = [1 if parent == STEM else totals[parent] for parent in parents]
    return np.array([total / whole if whole else 0 for total, whole in zip(totals, above, strict=True)], weights.dtype)


def balanced_split(forest: Forest) -> Array_N:
    """(N,) w_c Q_c with balanced shares: no baseline. Exact."""
    return split(rebalanced(forest))


def balanced_split_tree_loo(forest: Forest) -> Array_N:
    """(N,) w_c (Q_c - mean of the other trees' values), with balanced shares. Exact.

    If there is only one tree, its baseline is 0. Trees are those of the published method (`Forest.tree`): a fork of the
    bare prompt is a stem (root branch) of the tree that made it.
    """
    forest = rebalanced(forest)
    trees, leaves = forest.stem if forest.tree is None else forest.tree, forest.leaves
    weight = forest.weight[leaves]
    of_leaves = trees[leaves]
    values = {number: (weight * forest.rewards)[of_leaves == number].sum() for number in of_leaves[weight > 0].tolist()}
    total, num_others = sum(values.values()), max(1, len(values) - 1)
    others = {number: (total - value) * len(values) / num_others for number, value in values.items()}
    baselines = np.array([others.get(number, 0) for number in trees.tolist()], forest.share.dtype)
    return forest.weight * (forest.value - baselines)


@dataclass(slots=True)
class _Round:
    """The trunks of a tree and the one round of forks on them."""

    num_trees: int
    trunks: dict[int, int] = field(default_factory=dict[int, int])
    """Number of a tree -> leaf of its trunk. Trees whose trunk is lost are missing."""
    number: dict[int, int] = field(default_factory=dict[int, int])
    """Post-hoc decision -> number of the tree that made it."""
    branches: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    """Post-hoc decision -> leaves of its branches that count."""
    num_missing: int = 0

    @classmethod
    def of(cls, tree: Tree, forest: Forest) -> "_Round":
        planned = (f.num_siblings for f in tree.forks if f.node == ROOT and not f.is_post_hoc)
        found = cls(num_trees=next(planned, 1))
        for fork in tree.forks:
            found._add(tree, fork)
        for leaf in forest.nodes[forest.leaves].tolist():
            path = tree.path(leaf)
            late = [fork for fork in map(tree.fork, path) if fork is not None and fork.is_post_hoc]
            if late:
                found.branches[late[0].decision_id].append(leaf)
            else:
                found.trunks[tree_number(tree, path[1])] = leaf
        return found

    def caveats(self, num_planned: int) -> list[str]:
        """Why the lemma's numbers are not exact, if they are not. `num_planned`: number of forks that the rule makes on
        the trunks."""
        num_unmade = num_planned - sum(number in self.trunks for number in self.number.values())
        caveats = [f"{self.num_missing} planned branch(es) never came"] if self.num_missing else []
        caveats += [f"{num_unmade} fork(s) of finished paths were never made"] if num_unmade > 0 else []
        return caveats if self.trunks or not self.number else [*caveats, "every chain that was forked is lost"]

    def _add(self, tree: Tree, fork: ForkRecord) -> None:
        """Record one decision. Raises `ContractError` for a decision that the lemma does not cover."""
        children = [c for c in tree.children(fork.node) + tree.derived(fork.node) if tree.fork(c) == fork]
        if any(tree.role(child) != "policy" for child in children):
            return
        above = [f for f in map(tree.fork, tree.path(fork.node)) if f is not None and f.is_post_hoc]
        if above or not (fork.is_post_hoc or fork.node == ROOT or fork.num_siblings == 1):
            kind = "a branch" if above else "a chain that had not ended"
            raise ContractError(
                f"balanced shares cover one round of forks of finished chains; rule {fork.rule!r} forked {kind}"
            )
        if fork.is_post_hoc:
            self.num_missing += fork.num_siblings - len(children)
            self.branches[fork.decision_id] = []
            self.number.update((fork.decision_id, self._number(tree, fork, child)) for child in children)

    def _number(self, tree: Tree, fork: ForkRecord, child: int) -> int:
        """Number of the tree that made a decision."""
        number = tree_number(tree, tree.path(child)[1])
        if number < self.num_trees:
            return number
        if self.num_trees == 1:
            return 0
        raise ContractError(
            f"rule {fork.rule!r} forked the bare prompt and does not say for which of the {self.num_trees} trees; name "
            "the decision's rule by `joining` (core/stems.py)"
        )


def _weights(tree: Tree, rule: PostHocRule, found: _Round) -> tuple[dict[int, float], int]:
    """Weight of each leaf, without the leaves of lost trees; and the number of forks that the rule makes on these
    trunks."""
    weights: dict[int, float] = {}
    num_planned = 0
    for number, trunk in found.trunks.items():
        picks = rule.forks(tree, trunk)
        num_planned += round(sum(picks.values()))
        decisions = [decision for decision, of in found.number.items() if of == number]
        if len(decisions) > rule.max_forks:
            raise ContractError(
                f"tree {number} was forked {len(decisions)} times and its rule forks a trunk {rule.max_forks} times at "
                "most; balanced shares cover one round of forks"
            )
        weights[trunk] = 1 / len(found.trunks)
        for decision in decisions:
            position, branches = tree.forks[decision].position, found.branches[decision]
            means = [picks.get(position, 0), *(rule.forks(tree, leaf).get(position, 0) for leaf in branches)]
            if not means[0]:
                raise ContractError(
                    f"rule {tree.forks[decision].rule!r} forked a path at token {position}, where it never would as "
                    "configured; make rows with the configuration that the tree was grown with"
                )
            scale = 1 / (sum(means) * rule.max_forks * len(found.trunks))
            weights[trunk] -= sum(means[1:]) * scale
            weights.update((leaf, mean * scale) for leaf, mean in zip(branches, means[1:], strict=True))
    return weights, num_planned
