"""Decode tokens a leaf of trees against chains, and how much of a forked prefix is not computed again.

Trees of the built-in model, few at a time so that slots suffice. The ideal of a shape is what its realised turns cost
if every sampled token is paid once: the sum over distinct nodes. Chains pay every path by itself. Targets: billed
tokens within 5 % of the ideal; at least 95 % of the prefix tokens that forks share are found in the cache.
"""

import argparse

import ramify
from ramify.core.cost import decode_if_chains
from ramify.core.tree import ROOT, Tree
from ramify.engines.builtin import Builtin

PRESETS = ("chains", "offline", "arpo")
MAX_TREES = 4


def forked_prefix(tree: Tree) -> tuple[int, int]:
    """(tokens found in the cache, tokens that could be) of the first request of every second or later child."""
    found = forkable = 0
    for node in range(1, len(tree)):
        parent = tree.parent(node)
        assert parent is not None
        if tree.index(node) == 0 or parent == ROOT or not tree.num_sampled(node):
            continue
        forkable += tree.length(parent) - 1
        found += tree.segments(node)[0].usage.num_cached
    return found, forkable


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--problems", type=int, default=64)
    options = parser.parse_args()
    columns = ("leaves", "tokens/leaf", "ideal", "billed/ideal", "as chains", "saved", "prefix cached")
    print(f"{'preset':10} " + " ".join(f"{name:>13}" for name in columns))
    for preset in PRESETS:
        engine = Builtin()
        done = ramify.rollout_sync(
            preset=preset, engine=engine, prompts=options.problems, seed=1, max_trees=MAX_TREES, rows__policy="once"
        )
        trees, report = done.trees, done.report
        ideal = sum(tree.num_sampled(node) for tree in trees for node in range(len(tree))) / report.leaves
        billed = report.decode_tokens / report.leaves
        chains = sum(decode_if_chains(tree) for tree in trees) / report.leaves
        found, forkable = (sum(column) for column in zip(*map(forked_prefix, trees), strict=True))
        cached = f"{found / forkable:13.1%}" if forkable else f"{'no forks':>13}"
        print(
            f"{preset:10} {report.leaves:13} {billed:13.2f} {ideal:13.2f} {billed / ideal:13.3f} {chains:13.2f} "
            f"{1 - billed / chains:13.1%} {cached}"
        )
        print(f"{'':10} engine: {engine.stats}")


if __name__ == "__main__":
    main()
