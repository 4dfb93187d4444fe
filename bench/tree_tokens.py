"""What a leaf of a tree costs: tokens sampled against the shape's ideal and against chains; prefixes computed again.

The built-in model on held-out countdown problems, two trees at a time so that slots are to spare. Medians of three runs
of eight problems each; counts, so no load of the machine changes them.

- tokens a leaf: what the ledger billed. Ideal: every sampled token of the realised tree paid once, over its leaves
  (`core/cost.py`). Target: within 5 %. `as chains`: the same leaves with nothing shared, so `saved` is the shape's own
  saving; the row of the preset `chains` is what unshared paths really cost.
- prefix cached: of the context tokens that a forked child shares with an older sibling, those its first request did not
  compute again; all but the last of them could be. Below the root, and at the root, where it is the prompt. Target:
  at least 95 %.
- evicted, recomputed: slots given up, and tokens computed again for it (the tree they served may be long finished).
"""

import statistics
from collections.abc import Sequence
from dataclasses import astuple, dataclass

from smoke import few

import ramify
from ramify.core.tree import ROOT, Tree
from ramify.engines.builtin import Builtin
from ramify.testing.prefill_cost import decode_if_chains, modelled_spend

PRESETS = (
    "chains",
    "offline",
    "arpo",
    "aepo",
    "tree_grpo",
    "at2po",
    "treerl",
    "treepo",
    "spo",
    "treerpo",
    "deepsearch",
)
NUM_RUNS = few(3, 1, book=1)
NUM_PROBLEMS = few(8, 1)
MAX_TREES = 2
MAX_RATIO, MIN_CACHED = 1.05, 0.95


@dataclass(frozen=True)
class Figures:
    """Of one run."""

    leaves: float
    billed: float
    """Tokens a leaf, as the two that follow."""
    ideal: float
    as_chains: float
    inner_cached: float
    root_cached: float
    evicted: float
    recomputed: float


def measured(preset: str, seed: int) -> Figures:
    engine = Builtin()
    done = ramify.rollout_sync(preset=preset, engine=engine, prompts=NUM_PROBLEMS, seed=seed, max_trees=MAX_TREES)
    trees, leaves, stats = done.trees, done.report.leaves, engine.stats
    assert stats.num_decoded == done.report.decode_tokens, "the ledger bills what the engine sampled"
    return Figures(
        leaves=leaves,
        billed=done.report.decode_tokens / leaves,
        ideal=sum(modelled_spend(tree).decode for tree in trees) / leaves,
        as_chains=sum(decode_if_chains(tree) for tree in trees) / leaves,
        inner_cached=cached_share(trees, at_root=False),
        root_cached=cached_share(trees, at_root=True),
        evicted=stats.num_evictions,
        recomputed=stats.recomputed_after_eviction,
    )


def cached_share(trees: Sequence[Tree], *, at_root: bool) -> float:
    """Share of forkable prefix tokens that the first requests of second and later children found; NaN = no forks."""
    found = forkable = 0
    for tree in trees:
        for node in range(1, len(tree)):
            parent = tree.parent(node)
            if parent is None or (parent == ROOT) != at_root or not tree.index(node) or not tree.num_sampled(node):
                continue
            forkable += tree.length(parent) - 1
            found += tree.segments(node)[0].usage.num_cached
    return found / forkable if forkable else float("nan")


def main() -> None:
    names = ("leaves", "tokens/leaf", "ideal", "ratio", "target", "as chains", "saved")
    print(f"{'preset':10} " + " ".join(f"{name:>11}" for name in names))
    rows: dict[str, Figures] = {}
    for preset in PRESETS:
        runs = [astuple(measured(preset, seed)) for seed in range(NUM_RUNS)]
        row = rows[preset] = Figures(*(statistics.median(column) for column in zip(*runs, strict=True)))
        print(
            f"{preset:10} {row.leaves:11.0f} {row.billed:11.2f} {row.ideal:11.2f} {row.billed / row.ideal:11.3f} "
            f"{MAX_RATIO:>10.2f}< {row.as_chains:11.2f} {1 - row.billed / row.as_chains:11.1%}"
        )
    names = ("prefix cached", "target", "ratio", "prompt cached", "evicted", "recomputed")
    print(f"\n{'preset':10} " + " ".join(f"{name:>13}" for name in names))
    for preset, row in rows.items():
        if preset == "chains":  # It forks at the root alone.
            continue
        print(
            f"{preset:10} {row.inner_cached:13.1%} {MIN_CACHED:>12.0%}+ {row.inner_cached / MIN_CACHED:13.3f} "
            f"{row.root_cached:13.1%} {row.evicted:13.0f} {row.recomputed:13.0f}"
        )


if __name__ == "__main__":
    main()
