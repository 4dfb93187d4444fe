"""Trains the built-in model from nothing, on one CPU thread, by imitation of random demonstrations of both tasks.

`python -m models.train --out DIR --minutes M --seed S` writes a Hugging Face folder (Qwen3 architecture, bf16)
with its tokenizer and a report of what was measured on held-out problems. Owns the recipe: the network, the optimiser,
the curriculum. It takes one thread: two threads train no faster, and two torch processes on two cores slow each other
down. The learning rate follows the share of the CPU time used, so another machine takes another number of steps and
weights are not reproducible bit for bit; the report says what came out.
"""

import argparse
import ctypes
import json
import math
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from models import countdown_episodes, hops_episodes, refine_episodes
from models.attempts import own_attempts
from models.evaluate import evaluate_both
from models.evaluate_refine import evaluate_refinement
from models.hops_episodes import HopsMix
from models.make_tokenizer import write_tokenizer
from models.pieces import Piece, encode_pieces
from models.refine_episodes import Attempt
from models.report import report_markdown
from safetensors.torch import load_file, save_file
from torch import Tensor

from ramify.engines.tokenizer import TokenizerFile
from ramify.tasks.countdown import DEFAULT_DISTRIBUTION, CountdownDistribution
from ramify.tasks.hops import TOP_K

NUM_HOPS = (1, 2, 2, 3, 3)
"""What questions have in the end, equally likely."""
NARROW_PAGE = 2
"""Passages a page in the second part of the training. After the first the model was right on 0.76 of the questions of
three hops; the harder pages make it search more and leave 0.56, so that there is something to learn."""

Parameters = dict[str, torch.nn.Parameter]


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The network: Qwen3, 1.25 M parameters, measured to be enough for both tasks (see the report)."""

    vocab_size: int
    width: int = 128
    num_layers: int = 6
    num_heads: int = 4
    num_kv_heads: int = 2
    head_size: int = 32
    hidden_size: int = 384
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-6
    max_length: int = 512

    def config(self, tokenizer: TokenizerFile) -> dict[str, object]:
        """Contents of `config.json`."""
        return {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "vocab_size": self.vocab_size,
            "hidden_size": self.width,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_size,
            "intermediate_size": self.hidden_size,
            "hidden_act": "silu",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "rms_norm_eps": self.norm_eps,
            "rope_theta": self.rope_theta,
            "rope_parameters": {"rope_type": "default", "rope_theta": self.rope_theta},
            "max_position_embeddings": self.max_length,
            "tie_word_embeddings": True,
            "use_cache": True,
            "use_sliding_window": False,
            "initializer_range": 0.02,
            "bos_token_id": None,
            "eos_token_id": tokenizer.eos_id,
            "pad_token_id": tokenizer.encode("<|pad|>", allow_special=True)[0],
            "torch_dtype": "bfloat16",
        }


@dataclass(frozen=True, slots=True)
class Recipe:
    """How it is trained. Rates: measured in short pilots on countdown."""

    # Of countdown, hops and refinement in a batch; batches of 64 and 128 came out alike in pilots of 3 CPU-minutes.
    episodes: tuple[int, int, int] = (36, 28, 0)
    last_episodes: tuple[int, int, int] = (12, 14, 60)  # in the last part
    micro_episodes: int = 32  # sorted by length inside a batch, so little is padded
    matrix_rate: float = 0.02
    vector_rate: float = 3e-3
    momentum: float = 0.95
    weight_decay: float = 0.0
    decay_from: float = 0.28  # share of the CPU time after which both rates fall linearly to zero
    wide_until: float = 0.689  # up to this share pages are the task's, then narrow ones
    refine_from: float = 0.8  # from this share on, transcripts of self-refinement besides
    later_rates: tuple[float, float] = (0.25, 0.5)  # what both rates begin the second and the last part with
    error_share: float = 0.05
    easy_until: float = 0.021  # up to this share only 3 numbers
    one_hop_until: float = 0.056
    two_hops_until: float = 0.136

    def hops(self, share_used: float) -> HopsMix:
        """How many hops to train on: one, up to two, then as evaluation does."""
        if share_used < self.one_hop_until:
            return HopsMix((1,), self.error_share, TOP_K)
        num_hops = (1, 2) if share_used < self.two_hops_until else NUM_HOPS
        return HopsMix(num_hops, self.error_share, TOP_K if share_used < self.wide_until else NARROW_PAGE)

    def countdown(self, share_used: float) -> CountdownDistribution:
        """What to draw training problems from: 3 numbers first, then as evaluation does."""
        if share_used < self.easy_until:
            return replace(DEFAULT_DISTRIBUTION, num_numbers_weights=((3, 1.0),))
        return DEFAULT_DISTRIBUTION

    def rate_factor(self, share_used: float) -> float:
        """What both learning rates are multiplied by."""
        if share_used >= self.refine_from:
            return self.later_rates[1] * max(0.0, (1.0 - share_used) / (1.0 - self.refine_from))
        if share_used >= self.wide_until:
            return self.later_rates[0] * (self.refine_from - share_used) / (self.refine_from - self.wide_until)
        return min(1.0, (self.wide_until - share_used) / (self.wide_until - self.decay_from))


class RMSNorm(torch.autograd.Function):
    """RMS norm with a hand-written gradient: the composed one costs 10 % more a step."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:  # type: ignore[override]
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
        scale = torch.rsqrt(norm.square_().div_(x.shape[-1]).add_(eps)).to(x.dtype)
        normed = x * scale
        ctx.save_for_backward(normed, scale, weight)
        return normed * weight.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        normed, scale, weight = ctx.saved_tensors
        grad_weight = (grad * normed).reshape(-1, grad.shape[-1]).sum(0, dtype=torch.float32)
        inner = grad * weight.to(grad.dtype)
        mean = (inner * normed).sum(-1, keepdim=True) / normed.shape[-1]
        return torch.addcmul(inner, normed, mean, value=-1).mul_(scale), grad_weight, None


