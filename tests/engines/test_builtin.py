import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tests.engines.models import TINY, tensor_shapes, until_decoded, write_model, write_tensors

from ramify.core.engine import EngineControl, Generation, Request, checked
from ramify.core.errors import ConfigError
from ramify.core.segment import Sampling, token_array
from ramify.engines.builtin import Builtin
from ramify.engines.numpy_model import NumpyModel
from ramify.engines.sampling import RawLaws, uniforms
from ramify.engines.slot_model import Chunk, Rows
from ramify.tools.calculator import CalculatorState, apply

Floats = npt.NDArray[np.float32]
NO_ROWS = Rows(np.empty(0, np.intp), np.empty(0, np.intp), np.empty(0, np.int32))


def rows_of(triples: list[tuple[int, int, int]]) -> Rows:
    """Rows of (slot, position, id), slots rising."""
    slots, positions, ids = np.array(sorted(triples)).reshape(-1, 3).T
    return Rows(slots, positions, ids.astype(np.int32))


def decoded(model: NumpyModel, slot: int, ids: npt.NDArray[np.int32]) -> Floats:
    """(T, V) logits of a sequence computed alone, one token at a time."""
    return np.concatenate([model.forward(rows_of([(slot, i, int(token))]), []) for i, token in enumerate(ids)])


