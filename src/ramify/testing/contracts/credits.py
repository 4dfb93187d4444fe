"""Rules for every credit. Exactness is checked by enumeration: the expected gradient over all forests of a tiny problem
with a known policy is compared with the true gradient. A stem is a root branch."""

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np

from ramify.core.errors import ConfigError, nearest
from ramify.credit import CREDITS, Forest
from ramify.credit.balance import rebalanced
from ramify.credit.forest import STEM, Array_N
from ramify.testing.contracts.rules import demand, keep_all, name_of, rules_of

ExactFor = Literal["predictable forks", "balanced shares", "chains", "nothing"]
LAWS: Final[Mapping[str, tuple[float, float]]] = {"": (0.5, 0.5), "0": (0.25, 0.75), "1": (0.6, 0.4)}
"""Prefix -> probabilities of the next action. A path is two actions."""
REWARDS: Final[Mapping[str, float]] = {"00": 1.0, "01": 0.0, "10": 0.25, "11": 0.5}
SHAPES: Final[Mapping[str, tuple[int, Mapping[str, int]]]] = {
    "two chains": (2, {"0": 1, "1": 1}),
    "two stems that fork twice": (2, {"0": 2, "1": 2}),
    "two stems of which those that begin with 0 fork three times": (2, {"0": 3, "1": 1}),
}
"""Name -> number of stems, and for each first action the number of children after it."""
TOLERANCE: Final = 1e-9
NUM_COPIES: Final = 4
MAX_GROWTH: Final = 1.5
"""Most that a coefficient may grow when each row is there twice. One count a row gives 2. Deviations, which credits
divide by, depend on the number of rows too: the largest growth of a built-in credit is 1.02."""


@dataclass(frozen=True, slots=True)
class CreditCase:
    """A credit, and the exactness it claims."""

    coefficients: Callable[[Forest], Array_N]
    exact_for: ExactFor


def check_credit(
    credit: str | Callable[[Forest], Array_N],
    *,
    exact_for: ExactFor = "predictable forks",
    without: Collection[str] = (),
) -> None:
    """Check every rule of a credit except those in `without`. Raises `BrokenRule` that says which rule was broken and
    where.

    `credit` is a function from a forest to (num_nodes,) coefficients, or the name of a built-in credit. Use
    `exact_for="nothing"` for a credit that claims no exact gradient. For a built-in credit the table says what it
    claims.
    """
    if isinstance(credit, str):
        if credit not in CREDITS:
            raise ConfigError(f"unknown credit {credit!r}; {nearest(credit, CREDITS)}")
        case = CreditCase(CREDITS[credit].coefficients, CREDITS[credit].exact_for)
    else:
        case = CreditCase(credit, exact_for)
    keep_all(CREDIT_RULES, case, f"credit {credit if isinstance(credit, str) else name_of(credit)}", without=without)


def each_node_gets_one_finite_coefficient(case: CreditCase) -> None:
    for where, forest in _forests():
        coefficients = np.asarray(_credited(case, forest), np.float64)
        demand(coefficients.shape == (len(forest),), f"{where}: shape {coefficients.shape} for {len(forest)} nodes")
        demand(bool(np.isfinite(coefficients).all()), f"{where}: not all are finite: {coefficients.tolist()}")


def it_changes_nothing_of_the_forest(case: CreditCase) -> None:
    for where, forest in _forests():
        before = {name: getattr(forest, name).tolist() for name in ("parent", "share", "reward", "num_tokens")}
        _credited(case, forest)
        for name, values in before.items():
            now = getattr(forest, name).tolist()
            demand(str(now) == str(values), f"{where}: it changed {name} from {values} to {now}")


def the_same_forest_gets_the_same_coefficients(case: CreditCase) -> None:
    for where, forest in _forests():
        one, other = (_credited(case, forest).tolist() for _ in range(2))
        demand(str(one) == str(other), f"{where}: first {one}, then {other}")


def every_sampled_token_counts_once_so_that_the_expected_gradient_is_exact(case: CreditCase) -> None:
    """For credits that claim exactness, on the forests that they claim it for."""
    wanted = _true_gradient()
    for shape in SHAPES:
        is_claimed = case.exact_for != "nothing" and (case.exact_for != "chains" or shape == "two chains")
        found = _expected_gradient(case, shape) if is_claimed else wanted
        for prefix, components in wanted.items():
            where = f"{shape}, action behind {prefix!r}" if prefix else f"{shape}, first action"
            is_same = np.allclose(found[prefix], components, atol=TOLERANCE)
            demand(is_same, f"{where}: the expected gradient is {found[prefix]}, the true one {components}")


