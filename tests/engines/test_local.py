import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.engines.models import until_decoded
from tests.engines.test_builtin import Company

import ramify
from ramify.core.engine import EngineControl, Generation, Request, checked
from ramify.core.errors import ConfigError
from ramify.core.segment import Sampling, token_array
from ramify.engines.builtin import FOLDER, Builtin

torch = pytest.importorskip("torch", reason="pip install 'ramify[hf]'")

from tests.engines.folders import (  # noqa: E402
    config_of,
    greedy_of,
    logprobs_of,
    network_of,
    with_tokenizer,
    write_folder,
)

from ramify.engines.local import Local  # noqa: E402
from ramify.engines.model_folder import ModelFolder  # noqa: E402
from ramify.engines.slot_model import Chunk, Rows  # noqa: E402
from ramify.engines.transformers_model import TransformersModel  # noqa: E402

pytestmark = pytest.mark.hf

FAMILIES = ("llama", "qwen2", "qwen3", "gpt2", "phi3", "olmo2")
GREEDY = Sampling(temperature=0.0)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {family: write_folder(tmp_path_factory.mktemp(family), family) for family in FAMILIES}


@pytest.fixture(params=FAMILIES)
def folder(request: pytest.FixtureRequest, folders: dict[str, Path]) -> Path:
    return folders[request.param]


def prompts(num: int) -> list[list[int]]:
    rng = np.random.default_rng(5)
    stems = rng.integers(0, 250, (3, 40)).tolist()
    return [stems[i % 3][: int(rng.integers(1, 40))] + rng.integers(0, 250, i).tolist() for i in range(num)]


async def greedy(engine: Local | Builtin, ids: list[int], num: int = 24) -> Generation:
    request = Request(token_array(ids), num, 0, sampling=GREEDY)
    return checked(await engine.generate(request), request, engine.codec.vocab_size)


@pytest.mark.covers("S0.3", engine="local")
async def test_greedy_ids_are_those_of_generate_in_any_company(folder: Path):
    engine, network, contexts = Local(folder, num_slots=5), network_of(folder), prompts(16)
    together = await asyncio.gather(*(greedy(engine, ids) for ids in contexts))
    for ids, generation in zip(contexts, together, strict=True):
        assert generation.ids.tolist() == greedy_of(network, ids, 24)
        assert generation.logprobs is not None
        wanted = logprobs_of(network, [*ids, *generation.ids.tolist()], len(ids))
        np.testing.assert_allclose(generation.logprobs, wanted, atol=1e-4)
    assert engine.stats.num_copies and engine.stats.num_evictions and engine.stats.mean_batch > 3
    await engine.close()


async def test_sampled_tokens_have_the_logprobs_and_entropies_of_the_model(folder: Path):
    engine, network = Local(folder, num_slots=4), network_of(folder)
    requests = [
        Request(token_array(ids), 20, seed, topk=3, measures=frozenset({"entropy"}), sampling=Sampling(0.7))
        for seed, ids in enumerate(prompts(8))
    ]
    for request, generation in zip(
        requests, await asyncio.gather(*(engine.generate(request) for request in requests)), strict=True
    ):
        checked(generation, request, engine.codec.vocab_size)
        ids, start = [*request.ids.tolist(), *generation.ids.tolist()], len(request.ids)
        assert generation.logprobs is not None
        np.testing.assert_allclose(generation.logprobs, logprobs_of(network, ids, start), atol=1e-4)
        with torch.inference_mode():
            laws = network(input_ids=torch.tensor([ids]), use_cache=False).logits[0, start - 1 : -1].log_softmax(-1)
        np.testing.assert_allclose(generation.measures["entropy"], -(laws.exp() * laws).sum(-1), atol=1e-4)
        np.testing.assert_allclose(generation.topk[0][:3], laws[0].topk(3).values, atol=1e-4)
    await engine.close()


