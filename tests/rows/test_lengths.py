"""Rows of at most so many tokens: longer paths make no row, the others keep their coefficients and say so."""

from collections import defaultdict
from collections.abc import Iterable

import pytest
from hypothesis import given
from tests.credit.trees import nested, wild
from tests.rows.batches import SEEDS, chains

import ramify
from ramify.core.errors import ConfigError, ExportError
from ramify.rows import Row, positional_rows, rows_of
from ramify.rows.weights import Policy

Token = tuple[str, int, int]


def trained(rows: Iterable[Row]) -> dict[Token, float]:
    """(tree, node, place in it) of each trained token -> its coefficient, summed over rows."""
    found: dict[Token, float] = defaultdict(float)
    for row in rows:
        places: dict[int, int] = defaultdict(int)
        for node, coefficient, weight in zip(row.nodes.tolist(), row.coefficients, row.weights, strict=True):
            if weight:
                found[row.uid, node, places[node]] += coefficient
            places[node] += 1
    return found


@pytest.mark.parametrize("policy", ["once", "fraction"])
def test_what_is_left_keeps_its_coefficients(policy: Policy) -> None:
    whole = rows_of(nested(), policy=policy)
    limit = sorted({len(row) for row in whole})[-2]
    rows = rows_of(nested(), policy=policy, max_tokens=limit)
    before, after = trained(whole), trained(rows)
    assert after == pytest.approx({token: before[token] for token in after})
    num_long = sum(len(row) > limit for row in whole)
    assert len(rows) == len(whole) - num_long > 0
    said = f"{num_long} of {len(whole)} path(s) left out: more than rows.max_tokens = {limit} tokens"
    assert all(row.reasons == (said,) and len(row) <= limit for row in rows)


def test_a_token_whose_first_row_is_too_long_is_trained_by_the_next() -> None:
    rows = rows_of(nested())
    longest = max(map(len, rows))
    kept = rows_of(nested(), max_tokens=longest - 1)
    shared = {token for token in trained(rows) if token[1] in {n for row in kept for n in row.nodes.tolist()}}
    assert shared == set(trained(kept))


@pytest.mark.slow
@given(SEEDS)
def test_a_limit_that_no_path_reaches_changes_nothing(seeds: list[int]) -> None:
    for seed in seeds:
        rows = rows_of(wild(seed))
        again = rows_of(wild(seed), max_tokens=max(map(len, rows), default=1))
        assert trained(again) == trained(rows)
        assert [row.reasons for row in again] == [row.reasons for row in rows]


def test_a_tree_of_long_paths_makes_no_row() -> None:
    assert rows_of(chains(1.0, 0.0), max_tokens=1) == []


def test_n_rows_of_a_tree_are_refused_where_one_is_too_long() -> None:
    with pytest.raises(ExportError, match=r"tree .*: 2 of the 2 rows have more than rows.max_tokens = 1 tokens"):
        positional_rows(chains(1.0, 0.0), 2, max_tokens=1)


def test_a_run_takes_the_limit_from_its_configuration_or_where_rows_are_made() -> None:
    def grown(**settings: object) -> ramify.Rollout:
        return ramify.rollout_sync(preset="chains", prompts=4, engine="scripted", **settings)

    rows = grown().rows()
    limit = sorted(map(len, rows))[len(rows) // 2]
    by_run, by_call = grown(rows__max_tokens=limit).rows(), grown().rows(max_tokens=limit)
    assert [row.leaf for row in by_run] == [row.leaf for row in by_call]
    assert 0 < len(by_run) < len(rows)
    with pytest.raises(ConfigError, match=r"rows.max_tokens = 0: it must be above 0"):
        grown(rows__max_tokens=0)
