"""The gradient of rows is that of the loss they stand for, each sampled token once, on the policy that sampled them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.credit.trees import nested, wild
from tests.rows.batches import chains

from ramify.core.errors import ConfigError
from ramify.core.segment import Origination, Sampling
from ramify.core.tree import Tree
from ramify.credit import forest_of
from ramify.rows import Row, rows_of

torch = pytest.importorskip("torch", reason="pip install 'ramify[hf]'")

from tests.engines.folders import network_of, write_folder  # noqa: E402

from ramify.train import policy_gradient  # noqa: E402
from ramify.train.policy_gradient import PolicyGradient  # noqa: E402
from ramify.train.sketch import Sketch  # noqa: E402

pytestmark = pytest.mark.hf

TEMPERATURE = 0.7
"""Of the trees of `tests.credit.trees`."""
LAST = {
    "qwen3": ("model.layers.1.", "model.norm."),
    "llama": ("model.layers.1.", "model.norm.", "lm_head."),
    "gpt2": ("transformer.h.1.", "transformer.ln_f."),
}
"""Family -> what the names of its last slice begin with; of these llama alone has an output matrix of its own."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    ties = {"qwen3": {"tie_word_embeddings": True}, "llama": {"tie_word_embeddings": False}, "gpt2": {}}
    return {family: write_folder(tmp_path_factory.mktemp(family), family, **ties[family]) for family in LAST}


@pytest.fixture
def folder(folders: dict[str, Path]) -> Path:
    return folders["qwen3"]


def log_laws(network: Any, ids: Sequence[int], temperature: float = TEMPERATURE) -> Any:
    """(T,) logprob of each token after the first at a temperature; 0 of the first."""
    logits = network(input_ids=torch.tensor([list(ids)])).logits[0, :-1] / temperature
    laws = logits.log_softmax(-1)
    return torch.cat([torch.zeros(1), laws[range(len(ids) - 1), list(ids[1:])]])


def recorded(rows: Sequence[Row], network: Any, *, is_raw: bool = False) -> list[Row]:
    """The rows with the logprobs that this network would have recorded."""
    with torch.no_grad():
        found = [log_laws(network, row.ids.tolist(), 1.0 if is_raw else TEMPERATURE).numpy() for row in rows]
    return [replace(row, logprobs=logprobs) for row, logprobs in zip(rows, found, strict=True)]


def of_loss(network: Any, loss: Any, is_chosen: Callable[[str], bool] = lambda _: True) -> Any:
    """The gradient of a loss in the parameters that are chosen by name, by `backward`."""
    network.requires_grad_()
    network.zero_grad()
    loss.backward()
    return np.concatenate([p.grad.reshape(-1).numpy() for name, p in network.named_parameters() if is_chosen(name)])


def leaves_of(tree: Tree) -> list[tuple[list[int], Any, float, float]]:
    """(ids, where they were sampled, weight, reward) of every leaf."""
    forest = forest_of(tree)
    branches = [tree.branch(int(forest.nodes[leaf])) for leaf in forest.leaves]
    return [
        (branch.ids.tolist(), torch.tensor(branch.is_sampled), float(forest.weight[leaf]), float(forest.reward[leaf]))
        for branch, leaf in zip(branches, forest.leaves, strict=True)
    ]


def reinforce(network: Any, tree: Tree) -> Any:
    """Sum over leaves of weight * reward * logprob of the whole path: every leaf by itself, prefixes over and over."""
    terms = [w * r * (log_laws(network, ids) * where).sum() for ids, where, w, r in leaves_of(tree)]
    return torch.stack(terms).sum()


@pytest.mark.parametrize("family", LAST)
def test_a_tree_s_gradient_is_the_sum_over_its_leaves_with_their_weights(family: str, folders: dict[str, Path]) -> None:
    network, tree = network_of(folders[family]), nested()
    rows = recorded(rows_of(tree, credit="split"), network)
    wanted = of_loss(network, reinforce(network, tree))
    found = PolicyGradient(folders[family]).of(rows)
    np.testing.assert_allclose(found, wanted, atol=1e-4 * np.abs(wanted).max())