def plain_logits(folder: Path, ids: npt.NDArray[np.int32]) -> npt.NDArray[np.float64]:
    """(T, V) logits by the network's definition in float64, nothing cached, nothing folded."""
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    weights = read_bf16(folder / "model.safetensors")
    size, eps = config["head_dim"], config["rms_norm_eps"]
    groups = config["num_attention_heads"] // config["num_key_value_heads"]
    frequencies = 10000.0 ** (-np.arange(0, size, 2) / size)
    angles = np.arange(len(ids))[:, None, None] * frequencies

    def norm(x: Any, name: str) -> Any:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weights[name + ".weight"]

    def rotate(x: Any) -> Any:
        first, second = np.split(x, 2, axis=-1)
        cos, sin = np.cos(angles), np.sin(angles)
        return np.concatenate((first * cos - second * sin, second * cos + first * sin), -1)

    x = weights["model.embed_tokens.weight"][ids]
    for index in range(config["num_hidden_layers"]):
        name = f"model.layers.{index}."
        h = norm(x, name + "input_layernorm")
        q, k, v = ((h @ weights[f"{name}self_attn.{part}_proj.weight"].T).reshape(len(ids), -1, size) for part in "qkv")
        q, k = rotate(norm(q, name + "self_attn.q_norm")), rotate(norm(k, name + "self_attn.k_norm"))
        scores = np.einsum("ihd,jhd->hij", q, k.repeat(groups, 1)) / size**0.5
        scores += np.triu(np.full(scores.shape[1:], -np.inf), 1)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        mixed = np.einsum("hij,jhd->ihd", shares, v.repeat(groups, 1)).reshape(len(ids), -1)
        x = x + mixed @ weights[name + "self_attn.o_proj.weight"].T
        h = norm(x, name + "post_attention_layernorm")
        gate = h @ weights[name + "mlp.gate_proj.weight"].T
        up = h @ weights[name + "mlp.up_proj.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ weights[name + "mlp.down_proj.weight"].T
    head = "model.embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"
    return norm(x, "model.norm") @ weights[head].T


def read_bf16(path: Path) -> dict[str, npt.NDArray[np.float64]]:
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header: dict[str, Any] = json.loads(data[8 : 8 + size])
    tensors: dict[str, npt.NDArray[np.float64]] = {}
    for name, entry in header.items():
        start, end = (8 + size + offset for offset in entry["data_offsets"])
        halves = np.frombuffer(data[start:end], "<u2").astype(np.uint32) << 16
        tensors[name] = halves.view(np.float32).astype(np.float64).reshape(entry["shape"])
    return tensors


@pytest.mark.parametrize("is_batch_invariant", [True, False])
@pytest.mark.parametrize("changes", [{}, {"norm_scale": 12.0}, {"tie_word_embeddings": False}, {"head_dim": 16}])
def test_logits_are_the_networks_definition(tmp_path: Path, changes: dict[str, Any], is_batch_invariant: bool):
    folder = write_model(tmp_path / "model", **changes)
    model = NumpyModel(folder, num_slots=2, is_batch_invariant=is_batch_invariant)
    ids = np.random.default_rng(1).integers(0, 550, 150).astype(np.int32)
    ours = decoded(model, 1, ids)
    wanted = plain_logits(folder, ids)
    # Large norms make attention nearly a choice of one key, which magnifies what float32 rounds.
    assert np.abs(ours - wanted).max() < (1e-2 if "norm_scale" in changes else 1e-4)


class Company:
    """A model on which one sequence is computed among random others, in random ways."""

    def __init__(self, model: NumpyModel, rng: np.random.Generator) -> None:
        self.model, self.rng = model, rng

    def last_logits(self, ids: npt.NDArray[np.int32]) -> Floats:
        """Logits after `ids`: a random part of it computed in another slot and copied, the rest in random chunks."""
        slot, other = self.rng.choice(self.model.num_slots, 2, replace=False).tolist()
        copied = int(self.rng.integers(0, len(ids)))
        if copied:
            # What the source holds behind the copied prefix is not the sequence's.
            self.computed(other, np.concatenate((ids[:copied], self.random_ids(5))), 0)
            self.model.copy(other, slot, copied)
        return self.computed(slot, ids, copied)

    def computed(self, slot: int, ids: npt.NDArray[np.int32], start: int) -> Floats:
        logits = np.empty(0, np.float32)
        while start < len(ids):
            size = 1 if self.rng.random() < 0.5 else int(self.rng.integers(1, 40))
            logits = self.step(slot, start, ids[start : start + size])
            start += size
        return logits

    def step(self, slot: int, start: int, ids: npt.NDArray[np.int32]) -> Floats:
        others = self.rng.permutation([s for s in range(self.model.num_slots) if s != slot]).tolist()
        rows = [(s, int(self.rng.integers(0, 120)), int(self.random_ids(1)[0])) for s in others[: self.num_others()]]
        free = [s for s in others[-self.num_others() // 4 :] if s not in {row[0] for row in rows}]
        chunks = [Chunk(s, int(self.rng.integers(0, 60)), self.random_ids(20)) for s in free]
        if len(ids) == 1 and self.rng.random() < 0.8:
            rows = sorted([*rows, (slot, start, int(ids[0]))])
            return self.model.forward(rows_of(rows), chunks)[[row[0] for row in rows].index(slot)]
        place = int(self.rng.integers(0, len(chunks) + 1))
        chunks.insert(place, Chunk(slot, start, ids))
        return self.model.forward(rows_of(rows) if rows else NO_ROWS, chunks)[len(rows) + place]

    def num_others(self) -> int:
        return int(self.rng.choice([0, 1, 2, 3, 7, 12]))

    def random_ids(self, num: int) -> npt.NDArray[np.int32]:
        return self.rng.integers(0, self.model.vocab_size, num).astype(np.int32)


def assert_same_bits(model: NumpyModel, *, num_companies: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    sequences = [rng.integers(0, model.vocab_size, n).astype(np.int32) for n in (1, 2, 31, 64, 65, 100, 130)]
    alone = [decoded(model, 3, ids) for ids in sequences]
    company = Company(model, rng)
    for trial in range(num_companies):
        which = trial % len(sequences)
        end = int(rng.integers(1, len(sequences[which]) + 1))
        logits = company.last_logits(sequences[which][:end])
        assert logits.tobytes() == alone[which][end - 1].tobytes(), (trial, which, end)


@pytest.mark.parametrize("num_companies", [200, pytest.param(1000, marks=pytest.mark.endurance)])
def test_logits_have_the_same_bits_in_random_companies(shipped_shape_folder: Path, num_companies: int):
    assert_same_bits(NumpyModel(shipped_shape_folder, num_slots=16), num_companies=num_companies, seed=2)


def test_logits_have_the_same_bits_where_scores_need_their_maximum_taken_off(tmp_path: Path):
    folder = write_model(tmp_path / "model", norm_scale=12.0)
    assert_same_bits(NumpyModel(folder, num_slots=16), num_companies=200, seed=3)


def test_without_batch_invariance_logits_differ_by_rounding_only(tiny_folder: Path):
    model = NumpyModel(tiny_folder, num_slots=16, is_batch_invariant=False)
    rng = np.random.default_rng(3)
    ids = rng.integers(0, 550, 90).astype(np.int32)
    alone = decoded(model, 3, ids)[-1]
    company = Company(model, rng)
    assert max(np.abs(company.last_logits(ids) - alone).max() for _ in range(50)) < 1e-4


def random_request(rng: np.random.Generator, **changes: Any) -> Request:
    values: dict[str, Any] = {
        "ids": rng.integers(0, 550, int(rng.integers(1, 80))).astype(np.int32),
        "max_tokens": int(rng.integers(1, 30)),
        "seed": int(rng.integers(1 << 62)),
        "measures": frozenset({"entropy"}),
        "topk": 5,
        "topk_tokens": 3,
    }
    return Request(**{**values, **changes})


def bits(generation: Generation) -> tuple[Any, ...]:
    assert generation.logprobs is not None
    return (
        generation.ids.tolist(),
        generation.finish,
        generation.logprobs.tobytes(),
        generation.measures["entropy"].tobytes(),
        [values.tobytes() for values in generation.topk],
    )


async def test_generations_have_the_same_bits_alone_and_in_company(tiny_folder: Path):
    rng = np.random.default_rng(4)
    laws = [Sampling(), Sampling(temperature=0.7), Sampling(top_p=0.8, top_k=40), Sampling(temperature=0)]
    requests = [random_request(rng, sampling=laws[i % 4], stops=("1", "</calc>")) for i in range(60)]
    requests += [random_request(rng, ids=request.ids) for request in requests[:20]]
    alone = Builtin(tiny_folder, num_slots=1)
    wanted = [bits(checked(await alone.generate(request), request, 550)) for request in requests]
    crowd = Builtin(tiny_folder, num_slots=12)
    order = rng.permutation(len(requests)).tolist()
    got = await asyncio.gather(*(crowd.generate(requests[i]) for i in order))
    assert [bits(generation) for generation in got] == [wanted[i] for i in order]
    assert crowd.stats.num_copies and crowd.stats.num_evictions and crowd.stats.mean_batch > 4
    await alone.close()
    await crowd.close()


async def test_a_seed_fixes_the_sample_and_another_changes_it(tiny_folder: Path):
    engine = Builtin(tiny_folder)
    rng = np.random.default_rng(5)
    request = random_request(rng, max_tokens=25)
    other = random_request(rng, ids=request.ids, max_tokens=25)
    first, again, different = [await engine.generate(r) for r in (request, request, other)]
    assert bits(first) == bits(again)
    assert first.ids.tolist() != different.ids.tolist()
    await engine.close()


async def test_logprobs_entropy_and_topk_are_those_of_a_float64_recomputation(tiny_folder: Path):
    engine = Builtin(tiny_folder)
    request = random_request(np.random.default_rng(6), max_tokens=20, topk_tokens=7, sampling=Sampling(0.5, 0.9, 30))
    generation = checked(await engine.generate(request), request, 550)
    logits = plain_logits(tiny_folder, np.concatenate((request.ids, generation.ids)))[len(request.ids) - 1 : -1]
    laws = logits - logits.max(-1, keepdims=True)
    laws -= np.log(np.exp(laws).sum(-1, keepdims=True))
    own = laws[np.arange(len(generation.ids)), generation.ids]
    np.testing.assert_allclose(generation.logprobs, own, atol=1e-4)
    np.testing.assert_allclose(generation.measures["entropy"], -(np.exp(laws) * laws).sum(-1), atol=1e-4)
    assert len(generation.topk) == min(7, len(generation.ids))
    for values, law, token in zip(generation.topk, laws, generation.ids, strict=False):
        largest = np.sort(law)[::-1][:5]
        wanted = largest if law[token] >= largest[-1] else np.append(largest, law[token])
        np.testing.assert_allclose(values, wanted, atol=1e-4)
    await engine.close()


def test_tokens_are_drawn_from_the_law_that_was_asked_for():
    rng = np.random.default_rng(7)
    logits = np.tile(rng.normal(0, 2, 12), (20_000, 1)).astype(np.float32)
    law = RawLaws.of(logits)
    numbers = uniforms(8, len(logits))
    sampling = Sampling(temperature=0.8, top_k=6, top_p=0.7)
    scaled = np.exp(logits[0].astype(float) / 0.8)
    kept = np.argsort(-scaled)[:6]
    shares = scaled[kept] / scaled[kept].sum()
    kept = kept[: int((shares.cumsum() - shares < 0.7).sum())]
    cut = np.zeros(12)
    cut[kept] = scaled[kept] / scaled[kept].sum()
    for changed, wanted in (({}, np.exp(logits[0]) / np.exp(logits[0]).sum()), (sampling, cut)):
        changes = dict.fromkeys(range(len(logits)), sampling) if changed else {}
        found = np.bincount(law.draw(numbers, changes), minlength=12) / len(logits)
        assert np.abs(found - wanted).max() < 4 * 0.5 / len(logits) ** 0.5
        assert not found[wanted == 0].any()


def test_temperature_zero_takes_the_lowest_id_of_the_likeliest():
    law = RawLaws.of(np.array([[0.0, 3.0, 3.0, 1.0]], np.float32))
    assert law.draw(np.array([0.99]), {0: Sampling(temperature=0)}).tolist() == [1]


def test_an_impossible_token_is_never_drawn_and_adds_no_entropy():
    law = RawLaws.of(np.array([[-np.inf, 0.0, 0.0, -np.inf]] * 2, np.float32))
    assert law.draw(np.array([0.0, np.nextafter(1, 0)]), {}).tolist() == [1, 2]
    np.testing.assert_allclose(law.entropies(), np.log(2), rtol=1e-6)


def test_a_uniform_number_depends_on_the_seed_and_its_index_alone():
    assert uniforms(3, 5).tolist() == uniforms(3, 50)[:5].tolist() != uniforms(4, 5).tolist()
    for start in range(9):
        assert uniforms(3, 5, start=start).tolist() == uniforms(3, 50)[start : start + 5].tolist()
    assert 0.49 < uniforms(9, 100_000).mean() < 0.51


async def test_new_weights_take_over_between_two_tokens(tiny_folder: Path, tmp_path: Path):
    other = write_model(tmp_path / "other", seed=9)
    engine = Builtin(tiny_folder)
    assert isinstance(engine, EngineControl)
    request = random_request(np.random.default_rng(10), max_tokens=60, ids=token_array(range(40)))
    task = asyncio.create_task(engine.generate(request))
    await until_decoded(engine.stats, 12)
    await engine.update_weights(str(other), 3)
    generation = checked(await task, request, 550)
    assert generation.versions == ((0, 12), (3, len(generation.ids) - 12))
    assert engine.stats.recomputed_after_update == 40 + 11
    logits = plain_logits(other, np.concatenate((request.ids, generation.ids)))[40 - 1 + 12 : -1]
    own = logits[np.arange(len(logits)), generation.ids[12:]] - np.log(np.exp(logits).sum(-1))
    assert generation.logprobs is not None
    np.testing.assert_allclose(generation.logprobs[12:], own, atol=1e-4)
    again = await engine.generate(request)
    assert again.num_cached >= 39 and again.versions == ((3, len(again.ids)),)
    await engine.close()


async def test_an_update_drops_cached_prefixes(tiny_folder: Path):
    engine = Builtin(tiny_folder)
    request = random_request(np.random.default_rng(11))
    await engine.generate(request)
    await engine.update_weights(str(tiny_folder), 1)
    generation = await engine.generate(request)
    assert generation.num_cached == 0 and generation.num_prefilled == len(request.ids)
    await engine.close()


async def test_offloaded_requests_go_on_as_if_nothing_had_been(tiny_folder: Path):
    engine = Builtin(tiny_folder)
    request = random_request(np.random.default_rng(12), max_tokens=30)
    wanted = await engine.generate(request)
    task = asyncio.create_task(engine.generate(request))
    await until_decoded(engine.stats, len(wanted.ids) + 3)
    await engine.offload()
    steps = engine.stats.num_steps
    for _ in range(20):
        await asyncio.sleep(0)
    assert engine.stats.num_steps == steps
    await engine.onload()
    generation = await task
    assert bits(generation) == bits(wanted) and generation.versions == wanted.versions
    await engine.close()


async def test_a_paused_engine_computes_nothing(tiny_folder: Path):
    engine = Builtin(tiny_folder)
    await engine.pause()
    task = asyncio.create_task(engine.generate(random_request(np.random.default_rng(13))))
    for _ in range(20):
        await asyncio.sleep(0)
    assert engine.stats.num_steps == 0
    await engine.resume()
    assert len((await task).ids)
    assert await engine.is_healthy()
    await engine.close()
    assert not await engine.is_healthy()


async def test_the_shipped_model_makes_a_call_the_calculator_understands():
    engine = Builtin()
    prompt = engine.codec.encode("<|user|>make 18 from 13 9 15<|end|><|assistant|>", allow_special=True)
    request = Request(token_array(prompt), 30, 1, stops=("</calc>", "</answer>"), sampling=Sampling(temperature=0))
    generation = checked(await engine.generate(request), request, engine.codec.vocab_size)
    text = engine.codec.decode(generation.ids)
    assert generation.finish.matched == "</calc>"
    assert apply(CalculatorState((13, 9, 15)), text.removeprefix("<calc>").removesuffix("</calc>"))[2], text
    await engine.close()


def test_capabilities_say_what_the_mode_gives(tiny_folder: Path):
    capabilities = Builtin(tiny_folder).capabilities
    assert (capabilities.name, capabilities.logprobs, capabilities.context_length) == ("builtin", "raw", 256)
    assert capabilities.is_deterministic and capabilities.has_seeds and capabilities.has_versions
    assert capabilities.measures == {"entropy"}
    free = Builtin(tiny_folder, batch_invariant=False, context_length=100).capabilities
    assert not free.is_deterministic and free.context_length == 100


@pytest.mark.parametrize("kind", [np.float16, np.float32])
def test_other_float_types_are_read(tmp_path: Path, kind: type):
    folder = write_model(tmp_path / "model")
    before = decoded(NumpyModel(folder), 0, np.arange(9, dtype=np.int32))
    tensors = {name: values.astype(kind) for name, values in read_bf16(folder / "model.safetensors").items()}
    write_tensors(folder / "model.safetensors", tensors)
    after = decoded(NumpyModel(folder), 0, np.arange(9, dtype=np.int32))
    np.testing.assert_allclose(after, before, atol=1e-6 if kind is np.float32 else 1e-2)


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": "llama"},
        {"hidden_act": "gelu"},
        {"attention_bias": True},
        {"use_sliding_window": True},
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}},
    ],
)
def test_a_network_it_does_not_compute_is_refused(tmp_path: Path, change: dict[str, Any]):
    folder = write_model(tmp_path / "model", **change)
    with pytest.raises(ConfigError, match="computes"):
        NumpyModel(folder)


