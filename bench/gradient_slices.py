"""What of a gradient is enough for `ramify noise`: whole gradients against random projections and the last layer.

The built-in model in torch, float32, one thread. Trees of three shapes on the same held-out countdown problems, two of
each, and `chains` once more with other seeds, of which nothing may be said but that it does not differ. For each slice:
CPU seconds of all gradients; |g|^2 over that of the whole gradient, as mean and standard deviation over trees (an exact
projection has mean 1); the rank correlation of both; and the ratios that `ramify noise` would print, whose agreement
with those of the whole gradient is what matters.

Runs with torch and transformers: PYTHONPATH=src python bench/gradient_slices.py [--problems N]
"""

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from smoke import few

from ramify.config.configure import resolve
from ramify.engines.builtin import FOLDER
from ramify.experiments.noise import GradientSample, lines, sample
from ramify.rows import Row
from ramify.runner import build, library
from ramify.runner.rows import tree_rows

try:
    from ramify.train.policy_gradient import PolicyGradient
    from ramify.train.sketch import Sketch
except ImportError as error:
    print(f"skipped: {error}; pip install 'ramify[hf]'")
    sys.exit()

NUM_SEEDS = 2
QUANTILE = 0.9
SHAPES: Mapping[str, tuple[str, int, Sequence[str]]] = {
    "chains": ("chains", 0, ()),
    "chains again": ("chains", 100, ()),
    "offline": ("offline", 0, ("strategy.options.commit=before",)),
    "spo": ("spo", 0, ()),
}
"""Name -> preset, first seed and settings."""

Grown = Mapping[str, Sequence[tuple[list[Row], int]]]
"""Problem -> rows and decode tokens of each of its trees."""


def grown(preset: str, first: int, settings: Sequence[str], *, num_problems: int) -> Grown:
    config = resolve(preset=preset, flags={"prompts": num_problems, "credit": "auto"}, overrides=settings).config
    problems, found = build.problems_of(config), {}
    for seed in range(first, first + NUM_SEEDS):
        rollout = library.rollout_sync(problems, config=replace(config, seed=seed))
        for tree in rollout.trees:
            tokens = sum(spend.decode for spend in tree.spent().values())
            found.setdefault(tree.problem.uid, []).append((tree_rows(tree, config, rollout.traits), tokens))
    return found


def measured(
    policy: PolicyGradient, shapes: Mapping[str, Grown]
) -> tuple[dict[str, list[GradientSample]], np.ndarray, float]:
    """Samples by shape, |g|^2 of every tree, and CPU seconds."""
    began, norms, samples = time.process_time(), [], {}
    for name, problems in shapes.items():
        samples[name] = []
        for trees in problems.values():
            gradients = [policy.of(rows) for rows, _ in trees]
            norms += [float(np.square(g, dtype=np.float64).sum()) for g in gradients]
            samples[name].append(sample(gradients, [tokens for _, tokens in trees]))
    return samples, np.array(norms), time.process_time() - began


def ranks(values: np.ndarray) -> np.ndarray:
    return values.argsort().argsort()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--problems", type=int, default=few(60, 2))
    num_problems = parser.parse_args().problems
    shapes = {name: grown(*shape, num_problems=num_problems) for name, shape in SHAPES.items()}
    policies = {
        "whole": PolicyGradient(FOLDER),
        "4096 numbers": PolicyGradient(FOLDER, sketch=Sketch(4096)),
        "256 numbers": PolicyGradient(FOLDER, sketch=Sketch(256)),
        "last layer": PolicyGradient(FOLDER, layers="last"),
    }
    print(f"{num_problems} problems, {NUM_SEEDS} trees of each a shape; ratios to chains, capped at {QUANTILE}")
    whole = np.empty(0)
    for slice_name, policy in policies.items():
        samples, norms, seconds = measured(policy, shapes)
        whole = norms if slice_name == "whole" else whole
        is_any = whole > 0
        of_whole = norms[is_any] / whole[is_any]
        correlation = np.corrcoef(ranks(norms[is_any]), ranks(whole[is_any]))[0, 1]
        print(
            f"{slice_name:13} {policy.num_parameters:8} parameters {seconds:6.1f} CPU s  |g|^2 over the whole one's "
            f"{of_whole.mean():.3f} +- {of_whole.std():.3f}, rank correlation {correlation:.4f}"
        )
        for line in lines(samples, quantile=QUANTILE)[1:]:
            figures = (line.second_moment.ratio, line.variance and line.variance.ratio)
            said = [f"{r.value:.3f} [{r.low:.3f},{r.high:.3f}]" if r else "-" for r in figures]
            print(f"    {line.name:13} |g|^2 x tokens {said[0]}  variance x tokens {said[1]}")


if __name__ == "__main__":
    main()
