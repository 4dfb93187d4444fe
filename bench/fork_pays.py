"""Where forks pay: K* behind each step of a task, and forks behind the prefix against chains of as many tokens.

- pilot: as `ramify plan` grows it. B is the variance of the return that the steps so far have added, W what the
  others add; with c0 tokens before and c1 behind, K* = sqrt((W / B) * (c0 / c1)) (`docs/choose/measured-trees.md`).
  Target on `herds`: above 1 behind the last look-up.
- forks: stems that fork once, behind the last look-up, against a pool of independent chains: the share of problems
  with a right leaf, and tokens times the variance of a mean of rewards, chains over forks.

Intervals are 95 %, by bootstrap over problems. Run: python bench/fork_pays.py [--task T] [--problems N] [--seed S]
"""

import argparse
import os
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before numpy is imported: see `engines.builtin`

import numpy as np
from smoke import few

import ramify
from ramify import ROOT
from ramify.config.configure import resolve
from ramify.config.run_config import RunConfig, StrategyConfig
from ramify.core.tree import Tree
from ramify.experiments.compare import ChainPool, chains_of
from ramify.experiments.paired import paired_difference
from ramify.experiments.pilot import DECODE, grow_pilot, unseen
from ramify.planner.levels import levels, resampled
from ramify.planner.shape import best_ratio

POOL = few(24, 4)
"""Chains of each problem that forks are held against."""
ARMS = ((1, 2), (1, 4), (2, 2), (2, 3), (2, 4), (4, 4))
"""Stems, and children of each."""
PREFIX = {"herds": 5, "countdown": 1, "hops": 2}
"""Steps before the fork: on herds every herd is looked up."""


def grown(options: argparse.Namespace, children: Sequence[float]) -> Sequence[Tree]:
    """Trees of the options' problems."""
    config = configured(options, seed=options.seed)
    planned = StrategyConfig(name="planned", options={"children": list(children)})
    return ramify.rollout_sync(config=replace(config, strategy=planned)).trees


def configured(options: argparse.Namespace, *, seed: int) -> RunConfig:
    flags = {"task.name": options.task, "task.split": options.split, "prompts": options.problems, "seed": seed}
    model = {} if options.model is None else {"engine.model": options.model}
    settings = {"engine.options": {"batch_invariant": False}, "max_trees": 8}
    return resolve(preset="chains", flags={**flags, **settings, **model}).config


def tokens(tree: Tree, nodes: Sequence[int]) -> int:
    return sum(tree.num_sampled(node) for node in nodes)


def reward(tree: Tree, leaf: int) -> float:
    return tree.reward(leaf) or 0.0


def resampled_means(values: np.ndarray) -> np.ndarray:
    """(4000, …) means over problems drawn anew."""
    picks = np.random.default_rng(0).integers(len(values), size=(4000, len(values)))
    return values[picks].mean(axis=1)


def pilot(options: argparse.Namespace) -> None:
    config = configured(options, seed=options.seed)
    flown = grow_pilot(config, num_problems=options.problems, prices=DECODE, watch=unseen).pilot
    found = levels(flown, resampled(len(flown.trees), np.random.default_rng(0))).settled()
    ratios = best_ratio(found.variance, found.cost)
    variance, cost = found.variance[0], found.cost[0]
    print(f"{'behind step':>11} {'B':>7} {'W':>7} {'c0':>6} {'c1':>6} {'K*':>6}  95 %")
    for step in range(1, len(cost)):
        parts = variance[:step].sum(), variance[step:].sum(), cost[:step].sum(), cost[step:].sum()
        low, high = np.nanquantile(ratios[:, step - 1], (0.025, 0.975), method="nearest")
        figures = "{:7.4f} {:7.4f} {:6.1f} {:6.1f}".format(*parts)
        print(f"{step:11} {figures} {ratios[0, step - 1]:6.2f}  [{low:.2f}, {high:.2f}]")


def against_chains(options: argparse.Namespace) -> None:
    pool, wide = ChainPool(lambda one, other: one == other), grown(options, (POOL,))
    for tree in wide:
        pool.add(tree.problem.uid, chains_of(tree, lambda text: None))
    right = fmean(chain.reward for chains in pool.chains.values() for chain in chains)
    print(f"\nchains: {right:.3f} right, {pool.tokens_a_chain:.1f} tokens, {len(wide)} problems")
    print(f"{'stems x children':>16} {'leaves':>6} {'tokens':>6} {'= chains':>8} {'solved':>6}  less chains")
    for stems, children in ARMS:
        trees = grown(options, (stems, *[1] * (PREFIX[options.task] - 1), children))
        spent = fmean(tokens(tree, range(len(tree))) for tree in trees)
        expected = pool.expected(spent)
        solved = [float(any(reward(tree, leaf) >= 1 for leaf in tree.leaves())) for tree in trees]
        less = paired_difference(solved, [expected[tree.problem.uid]["solved"] for tree in trees])
        leaves = fmean(len(tree.leaves()) for tree in trees)
        line = f"{f'{stems} x {children}':>16} {leaves:6.1f} {spent:6.1f} {pool.num_chains(spent):8.2f}"
        compared = f"{fmean(solved):6.3f}  {less.value:+.3f} [{less.low:+.3f}, {less.high:+.3f}]"
        print(f"{line} {compared}{noise(trees, pool)}")


def noise(trees: Sequence[Tree], pool: ChainPool) -> str:
    """Variance times tokens of chains over that of these trees; needs two stems to tell."""
    if min(len(tree.children(ROOT)) for tree in trees) < 2:
        return ""
    of_chains = [np.var([chain.reward for chain in pool.chains[tree.problem.uid]], ddof=1) for tree in trees]
    of_stems = [np.var(stem_means(tree), ddof=1) for tree in trees]
    cost = fmean(tokens(tree, range(len(tree))) / len(tree.children(ROOT)) for tree in trees)
    both = np.stack([of_chains, of_stems], axis=1) * [pool.tokens_a_chain, cost]
    drawn, (chains, forks) = resampled_means(both), both.mean(axis=0)
    low, high = np.quantile(drawn[:, 0] / np.maximum(drawn[:, 1], 1e-9), (0.025, 0.975))
    return f"   noise x tokens, chains over forks {chains / forks:.2f} [{low:.2f}, {high:.2f}]"


def stem_means(tree: Tree) -> list[float]:
    return [fmean(reward(tree, leaf) for leaf in tree.leaves(stem)) for stem in tree.children(ROOT)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--task", default="herds", choices=PREFIX)
    parser.add_argument("--problems", type=int, default=few(150, 2))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--split", default="heldout")
    parser.add_argument("--model", help="a shipped model or a folder in place of the task's own")
    options = parser.parse_args()
    pilot(options)
    against_chains(options)


if __name__ == "__main__":
    main()