async def test_forks_go_on_from_a_copied_prefix(folder: Path):
    engine, network = Local(folder, num_slots=6), network_of(folder)
    context = prompts(3)[2]
    parent = (await greedy(engine, context, 20)).ids.tolist()
    cuts = [3, 8, 8, 15]
    branches = [context + parent[:cut] + [7 + index] for index, cut in enumerate(cuts)]
    forks = await asyncio.gather(*(greedy(engine, branch, 12) for branch in branches))
    for branch, fork, cut in zip(branches, forks, cuts, strict=True):
        assert fork.num_cached >= len(context) + min(cut, len(parent) - 1)
        assert fork.ids.tolist() == greedy_of(network, branch, 12)
    assert engine.stats.num_copies >= 3
    again = await greedy(engine, context, 20)
    assert again.ids.tolist() == parent
    await engine.close()


def test_logits_are_the_models_in_random_company(folder: Path):
    model, network = TransformersModel(ModelFolder(folder), num_slots=12), network_of(folder)
    rng = np.random.default_rng(1)
    company = Company(model, rng)  # type: ignore[arg-type]  # any slot model will do
    for length in (1, 2, 31, 64, 65, 130):
        ids = company.random_ids(length)
        with torch.inference_mode():
            wanted = network(input_ids=torch.tensor(ids[None], dtype=torch.long), use_cache=False).logits[0, -1]
        for _ in range(3):
            np.testing.assert_allclose(company.last_logits(ids), wanted, atol=2e-4)


def test_long_chunks_of_many_sizes_are_computed_like_short_ones(folders: dict[str, Path]):
    model = TransformersModel(ModelFolder(folders["llama"]), num_slots=6)
    rng = np.random.default_rng(2)
    texts = [rng.integers(0, 600, n).astype(np.int32) for n in (120, 1, 7, 66, 5)]
    nothing = np.empty(0, np.intp)
    no_rows = Rows(nothing, nothing, np.empty(0, np.int32))
    chunks = [Chunk(slot, 0, ids) for slot, ids in zip((4, 0, 5, 2, 1), texts, strict=True)]
    together = model.forward(no_rows, chunks)
    for logits, chunk in zip(together, chunks, strict=True):
        alone = model.forward(no_rows, [Chunk(3, 0, chunk.ids)])[0]
        np.testing.assert_allclose(logits, alone, atol=1e-4)


async def test_the_builtin_model_says_the_same_on_both_engines():
    local, builtin = Local(FOLDER, dtype="float32"), Builtin()
    assert (local.codec.sha256, local.codec.eos_id) == (builtin.codec.sha256, builtin.codec.eos_id)
    for target in range(20, 28):
        text = f"<|user|>make {target} from 13 7 1 5<|end|><|assistant|>"
        ids = local.codec.encode(text, allow_special=True)
        assert ids == builtin.codec.encode(text, allow_special=True)
        ours, theirs = await greedy(local, ids, 48), await greedy(builtin, ids, 48)
        assert ours.ids.tolist() == theirs.ids.tolist()
        assert ours.logprobs is not None and theirs.logprobs is not None
        np.testing.assert_allclose(ours.logprobs, theirs.logprobs, atol=1e-4)
    await local.close()
    await builtin.close()


@pytest.mark.covers("S0.3", "S0.8", engine="local")
def test_trees_are_grown_as_on_any_engine():
    done = ramify.rollout_sync(
        preset="arpo",
        engine__name="local",
        engine__model=str(FOLDER),
        engine__options={"dtype": "float32"},
        prompts=3,
        seed=2,
    )
    assert done.report.leaves >= 3 and len(done.trees) == 3
    network = network_of(FOLDER)
    for branch in (tree.branch(leaf) for tree in done.trees for leaf in tree.leaves()):
        wanted = logprobs_of(network, branch.ids.tolist(), branch.num_prompt)
        is_sampled = branch.is_sampled[branch.num_prompt :]
        found = branch.logprobs[branch.num_prompt :]
        np.testing.assert_allclose(found[is_sampled], np.array(wanted)[is_sampled], atol=1e-4)


