"""Certificate: what was found of one strategy with one credit on one decision problem, and what was tested."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Final, Literal

from ramify.experiments.certify.gradient import Gradient
from ramify.experiments.certify.reductions import SUM

Verdict = Literal["exact", "scaled", "biased", "not_refuted", "scale_not_refuted", "untested", "refused"]
"""exact: the expectation is the gradient. scaled: it is the gradient times one positive factor. biased: neither.
not_refuted, scale_not_refuted: sampled trees do not contradict exact, or scaled, at 99 %. untested: nothing that could
go wrong occurred. refused: no rows are made of such trees with this credit."""
TOLERANCE: Final = 1e-12
"""Largest difference of a component, relative to the largest one, that counts as rounding of floats."""
Number = Fraction | float


@dataclass(frozen=True, slots=True)
class GradientComponent:
    """One derivative: by the logit of a token at a prefix."""

    prefix: str
    token: int
    estimate: Number
    """Expectation of the estimator; if trees were sampled, its mean."""
    expected: Fraction
    """The policy gradient."""
    low: float | None = None
    """99 % interval of the estimate, which holds for all components together; None = not sampled, or too rarely."""
    high: float | None = None

    @property
    def ratio(self) -> Number | None:
        """Estimate / expected; None where the gradient is 0."""
        return self.estimate / self.expected if self.expected else None

    @property
    def text(self) -> str:
        where = f"prefix {self.prefix!r}, token {self.token}"
        if self.low is not None and self.high is not None:
            return (
                f"{where}: {float(self.estimate):.4g} [{self.low:.4g}, {self.high:.4g}] for {float(self.expected):.4g}"
            )
        if self.ratio is None:
            return f"{where}: {float(self.estimate):.4g} for 0"
        return f"{where}: {float(self.ratio):.4g} times the gradient"


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """The verdict on a strategy with a credit, for one decision problem. It holds for that problem."""

    strategy: str
    credit: str
    problem: str
    reduction: str
    batch: str
    verdict: Verdict
    of_numbers: Verdict | None = None
    """Where rows refuse the credit for these trees: the verdict on the numbers that it has for them all the same."""
    scale: Number | None = None
    """The factor of a scaled estimator; None otherwise."""
    components: tuple[GradientComponent, ...] = ()
    num_trees: int = 0
    """Trees that were enumerated or sampled; those that differ in draws alone count each."""
    is_enumerated: bool = True
    """Whether these are all trees; if not, they were sampled."""
    is_rational: bool = False
    """Whether all sums are fractions, so that the verdict is an equality."""
    forks: Mapping[str, tuple[int, ...]]
    """Prefix where some tree forks -> the numbers of children there. '' is the prompt."""
    reasons: tuple[str, ...] = ()
    """Why the rows of these trees say that they are not exact; empty = they say that they are."""
    notes: tuple[str, ...] = ()
    """What to know of the check: what the verdict does not cover, why trees were sampled, why nothing was tested."""

    @property
    def gradient(self) -> dict[str, list[Number]]:
        """Prefix -> the estimator's expectation, a component for each token."""
        return self._by_prefix("estimate")

    @property
    def expected(self) -> dict[str, list[Fraction]]:
        """Prefix -> the policy gradient, a component for each token."""
        return self._by_prefix("expected")

    @property
    def ratios(self) -> dict[str, list[Number | None]]:
        """Prefix -> estimate / gradient of each token's component; None where the gradient is 0."""
        return self._by_prefix("ratio")

    @property
    def worst(self) -> GradientComponent | None:
        """The component with the largest difference from the gradient; None = there are none."""
        return max(self.components, key=lambda each: abs(float(each.estimate - each.expected)), default=None)

    @property
    def max_abs_bias(self) -> float:
        """That difference."""
        return 0.0 if self.worst is None else abs(float(self.worst.estimate - self.worst.expected))

    @property
    def is_contradicted(self) -> bool:
        """Whether the rows say that they are exact, and they are not, though the trainer divides by a constant."""
        return not self.reasons and self.reduction == SUM and self.verdict in ("scaled", "biased", "scale_not_refuted")

    @property
    def text(self) -> str:
        """The verdict in a few words."""
        if self.verdict == "refused" and self.of_numbers is not None:
            return f"refused; its numbers are {replace(self, verdict=self.of_numbers).text}"
        match self.verdict:
            case "scaled":
                return f"scaled by {number_text(self.scale)}"
            case "biased":
                return f"biased ({self._blamed})"
            case "not_refuted":
                return "not refuted at 99 %"
            case "scale_not_refuted":
                return f"scaled by about {number_text(self.scale)} not refuted at 99 %"
            case "untested" | "refused":
                return f"{self.verdict}: {self.notes[0]}"
            case _:
                return self.verdict

    @property
    def tested(self) -> str:
        """What was tested, in one line."""
        kind = "all" if self.is_enumerated else "sampled"
        numbers = "fractions" if self.is_rational else "floats"
        inner = sorted(prefix for prefix in self.forks if prefix)
        where = f"forks at the prompt and behind {_listed(inner)}" if inner else "forks at the prompt alone"
        return f"{self.num_trees:,} trees ({kind}), {numbers}, {where if self.forks else 'no forks'}"

    def as_dict(self) -> dict[str, Any]:
        """For JSON; fractions are texts."""
        worst = self.worst
        return {
            "strategy": self.strategy,
            "credit": self.credit,
            "problem": self.problem,
            "reduction": self.reduction,
            "batch": self.batch,
            "verdict": self.verdict,
            "of_numbers": self.of_numbers,
            "scale": _plain(self.scale),
            "max_abs_bias": self.max_abs_bias,
            "worst": None if worst is None else _component(worst),
            "components": [_component(each) for each in self.components],
            "num_trees": self.num_trees,
            "is_enumerated": self.is_enumerated,
            "is_rational": self.is_rational,
            "forks": {prefix: list(numbers) for prefix, numbers in self.forks.items()},
            "reasons": list(self.reasons),
            "notes": list(self.notes),
        }

    def _by_prefix(self, name: str) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = {}
        for each in self.components:
            found.setdefault(each.prefix, []).append(getattr(each, name))
        return found

    @property
    def _blamed(self) -> str:
        if self.is_enumerated:
            if not any(each.estimate for each in self.components):
                return "the estimate is 0 everywhere"
            return "" if self.worst is None else f"worst at {self.worst.text}"
        refuted = [each for each in self.components if is_refuted(each)]
        return f"worst at {max(refuted, key=_distance).text}" if refuted else "no one factor fits"