def init_parameters(shape: ModelShape, generator: torch.Generator) -> Parameters:
    """Fresh parameters under their Hugging Face names."""
    q_rows, kv_rows = shape.num_heads * shape.head_size, shape.num_kv_heads * shape.head_size
    matrices = {"model.embed_tokens.weight": (shape.vocab_size, shape.width)}
    vectors = {"model.norm.weight": shape.width}
    for layer in range(shape.num_layers):
        name = f"model.layers.{layer}."
        matrices |= {
            name + "self_attn.q_proj.weight": (q_rows, shape.width),
            name + "self_attn.k_proj.weight": (kv_rows, shape.width),
            name + "self_attn.v_proj.weight": (kv_rows, shape.width),
            name + "self_attn.o_proj.weight": (shape.width, q_rows),
            name + "mlp.gate_proj.weight": (shape.hidden_size, shape.width),
            name + "mlp.up_proj.weight": (shape.hidden_size, shape.width),
            name + "mlp.down_proj.weight": (shape.width, shape.hidden_size),
        }
        vectors |= {
            name + "input_layernorm.weight": shape.width,
            name + "post_attention_layernorm.weight": shape.width,
            name + "self_attn.q_norm.weight": shape.head_size,
            name + "self_attn.k_norm.weight": shape.head_size,
        }
    drawn = {name: torch.randn(size, generator=generator) * 0.02 for name, size in matrices.items()}
    return {
        name: torch.nn.Parameter(value)
        for name, value in (drawn | {name: torch.ones(size) for name, size in vectors.items()}).items()
    }


