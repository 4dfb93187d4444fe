"""JSON numbers: the text of many numbers at once, as Python's own `json` writes it, several times as fast.

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
SURE_BELOW, SURE_ABOVE = 2.0**24, 1e-12
"""Between these, a decimal of so few digits is a quotient of two doubles that are exact: it is rounded once. Whole
numbers above have float32 neighbours that are further than 1 away."""
PLAIN_BELOW, PLAIN_ABOVE = 1e16, 1e-4
"""Between these, msgspec and Python write a number in the same way."""
NO_EXPONENT: Final = 1e-5
"""From here up, msgspec writes small numbers without an exponent: 0.000093 where Python writes 9.3e-05."""
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
    left = np.flatnonzero(is_sure)
    found, numbers, wanted = exact.copy(), exact[left], values[left]
    exponents = np.floor(np.log10(sizes[left])).astype(np.int64)
    for digits in range(MAX_DIGITS, 0, -1):
        power = _POWERS[digits - 1 - exponents]
        decimals = np.rint(numbers * power) / power
        is_same = decimals.astype(np.float32) == wanted
        found[left[is_same]] = decimals[is_same]
        is_same &= exponents < digits - 1  # A digit less would be one before the point.
        left, numbers, wanted, exponents = left[is_same], numbers[is_same], wanted[is_same], exponents[is_same]
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
    places = np.flatnonzero((sizes < PLAIN_ABOVE) & (sizes > 0) | (sizes >= PLAIN_BELOW))
    for place in places.tolist():
        numbers[place] = True
    text = msgspec.json.encode(numbers)
    if len(places):
        *between, last = text.split(b"true")
        odd = _odd_texts(values[places], sizes[places])
        text = b"".join([part for pair in zip(between, odd, strict=True) for part in pair] + [last])
    return JsonText(text)


def _odd_texts(values: Doubles_T, sizes: Doubles_T) -> list[bytes]:
    """The text of numbers that msgspec writes in another way than Python: its own, with the notation of Python. All of
    them at once, because a call of `repr` takes a microsecond for each."""
    is_decimal = (sizes >= NO_EXPONENT) & (sizes < PLAIN_ABOVE)
    decimals = msgspec.json.encode(values[is_decimal].tolist())[1:-1].replace(b",", b"e-05,") + b"e-05"
    for digit in range(1, 10):
        decimals = decimals.replace(b"0.0000%d" % digit, b"%d." % digit)
    powers = msgspec.json.encode(values[~is_decimal].tolist())[1:-1] + b","
    for digit in range(5, 10):
        powers = powers.replace(b"e-%d," % digit, b"e-0%d," % digit)
    powers = powers.replace(b"e", b"e+").replace(b"e+-", b"e-")
    of_decimals, of_powers = iter(decimals.replace(b".e", b"e").split(b",")), iter(powers.split(b","))
    return [next(of_decimals if decimal else of_powers) for decimal in is_decimal.tolist()]