def is_refuted(component: GradientComponent) -> bool:
    """Whether the gradient lies outside the component's interval."""
    return _distance(component) > 0


def _distance(component: GradientComponent) -> float:
    if component.low is None or component.high is None:
        return 0.0
    expected = float(component.expected)
    return max(component.low - expected, expected - component.high, 0.0)


def judged(gradient: Gradient, expected: Mapping[str, Sequence[Fraction]]) -> tuple[Verdict, Number | None]:
    """exact, scaled with its factor, or biased; by equality of fractions, or up to rounding of floats."""
    pairs = [(x, g) for prefix, law in expected.items() for x, g in zip(gradient[prefix], law, strict=True)]
    if _is_same(pairs, 1):
        return "exact", None
    largest, value = max(((g, x) for x, g in pairs), key=lambda pair: abs(pair[0]))
    scale = value / largest
    return ("scaled", scale) if scale > TOLERANCE and _is_same(pairs, scale) else ("biased", None)


def _is_same(pairs: Sequence[tuple[Any, Fraction]], scale: Any) -> bool:
    """Whether each first number is `scale` times the second."""
    if all(isinstance(x, Fraction) for x, _ in pairs):
        return all(x == scale * g for x, g in pairs)
    largest = max(1.0, *(abs(float(x)) for x, _ in pairs))
    return all(abs(float(x) - float(scale) * float(g)) <= TOLERANCE * largest for x, g in pairs)


def components_of(gradient: Gradient, expected: Mapping[str, Sequence[Fraction]]) -> tuple[GradientComponent, ...]:
    def each() -> Iterator[GradientComponent]:
        for prefix, law in expected.items():
            for token, (estimate, wanted) in enumerate(zip(gradient[prefix], law, strict=True)):
                yield GradientComponent(prefix, token, estimate, wanted)

    return tuple(each())


def number_text(value: Number | None) -> str:
    """A short fraction as such, anything else as a decimal number."""
    if isinstance(value, Fraction) and value.denominator <= 1000:
        return str(value)
    return "?" if value is None else f"{float(value):.4g}"


def _plain(value: Number | None) -> str | float | None:
    return str(value) if isinstance(value, Fraction) else value


def _component(each: GradientComponent) -> dict[str, Any]:
    ratio = each.ratio
    return {
        "prefix": each.prefix,
        "token": each.token,
        "estimate": _plain(each.estimate),
        "expected": _plain(each.expected),
        "ratio": None if ratio is None or not math.isfinite(ratio) else float(ratio),
        "low": each.low,
        "high": each.high,
    }


def _listed(prefixes: Sequence[str], most: int = 6) -> str:
    return ", ".join(prefixes[:most]) + (f" and {len(prefixes) - most} more" if len(prefixes) > most else "")
