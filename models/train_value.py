"""Trains the built-in step scorer: how likely a path that has come this far is to end well.

`python -m models.train_value --out DIR` searches training problems of both tasks with the built-in model and their
answers (rStar's first round: `rstar_mcts` without a judge of steps, `oracle = "declared"`), takes the q value of every
step from the trees, and trains the built-in network with one output more on these, on one thread.
It writes a Hugging Face folder (Qwen3ForSequenceClassification, bf16) with a report of what was measured on held-out
problems. The learning rate falls with the CPU time used, so weights are not reproducible bit for bit.
"""

import argparse
import json
import random
import shutil
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from models.train import ModelShape, Parameters, hidden_states, keep_freed_memory
from models.value_data import Path, auc_within, paths_of
from safetensors.torch import load_file, save_file
from torch import Tensor

from ramify.engines.builtin import FOLDER
from ramify.engines.tokenizer import TokenizerFile
from ramify.runner.library import rollout_sync

HEAD: Final = "score.weight"
TASKS: Final = ("countdown", "hops")
SEARCH: Final = {
    "preset": "rstar_mcts",
    "strategy__options": {
        "iterations": 8,
        "width": 4,
        "max_depth": 8,
        "judge": "",
        "steps": "unjudged",
        "outcome": "reward",
        "oracle": "declared",
    },
}
"""How trees are collected with ground truth (`rstar_mcts.SAMPLING_AS_PUBLISHED`, in small)."""
CHAINS: Final = {"preset": "chains"}
"""What the scorer is measured on."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """Rates and sizes: those of the shipped scorer. None was tuned."""

    problems: int = 1000  # a task
    batch_paths: int = 32
    rate: float = 4e-4
    weight_decay: float = 0.01
    warm_up: float = 0.05  # share of the CPU time
    minutes: float = 7.0


def collected(task: str, split: str, num_problems: int, *, how: Mapping[str, Any], seed: int) -> list[Path]:
    """Paths of trees of one task, grown by the built-in model; `how` are settings of `rollout`."""
    grown = rollout_sync(task__name=task, task__split=split, prompts=num_problems, seed=seed, max_trees=16, **how)
    return [path for tree in grown.trees for path in paths_of(tree)]


class Scorer:
    """The built-in network with a value in place of its logits. Mutated by training."""

    def __init__(self, folder: FilePath) -> None:
        saved = load_file(folder / "model.safetensors")
        self.shape = ModelShape(vocab_size=TokenizerFile(folder / "tokenizer.json").vocab_size)
        self.parameters: Parameters = {name: torch.nn.Parameter(value.float()) for name, value in saved.items()}
        self.parameters.setdefault(HEAD, torch.nn.Parameter(torch.zeros(1, self.shape.width)))

    def logits(self, paths: Sequence[Path]) -> Tensor:
        """(all steps of all paths,) log odds, path by path."""
        length = max(len(path.ids) for path in paths)
        ids = torch.zeros((len(paths), length), dtype=torch.long)
        for row, path in enumerate(paths):
            ids[row, : len(path.ids)] = torch.from_numpy(path.ids.astype(np.int64))
        states = hidden_states(self.parameters, self.shape, ids)
        rows = torch.cat([torch.full((len(path.ends),), row) for row, path in enumerate(paths)])
        ends = torch.from_numpy(np.concatenate([path.ends for path in paths]))
        return F.linear(states[rows, ends], self.parameters[HEAD].bfloat16()).float()[:, 0]


def batches(paths: Sequence[Path], size: int, rng: random.Random) -> Iterator[list[Path]]:
    """Batches without end, of paths of about one length, so that little is padded."""
    while True:
        shuffled = sorted(paths, key=lambda path: len(path.ids) + rng.random() * 24)
        groups = [shuffled[i : i + size] for i in range(0, len(shuffled), size)]
        rng.shuffle(groups)
        yield from groups


def train(scorer: Scorer, paths: Sequence[Path], recipe: Recipe, *, seed: int) -> dict[str, Any]:
    """Train for the recipe's CPU-minutes. Mutates `scorer`; returns the figures."""
    optimizer = torch.optim.AdamW(scorer.parameters.values(), lr=recipe.rate, weight_decay=recipe.weight_decay)
    losses: list[float] = []
    started = time.process_time()
    for batch in batches(paths, recipe.batch_paths, random.Random(seed)):
        used = (time.process_time() - started) / 60 / recipe.minutes
        if used >= 1:
            break
        for group in optimizer.param_groups:
            group["lr"] = recipe.rate * min(used / recipe.warm_up, (1 - used) / (1 - recipe.warm_up))
        q = torch.from_numpy(np.concatenate([path.q for path in batch]))
        weights = torch.from_numpy(np.concatenate([path.weights for path in batch]))
        loss = (F.binary_cross_entropy_with_logits(scorer.logits(batch), q, reduction="none") @ weights) / weights.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if len(losses) % 500 == 0:
            print(json.dumps({"step": len(losses), "loss": round(float(np.mean(losses[-500:])), 4)}), flush=True)
    return {"steps": len(losses), "first_loss": np.mean(losses[:100]), "last_loss": np.mean(losses[-500:])}


