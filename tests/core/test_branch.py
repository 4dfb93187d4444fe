"""Branch: how long a path is in the tokens of the model, where ids are its own and where they are bytes."""

from collections.abc import Sequence
from typing import Any

import pytest

from ramify.core.branch import Branch, Piece, estimated_tokens
from ramify.core.codec import ByteCodec
from ramify.core.segment import Origin, Segment, Usage, token_array


def piece(origin: Origin, num_bytes: int, **usage: int) -> Piece:
    return Piece(0, Segment(origin, token_array([97] * num_bytes), usage=Usage(**usage)))


@pytest.mark.parametrize(
    ("pieces", "whole", "response"),
    [
        ([], 0, 0),
        ([piece("prompt", 8), piece("prompt", 9)], 2 + 3, 0),
        ([piece("prompt", 400), piece("sampled", 40, num_prefilled=30, num_cached=20, num_billed=7)], 57, 7),
        (
            [
                piece("prompt", 400),
                piece("sampled", 40, num_prefilled=50, num_billed=7),
                piece("given", 9),
                piece("given", 1),
            ],
            57 + 3 + 1,
            11,
        ),
        (
            [
                piece("prompt", 400),
                piece("sampled", 40, num_prefilled=50, num_billed=7),
                piece("given", 9),
                piece("sampled", 40, num_prefilled=5, num_cached=50, num_billed=8),
            ],
            63,
            13,
        ),
        # Nothing was told of the first call: what was billed for it is a bound, and no length.
        ([piece("prompt", 400), piece("sampled", 40, num_billed=900)], 110, 10),
        # What was thought is billed and read no more.
        (
            [
                piece("prompt", 4),
                piece("sampled", 4, num_prefilled=50, num_billed=900),
                piece("given", 4),
                piece("sampled", 4, num_prefilled=54, num_billed=1),
            ],
            55,
            5,
        ),
    ],
)
def test_bytes_are_counted_by_what_the_engine_said(pieces: Sequence[Piece], whole: int, response: int):
    branch = Branch(ByteCodec(), 0, tuple(pieces))
    assert (branch.num_tokens, branch.num_response_tokens) == (whole, response)


def test_ids_of_the_model_are_counted_as_they_are():
    pieces = (piece("prompt", 5), piece("sampled", 3, num_prefilled=99, num_billed=9), piece("given", 2))
    branch = Branch(ByteCodec(is_exact=True), 0, pieces)
    assert (branch.num_tokens, branch.num_response_tokens) == (10, 5)


@pytest.mark.parametrize(("num_bytes", "tokens"), [(0, 0), (1, 1), (4, 1), (5, 2)])
def test_text_that_nobody_counted_has_a_token_for_every_four_bytes(num_bytes: int, tokens: Any):
    assert estimated_tokens(num_bytes) == tokens
