"""DecisionProblem: a policy over strings of digits with every probability known, small enough to enumerate its trees.

A token is a digit. A prefix either goes on, by the probabilities of its next token, or ends with a reward. The policy
is a softmax table, so the gradient of the expected reward has one component for every token at every prefix; it is
computed here as a fraction. The three built-in problems are generic: their probabilities and rewards differ, and one
has paths of different lengths. A symmetric problem hides bias.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from math import isfinite
from types import MappingProxyType
from typing import Any, Final

from ramify import plugins
from ramify.core.errors import ConfigError, RamifyError, nearest

MAX_ACTIONS: Final = 10
"""A token is one digit."""
MAX_DENOMINATOR: Final = 10_000
"""A float within rounding of a fraction with at most this denominator stands for that fraction: 0.4 for 2/5."""
Law = tuple[Fraction, ...]
"""(num_actions,) probability of each next token."""


def as_fraction(value: object) -> Fraction:
    """The fraction that a number or a text such as "1/3" stands for. Raises `ValueError` for anything else."""
    if isinstance(value, str | Fraction):
        return Fraction(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise ValueError(f"{value!r} is no finite number")
    near = Fraction(value).limit_denominator(MAX_DENOMINATOR)
    return near if abs(float(near) - value) <= 1e-14 * abs(value) else Fraction(value)


@dataclass(frozen=True, eq=False)
class DecisionProblem:
    """A softmax table over prefixes. Numbers may be given as fractions, floats or texts such as "1/3"."""

    name: str
    probs: Mapping[str, Law]
    """Prefix -> probabilities of its next token; '' is the prompt."""
    rewards: Mapping[str, Fraction]
    """Prefix that ends a path -> its reward."""
    coins: Mapping[str, Fraction] = field(default_factory=dict[str, Fraction])
    """Prefix -> probability that the path goes on there, as if a prune rule with `growth.keep` fired."""

    def __post_init__(self) -> None:
        """Raises `ConfigError` that says what is wrong at which prefix."""
        laws = {prefix: self._law(prefix, law) for prefix, law in self._mapping("probs").items()}
        rewards = {prefix: self._number("rewards", prefix, each) for prefix, each in self._mapping("rewards").items()}
        coins = {prefix: self._number("coins", prefix, each) for prefix, each in self._mapping("coins").items()}
        for name, value in (("probs", laws), ("rewards", rewards), ("coins", coins)):
            object.__setattr__(self, name, MappingProxyType(value))
        self._refuse_gaps()

    @classmethod
    def of(cls, name: str) -> "DecisionProblem":
        """The built-in problem called `name`. Raises `ConfigError` if there is none."""
        if name not in PROBLEMS:
            raise ConfigError(f"unknown decision problem {name!r}; {nearest(name, PROBLEMS)}")
        return PROBLEMS[name]

    @cached_property
    def gradient(self) -> dict[str, list[Fraction]]:
        """Prefix -> derivative of the expected reward by each token's logit: the probability to get there, times the
        token's own, times what the token adds to the value."""
        arrival, found = {"": Fraction(1)}, dict[str, list[Fraction]]()
        for prefix in sorted(self.probs, key=len):
            law, value = self.probs[prefix], self.values[prefix]
            found[prefix] = []
            for action, p in enumerate(law):
                after = prefix + str(action)
                arrival[after] = arrival[prefix] * p
                found[prefix].append(arrival[after] * (self.values[after] - value))
        return found

    @cached_property
    def values(self) -> Mapping[str, Fraction]:
        """Prefix -> expected reward of a path that goes on from there."""
        found = dict(self.rewards)
        for prefix in sorted(self.probs, key=len, reverse=True):
            law = self.probs[prefix]
            found[prefix] = sum((p * found[prefix + str(a)] for a, p in enumerate(law)), start=Fraction(0))
        return found

    def _mapping(self, name: str) -> Mapping[str, Any]:
        given = getattr(self, name)
        if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
            raise ConfigError(f"{self._said}: {name} must map prefixes, texts of digits, got {given!r:.80}")
        return given

    def _law(self, prefix: str, law: Any) -> Law:
        try:
            probabilities = tuple(as_fraction(p) for p in law)
        except (TypeError, ValueError, ZeroDivisionError) as error:
            raise ConfigError(f"{self._said}: probs[{prefix!r}] = {law!r:.80}: {error}") from None
        if not 1 <= len(probabilities) <= MAX_ACTIONS or min(probabilities) <= 0:
            raise ConfigError(
                f"{self._said}: probs[{prefix!r}] = {law!r:.80}: give 1 to {MAX_ACTIONS} probabilities, each above 0"
            )
        if sum(probabilities) != 1:
            total = sum(probabilities)
            raise ConfigError(
                f"{self._said}: probs[{prefix!r}] sum to {float(total):g} and not to 1; texts such as '1/3' are exact"
            )
        return probabilities

    def _number(self, name: str, prefix: str, value: object) -> Fraction:
        try:
            found = as_fraction(value)
        except (ValueError, ZeroDivisionError) as error:
            raise ConfigError(f"{self._said}: {name}[{prefix!r}] = {value!r:.80}: {error}") from None
        if name == "coins" and not 0 < found <= 1:
            raise ConfigError(f"{self._said}: coins[{prefix!r}] = {value!r}: a probability above 0 and at most 1")
        return found

    def _refuse_gaps(self) -> None:
        """Every prefix that can be reached has a reward or goes on, and no other is named."""
        if "" not in self.probs:
            raise ConfigError(f"{self._said}: give probs[''], the probabilities of the first token")
        reached = {prefix + str(a) for prefix, law in self.probs.items() for a in range(len(law))}
        for prefix in sorted(reached):
            if (prefix in self.probs) == (prefix in self.rewards):
                has = "has a reward and goes on" if prefix in self.probs else "has no reward and does not go on"
                raise ConfigError(f"{self._said}: {prefix!r} {has}; name it in probs or in rewards")
        for name, named in (("probs", self.probs), ("rewards", self.rewards), ("coins", self.coins)):
            if lost := sorted(set(named) - reached - {""}):
                raise ConfigError(
                    f"{self._said}: {name}[{lost[0]!r}] can never be reached by the tokens of probs; remove it"
                )
        if clash := sorted(set(self.coins) & {"", *self.rewards}):
            raise ConfigError(f"{self._said}: coins[{clash[0]!r}]: a coin must stand where a path goes on; remove it")

    @property
    def _said(self) -> str:
        return f"decision problem {self.name!r}"