def a_token_counts_once_however_many_rows_hold_it(case: CreditCase) -> None:
    """For every credit, whatever it claims: in a forest whose paths are each there n or 2 n times, all rows of a path
    say the same, so a shared token has no reason to weigh twice as much."""
    few, many = (_credited(case, _copied_paths(NUM_COPIES * times)) for times in (1, 2))
    for stem in range(len(REWARDS)):
        for node in (stem, stem + len(REWARDS)):
            fewer, more = (f"rows {stem * n} to {stem * n + n - 1}" for n in (NUM_COPIES, 2 * NUM_COPIES))
            one, other = float(few[node]), float(many[node])
            demand(
                abs(other) <= MAX_GROWTH * abs(one) + TOLERANCE,
                f"the token of node {node}: held by {fewer} its coefficient is {one:.4g}, held by {more}, which say "
                f"the same, it is {other:.4g}: it counts once for each row. Give it the mean of what its rows say, or "
                "divide by the number of leaves (forest.num_leaves)",
            )


CREDIT_RULES: Final = rules_of(
    each_node_gets_one_finite_coefficient,
    it_changes_nothing_of_the_forest,
    the_same_forest_gets_the_same_coefficients,
    every_sampled_token_counts_once_so_that_the_expected_gradient_is_exact,
    a_token_counts_once_however_many_rows_hold_it,
)
"""Rule in plain English -> the function that checks it."""


def _credited(case: CreditCase, forest: Forest) -> Array_N:
    needs_balance = case.exact_for == "balanced shares"
    return case.coefficients(rebalanced(forest) if needs_balance else forest)


def _forests() -> Iterator[tuple[str, Forest]]:
    """A few forests of each shape, and their names."""
    for shape in SHAPES:
        for number, (_, forest, _) in enumerate(itertools.islice(_outcomes(shape), 0, None, 7)):
            yield f"{shape}, forest {number}", forest


def _copied_paths(num_copies: int) -> Forest:
    """A stem for each reward, one token behind it, and behind that so many leaves with the reward."""
    num_stems = len(REWARDS)
    parent = [STEM] * num_stems + list(range(num_stems))
    share = [1 / num_stems] * num_stems + [1.0] * num_stems
    reward: list[float | None] = [None] * (2 * num_stems)
    for stem, value in enumerate(REWARDS.values()):
        parent += [num_stems + stem] * num_copies
        share += [1 / num_copies] * num_copies
        reward += [value] * num_copies
    forest = Forest.of_arrays(parent, share, reward)
    return replace(forest, measures={"mean_surprisal": np.full(len(forest), 0.5)})


def _outcomes(shape: str) -> Iterator[tuple[float, Forest, list[tuple[str, int]]]]:
    """Every forest of a shape: its probability, and the prefix and the action of each node."""
    num_stems, children = SHAPES[shape]
    for firsts in itertools.product((0, 1), repeat=num_stems):
        counts = [children[str(first)] for first in firsts]
        for seconds in itertools.product(*(itertools.product((0, 1), repeat=count) for count in counts)):
            yield _outcome(firsts, seconds)


def _outcome(
    firsts: tuple[int, ...], seconds: tuple[tuple[int, ...], ...]
) -> tuple[float, Forest, list[tuple[str, int]]]:
    probability, parent, share = 1.0, list[int](), list[float]()
    reward, actions = list[float | None](), list[tuple[str, int]]()
    for first, below in zip(firsts, seconds, strict=True):
        stem = len(parent)
        for place, prefix, action, part in (
            (STEM, "", first, 1 / len(firsts)),
            *((stem, str(first), action, 1 / len(below)) for action in below),
        ):
            parent.append(place)
            share.append(part)
            reward.append(REWARDS[f"{prefix}{action}"] if prefix else None)
            actions.append((prefix, action))
            probability *= LAWS[prefix][action]
    forest = Forest.of_arrays(parent, share, reward)
    surprisal = np.array([-np.log(LAWS[prefix][action]) for prefix, action in actions])
    return probability, replace(forest, measures={"mean_surprisal": surprisal}), actions


def _expected_gradient(case: CreditCase, shape: str) -> dict[str, list[float]]:
    """Prefix -> the expected sum over tokens of coefficient * grad log pi, one component per action's logit."""
    total = {prefix: [0.0, 0.0] for prefix in LAWS}
    for probability, forest, actions in _outcomes(shape):
        coefficients: list[Any] = _credited(case, forest).tolist()
        for (prefix, action), coefficient in zip(actions, coefficients, strict=True):
            for other, law in enumerate(LAWS[prefix]):
                total[prefix][other] += probability * float(coefficient) * ((other == action) - law)
    return total


def _true_gradient() -> dict[str, list[float]]:
    """The gradient of the expected reward."""
    total = {prefix: [0.0, 0.0] for prefix in LAWS}
    for path, reward in REWARDS.items():
        probability = LAWS[""][int(path[0])] * LAWS[path[0]][int(path[1])]
        for prefix, action in (("", int(path[0])), (path[0], int(path[1]))):
            for other, law in enumerate(LAWS[prefix]):
                total[prefix][other] += probability * reward * ((other == action) - law)
    return total