def hidden_states(parameters: Parameters, shape: ModelShape, ids_BT: Tensor) -> Tensor:
    """Final normed states `[B, T, width]` in bf16. Rows are padded on the right, so the causal mask is mask enough."""
    num_rows, length = ids_BT.shape
    heads, kv_heads, size = shape.num_heads, shape.num_kv_heads, shape.head_size
    cos, sin = rotary(shape, torch.arange(length))
    cos, sin = cos.bfloat16(), sin.bfloat16()
    future = torch.full((length, length), float("-inf"), dtype=torch.bfloat16).triu(1)

    def norm(x: Tensor, name: str) -> Tensor:
        return RMSNorm.apply(x, parameters[name], shape.norm_eps)  # type: ignore[return-value]

    def weight(name: str) -> Tensor:
        return parameters[name].bfloat16()

    x = F.embedding(ids_BT, weight("model.embed_tokens.weight"))
    for layer in range(shape.num_layers):
        name = f"model.layers.{layer}."
        h = norm(x, name + "input_layernorm.weight")
        qkv = F.linear(h, torch.cat([weight(f"{name}self_attn.{part}_proj.weight") for part in "qkv"]))
        qkv = qkv.view(num_rows, length, heads + 2 * kv_heads, size).transpose(1, 2)
        q, k, v = qkv.split([heads, kv_heads, kv_heads], dim=1)
        q = rotate(norm(q, name + "self_attn.q_norm.weight"), cos, sin) * size**-0.5
        k = rotate(norm(k, name + "self_attn.k_norm.weight"), cos, sin)
        # The query heads of one key head are stacked along time: one matmul, no repeated keys.
        scores = q.reshape(num_rows, kv_heads, -1, size) @ k.transpose(-1, -2)
        scores = torch.softmax(scores.view(num_rows, heads, length, length) + future, dim=-1)
        mixed = scores.view(num_rows, kv_heads, -1, length) @ v
        mixed = mixed.view(num_rows, heads, length, size).transpose(1, 2).reshape(num_rows, length, heads * size)
        x = x + F.linear(mixed, weight(name + "self_attn.o_proj.weight"))
        h = norm(x, name + "post_attention_layernorm.weight")
        gated = F.silu(F.linear(h, weight(name + "mlp.gate_proj.weight")))
        h = gated * F.linear(h, weight(name + "mlp.up_proj.weight"))
        x = x + F.linear(h, weight(name + "mlp.down_proj.weight"))
    return norm(x, "model.norm.weight")


