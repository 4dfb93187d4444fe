"""What holds for every export of tokens, on batches of random trees: masks, shared tokens, lengths, columns."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import get_args

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.credit.trees import bare, end, fork, step
from tests.rows.batches import SEEDS, batch_of, chains, not_sampled, totals

from ramify.core.errors import ExportError
from ramify.core.tree import ROOT
from ramify.rows import Row, padded, rows_of, search_r1, slime, verl
from ramify.rows.weights import Policy

POLICIES = st.sampled_from(get_args(Policy))
Masks = Callable[[Sequence[Row]], list[npt.NDArray[np.generic]]]


def of_arrays(rows: Sequence[Row]) -> list[npt.NDArray[np.generic]]:
    return list(padded(rows).loss_weights)


def of_search_r1(rows: Sequence[Row]) -> list[npt.NDArray[np.generic]]:
    tensors = search_r1.batch(rows).tensors
    return list(tensors["info_mask"][:, -tensors["responses"].shape[1] :])


def of_verl(rows: Sequence[Row]) -> list[npt.NDArray[np.generic]]:
    return list(verl.batch(rows).tensors["response_mask"])


def of_slime(rows: Sequence[Row]) -> list[npt.NDArray[np.generic]]:
    """Its responses begin with the first sampled token; the given tokens before it are put back here."""
    data = slime.train_data(slime.samples(rows))
    masks = zip(rows, data["loss_masks"], strict=True)
    return [np.array([0] * (len(row) - row.num_prompt - len(mask)) + mask) for row, mask in masks]


MASKS: tuple[Masks, ...] = (of_arrays, of_search_r1, of_verl, of_slime)


@pytest.mark.slow
@pytest.mark.covers("S1.3")
@given(SEEDS, POLICIES)
def test_no_token_of_an_observation_a_prompt_or_padding_is_ever_trained(seeds: list[int], policy: Policy) -> None:
    rows = batch_of(seeds, policy)
    for masks_of in MASKS:
        for row, mask in zip(rows, masks_of(rows), strict=True):
            assert not mask[not_sampled(row, len(mask))].any()
            assert mask.any()


@pytest.mark.slow
@given(SEEDS)
def test_every_sampled_token_is_trained_once(seeds: list[int]) -> None:
    rows = batch_of(seeds)
    for masks_of in MASKS:
        assert set(totals(rows, masks_of(rows)).values()) <= {1.0}


@pytest.mark.slow
@given(SEEDS)
def test_as_published_every_row_trains_all_it_sampled(seeds: list[int]) -> None:
    rows = batch_of(seeds, "per_leaf")
    for masks_of in MASKS:
        assert [mask.sum() for mask in masks_of(rows)] == [row.is_sampled.sum() for row in rows]


@pytest.mark.slow
@given(SEEDS, POLICIES)
def test_advantages_a_token_are_the_credits_in_every_export(seeds: list[int], policy: Policy) -> None:
    """Summed over rows and divided by the normaliser, fractions included."""
    rows = batch_of(seeds, policy)
    scale = [1 / row.normaliser for row in rows]
    expected = totals(rows, [row.coefficients[row.num_prompt :] for row in rows])
    scores = verl.batch(rows).tensors["rm_scores"]
    found = totals(rows, [values * factor for values, factor in zip(scores, scale, strict=True)])
    assert found == pytest.approx(expected, abs=1e-5)
    rewards = slime.train_data(slime.samples(rows))["rewards"]
    padded_left = [np.array([0.0] * (len(r) - r.num_prompt - len(v)) + v) for r, v in zip(rows, rewards, strict=True)]
    found = totals(rows, [values * factor for values, factor in zip(padded_left, scale, strict=True)])
    assert found == pytest.approx(expected, abs=1e-9)


@pytest.mark.covers("S1.5")
def test_every_row_carries_its_samples_own_columns() -> None:
    public = {"data_source": "nq", "reward_model": {"style": "rule"}, "index": 3}
    growth = bare(public=public)
    fork(growth, ROOT, [end("a", 1.0)], [end("b", 0.0)])
    rows = [*rows_of(growth.tree), *batch_of([1])]
    for columns in (search_r1.batch(rows).columns, verl.batch(rows).non_tensors):
        for name, value in public.items():
            assert columns[name] == [value, value, *[None] * (len(rows) - 2)]
        assert columns["uid"] == [row.uid for row in rows]


@pytest.mark.parametrize("make", [search_r1.batch, verl.batch])
def test_a_column_called_like_the_exports_own_is_refused(make: Callable[[list[Row]], object]) -> None:
    growth = bare(public={"uid": 3})
    fork(growth, ROOT, [end("a", 1.0)])
    with pytest.raises(ExportError, match=r"public columns \['uid'\]"):
        make(rows_of(growth.tree))


@pytest.mark.parametrize("make", [search_r1.batch, verl.batch, slime.samples])
def test_no_rows_are_an_empty_batch(make: Callable[[list[Row]], object]) -> None:
    made = make([])
    assert made == [] if isinstance(made, list) else made.tensors["input_ids"].shape[0] == 0  # type: ignore[attr-defined]


WRITERS = pytest.mark.parametrize(
    ("write", "name"),
    [
        (search_r1.write, "b.safetensors"),
        (verl.write, "b.npz"),
        (slime.write, "b.jsonl"),
        (slime.write_train_data, "b.jsonl"),
    ],
)


@WRITERS
def test_equal_rows_give_equal_bytes(write: Callable[..., int], name: str, tmp_path: Path) -> None:
    rows = batch_of([1, 2])
    written: list[list[bytes]] = []
    for is_there in (False, True):
        assert write(rows, tmp_path / name, force=is_there) == len(rows)
        written.append([path.read_bytes() for path in sorted(tmp_path.iterdir())])
    assert written[0] == written[1]


@WRITERS
def test_a_batch_that_cannot_be_made_leaves_nothing(write: Callable[..., int], name: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="two trees"):
        write([*rows_of(chains(1.0)), *rows_of(chains(0.0, 1.0))], tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_a_turn_that_was_split_is_one_turn() -> None:
    growth = bare()
    fork(growth, ROOT, [step("abcd"), end("x", 1.0)])
    fork(growth, 1, [end("y", 0.0)], at=6)
    longest = max(rows_of(growth.tree, policy="per_leaf"), key=len)
    assert [span.num_tokens for span in longest.spans] == [4, 2, 2, 1, 1]
    assert longest.runs == [("prompt", 4), ("sampled", 4), ("given", 1), ("sampled", 1)]
    assert longest.num_turns == 2
