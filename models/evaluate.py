"""Measures a built-in model on held-out problems of both tasks with a small batched sampler of its own.

Kept apart from the engines on purpose: it is a second, independent implementation of the same network and the same
episode rules, so that the engine's figures can be checked against it. Every row takes one token a step, sampled or,
while a prompt or a tool's text is being fed, given; so rows never wait for each other.
"""

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from models.exams import Agent, Exam, countdown_exam, hops_exam
from safetensors.torch import load_file
from torch import Tensor

from ramify.engines.tokenizer import TokenizerFile
from ramify.experiments.proportions import pass_at_k

_BATCH_ROWS = 256


@dataclass(slots=True)
class Row:
    """One episode being sampled."""

    agent: Agent
    given: list[int]
    ids: list[int] = field(default_factory=list[int])
    turn_start: int = 0
    num_prompt: int = 0
    num_sampled: int = 0
    num_calls: int = 0
    end: str | None = None

    def said_ids(self, eos_id: int) -> list[int]:
        """Its tokens behind the prompt, without the end of the sequence."""
        said = self.ids[self.num_prompt :]
        return said[:-1] if said[-1:] == [eos_id] else said


class Network:
    """The saved model in float32 with a key/value cache of fixed size; rows are told apart by their position."""

    def __init__(self, folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        self._weights = {name: value.float() for name, value in load_file(folder / "model.safetensors").items()}
        self._num_layers = int(config["num_hidden_layers"])
        self._heads, self._kv_heads = int(config["num_attention_heads"]), int(config["num_key_value_heads"])
        self._size, self._eps = int(config["head_dim"]), float(config["rms_norm_eps"])
        frequencies = float(config["rope_theta"]) ** (-torch.arange(0, self._size, 2) / self._size)
        angles = torch.arange(int(config["max_position_embeddings"]))[:, None] * frequencies
        self._cos, self._sin = torch.cat([angles.cos()] * 2, -1), torch.cat([angles.sin()] * 2, -1)
        self._keys = self._values = torch.empty(0)

    def start(self, num_rows: int, max_tokens: int) -> None:
        """Forget everything and make room for `num_rows` of so many tokens."""
        self._keys = torch.zeros(self._num_layers, num_rows, self._kv_heads, max_tokens, self._size)
        self._values = torch.zeros_like(self._keys)

    def keep(self, rows: list[int]) -> None:
        """Drop all rows but these."""
        self._keys, self._values = self._keys[:, rows], self._values[:, rows]

    def step(self, ids: list[int], position: int) -> Tensor:
        """Feed one token a row at `position`; logits `[rows, vocab]`."""
        weights, rows = self._weights, len(ids)
        cos, sin = self._cos[position], self._sin[position]
        x = weights["model.embed_tokens.weight"][ids]
        for layer in range(self._num_layers):
            name = f"model.layers.{layer}."
            h = self._norm(x, name + "input_layernorm.weight")
            q = F.linear(h, weights[name + "self_attn.q_proj.weight"]).view(rows, self._heads, self._size)
            k = F.linear(h, weights[name + "self_attn.k_proj.weight"]).view(rows, self._kv_heads, self._size)
            v = F.linear(h, weights[name + "self_attn.v_proj.weight"]).view(rows, self._kv_heads, self._size)
            q = self._rotate(self._norm(q, name + "self_attn.q_norm.weight"), cos, sin)
            self._keys[layer, :, :, position] = self._rotate(self._norm(k, name + "self_attn.k_norm.weight"), cos, sin)
            self._values[layer, :, :, position] = v
            q = q.view(rows, self._kv_heads, -1, self._size) * self._size**-0.5
            share = torch.softmax(q @ self._keys[layer, :, :, : position + 1].transpose(-1, -2), -1)
            mixed = (share @ self._values[layer, :, :, : position + 1]).reshape(rows, -1)
            x = x + F.linear(mixed, weights[name + "self_attn.o_proj.weight"])
            h = self._norm(x, name + "post_attention_layernorm.weight")
            gated = F.silu(F.linear(h, weights[name + "mlp.gate_proj.weight"]))
            h = gated * F.linear(h, weights[name + "mlp.up_proj.weight"])
            x = x + F.linear(h, weights[name + "mlp.down_proj.weight"])
        return F.linear(self._norm(x, "model.norm.weight"), weights["model.embed_tokens.weight"])

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self._weights[name], self._eps)

    @staticmethod
    def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat((-second, first), -1) * sin


@torch.no_grad()
def sample(folder: Path, exam: Exam, *, num_samples: int, seed: int, temperature: float = 1.0) -> list[list[Row]]:
    """Sample `num_samples` episodes a problem; one list a problem."""
    tokenizer, network = TokenizerFile(folder / "tokenizer.json"), Network(folder)
    generator = torch.Generator().manual_seed(seed)
    ends = {tokenizer.encode(exam.call_tag)[0]: "call", tokenizer.encode("</answer>")[0]: "answer"}
    ends[tokenizer.eos_id] = "no answer"
    rows = [_new_row(make(), tokenizer) for make in exam.agents for _ in range(num_samples)]
    # Like lengths together, so that a batch ends at about the same time.
    labels = [label for label in exam.labels for _ in range(num_samples)]
    for batch in _batches([row for _, row in sorted(zip(labels, rows, strict=True), key=lambda pair: pair[0])]):
        network.start(len(batch), exam.max_tokens)
        _run(batch, network, tokenizer, ends, generator, temperature, exam.max_tokens)
    return [rows[start : start + num_samples] for start in range(0, len(rows), num_samples)]


