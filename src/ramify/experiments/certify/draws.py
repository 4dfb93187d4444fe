"""FiniteDraws: a `numpy.random.Generator` whose every draw is finite, so that all of them can be enumerated.

`random()` gives a number that is not yet known. What is compared with it divides the interval it lies in, so `u < p` is
one draw with two outcomes, of probability p and 1 - p, and a search in a cumulated law one for each part that it asks
for. A method whose draws are continuous raises `NotEnumerable`.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cache
from typing import Any, Final

import numpy as np

from ramify.core.errors import RamifyError
from ramify.experiments.certify.decision_problem import as_fraction
from ramify.experiments.certify.replay import Draw, OwnRandomness

MAX_CELLS: Final = 1000
"""Most whole numbers that one draw may fall on."""


class NotEnumerable(RamifyError):
    """A strategy draws what is not one of finitely many."""


@cache
def uniform_law(number: int) -> tuple[Fraction, ...]:
    return (Fraction(1, number),) * number


@cache
def coin_law(probability: Fraction) -> tuple[Fraction, Fraction]:
    """(not, yes)."""
    return 1 - probability, probability


class FiniteDraws:
    """The methods of a `numpy.random.Generator` with finite draws; each is a draw, or several, of `draw`."""

    def __init__(self, draw: Draw) -> None:
        self._draw = draw

    def random(self, size: int | None = None) -> Any:
        """Uniform on [0, 1): a number that only comparisons tell."""
        return UniformNumber(self._draw) if size is None else np.array([self.random() for _ in range(size)], object)

    def integers(self, low: int, high: int | None = None, size: int | None = None, *, endpoint: bool = False) -> Any:
        """Uniform on 0 .. low - 1, or low .. high - 1."""
        first, last = (0, low) if high is None else (low, high)
        number = int(last) - int(first) + endpoint
        if number < 1:
            raise ValueError("low >= high")
        if number > MAX_CELLS:
            raise NotEnumerable(f"it draws one of {number} whole numbers; at most {MAX_CELLS} are enumerated")
        return self._drawn(lambda: np.int64(int(first) + self._draw(uniform_law(number))), size)

    def choice(self, a: Any, size: int | None = None, replace: bool = True, p: Sequence[float] | None = None) -> Any:
        """One of `a`, or of 0 .. a - 1; with `size`, so many, without `replace` all different."""
        items = np.arange(a) if isinstance(a, int | np.integer) else np.asarray(a)
        law = list(uniform_law(len(items))) if p is None else [as_fraction(float(each)) for each in p]
        places: list[int] = []
        for _ in range(1 if size is None else size):
            total = sum(law)
            if not total:
                raise ValueError("fewer items of a probability above 0 than wanted")
            places.append(self._draw(tuple(each / total for each in law)))
            if not replace:
                law[places[-1]] = Fraction(0)
        return items[places[0]] if size is None else items[places]

    def permutation(self, x: Any) -> Any:
        """A random order of `x`, or of 0 .. x - 1."""
        items = np.arange(x) if isinstance(x, int | np.integer) else np.array(x)
        return items[self._order(len(items))]

    def shuffle(self, x: Any) -> None:
        """Put `x` into a random order, in place."""
        items = list(x)
        x[:] = [items[i] for i in self._order(len(items))]

    def _order(self, number: int) -> list[int]:
        left = list(range(number))
        return [left.pop(self._draw(uniform_law(len(left)))) for _ in range(number)]

    def _drawn(self, one: Callable[[], Any], size: int | None) -> Any:
        return one() if size is None else np.array([one() for _ in range(size)])

    def __getattr__(self, name: str) -> Any:
        if hasattr(np.random.Generator, name):
            raise NotEnumerable(f"it draws by the generator's method {name!r}, which is not one of finitely many")
        raise AttributeError(f"a numpy.random.Generator has no {name!r}")


class UniformNumber:
    """`scale * u + shift` of a number u that is uniform on an interval. A comparison with another number decides on
    which side of it u lies, by a draw, and narrows the interval; nothing else is known of it."""

    def __init__(self, draw: Draw) -> None:
        self._draw = draw
        self._interval = [Fraction(0), Fraction(1)]
        """Where u lies; shared by all numbers that are made of it."""
        self._scale, self._shift = Fraction(1), Fraction(0)

    def _is_below(self, other: object) -> bool:
        """Whether it is below `other`; that it equals it has probability 0."""
        threshold = (self._known(other) - self._shift) / self._scale
        is_less = self._is_u_below(threshold)
        return is_less if self._scale > 0 else not is_less

    def _is_u_below(self, threshold: Fraction) -> bool:
        low, high = self._interval
        if threshold <= low or threshold >= high:
            return threshold >= high
        is_below = bool(self._draw(coin_law((threshold - low) / (high - low))))
        self._interval[:] = [low, threshold] if is_below else [threshold, high]
        return is_below

    def _moved(self, scale: Fraction, shift: Fraction) -> Any:
        moved = UniformNumber(self._draw)
        moved._interval = self._interval
        moved._scale, moved._shift = self._scale * scale, self._shift * scale + shift
        return moved if scale else float(shift)

    def _known(self, other: object) -> Fraction:
        if isinstance(other, np.number | np.ndarray) and np.ndim(other) == 0:
            other = other.item()
        try:
            return as_fraction(other)
        except ValueError:
            raise self._refused(f"compares it with {type(other).__name__}") from None

    def _refused(self, what: str) -> NotEnumerable:
        return NotEnumerable(f"it {what}, a random number, which is not one of finitely many outcomes")

    def __lt__(self, other: object) -> bool:
        return self._is_below(other)

    def __le__(self, other: object) -> bool:
        return self._is_below(other)

    def __gt__(self, other: object) -> bool:
        return not self._is_below(other)

    def __ge__(self, other: object) -> bool:
        return not self._is_below(other)

    def __add__(self, other: object) -> Any:
        return self._moved(Fraction(1), self._known(other))

    __radd__ = __add__

    def __sub__(self, other: object) -> Any:
        return self._moved(Fraction(1), -self._known(other))

    def __rsub__(self, other: object) -> Any:
        return self._moved(Fraction(-1), self._known(other))

    def __mul__(self, other: object) -> Any:
        return self._moved(self._known(other), Fraction(0))

    __rmul__ = __mul__

    def __truediv__(self, other: object) -> Any:
        return self._moved(1 / self._known(other), Fraction(0))

    def __floor__(self) -> int:
        """The whole number below it: the cell of its interval that it falls in."""
        ends = sorted(self._scale * end + self._shift for end in self._interval)
        first, last = math.floor(ends[0]), math.ceil(ends[1])
        if last - first > MAX_CELLS:
            raise NotEnumerable(f"it draws one of {last - first} whole numbers; at most {MAX_CELLS} are enumerated")
        return next((n - 1 for n in range(first + 1, last) if self._is_below(n)), last - 1)

    def __int__(self) -> int:
        """As `math.floor`, of a number that is not below 0."""
        if min(self._scale * end + self._shift for end in self._interval) < 0:
            raise self._refused("makes a whole number of")
        return math.floor(self)

    def __float__(self) -> float:
        raise self._refused("calculates with")

    def __bool__(self) -> bool:
        raise self._refused("asks for the truth of")

    def __eq__(self, other: object) -> bool:
        raise self._refused("compares for equality")

    __hash__ = None  # type: ignore[assignment]


class EchoedDraws:
    """Draws of a strategy and of its twin: the twin, which is asked after it, gets the same ones.

    A strategy whose twin draws by other laws has randomness of its own; that raises `OwnRandomness`.
    """

    def __init__(self, draw: Draw) -> None:
        self._draw = draw
        self._drawn: deque[tuple[Sequence[Fraction], int]] = deque()

    def first(self, law: Sequence[Fraction], /) -> int:
        index = self._draw(law)
        self._drawn.append((law, index))
        return index

    def again(self, law: Sequence[Fraction], /) -> int:
        if not self._drawn or tuple(self._drawn[0][0]) != tuple(law):
            raise OwnRandomness(
                "built and told alike, it drew by another law: it drew randomness of its own; draw only from the "
                "generator handed in"
            )
        return self._drawn.popleft()[1]
