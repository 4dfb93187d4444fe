"""Trains the model of the task `herds` from the weights of the built-in one, on one CPU thread.

`python -m models.train_herds --out DIR --minutes M --seed S` writes a folder like that of the built-in model, with
the same tokenizer and network, and a report of what was measured on held-out problems. The model knows herds alone:
what it has learnt of other tasks fades. Owns this recipe; the optimiser and the network are those of `train`.
"""

import argparse
import json
import random
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from models import herds_episodes
from models.evaluate import evaluate
from models.exams import herds_exam
from models.make_tokenizer import write_tokenizer
from models.pieces import encode_pieces
from models.report import herds_markdown
from models.train import (
    Begun,
    Episode,
    ModelShape,
    Optimizer,
    Recipe,
    add_gradients,
    keep_freed_memory,
    save_model,
)

from ramify.engines.builtin import FOLDER
from ramify.engines.tokenizer import TokenizerFile


@dataclass(frozen=True, slots=True)
class HerdsRecipe:
    """How it is trained."""

    episodes: int = 64
    micro_episodes: int = 32
    matrix_rate: float = 0.004
    vector_rate: float = 7.5e-4
    herds: tuple[tuple[float, tuple[int, ...]], ...] = ((0.1, (2, 3)), (0.28, (2, 3, 4)), (1.0, (4, 5, 5, 5)))
    """Up to these shares of the CPU time: how many herds problems have, equally likely."""
    decay_from: float = 0.5  # share after which both rates fall linearly to zero

    def num_herds(self, share_used: float) -> tuple[int, ...]:
        return next(numbers for until, numbers in self.herds if share_used < until)

    def rate_factor(self, share_used: float) -> float:
        """What both learning rates are multiplied by."""
        return min(1.0, (1.0 - share_used) / (1.0 - self.decay_from))


class HerdsBatches:
    """Endless training batches; counts what it handed out and which problems."""

    def __init__(self, recipe: HerdsRecipe, tokenizer: TokenizerFile, seed: int) -> None:
        self._recipe, self._tokenizer = recipe, tokenizer
        self._rng = random.Random(f"herds {seed}")
        self.num_episodes = self.num_tokens = 0
        self.keys: set[str] = set()

    def draw(self, share_used: float) -> Iterator[list[Episode]]:
        """One batch as micro-batches of like lengths."""
        drawn = herds_episodes.draw_demonstrations(self._rng, num_herds=self._recipe.num_herds(share_used))
        demonstrations = list(islice(drawn, self._recipe.episodes))
        self.keys.update(problem.key for problem, _ in demonstrations)
        episodes = sorted((encode_pieces(pieces, self._tokenizer) for _, pieces in demonstrations), key=_length)
        self.num_episodes += len(episodes)
        self.num_tokens += sum(map(_length, episodes))
        for start in range(0, len(episodes), self._recipe.micro_episodes):
            yield episodes[start : start + self._recipe.micro_episodes]


def _length(episode: Episode) -> int:
    return len(episode[0])


def train(folder: Path, *, minutes: float, seed: int, recipe: HerdsRecipe, begun: Path = FOLDER) -> dict[str, Any]:
    """Train for `minutes` CPU-minutes from the weights in `begun`, into `folder`. Returns the figures."""
    torch.set_num_threads(1)
    keep_freed_memory()
    write_tokenizer(folder)
    tokenizer = TokenizerFile(folder / "tokenizer.json")
    shape, parameters = ModelShape(vocab_size=tokenizer.vocab_size), Begun(begun, 0.0).parameters()
    rates = Recipe(matrix_rate=recipe.matrix_rate, vector_rate=recipe.vector_rate)
    optimizer, batches = Optimizer(parameters, rates), HerdsBatches(recipe, tokenizer, seed)
    curve: list[dict[str, float]] = []
    recent: list[float] = []
    num_steps, started = 0, time.process_time()
    while (used := (time.process_time() - started) / 60) < minutes:
        recent.append(add_gradients(parameters, shape, list(batches.draw(used / minutes))))
        optimizer.step(recipe.rate_factor(used / minutes))
        num_steps += 1
        if num_steps % 50 == 0:
            curve.append({"step": num_steps, "cpu_minutes": round(used, 2), "loss": round(sum(recent) / 50, 4)})
            print(json.dumps(curve[-1]), flush=True)
            recent.clear()
            save_model(folder, parameters, shape)
    save_model(folder, parameters, shape)
    return {
        "cpu_minutes": round(minutes, 2),
        "seed": seed,
        "steps": num_steps,
        "episodes": batches.num_episodes,
        "tokens": batches.num_tokens,
        "distinct_problems": len(batches.keys),
        "parameters": sum(value.numel() for value in parameters.values()),
        "recipe": asdict(recipe),
        "curve": curve,
    }


def write_report(folder: Path, training: dict[str, Any], *, num_problems: int, seed: int) -> None:
    """Evaluate the saved model and write `report.json` and `report.md` beside it."""
    figures = evaluate(folder, herds_exam(num_problems, seed), num_samples=16, seed=seed)
    report = {
        "training": training,
        "tokenizer_sha256": TokenizerFile(folder / "tokenizer.json").sha256,
        "weights_bytes": (folder / "model.safetensors").stat().st_size,
        "heldout": {"seed": seed, "samples": 16, "temperature": 1.0, "tasks": {"herds": figures}},
    }
    (folder / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    (folder / "report.md").write_text(herds_markdown(report))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="train the model of the task herds")
    parser.add_argument("--out", type=Path, required=True, help="folder to write, made when missing")
    parser.add_argument("--minutes", type=float, default=7.0, help="CPU-minutes of training")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--problems", type=int, default=400, help="held-out problems in the report")
    parser.add_argument("--recipe", type=json.loads, default={}, help="fields of HerdsRecipe to change, as JSON")
    options = parser.parse_args()
    training = train(options.out, minutes=options.minutes, seed=options.seed, recipe=HerdsRecipe(**options.recipe))
    write_report(options.out, training, num_problems=options.problems, seed=options.seed)


if __name__ == "__main__":
    main()
