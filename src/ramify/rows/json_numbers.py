"""JSON numbers: the text of many numbers at once, as Python's own `json` writes it, ten times as fast.

orjson writes the shortest digits of an array of float32 or float64, but has another notation than Python for the
smallest and the largest numbers, which are written apart. What is one value for a whole span, as weights and advantages
are, is written once and repeated.
"""

import operator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import orjson

from ramify.core.errors import ExportError
from ramify.core.segment import Floats_T, Ids_T

Doubles_T = npt.NDArray[np.float64]

PLAIN_ABOVE, PLAIN_BELOW = 1e-4, 1e9
"""Between these, orjson and Python write a number in the same way: without an exponent."""
DIGITS: Final = 9
"""Digits that tell any float32 from its neighbours."""
FEW_RUNS: Final = 8
"""Runs of equal values are worth finding where they have so many values on average."""

_APART, _APART_TEXT = 1e-30, b"1e-30"
"""Holds the place of a number that is written apart; no number between the limits has an exponent."""
_SMALL: Final = np.array([float(f"1e{exponent}") for exponent in range(-45, -3)])
_EXPONENTS: Final = [b"e-%02d" % -exponent for exponent in range(-45, -3)]


class JsonText(bytes):
    """A value that is JSON text already."""


def shortest(values: Floats_T | Doubles_T) -> Doubles_T:
    """(T,) float64: the shortest decimals that give the same float32, or float64, again. NaN and infinities stay."""
    with np.errstate(invalid="ignore"):  # As some NaN are.
        found = values.astype(np.float64)
    is_finite = np.isfinite(values)
    found[is_finite] = orjson.loads(_encoded(values[is_finite]))
    return found


def ids_text(ids: Ids_T) -> JsonText:
    return JsonText(_encoded(ids))


def floats_text(values: Doubles_T, what: str) -> JsonText:
    """Raises `ExportError` for a number that is not finite, which JSON has none for."""
    _refuse(values, ~np.isfinite(values), what)
    bits = values.view(np.int64)  # 0 and -0 are equal, and are not written in the same way.
    ends = np.append(np.flatnonzero(bits[1:] != bits[:-1]) + 1, len(values))
    if len(ends) * FEW_RUNS > len(values):
        return _text(values)
    lengths = np.diff(ends, prepend=0).tolist()
    runs = zip(values[ends - 1].tolist(), lengths, strict=True)
    return JsonText(b"[%b]" % b"".join(b"%b," % repr(value).encode() * length for value, length in runs)[:-1])


def decimals_text(values: Floats_T, what: str) -> JsonText:
    """The shortest decimals of float32 values; null for NaN. Raises `ExportError` for infinities."""
    _refuse(values, np.isinf(values), what)
    return _text(values)


def _refuse(values: npt.NDArray[Any], is_bad: npt.NDArray[np.bool_], what: str) -> None:
    if is_bad.any():
        raise ExportError(f"{what} hold {values[is_bad][0]}, which is no number in JSON; export with --to parquet")


def _encoded(values: npt.NDArray[Any]) -> bytes:
    return orjson.dumps(np.ascontiguousarray(values), option=orjson.OPT_SERIALIZE_NUMPY)


def _text(values: Floats_T | Doubles_T) -> JsonText:
    """NaN becomes null."""
    sizes = np.abs(values)
    is_apart = (sizes < PLAIN_ABOVE) & (sizes > 0) | (sizes >= PLAIN_BELOW)
    if not is_apart.any():
        return JsonText(_encoded(values))
    decimals = shortest(values[is_apart])
    is_small = values.dtype == np.float32 and sizes[is_apart].max() < PLAIN_ABOVE
    parts = [b""] * (2 * len(decimals) + 1)
    parts[::2] = _encoded(np.where(is_apart, values.dtype.type(_APART), values)).split(_APART_TEXT)
    parts[1::2] = _small_texts(decimals) if is_small else [repr(decimal).encode() for decimal in decimals.tolist()]
    return JsonText(b"".join(parts))


def _small_texts(decimals: Doubles_T) -> list[bytes]:
    """The text of each decimal below 1e-4 of at most `DIGITS` digits, with its exponent. All of them at once, because a
    call of `repr` takes a microsecond for each."""
    places = np.searchsorted(_SMALL, np.abs(decimals), side="right") - 1
    mantissas = np.rint(decimals / _SMALL[places] * 10.0 ** (DIGITS - 1)) / 10.0 ** (DIGITS - 1)
    digits = _encoded(mantissas).replace(b".0,", b",").replace(b".0]", b"]")[1:-1].split(b",")
    return list(map(operator.add, digits, map(_EXPONENTS.__getitem__, places.tolist())))
