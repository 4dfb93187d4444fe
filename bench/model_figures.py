"""The built-in model on held-out problems of both tasks through ramify's own engine: pass@1, pass@4, pass@16.

The shipped report was made by an independent sampler (`models.evaluate`); these figures must agree with it.
pass@k is the unbiased estimator over 16 independent chains a problem.
"""

import argparse
from collections import defaultdict

import numpy as np
from smoke import few

import ramify
from ramify.experiments.proportions import pass_at_k

NUM_CHAINS = 16


def measure(task: str, num_problems: int, seed: int) -> None:
    """Print the figures of one task, by how hard its problems are."""
    result = ramify.rollout_sync(
        preset="chains",
        task__name=task,
        prompts=num_problems,
        seed=seed,
        strategy__options={"n": NUM_CHAINS},
    )
    right: defaultdict[str, list[int]] = defaultdict(list)
    for tree in result.trees:
        num_right = sum(tree.reward(leaf) == 1.0 for leaf in tree.leaves())
        public = tree.problem.public
        right[f"{public['num_hops']} hops" if task == "hops" else f"{len(public['numbers'])} numbers"].append(num_right)
        right["all"].append(num_right)
    print(f"{task:10} {'problems':>8} " + " ".join(f"{f'pass@{k}':>8}" for k in (1, 4, 16)))
    for name in sorted(right, reverse=True):
        values = [np.mean([pass_at_k(NUM_CHAINS, r, k) for r in right[name]]) for k in (1, 4, 16)]
        print(f"{name:10} {len(right[name]):8} " + " ".join(f"{v:8.3f}" for v in values))
    report = result.report
    tokens, calls = report.decode_tokens / report.leaves, report.tool_calls / report.leaves
    print(f"{tokens:.1f} sampled tokens and {calls:.2f} calls a chain\n")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--problems", type=int, default=few(300, 2))
    parser.add_argument("--seed", type=int, default=2)
    options = parser.parse_args()
    for task in ("countdown", "hops"):
        measure(task, options.problems, options.seed)


if __name__ == "__main__":
    main()