@pytest.mark.parametrize("family", LAST)
def test_the_last_slice_is_the_last_layer_the_norm_and_an_output_matrix_of_its_own(
    family: str, folders: dict[str, Path]
) -> None:
    network, tree = network_of(folders[family]), nested()
    rows = recorded(rows_of(tree, credit="split"), network)
    wanted = of_loss(network, reinforce(network, tree), lambda name: name.startswith(LAST[family]))
    policy = PolicyGradient(folders[family], layers="last")
    assert policy.num_parameters == len(wanted)
    np.testing.assert_allclose(policy.of(rows), wanted, atol=1e-4 * np.abs(wanted).max())


def test_on_chains_it_is_leave_one_out_written_by_hand(folder: Path) -> None:
    network, rewards = network_of(folder), [1.0, 0.0, 0.5]
    tree = chains(*rewards)
    rows = recorded(rows_of(tree), network)
    terms = [
        (reward - (sum(rewards) - reward) / 2) / 3 * (log_laws(network, ids) * where).sum()
        for ids, where, _, reward in leaves_of(tree)
    ]
    wanted = of_loss(network, torch.stack(terms).sum())
    np.testing.assert_allclose(PolicyGradient(folder).of(rows), wanted, atol=1e-4 * np.abs(wanted).max())


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_it_does_not_matter_which_row_trains_a_shared_token_nor_how_rows_are_batched(
    seed: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, tree, policy = network_of(folder), wild(seed), PolicyGradient(folder)
    once = policy.of(recorded(rows_of(tree, unjudged="drop"), network))
    monkeypatch.setattr(policy_gradient, "MAX_TOKENS", 1)
    spread = policy.of(recorded(rows_of(tree, unjudged="drop", policy="fraction"), network))
    np.testing.assert_allclose(spread, once, atol=1e-4 * max(1e-3, np.abs(once).max()))


def test_equal_rewards_have_no_gradient_and_neither_have_no_rows(folder: Path) -> None:
    policy = PolicyGradient(folder)
    assert not policy.of(rows_of(chains(1.0, 1.0, 1.0))).any()
    assert not policy.of([]).any() and policy.of([]).shape == (policy.num_parameters,)


def test_a_sketched_gradient_is_the_sketch_of_the_whole_one(folder: Path) -> None:
    rows = recorded(rows_of(nested()), network_of(folder))
    whole, sketch = PolicyGradient(folder).of(rows), Sketch(64, seed=3)
    device = "cuda" if torch.cuda.is_available() else "cpu"  # the map is that of the device
    parts = torch.tensor(whole, device=device).split([p.numel() for p in network_of(folder).parameters()])
    found = PolicyGradient(folder, sketch=sketch).of(rows)
    np.testing.assert_allclose(found, sketch.of(parts).cpu().numpy(), atol=1e-4 * np.abs(whole).max())


def test_raw_logprobs_are_held_against_the_raw_law(folder: Path) -> None:
    rows = recorded(rows_of(nested()), network_of(folder), is_raw=True)
    source = Origination("test", Sampling(TEMPERATURE), "raw")
    raw = [replace(row, spans=tuple(replace(s, source=s.source and source) for s in row.spans)) for row in rows]
    policy = PolicyGradient(folder)
    scaled = recorded(rows, network_of(folder))
    np.testing.assert_array_equal(policy.of(raw), policy.of(scaled))
    with pytest.raises(ConfigError, match="nats from the one recorded"):
        policy.of(rows)


def test_rows_of_other_weights_are_refused(folder: Path, tmp_path: Path) -> None:
    other = network_of(write_folder(tmp_path / "other", "qwen3", seed=1))
    with pytest.raises(ConfigError, match="another policy's"):
        PolicyGradient(folder).of(recorded(rows_of(nested()), other))


def test_rows_without_logprobs_are_refused(folder: Path) -> None:
    rows = [replace(row, logprobs=np.full_like(row.logprobs, np.nan)) for row in rows_of(nested())]
    with pytest.raises(ConfigError, match="no logprobs"):
        PolicyGradient(folder).of(rows)


@pytest.mark.parametrize("sampling", [Sampling(top_p=0.9), Sampling(top_k=5), Sampling(temperature=0.0)])
def test_laws_that_were_cut_are_refused(sampling: Sampling, folder: Path) -> None:
    source = Origination("test", sampling, "raw")
    rows = recorded(rows_of(nested()), network_of(folder), is_raw=True)
    cut = [replace(row, spans=tuple(replace(s, source=s.source and source) for s in row.spans)) for row in rows]
    with pytest.raises(ConfigError, match=r"actions\.policy"):
        PolicyGradient(folder).of(cut)


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no folder"):
        PolicyGradient(tmp_path / "nothing")
