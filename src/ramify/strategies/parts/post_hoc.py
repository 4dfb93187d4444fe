"""Post hoc: where the rules that fork finished paths would fork any path, so that credit can be exact for them.

A strategy runs its rule on the paths that happened to come first. Here is the same as arithmetic on one finished path,
whoever grew it: the mean number of forks at each place, which `credit/balance.py` asks of trunks and branches alike.
Only a rule that looks at nothing but its trunk has one, and only where it runs once.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ramify.core.branch import Branch
from ramify.core.cut import settled
from ramify.core.tree import ROOT, Tree
from ramify.strategies.parts.surprise import Surprisals, fork_positions, surprisals
from ramify.strategies.tree_grpo import TreeGRPO
from ramify.strategies.treerl import TreeRL, TreeRLConfig


@dataclass(frozen=True, slots=True)
class UniformNode:
    """Tree-GRPO: each draw is a fork of its own, at one of the trunk's nodes that go on, the bare prompt included."""

    max_forks: int
    """Draws of a tree."""

    def forks(self, tree: Tree, leaf: int) -> Mapping[int, float]:
        """Token position -> draws that fall there, in the mean."""
        places = [tree.length(node) for node in tree.path(leaf) if not tree.is_ended(node)]
        return {at: number * self.max_forks / len(places) for at, number in Counter(places).items()}


@dataclass(frozen=True, slots=True)
class LeastLikely:
    """TreeRL: before the least likely of the sampled tokens of a trunk, as far as a fork may stand there."""

    config: TreeRLConfig
    words: tuple[str, ...] = ()
    """Stop words that a fork does not cut (`GrowthRules.words`)."""

    @property
    def max_forks(self) -> int:
        return self.config.forks

    def forks(self, tree: Tree, leaf: int) -> Mapping[int, float]:
        """Token position -> number of forks there."""
        branch, config = tree.branch(leaf), self.config
        found = fork_positions(
            [self._surprisals(tree, branch)], config.forks, shortage=config.shortage, ties=config.ties
        )
        starts = _step_starts(tree, leaf)
        return Counter(at if at in starts else _settled(branch, at, self.words) for _, at in found)

    def _surprisals(self, tree: Tree, branch: Branch) -> Surprisals:
        """(T,) of the tokens before which a fork of the path may stand, were it a chain from the bare prompt."""
        config = self.config
        start = tree.length(ROOT)
        return surprisals(branch, start, config.words, reading=config.reading, max_position=config.max_position)


def post_hoc_rule(strategy: object, words: Sequence[str] = ()) -> UniformNode | LeastLikely | None:
    """The rule by which `strategy` forks finished paths. None = it has none that can be asked of any path.

    `words`: stop words that a fork does not cut. A subclass may fork otherwise and has none.
    """
    if isinstance(strategy, TreeGRPO) and type(strategy) is TreeGRPO and strategy.config.num_rounds == 1:
        return UniformNode(strategy.config.num_nodes)
    if isinstance(strategy, TreeRL) and type(strategy) is TreeRL:
        is_one_round = strategy.config.fork == "before" and strategy.config.rounds == 1
        return LeastLikely(strategy.config, tuple(words)) if is_one_round else None
    return None


def _step_starts(tree: Tree, leaf: int) -> set[int]:
    """Positions where a step of the path begins: not those where a fork divided one."""
    return {tree.length(node) for node in tree.path(leaf) if not _is_divided(tree, node)}


def _is_divided(tree: Tree, node: int) -> bool:
    """Whether `node` is the head of a step whose tail, which has the same seed, is below it."""
    return any(tree.node_seed(child) == tree.node_seed(node) for child in tree.children(node))


def _settled(branch: Branch, at: int, words: Sequence[str]) -> int:
    """Where a fork asked for at sampled token `at` stands: moved left out of stop words and characters."""
    first = last = at
    while first and branch.is_sampled[first - 1]:
        first -= 1
    while last < len(branch) and branch.is_sampled[last]:
        last += 1
    tokens = [branch.codec.token_bytes(int(i)) for i in branch.ids[first:last]]
    return first + settled(tokens, at - first, words)