def problem_named(name: str) -> DecisionProblem:
    """The problem that `name` names: a built-in one, or `path/to/file.py:function`, a function without arguments that
    returns a `DecisionProblem` or a mapping with its fields `probs`, `rewards` and, if wanted, `coins`.

    Raises `ConfigError` with the file and what is wrong.
    """
    if ":" not in name:
        return DecisionProblem.of(name)
    function = plugins.located("decision problem", name)
    at = plugins.place_of(name)
    if not callable(function):
        raise ConfigError(
            f"decision problem {name!r} ({at}) is {function!r:.80}; a function without arguments is needed"
        )
    try:
        made = function()
    except RamifyError:
        raise
    except Exception as error:  # boundary to a user's function
        raise ConfigError(f"decision problem {name!r} ({at}) raised {type(error).__name__}: {error}") from error
    if isinstance(made, DecisionProblem):
        return made
    wanted = {"probs", "rewards", "coins"}
    if not isinstance(made, Mapping) or not {"probs", "rewards"} <= set(made) <= wanted:
        got = f"a mapping of {sorted(map(str, made))}" if isinstance(made, Mapping) else f"{made!r:.80}"
        raise ConfigError(
            f"decision problem {name!r} ({at}) returned {got}; a DecisionProblem, or a mapping of probs, rewards and "
            "perhaps coins, is needed"
        )
    return DecisionProblem(name, **made)


def _table(name: str, probs: Mapping[str, str], rewards: Mapping[str, str]) -> DecisionProblem:
    laws = {prefix: tuple(map(Fraction, law.split())) for prefix, law in probs.items()}
    return DecisionProblem(name, laws, {path: Fraction(reward) for path, reward in rewards.items()})


_BUILT_IN = (
    _table(
        "binary3",
        {
            "": "1/3 2/3", "0": "3/4 1/4", "1": "2/5 3/5",
            "00": "1/2 1/2", "01": "1/4 3/4", "10": "2/3 1/3", "11": "1/2 1/2",
        },
        {"000": "0", "001": "1", "010": "1/2", "011": "0", "100": "1", "101": "0", "110": "1/4", "111": "1"},
    ),
    _table(
        "ragged",
        {"": "2/5 3/5", "1": "1/2 1/2", "10": "1/4 3/4", "11": "2/3 1/3", "111": "1/5 4/5"},
        {"0": "1", "100": "0", "101": "1", "110": "1/2", "1110": "1", "1111": "0"},
    ),
    _table(
        "ternary2",
        {"": "1/2 1/3 1/6", "0": "1/5 2/5 2/5", "1": "1/3 1/3 1/3", "2": "1/2 1/4 1/4"},
        {
            "00": "0", "01": "1", "02": "1/2", "10": "1", "11": "0", "12": "0", "20": "1", "21": "1/3", "22": "0",
        },
    ),
)  # fmt: skip
PROBLEMS: Final[Mapping[str, DecisionProblem]] = MappingProxyType({each.name: each for each in _BUILT_IN})
"""Built-in problems: three binary tokens; paths of 1 to 4 tokens; two tokens of three kinds."""
