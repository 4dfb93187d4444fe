"""Tree-GRPO: a few trees for each prompt. In each round every tree grows new paths from nodes drawn among its own.

M trees start with one chain each. In each of L rounds every tree draws N nodes uniformly with replacement, from the
bare prompt and its steps that have not ended. Each draw grows one path to its end: M (1 + N L) leaves. Trees are stems
(root branches) of one tree here (`core/stems.py`): a path drawn from the bare prompt is an additional stem of the tree
that drew it. `offline` draws from all trees together and is another method.

Draws, in each round: for each tree in order, N integers. Sources: arXiv 2509.21240; AMAP-ML/Tree-GRPO
search_r1/llm_agent/{generation_ts,tree_node}.py, `get_expand_node`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ramify.core.command import Fork, Grow, Option
from ramify.core.errors import ConfigError
from ramify.core.stems import joining, tree_number
from ramify.core.tree import ROOT, Tree
from ramify.strategies.parts.draws import Draws, with_replacement
from ramify.strategies.parts.rounds import Rounds

RULE = "tree_grpo"


@dataclass(frozen=True, slots=True)
class TreeGRPOConfig:
    """Numbers are those of train_multihopqa_tree_search.sh: (M, N, L) = (2, 2, 1); K is `rows.leaves` / M."""

    num_trees: int = 2
    """Trees of a prompt; each starts with one chain."""
    num_nodes: int = 2
    """Nodes that each tree draws in a round, with replacement."""
    num_rounds: int = 1
    """Rounds of new paths after the first chains."""

    def __post_init__(self) -> None:
        if self.num_trees < 1 or self.num_nodes < 1 or self.num_rounds < 0:
            raise ConfigError(f"tree_grpo: num_trees and num_nodes must be at least 1, num_rounds 0, got {self!r}")

    @property
    def planned_leaves(self) -> int:
        return self.num_trees * (1 + self.num_nodes * self.num_rounds)


@dataclass(frozen=True, slots=True)
class UniformNode:
    """Tree-GRPO's post-hoc rule: each draw is one fork, at any node of the path that has not ended, or at the bare
    prompt."""

    max_forks: int
    """Draws of a tree in a round."""

    def forks(self, tree: Tree, leaf: int) -> Mapping[int, float]:
        """Token position -> expected number of draws at this position."""
        places = [tree.length(node) for node in tree.path(leaf) if not tree.is_ended(node)]
        return {at: number * self.max_forks / len(places) for at, number in Counter(places).items()}


class TreeGRPO(Rounds):
    """Grow each tree from nodes drawn among its own."""

    Config = TreeGRPOConfig

    def __init__(self, config: TreeGRPOConfig, rng: Draws) -> None:
        super().__init__(config.num_trees, config.num_rounds)
        self.config = config
        self._rng = rng

    def expand(self, tree: Tree) -> Sequence[Grow]:
        grows: list[Grow] = []
        for number, nodes in enumerate(expansion_candidates(tree, self.config.num_trees)):
            drawn = with_replacement(nodes, self.config.num_nodes, self._rng)
            grows += [_continuation(node, number, len(nodes)) for node in drawn]
        return grows

    def post_hoc_rule(self, words: Sequence[str]) -> UniformNode | None:
        return UniformNode(self.config.num_nodes) if self.config.num_rounds == 1 else None


def expansion_candidates(tree: Tree, num_trees: int) -> list[list[int]]:
    """For each tree: the root and its nodes that have not ended, breadth first, siblings in the order asked."""
    found = [[ROOT] for _ in range(num_trees)]
    for node in tree.expandable()[1:]:
        found[tree_number(tree, tree.path(node)[1])].append(node)
    return found


def _continuation(node: int, number: int, num_candidates: int) -> Grow:
    """One path from a node that tree `number` drew."""
    rule, probability = joining(RULE, number) if node == ROOT else RULE, 1 / num_candidates
    why = (Option(node, probability, (("num_candidates", float(num_candidates)),)),)
    return Grow(node, fork=Fork(1, rule, probability=probability, select_prob=probability), why=why)
