"""Where forks pay: K* behind each step of a task, and forks behind the prefix against chains of as many tokens.

- pilot: four stems a problem, behind every step of a stem one more child. Of the reward's variance within a problem, W
  is what two continuations of one prefix differ by, B what prefixes differ by; with c0 tokens before and c1 behind,
  K* = sqrt((W / B) * (c0 / c1)) (`docs/when-trees-pay.md`). Target on `herds`: above 1 behind the last look-up.
- forks: stems that fork once, behind the last look-up, against a pool of independent chains: the share of problems with
  a right leaf, and tokens times the variance of a mean of rewards, chains over forks.

Intervals are 95 %, by bootstrap over problems. Run: python bench/fork_pays.py [--task T] [--problems N] [--seed S]
"""

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before numpy is imported: see `engines.builtin`

import numpy as np

import ramify
from ramify import ROOT, Fork, Grow, Grown, Phase
from ramify.core.tree import Tree
from ramify.runner.compare import Pool, chains_of
from ramify.runner.paired import paired_difference

POOL = 24
"""Chains of each problem that forks are held against."""
ARMS = ((1, 2), (1, 4), (2, 2), (2, 3), (2, 4), (4, 4))
"""Stems, and children of each."""
RARE = 0.1
"""Steps that a smaller share of the problems gets to are left out."""
PREFIX = {"herds": 5, "countdown": 1, "hops": 2}
"""Steps before the fork: on herds every herd is looked up."""


@dataclass(frozen=True, slots=True)
class NestedConfig:
    stems: int = 4
    children: int = 2
    first: int = 1
    last: int = 6


class Nested:
    """Stems that go on step by step; behind steps `first` to `last` they have `children`, themselves among them."""

    Config = NestedConfig
    measures = frozenset()
    is_order_free = True
    unpredictable = ""

    def __init__(self, config, rng):
        self.config, self.has_begun, self.num_open, self.arrived = config, False, 0, []

    def ask(self, tree):
        grows = []
        if not self.has_begun:
            grows = [Grow(ROOT, until="step", fork=Fork(self.config.stems, "stems"))] * self.config.stems
        for node in sorted(self.arrived):
            is_fork = self.config.first <= tree.num_tool_calls(node) <= self.config.last
            fork = Fork(self.config.children if is_fork else 1, "step")
            grows += [Grow(node, until="step", fork=fork)]
            grows += [Grow(node, fork=fork)] * (fork.num_siblings - 1)
        self.has_begun, self.arrived, self.num_open = True, [], self.num_open + len(grows)
        return grows

    def tell(self, tree, outcome):
        self.num_open -= 1
        if isinstance(outcome, Grown) and not tree.is_ended(outcome.tip):
            self.arrived.append(outcome.tip)

    def is_done(self, tree):
        return self.has_begun and not self.num_open and not self.arrived

    def phase(self, tree):
        return Phase("expansion" if self.has_begun else "build")


def grown(options: argparse.Namespace, config: NestedConfig | None, *, chains: int = 0) -> Sequence[Tree]:
    """Trees of the options' problems: nested ones, or independent chains."""
    how = (
        {"preset": "chains", "strategy__options": {"n": chains}}
        if config is None
        else {"strategy": Nested, "strategy__options": {name: getattr(config, name) for name in config.__slots__}}
    )
    result = ramify.rollout_sync(
        task__name=options.task,
        task__split=options.split,
        prompts=options.problems,
        seed=options.seed,
        engine__options={"batch_invariant": False},
        **({} if options.model is None else {"engine__model": options.model}),
        max_trees=8,
        **how,
    )
    return result.trees


def tokens(tree: Tree, nodes: Sequence[int]) -> int:
    return sum(tree.num_sampled(node) for node in nodes)


def reward(tree: Tree, leaf: int) -> float:
    return tree.reward(leaf) or 0.0


@dataclass(frozen=True, slots=True)
class Pair:
    """Two continuations of one prefix."""

    rewards: tuple[float, float]
    before: float
    behind: float


def pairs_of(tree: Tree) -> Mapping[int, list[Pair]]:
    """Step -> for each stem that got there, its own end and that of its other child."""
    found: dict[int, list[Pair]] = {}
    for stem in tree.children(ROOT):
        own = [stem]
        while children := tree.children(own[-1]):
            own.append(children[0])
        for number, node in enumerate(own, start=1):
            for child in tree.children(node)[1:]:
                (other,) = tree.leaves(child)
                behind = tokens(tree, own[number:]) / 2 + tokens(tree, tree.path(other)[number + 1 :]) / 2
                pair = Pair((reward(tree, own[-1]), reward(tree, other)), tokens(tree, own[:number]), behind)
                found.setdefault(tree.num_tool_calls(node), []).append(pair)
    return found


