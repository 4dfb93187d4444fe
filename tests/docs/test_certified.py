"""The page of certificates is what `make certify` makes: a cheap line of each table is made again."""

import pytest
from tests import certified
from tests.certified import SHAPES, credits_table, parts_of_page, reductions_table

from ramify.experiments.certify import PROBLEMS
from ramify.experiments.certify.reductions import SUM


@pytest.mark.slow
def test_a_line_of_each_table_is_what_is_found_now() -> None:
    _, made, _ = parts_of_page()
    shape = SHAPES[0]
    by_credit = credits_table({shape: [certified.certified(shape, problem) for problem in PROBLEMS]})
    assert by_credit.splitlines()[-1] in made.splitlines()
    by_trainer = reductions_table(
        {(shape, name, "one"): certified.reduced(shape, name, "one") for name in (SUM, "token_mean")}
    )
    assert set(by_trainer.splitlines()) <= set(made.splitlines())


def test_every_shape_has_its_line() -> None:
    _, made, _ = parts_of_page()
    missing = [shape.text for shape in SHAPES if shape.text not in made]
    assert not missing, "run `make certify`"