def rotary(shape: ModelShape, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines `[..., head_size]` of rotary positions, halves layout."""
    frequencies = shape.rope_theta ** (-torch.arange(0, shape.head_size, 2) / shape.head_size)
    angles = positions[..., None] * frequencies
    return torch.cat([angles.cos()] * 2, -1), torch.cat([angles.sin()] * 2, -1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn queries or keys by their positions."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


class Optimizer:
    """Muon for the matrices inside the layers, AdamW for embeddings and norms. Mutates the parameters it is given."""

    def __init__(self, parameters: Parameters, recipe: Recipe) -> None:
        self._recipe = recipe
        is_matrix = {name: value.dim() == 2 and "embed" not in name for name, value in parameters.items()}
        by_size: dict[tuple[int, ...], list[torch.nn.Parameter]] = {}
        for name, value in parameters.items():
            if is_matrix[name]:
                by_size.setdefault(tuple(value.shape), []).append(value)
        self._groups = [(group, torch.zeros(len(group), *size)) for size, group in by_size.items()]
        vectors = [value for name, value in parameters.items() if not is_matrix[name]]
        self._adam = torch.optim.AdamW(vectors, lr=recipe.vector_rate, betas=(0.9, 0.95), weight_decay=0.0)

    @torch.no_grad()
    def step(self, rate_factor: float) -> None:
        """Apply and clear the gradients."""
        for group in self._adam.param_groups:
            group["lr"] = self._recipe.vector_rate * rate_factor
        self._adam.step()
        self._adam.zero_grad()
        momentum, rate = self._recipe.momentum, self._recipe.matrix_rate * rate_factor
        for group, buffer in self._groups:
            grads = torch.stack([value.grad for value in group if value.grad is not None])
            buffer.mul_(momentum).add_(grads, alpha=1 - momentum)
            update = orthogonalised(grads.lerp_(buffer, momentum))
            scale = max(1.0, update.shape[-2] / update.shape[-1]) ** 0.5
            for value, change in zip(group, update, strict=True):
                value.mul_(1 - rate * self._recipe.weight_decay)
                value.add_(change, alpha=-rate * scale)
                value.grad = None


def orthogonalised(matrices: Tensor) -> Tensor:
    """Nearest half-orthogonal matrices, roughly: five Newton-Schulz steps (Muon, Keller Jordan 2024)."""
    x = matrices / (matrices.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    is_tall = x.shape[-2] > x.shape[-1]
    x = x.mT if is_tall else x
    for _ in range(5):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.mT if is_tall else x


def keep_freed_memory() -> None:
    """Tell glibc to reuse large blocks: by default every activation is mapped and unmapped anew, 10 % of the time."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(-3, 1 << 30)  # M_MMAP_THRESHOLD
        mallopt(-1, (1 << 31) - 1)  # M_TRIM_THRESHOLD


Episode = tuple[list[int], list[float]]


class Batches:
    """Endless training batches of both tasks; counts what it handed out and which problems."""

    def __init__(self, recipe: Recipe, tokenizer: TokenizerFile, seed: int) -> None:
        self._recipe, self._tokenizer = recipe, tokenizer
        self._countdown_rng, self._hops_rng, self._refine_rng = (
            random.Random(f"{name} {seed}") for name in ("countdown", "hops", "refine")
        )
        self.attempts: Sequence[Attempt] = ()
        """The model's own, which the last part of the training refines."""
        self.num_episodes = 0
        self.num_tokens = 0
        self.problem_hashes: set[int] = set()

    def draw(self, share_used: float) -> Iterator[list[Episode]]:
        """One batch as micro-batches of like lengths."""
        episodes = [encode_pieces(pieces, self._tokenizer) for pieces in self._demonstrations(share_used)]
        self.num_episodes += len(episodes)
        self.num_tokens += sum(len(ids) for ids, _ in episodes)
        episodes.sort(key=lambda episode: len(episode[0]))
        for start in range(0, len(episodes), self._recipe.micro_episodes):
            yield episodes[start : start + self._recipe.micro_episodes]

    def _demonstrations(self, share_used: float) -> Iterator[Sequence[Piece]]:
        recipe = self._recipe
        countdown = countdown_episodes.draw_demonstrations(
            self._countdown_rng, distribution=recipe.countdown(share_used), error_share=recipe.error_share
        )
        hops = hops_episodes.draw_demonstrations(self._hops_rng, recipe.hops(share_used))
        refine = refine_episodes.draw_transcripts(self._refine_rng, self.attempts)
        counts = recipe.last_episodes if share_used >= recipe.refine_from else recipe.episodes
        for problem, pieces in chain.from_iterable(map(islice, (countdown, hops, refine), counts)):
            self.problem_hashes.add(hash(problem))
            yield pieces


def summed_loss(parameters: Parameters, shape: ModelShape, episodes: list[Episode]) -> Tensor:
    """Weighted sum of -log p over the learnt tokens of some episodes."""
    length = max(len(ids) for ids, _ in episodes)
    ids = torch.tensor([ids + [0] * (length - len(ids)) for ids, _ in episodes])
    weights = torch.tensor([weights + [0.0] * (length - len(weights)) for _, weights in episodes])[:, 1:]
    learnt = weights > 0
    states = hidden_states(parameters, shape, ids[:, :-1])[learnt]
    logits = F.linear(states, parameters["model.embed_tokens.weight"].bfloat16()).float()
    return F.cross_entropy(logits, ids[:, 1:][learnt], reduction="none") @ weights[learnt]


def add_gradients(parameters: Parameters, shape: ModelShape, micro_batches: Sequence[list[Episode]]) -> float:
    """Add a batch's gradients to those of the parameters; returns its loss, a weighted mean. Raises unless finite."""
    total_weight = sum(sum(weights[1:]) for micro in micro_batches for _, weights in micro)
    total = 0.0
    for micro in micro_batches:
        loss = summed_loss(parameters, shape, micro) / total_weight
        loss.backward()
        total += loss.item()
    if not math.isfinite(total):
        raise RuntimeError(f"the loss is {total!r}; lower the rates of the recipe")
    return total


def save_model(folder: Path, parameters: Parameters, shape: ModelShape) -> TokenizerFile:
    """Write a complete Hugging Face folder."""
    write_tokenizer(folder)
    tokenizer = TokenizerFile(folder / "tokenizer.json")
    weights = {name: value.detach().to(torch.bfloat16).contiguous() for name, value in parameters.items()}
    save_file(weights, folder / "model.safetensors.part", metadata={"format": "pt"})
    (folder / "model.safetensors.part").chmod(0o644)  # safetensors writes files only their owner can read
    (folder / "model.safetensors.part").replace(folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(shape.config(tokenizer), indent=1) + "\n")
    generation = {"do_sample": True, "temperature": 1.0, "eos_token_id": tokenizer.eos_id, "max_length": 256}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=1) + "\n")
    return tokenizer


@dataclass(frozen=True, slots=True)
class Begun:
    """A training that was saved after some of its minutes and goes on from its weights, with a fresh optimiser."""

    folder: Path
    minutes: float

    def parameters(self) -> Parameters:
        saved = load_file(self.folder / "model.safetensors")
        return {name: torch.nn.Parameter(value.float()) for name, value in saved.items()}

    def figures(self) -> dict[str, Any]:
        """What its own report says of it."""
        return json.loads((self.folder / "report.json").read_text())["training"]