def parts(pairs: Sequence[Pair]) -> tuple[float, float, float, float]:
    """B, W, c0 and c1 of one problem."""
    within = fmean((one - other) ** 2 / 2 for one, other in (pair.rewards for pair in pairs))
    between = float(np.var([fmean(pair.rewards) for pair in pairs], ddof=1)) - within / 2
    return between, within, fmean(pair.before for pair in pairs), fmean(pair.behind for pair in pairs)


def best_number(means: np.ndarray) -> np.ndarray:
    """K* of means (…, 4); infinite where prefixes do not differ measurably."""
    between, within, before, behind = np.moveaxis(means, -1, 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.sqrt(within / np.maximum(between, 0.0) * before / behind)


def resampled(values: np.ndarray) -> np.ndarray:
    """(4000, …) means over problems drawn anew."""
    picks = np.random.default_rng(0).integers(len(values), size=(4000, len(values)))
    return values[picks].mean(axis=1)


def pilot(options: argparse.Namespace) -> None:
    trees = grown(options, NestedConfig())
    by_step: dict[int, list[tuple[float, float, float, float]]] = {}
    for tree in trees:
        for step, pairs in pairs_of(tree).items():
            if len(pairs) > 1:
                by_step.setdefault(step, []).append(parts(pairs))
    print(f"{'behind step':>11} {'problems':>8} {'B':>7} {'W':>7} {'c0':>6} {'c1':>6} {'K*':>6}  95 %")
    for step, found in sorted(by_step.items()):
        if len(found) < RARE * len(trees):
            continue
        values = np.array(found)
        low, high = np.nanquantile(best_number(resampled(values)), (0.025, 0.975), method="nearest")
        between, within, before, behind = values.mean(axis=0)
        best = float(best_number(values.mean(axis=0)))
        figures = f"{between:7.4f} {within:7.4f} {before:6.1f} {behind:6.1f} {best:6.2f}"
        print(f"{step:11} {len(found):8} {figures}  [{low:.2f}, {high:.2f}]")


def against_chains(options: argparse.Namespace) -> None:
    pool, wide = Pool(lambda one, other: one == other), grown(options, None, chains=POOL)
    for tree in wide:
        pool.add(tree.problem.uid, chains_of(tree, lambda text: None))
    right = fmean(chain.reward for chains in pool.chains.values() for chain in chains)
    print(f"\nchains: {right:.3f} right, {pool.tokens_a_chain:.1f} tokens, {len(wide)} problems")
    print(f"{'stems x children':>16} {'leaves':>6} {'tokens':>6} {'= chains':>8} {'solved':>6}  less chains")
    for stems, children in ARMS:
        prefix = PREFIX[options.task]
        trees = grown(options, NestedConfig(stems, children, prefix, prefix))
        spent = fmean(tokens(tree, range(len(tree))) for tree in trees)
        expected = pool.expected(spent)
        solved = [float(any(reward(tree, leaf) >= 1 for leaf in tree.leaves())) for tree in trees]
        less = paired_difference(solved, [expected[tree.problem.uid]["solved"] for tree in trees])
        leaves = fmean(len(tree.leaves()) for tree in trees)
        line = f"{f'{stems} x {children}':>16} {leaves:6.1f} {spent:6.1f} {pool.num_chains(spent):8.2f}"
        compared = f"{fmean(solved):6.3f}  {less.mean:+.3f} [{less.low:+.3f}, {less.high:+.3f}]"
        print(f"{line} {compared}{noise(trees, pool)}")


def noise(trees: Sequence[Tree], pool: Pool) -> str:
    """Variance times tokens of chains over that of these trees; needs two stems to tell."""
    if min(len(tree.children(ROOT)) for tree in trees) < 2:
        return ""
    of_chains = [np.var([chain.reward for chain in pool.chains[tree.problem.uid]], ddof=1) for tree in trees]
    of_stems = [np.var(stem_means(tree), ddof=1) for tree in trees]
    cost = fmean(tokens(tree, range(len(tree))) / len(tree.children(ROOT)) for tree in trees)
    both = np.stack([of_chains, of_stems], axis=1) * [pool.tokens_a_chain, cost]
    drawn, (chains, forks) = resampled(both), both.mean(axis=0)
    low, high = np.quantile(drawn[:, 0] / np.maximum(drawn[:, 1], 1e-9), (0.025, 0.975))
    return f"   noise x tokens, chains over forks {chains / forks:.2f} [{low:.2f}, {high:.2f}]"


def stem_means(tree: Tree) -> list[float]:
    return [fmean(reward(tree, leaf) for leaf in tree.leaves(stem)) for stem in tree.children(ROOT)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--task", default="herds", choices=PREFIX)
    parser.add_argument("--problems", type=int, default=150)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--split", default="heldout")
    parser.add_argument("--model", help="a shipped model or a folder in place of the task's own")
    options = parser.parse_args()
    pilot(options)
    against_chains(options)


if __name__ == "__main__":
    main()