@torch.no_grad()
def measured(scorer: Scorer, paths: Sequence[Path]) -> dict[str, float | None]:
    """Area under the curve within problems, by the number of the step and over all of them."""
    by_step: dict[str, dict[str, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for i in range(0, len(paths), 64):
        batch = paths[i : i + 64]
        values = scorer.logits(batch).tolist()
        for path in batch:
            for number in range(len(path.ends)):
                pair = (values.pop(0), path.reward)
                if number < len(path.ends) - 1:  # the last one has ended: a judge of answers knows better
                    by_step[f"step {number + 1}"][path.uid].append(pair)
                    by_step["all"][path.uid].append(pair)
    return {name: auc_within(groups.values()) for name, groups in sorted(by_step.items())}


def save(folder: FilePath, scorer: Scorer, report: dict[str, Any]) -> None:
    """Write a complete Hugging Face folder and the report."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: value.detach().to(torch.bfloat16).contiguous() for name, value in scorer.parameters.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        shutil.copyfile(FOLDER / name, folder / name)
    config = json.loads((FOLDER / "config.json").read_text())
    config |= {"architectures": ["Qwen3ForSequenceClassification"], "id2label": {"0": "ends well"}, "num_labels": 1}
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    (folder / "report.json").write_text(json.dumps(report, indent=1) + "\n")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="train the built-in step scorer")
    usual = Recipe()
    parser.add_argument("--out", type=FilePath, required=True, help="folder to write")
    parser.add_argument("--minutes", type=float, default=usual.minutes, help="CPU-minutes of training")
    parser.add_argument("--problems", type=int, default=usual.problems, help="training problems a task")
    parser.add_argument("--heldout", type=int, default=200, help="held-out problems a task in the report")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    recipe = Recipe(problems=options.problems, minutes=options.minutes)
    torch.set_num_threads(1)
    keep_freed_memory()
    began = time.process_time()
    paths = [
        path for task in TASKS for path in collected(task, "train", recipe.problems, how=SEARCH, seed=options.seed)
    ]
    minutes_collected = (time.process_time() - began) / 60
    print(f"{len(paths)} paths in {minutes_collected:.1f} CPU-minutes", flush=True)
    scorer = Scorer(FOLDER)
    figures = train(scorer, paths, recipe, seed=options.seed)
    heldout = {
        task: measured(scorer, collected(task, "heldout", options.heldout, how=CHAINS, seed=options.seed))
        for task in TASKS
    }
    report = {
        "paths": len(paths),
        "problems_a_task": recipe.problems,
        "preset": SEARCH["preset"],
        "cpu_minutes_of_trees": round(minutes_collected, 2),
        "cpu_minutes_of_training": recipe.minutes,
        **{name: round(float(value), 4) for name, value in figures.items()},
        "auc_within_problems": heldout,
    }
    save(options.out, scorer, report)
    print(json.dumps(report["auc_within_problems"], indent=1))


if __name__ == "__main__":
    main()
