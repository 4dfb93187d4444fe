"""The traces of verifiers: every row is a path of messages, and every token's advantage stands once."""

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.credit.trees import CODEC, bare, end, fork, step
from tests.rows.batches import SEEDS, batch_of, chains, totals

from ramify.core.errors import ExportError
from ramify.core.tree import ROOT
from ramify.rows import Row, rows_of
from ramify.rows.traces import traces, write


def nested() -> list[Row]:
    """Two stems; the first forks behind its tool turn."""
    growth = bare(public={"level": 3})
    first, _ = fork(growth, ROOT, [step("ab")], [step("cd"), end("e", 0.0)])
    fork(growth, first, [end("x", 1.0)], [end("y", 0.0)])
    return rows_of(growth.tree)


def branches(trace: dict[str, Any]) -> Iterator[list[int]]:
    """The nodes of each branch, as verifiers finds them: from every leaf to its root, by the numbers of the leaves."""
    nodes = trace["nodes"]
    parents = {node["parent"] for node in nodes}
    for leaf in (number for number in range(len(nodes)) if number not in parents):
        path, number = [], leaf
        while number is not None:
            path.append(number)
            number = nodes[number]["parent"]
        yield path[::-1]


@pytest.mark.slow
@given(SEEDS)
def test_a_branch_is_a_row(seeds: list[int]) -> None:
    rows = batch_of(seeds)
    of_trees = [list(of_tree) for _, of_tree in groupby(rows, key=attrgetter("uid"))]
    for trace, of_tree in zip(traces(rows, CODEC), of_trees, strict=True):
        nodes = trace["nodes"]
        found = {tuple(id for number in path for id in nodes[number]["token_ids"]) for path in branches(trace)}
        assert found <= {tuple(row.ids.tolist()) for row in of_tree}
        assert all(not any(node["mask"]) for node in nodes if not node["sampled"])


@pytest.mark.slow
@given(SEEDS, st.sampled_from(["once", "per_leaf"]))
def test_all_that_rows_train_a_token_with_stands_at_its_message(seeds: list[int], policy: Any) -> None:
    rows = batch_of(seeds, policy)
    expected = sum(totals(rows, [row.trained[row.num_prompt :] for row in rows]).values())
    found = [
        advantage for trace in traces(rows, CODEC) for node in trace["nodes"] for advantage in node["advantages"] or ()
    ]
    assert sum(found) == pytest.approx(expected, abs=1e-6)
    trained = {(row.uid, int(node), at) for row in rows for at, node in enumerate(row.nodes) if row.weights[at] > 0}
    assert len(found) == len(trained)


def test_what_a_trace_says() -> None:
    (trace,) = traces(nested(), CODEC)
    said = [(node["parent"], node["message"]["role"], node["message"]["content"]) for node in trace["nodes"]]
    assert said == [
        (None, "user", "go: "),
        (0, "assistant", "ab"),
        (1, "tool", "="),
        (2, "assistant", "x"),
        (2, "assistant", "y"),
        (0, "assistant", "cd"),
        (5, "tool", "="),
        (6, "assistant", "e"),
    ]
    turn = trace["nodes"][1]
    assert turn["mask"] == [True, True] and len(turn["advantages"]) == len(turn["logprobs"]) == 2
    assert trace["rewards"] == {"reward": {"score": pytest.approx(1 / 3), "weight": 1.0}}
    assert trace["task"]["data"] == {"id": "p", "prompt": "go: ", "public": {"level": 3}}
    assert [row["leaf"] for row in trace["info"]["ramify"]] == [row.leaf for row in nested()]


def test_equal_rows_give_equal_bytes(tmp_path: Path) -> None:
    assert write(nested(), tmp_path / "a.jsonl", codec=CODEC) == 3
    assert write(nested(), tmp_path / "b.jsonl", codec=CODEC) == 3
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()
    assert len(json.loads((tmp_path / "a.jsonl").read_text())["nodes"]) == 8


def test_bad_input() -> None:
    rows = rows_of(chains(1.0, 0.0))
    with pytest.raises(ExportError, match="cannot be read with"):
        next(traces([replace(row, codec_sha256="0" * 64) for row in rows], CODEC))
    with pytest.raises(ExportError, match="has no logprobs, and prime-rl divides"):
        next(traces([replace(row, logprobs=np.full_like(row.logprobs, np.nan)) for row in rows], CODEC))
    with pytest.raises(ExportError, match="rows of the normalisers 2, 3 are on several scales"):
        next(
            traces(
                [replace(row, normaliser=2.0 + number, normaliser_of="run") for number, row in enumerate(rows)], CODEC
            )
        )