def evaluate(folder: Path, exam: Exam, *, num_samples: int, seed: int) -> dict[str, dict[str, float]]:
    """Figures at temperature 1, over all problems and by their labels."""
    torch.set_num_threads(1)
    tokenizer = TokenizerFile(folder / "tokenizer.json")
    groups = sample(folder, exam, num_samples=num_samples, seed=seed)
    by_label = {"all": groups}
    for label, group in sorted(zip(exam.labels, groups, strict=True), key=lambda pair: pair[0]):
        if label != "all":
            by_label.setdefault(label, []).append(group)
    return {label: _figures(those, num_samples, tokenizer) for label, those in by_label.items()}


def evaluate_both(folder: Path, *, num_problems: int, num_samples: int, seed: int) -> dict[str, Any]:
    """Figures of both tasks on held-out problems."""
    exams = {
        "countdown": countdown_exam(num_problems, seed),
        "hops": hops_exam(num_problems, seed),
        "hops, 2 hops": hops_exam(num_problems // 2, seed, num_hops=2),
        "hops, 1 hop": hops_exam(num_problems // 2, seed, num_hops=1),
    }
    figures = {name: evaluate(folder, exam, num_samples=num_samples, seed=seed) for name, exam in exams.items()}
    return {"seed": seed, "samples": num_samples, "temperature": 1.0, "tasks": figures}


def _figures(groups: Sequence[Sequence[Row]], num_samples: int, tokenizer: TokenizerFile) -> dict[str, float]:
    rows = [row for group in groups for row in group]
    parts = [[row.agent.score(tokenizer.decode(row.ids[row.num_prompt :])) for row in group] for group in groups]
    right = [sum(all(part.values()) for part in group) for group in parts]
    ends = Counter(row.end for row in rows)
    with_error = [
        part for row, part in zip(rows, (p for group in parts for p in group), strict=True) if row.agent.num_errors
    ]

    def mean(total: float, count: int = len(rows)) -> float:
        return round(total / count, 4) if count else 0.0

    return {
        "problems": len(groups),
        **{
            f"pass@{k}": mean(sum(pass_at_k(num_samples, r, k) for r in right), len(groups))
            for k in (1, 4, 16)
            if k <= num_samples
        },
        **{name: mean(sum(part[name] for group in parts for part in group)) for name in parts[0][0]},
        "well-formed": mean(ends["answer"]),
        "tokens an episode": round(sum(len(row.ids) for row in rows) / len(rows), 1),
        "sampled tokens an episode": round(sum(row.num_sampled for row in rows) / len(rows), 1),
        "calls an episode": round(sum(row.num_calls for row in rows) / len(rows), 2),
        "episodes with a tool error": mean(len(with_error)),
        "right after a tool error": mean(sum(all(part.values()) for part in with_error), len(with_error)),
    }


def _batches(rows: Sequence[Row]) -> list[Sequence[Row]]:
    return [rows[start : start + _BATCH_ROWS] for start in range(0, len(rows), _BATCH_ROWS)]


def _new_row(agent: Agent, tokenizer: TokenizerFile) -> Row:
    prompt = tokenizer.encode(agent.prompt, allow_special=True)
    return Row(agent, given=prompt, turn_start=len(prompt), num_prompt=len(prompt))


def _run(
    rows: Sequence[Row],
    network: Network,
    tokenizer: TokenizerFile,
    ends: dict[int, str],
    generator: torch.Generator,
    temperature: float,
    max_tokens: int,
) -> None:
    """Sample every row to its end."""
    for row in rows:
        row.ids.append(row.given.pop(0))
    active = rows
    for position in range(max_tokens - 1):
        logits = network.step([row.ids[-1] for row in active], position)
        drawn = torch.multinomial(torch.softmax(logits / temperature, -1), 1, generator=generator)[:, 0].tolist()
        for row, token in zip(active, drawn, strict=True):
            if row.end is None:
                _take(row, token, ends, tokenizer)
        kept = [index for index, row in enumerate(active) if row.end is None]
        if not kept:
            return
        if len(kept) < 0.75 * len(active):  # dropping rows copies the cache, so ended rows idle along for a while
            network.keep(kept)
            active = [active[index] for index in kept]
    for row in active:
        row.end = row.end or "length"


def _take(row: Row, token: int, ends: dict[int, str], tokenizer: TokenizerFile) -> None:
    """Append a row's next token: the given one if there is one, else the sampled `token`."""
    if row.given:
        row.ids.append(row.given.pop(0))
        return
    row.ids.append(token)
    row.num_sampled += 1
    if ends.get(token) == "call":
        _call(row, tokenizer)
    else:
        row.end = ends.get(token)


def _call(row: Row, tokenizer: TokenizerFile) -> None:
    """Run the call a row has just closed and queue what the tool says."""
    said = row.agent.call(tokenizer.decode(row.ids[row.turn_start :]))
    if said is None:
        row.end = "calls"
        return
    row.num_calls += 1
    row.given = tokenizer.encode(said)
    row.turn_start = len(row.ids) + len(row.given)


def main() -> None:
    """Command line: print the figures of a model folder."""
    parser = argparse.ArgumentParser(description="measure a built-in model on held-out problems of both tasks")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--problems", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    figures = evaluate_both(options.folder, num_problems=options.problems, num_samples=16, seed=options.seed)
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
