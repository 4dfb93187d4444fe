"""JSON numbers: the text of many numbers at once, as Python's own `json` writes them, several times as fast.

msgspec writes the same shortest digits, but has another notation for the smallest and the largest, which Python writes
here. What is one value for a whole span, as weights and advantages are, is written once and repeated.
"""

from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from ramify.core.errors import ExportError
from ramify.core.segment import Floats_T, Ids_T

Doubles_T = npt.NDArray[np.float64]

MAX_DIGITS: Final = 9
"""Digits that tell any float32 from its neighbours."""
SURE_BELOW, SURE_ABOVE = 1e9, 1e-12
"""Between these, a decimal of so few digits is a quotient of two doubles that are exact: it is rounded once."""
PLAIN_BELOW, PLAIN_ABOVE = 1e16, 1e-4
"""Between these, msgspec and Python write a number in the same way."""
FEW_RUNS: Final = 8
"""Runs of equal values are worth finding where they have so many values on average."""
FEW: Final = 128
"""For so few values, a loop over them takes less time than numpy's calls."""

_POWERS: Final = 10.0 ** np.arange(23)


class JsonText(bytes):
    """A value that is JSON text already."""


def shortest(values: Floats_T) -> Doubles_T:
    """(T,) float64: the shortest decimals that give the same float32 again. NaN and infinities stay."""
    if len(values) <= FEW:
        return np.array([float(str(value)) for value in values], np.float64)
    with np.errstate(invalid="ignore"):  # As some NaN are.
        exact = values.astype(np.float64)
    sizes = np.abs(exact)
    is_sure = (sizes > SURE_ABOVE) & (sizes < SURE_BELOW)
    found = exact.copy()
    left = np.flatnonzero(is_sure)
    exponents = np.floor(np.log10(sizes[left])).astype(np.int64)
    for digits in range(MAX_DIGITS, 0, -1):
        shift = digits - 1 - exponents
        power = _POWERS[np.abs(shift)]
        rounded = np.rint(np.where(shift >= 0, exact[left] * power, exact[left] / power))
        decimals = np.where(shift >= 0, rounded / power, rounded * power)
        is_same = decimals.astype(np.float32) == values[left]
        left, exponents = left[is_same], exponents[is_same]
        found[left] = decimals[is_same]
        if not len(left):
            break
    for place in np.flatnonzero(~is_sure & (sizes > 0) & np.isfinite(exact)):
        found[place] = float(str(values[place]))
    return found


def ids_text(ids: Ids_T) -> JsonText:
    return JsonText(msgspec.json.encode(ids.tolist()))


def floats_text(values: Doubles_T, what: str) -> JsonText:
    """Raises `ExportError` for a number that is not finite, which JSON has none for."""
    _refuse(values, ~np.isfinite(values), what)
    if len(values) <= FEW:
        return _text(values)
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
    return _text(shortest(values))


def _refuse(values: npt.NDArray[Any], is_bad: npt.NDArray[np.bool_], what: str) -> None:
    if is_bad.any():
        raise ExportError(f"{what} hold {values[is_bad][0]}, which is no number in JSON; export with --to parquet")


def _text(values: Doubles_T) -> JsonText:
    """NaN becomes null."""
    numbers: list[Any] = values.tolist()
    sizes = np.abs(values)
    for place in np.flatnonzero((sizes < PLAIN_ABOVE) & (sizes > 0) | (sizes >= PLAIN_BELOW)):
        numbers[place] = msgspec.Raw(repr(numbers[place]).encode())
    return JsonText(msgspec.json.encode(numbers))
