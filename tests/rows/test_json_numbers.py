"""The text of many numbers is what Python's `json` writes for each of them."""

import json

import numpy as np
import pytest

from ramify.core.errors import ExportError
from ramify.rows.json_numbers import decimals_text, floats_text, ids_text, shortest

RNG = np.random.default_rng(7)
SIZE = 20_000
KINDS = {
    "logprobs": np.log1p(-(RNG.random(SIZE) ** 4)).astype(np.float32),
    "magnitudes": (RNG.choice([-1, 1], SIZE) * 10.0 ** RNG.uniform(-45, 38, SIZE)).astype(np.float32),
    "bits": RNG.integers(0, 2**32, SIZE, dtype=np.uint64).astype(np.uint32).view(np.float32),
    "ties": (RNG.integers(0, 2**24, SIZE) / 2.0 ** RNG.integers(0, 30, SIZE)).astype(np.float32),
    "edges": np.array([0.0, -0.0, 1e-4, 9.9999e-5, 1e-5, 1.5e-5, 9.9e-6, 1e15, 1e16, 1e9, 1e-12, 1e-45], np.float32),
}
KINDS |= {
    f"{name}, {size}": np.resize(KINDS[name], size) for name in ("edges", "bits") for size in (1, 100, 128, 129, 300)
}


def python_text(numbers: list[float]) -> bytes:
    text = json.dumps([None if number != number else number for number in numbers], separators=(",", ":"))
    return text.encode()


@pytest.mark.parametrize("kind", KINDS)
def test_float32_have_their_shortest_decimals(kind: str) -> None:
    values = KINDS[kind][~np.isinf(KINDS[kind])]
    expected = [float(text) for text in values.astype(str)]
    assert np.array_equal(shortest(values), expected, equal_nan=True)
    assert decimals_text(values, "logprobs") == python_text(expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("repeats", [1, 30])
def test_float64_are_written_as_by_python(kind: str, repeats: int) -> None:
    values = np.repeat(KINDS[kind][np.isfinite(KINDS[kind])].astype(np.float64) / 3, repeats)[:SIZE]
    assert floats_text(values, "weights") == python_text(values.tolist())


def test_nothing_is_an_empty_list() -> None:
    assert floats_text(np.empty(0), "weights") == decimals_text(np.empty(0, np.float32), "logprobs") == b"[]"
    assert ids_text(np.empty(0, np.int32)) == b"[]"
    assert ids_text(np.array([0, -1, 2**31 - 1], np.int32)) == b"[0,-1,2147483647]"


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_number_that_json_has_none_for_is_named(bad: float) -> None:
    with pytest.raises(ExportError, match=f"weights hold {bad}"):
        floats_text(np.array([1.0, bad]), "weights")
    if np.isinf(bad):
        with pytest.raises(ExportError, match=f"logprobs hold {bad}"):
            decimals_text(np.array([-0.5, bad], np.float32), "logprobs")