async def test_new_weights_take_over_between_two_tokens(folders: dict[str, Path], tmp_path: Path):
    other = write_folder(tmp_path / "other", "llama", seed=9)
    engine = Local(folders["llama"])
    assert isinstance(engine, EngineControl)
    request = Request(token_array(range(40)), 60, 3)
    task = asyncio.create_task(engine.generate(request))
    await until_decoded(engine.stats, 12)
    await engine.update_weights(other, 3)
    generation = checked(await task, request, engine.codec.vocab_size)
    num_new = len(generation.ids) - 12
    assert generation.versions == ((0, 12), (3, num_new)) and num_new > 0
    assert engine.stats.recomputed_after_update == 40 + 11
    ids = [*request.ids.tolist(), *generation.ids.tolist()]
    assert generation.logprobs is not None
    for folder, start, end in ((folders["llama"], 0, 12), (other, 12, len(generation.ids))):
        wanted = logprobs_of(network_of(folder), ids, 40)[start:end]
        np.testing.assert_allclose(generation.logprobs[start:end], wanted, atol=1e-4)
    await engine.close()


@pytest.mark.parametrize("kind", ["folder", "state dict", "tied names once", "another dtype"])
async def test_an_update_drops_cached_prefixes_and_takes_what_it_is_given(tmp_path: Path, kind: str):
    first = write_folder(tmp_path / "first", "qwen3", tie_word_embeddings=True)
    second = write_folder(tmp_path / "second", "qwen3", tie_word_embeddings=True, seed=4)
    network = network_of(second)
    state = network.state_dict()
    sources: dict[str, Any] = {
        "folder": str(second),
        "state dict": state,
        "tied names once": {name: tensor for name, tensor in state.items() if name != "lm_head.weight"},
        "another dtype": {name: tensor.double() for name, tensor in state.items()},
    }
    engine = Local(first)
    context = prompts(5)[4]
    await greedy(engine, context)
    await engine.update_weights(sources[kind], 1)
    generation = await greedy(engine, context)
    assert (generation.num_cached, generation.versions) == (0, ((1, len(generation.ids)),))
    assert generation.ids.tolist() == greedy_of(network, context, 24)
    await engine.close()


async def test_weights_that_do_not_fit_are_refused_and_change_nothing(folders: dict[str, Path], tmp_path: Path):
    engine = Local(folders["llama"])
    context = prompts(2)[1]
    before = await greedy(engine, context)
    state = network_of(folders["llama"]).state_dict()
    wrong: dict[Any, str] = {
        write_folder(tmp_path / "wide", "llama", hidden_size=64): "embed_tokens.*shape|shape.*embed_tokens",
        tmp_path / "nowhere": "no folder",
    }
    for source, message in wrong.items():
        with pytest.raises(ConfigError, match=message):
            await engine.update_weights(source, 1)
    with pytest.raises(ConfigError, match=r"model\.norm\.weight"):
        await engine.update_weights({k: v * 0 for k, v in state.items() if k != "model.norm.weight"}, 1)
    with pytest.raises(ConfigError, match="no such tensor"):
        await engine.update_weights({**{k: v * 0 for k, v in state.items()}, "extra": state["model.norm.weight"]}, 1)
    after = await greedy(engine, context)
    assert after.ids.tolist() == before.ids.tolist() and after.versions == before.versions
    await engine.close()


async def test_an_offloaded_engine_goes_on_where_it_was(folders: dict[str, Path]):
    engine = Local(folders["olmo2"])
    request = Request(token_array(range(30)), 40, 1)
    wanted = (await engine.generate(request)).ids.tolist()
    done = engine.stats.num_decoded
    task = asyncio.create_task(engine.generate(request))
    await until_decoded(engine.stats, done + 5)
    await engine.offload()
    for _ in range(20):
        await asyncio.sleep(0)
    assert not task.done()
    await engine.onload()
    assert (await task).ids.tolist() == wanted and await engine.is_healthy()
    await engine.close()


async def test_a_context_is_filled_to_its_last_position(folders: dict[str, Path]):
    engine = Local(folders["gpt2"], num_slots=2)
    assert engine.capabilities.context_length == 256
    generation = await greedy(engine, list(range(200)), 400)
    assert generation.finish.kind in ("length", "end_of_sequence")
    assert len(generation.ids) == 56 or generation.ids[-1] == engine.codec.eos_id
    assert generation.ids.tolist() == greedy_of(network_of(folders["gpt2"]), list(range(200)), 56)
    await engine.close()