def test_a_folder_without_a_model_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"config\.json is missing"):
        NumpyModel(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    with pytest.raises(ConfigError, match="safetensors"):
        NumpyModel(tmp_path)


def test_weights_of_an_unknown_type_are_refused(tmp_path: Path):
    folder = write_model(tmp_path / "model")
    write_tensors(folder / "model.safetensors", {name: np.zeros(shape) for name, shape in tensor_shapes(TINY).items()})
    with pytest.raises(ConfigError, match="F64"):
        NumpyModel(folder)


def test_files_that_cannot_be_read_are_refused(tmp_path: Path):
    folder = write_model(tmp_path / "model")
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:-100])
    with pytest.raises(ConfigError, match="cannot be read"):
        Builtin(folder)
    write_tensors(folder / "model.safetensors", {"model.norm.weight": np.ones(32, np.float32)})
    with pytest.raises(ConfigError, match="embed_tokens"):
        Builtin(folder)
    (folder / "model.safetensors").write_bytes(whole)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match="tokenizer"):
        Builtin(folder)


async def test_an_update_of_another_shape_is_refused_and_changes_nothing(tiny_folder: Path, tmp_path: Path):
    engine = Builtin(tiny_folder)
    request = random_request(np.random.default_rng(14))
    before = await engine.generate(request)
    with pytest.raises(ConfigError, match="another shape"):
        await engine.update_weights(str(write_model(tmp_path / "other", num_hidden_layers=1)), 1)
    after = await engine.generate(request)
    assert bits(before) == bits(after) and after.versions == before.versions
    await engine.close()