def train(
    folder: Path,
    *,
    minutes: float,
    seed: int,
    recipe: Recipe,
    save_every: float = 5.0,
    begun: Begun | None = None,
) -> dict[str, object]:
    """Train for `minutes` CPU-minutes in all, saving into `folder` every `save_every`. Returns the figures."""
    torch.set_num_threads(1)
    keep_freed_memory()
    write_tokenizer(folder)
    tokenizer = TokenizerFile(folder / "tokenizer.json")
    shape = ModelShape(vocab_size=tokenizer.vocab_size)
    before: dict[str, Any] = {"steps": 0, "episodes": 0, "tokens": 0, "distinct_problems": 0, "curve": []}
    if begun is None:
        parameters = init_parameters(shape, torch.Generator().manual_seed(seed))
    else:
        parameters, before = begun.parameters(), begun.figures()
    # A part that goes on draws other demonstrations than the one before it.
    optimizer, batches = Optimizer(parameters, recipe), Batches(recipe, tokenizer, seed + before["steps"])
    curve: list[dict[str, float]] = list(before["curve"])
    recent: list[float] = []
    num_minutes = 0.0 if begun is None else begun.minutes
    started, num_steps, next_save = time.process_time() - 60 * num_minutes, before["steps"], num_minutes + save_every
    attempts_minutes = 0.0
    while (used := (time.process_time() - started) / 60) < minutes:
        if used / minutes >= recipe.refine_from and not batches.attempts:
            save_model(folder, parameters, shape)
            batches.attempts = own_attempts(folder, seed=seed)
            attempts_minutes = (time.process_time() - started) / 60 - used
            started += 60 * attempts_minutes
        micro_batches = list(batches.draw(used / minutes))
        recent.append(add_gradients(parameters, shape, micro_batches))
        optimizer.step(recipe.rate_factor(used / minutes))
        num_steps += 1
        if num_steps % 100 == 0:
            curve.append({"step": num_steps, "cpu_minutes": round(used, 2), "loss": round(sum(recent) / 100, 4)})
            print(json.dumps(curve[-1]), batches.num_tokens, flush=True)
            recent.clear()
        if used >= next_save:
            next_save += save_every
            save_model(folder, parameters, shape)
    save_model(folder, parameters, shape)
    return {
        "cpu_minutes": round(minutes, 2),
        "cpu_minutes_of_attempts": round(attempts_minutes, 2),
        "seed": seed,
        "steps": num_steps,
        "episodes": before["episodes"] + batches.num_episodes,
        "tokens": before["tokens"] + batches.num_tokens,
        "distinct_problems": before["distinct_problems"] + len(batches.problem_hashes),
        "parameters": sum(value.numel() for value in parameters.values()),
        "recipe": asdict(recipe),
        "curve": curve,
    }


def write_report(folder: Path, training: dict[str, object], *, num_problems: int, seed: int) -> None:
    """Evaluate the saved model and write `report.json` and `report.md` beside it."""
    report = {
        "training": training,
        "tokenizer_sha256": TokenizerFile(folder / "tokenizer.json").sha256,
        "weights_bytes": (folder / "model.safetensors").stat().st_size,
        "heldout": evaluate_both(folder, num_problems=num_problems, num_samples=16, seed=seed),
        "refinement": evaluate_refinement(folder, num_problems=num_problems, num_samples=8, seed=seed),
    }
    (folder / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    (folder / "report.md").write_text(report_markdown(report))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="train the built-in model")
    parser.add_argument("--out", type=Path, required=True, help="folder to write, made when missing")
    parser.add_argument("--minutes", type=float, default=90.0, help="CPU-minutes of training")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--problems", type=int, default=400, help="held-out problems in the report")
    parser.add_argument("--recipe", type=json.loads, default={}, help="fields of Recipe to change, as JSON")
    parser.add_argument("--go-on", type=Path, metavar="FOLDER", help="a training saved before its end")
    parser.add_argument("--used", type=float, default=0.0, help="CPU-minutes of the training that goes on")
    options = parser.parse_args()
    recipe = replace(Recipe(), **options.recipe)
    begun = None if options.go_on is None else Begun(options.go_on, options.used)
    training = train(options.out, minutes=options.minutes, seed=options.seed, recipe=recipe, begun=begun)
    write_report(options.out, training, num_problems=options.problems, seed=options.seed)


if __name__ == "__main__":
    main()