def test_a_folder_without_one_of_its_files_is_refused_by_the_files_name(folders: dict[str, Path], tmp_path: Path):
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        folder = tmp_path / name
        shutil.copytree(folders["llama"], folder)
        (folder / name).unlink()
        with pytest.raises(ConfigError, match=rf"{name} is missing"):
            Local(folder)
    with pytest.raises(ConfigError, match="no folder"):
        Local(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"engine\.model"):
        Local()


def test_a_file_that_cannot_be_read_is_refused_by_its_name(folders: dict[str, Path], tmp_path: Path):
    damages = {"config.json": b"{", "tokenizer.json": b"[1]", "model.safetensors": b"\x08" + b"\0" * 30}
    for name, content in damages.items():
        folder = tmp_path / name
        shutil.copytree(folders["llama"], folder)
        (folder / name).write_bytes(content)
        with pytest.raises(ConfigError, match=rf"(?s)({name}|weights in).*cannot be read"):
            Local(folder)
    folder = tmp_path / "cut"
    shutil.copytree(folders["llama"], folder)
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-100])
    with pytest.raises(ConfigError, match="cannot be read"):
        Local(folder)


def test_weights_that_lack_a_tensor_are_never_filled_in(folders: dict[str, Path], tmp_path: Path):
    folder = tmp_path / "deeper"
    shutil.copytree(folders["llama"], folder)
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, "num_hidden_layers": 3}))
    with pytest.raises(ConfigError, match=r"'model\.layers\.2\..*' is missing"):
        Local(folder)
    (folder / "config.json").write_text(json.dumps({**settings, "vocab_size": 640}))
    with pytest.raises(ConfigError, match=r"'(lm_head|model\.embed_tokens)\.weight' has another shape"):
        Local(folder)


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("mistral", {"sliding_window": 64}, "layer 0: sliding_attention, a window of 64 tokens"),
        ("gemma2", {}, "layer 0: sliding_attention, a window of 64 tokens"),
        (
            "qwen2",
            {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 1},
            "layer 1: sliding_attention, a window of 64 tokens",
        ),
        ("mamba", {}, "layer 0: linear_attention"),
        ("recurrent_gemma", {}, "layer 0: linear_attention"),
        ("lfm2", {}, "layer 0: conv"),
        ("rwkv", {}, "layer 0: rwkv"),
        (
            "phi3",
            {
                "original_max_position_embeddings": 64,
                "rope_parameters": {
                    "rope_type": "longrope",
                    "rope_theta": 1e4,
                    "long_factor": [2.0] * 4,
                    "short_factor": [1.0] * 4,
                },
            },
            "longrope",
        ),
    ],
)
def test_what_no_slot_can_hold_is_refused_by_its_layer(
    tmp_path: Path, family: str, changes: dict[str, Any], message: str
):
    # No weights are there: the configuration alone decides.
    config_of(family, **changes).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=message):
        Local(with_tokenizer(tmp_path), context_length=200)


async def test_a_sliding_window_as_long_as_the_context_is_served(tmp_path: Path):
    folder = write_folder(tmp_path, "mistral", sliding_window=64)
    engine = Local(folder, context_length=64)
    context = prompts(10)[9]
    wanted = greedy_of(network_of(folder), context, 14)
    assert (await greedy(engine, context, 14)).ids.tolist() == wanted
    await engine.update_weights(folder, 1)
    assert (await greedy(engine, context, 14)).ids.tolist() == wanted
    await engine.close()


@pytest.mark.parametrize(("family", "name"), [("bert", "BertLMHeadModel"), ("bloom", "BloomForCausalLM")])
def test_a_model_that_computes_something_else_by_slots_is_refused(tmp_path: Path, family: str, name: str):
    sizes = {"num_key_value_heads": None, "intermediate_size": None} if family == "bloom" else {}
    folder = write_folder(tmp_path, family, **sizes)
    with pytest.raises(ConfigError, match=rf"{name}.*slots"):
        Local(folder, context_length=128)


def test_a_tokenizer_with_more_ids_than_the_model_is_refused(tmp_path: Path):
    folder = write_folder(tmp_path, "llama", vocab_size=500)
    with pytest.raises(ConfigError, match="the model has 500 token ids, its tokenizer 550"):
        Local(folder)
