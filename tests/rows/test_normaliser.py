"""Advantages of several normalisers: refused where a format holds no divisor, kept apart where it holds one."""

from dataclasses import replace

import pytest
from tests.credit.trees import nested
from tests.rows.batches import chains

from ramify.core.errors import ExportError
from ramify.rows import Row, padded, positional_rows, rows_of, search_r1, slime, verl


def of_two_runs() -> list[Row]:
    return [*rows_of(nested(), normaliser=4), *rows_of(chains(1.0, 0.0), normaliser=16)]


def apart(rows: list[Row]) -> list[Row]:
    """With a problem for each."""
    return [replace(row, uid=f"{row.uid}-{row.normaliser:g}") for row in rows]


def test_formats_without_a_divisor_refuse_rows_of_two_scales() -> None:
    rows = apart(of_two_runs())
    for export in (verl.batch, slime.samples):
        with pytest.raises(ExportError, match=r"normalisers 4, 16 are on several scales.*--normaliser N"):
            export(rows)


def test_rewards_alone_have_no_scale_and_columns_hold_their_divisor() -> None:
    rows = apart(of_two_runs())
    verl.batch(rows, credit_by="trainer")
    slime.samples(rows, credit_by="trainer")
    search_r1.batch(rows)
    assert set(padded(rows).normaliser.tolist()) == {4.0, 16.0}


def test_n_rows_of_every_tree_are_divided_by_n() -> None:
    rows = apart([*positional_rows(nested(), 2), *positional_rows(chains(1.0, 0.0, 0.5), 3)])
    with pytest.raises(ExportError, match="normalisers 2, 3 are on several scales"):
        verl.batch(rows)
