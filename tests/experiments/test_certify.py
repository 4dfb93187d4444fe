"""Certificates: each verdict on a strategy and a credit that deserve it, and every malformed part is named."""

import itertools
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ramify.core.command import Grow
from ramify.core.errors import ConfigError, ContractError
from ramify.core.tree import Tree
from ramify.credit import Forest
from ramify.experiments.certify import CertifyLimits, DecisionProblem, certify, problem_named
from ramify.strategies.chains import Chains, ChainsConfig

UNEVEN: Mapping[str, Any] = {"children": [2, 1.5]}
"""`planned`: trees of 2 to 4 leaves, where one branch in two forks once more."""
POST_HOC: Mapping[str, Any] = {"n": 3, "initial_rollouts": 2}
FLAT = DecisionProblem("flat", {"": ["1/2", "1/2"]}, {"0": 1, "1": 1})  # type: ignore[dict-item]
COIN = {"probs": {"": ["1/2", "1/2"], "1": [0.25, 0.75]}, "rewards": {"0": 0.5, "10": 0, "11": 1}}


def coin(**changes: Any) -> DecisionProblem:
    return DecisionProblem("coin", **(COIN | changes))


# -- verdicts ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("problem", ["binary3", "ragged", "ternary2"])
def test_planned_trees_of_any_size_are_exact_in_fractions(problem: str) -> None:
    found = certify("planned", "auto", options=UNEVEN, problem=problem)
    assert (found.verdict, found.is_enumerated, found.is_rational, found.reasons) == ("exact", True, True, ())
    assert found.gradient == found.expected
    assert {ratio for law in found.ratios.values() for ratio in law} <= {1, None}
    assert any(prefix for prefix in found.forks)


def test_a_credit_with_a_baseline_of_its_own_leaf_is_scaled_on_chains() -> None:
    found = certify("chains", "leaf_mean", options={"n": 3})
    assert (found.verdict, found.scale) == ("scaled", Fraction(2, 3))
    assert found.text == "scaled by 2/3"
    assert {ratio for law in found.ratios.values() for ratio in law} == {Fraction(2, 3)}


@pytest.mark.slow
def test_forks_that_depend_on_tokens_are_biased_under_the_credit_that_rows_take() -> None:
    found = certify("online", "auto", options=POST_HOC)
    assert found.verdict == "biased"
    assert found.worst is not None and found.worst.text in found.text
    assert found.reasons and not found.is_contradicted


@pytest.mark.slow
def test_an_exact_credit_is_refused_on_such_forks_and_its_numbers_are_judged_all_the_same() -> None:
    found = certify("online", "subtree_loo", options=POST_HOC)
    assert (found.verdict, found.of_numbers) == ("refused", "biased")
    assert found.text.startswith("refused; its numbers are biased (worst at prefix")


def test_what_could_not_go_wrong_is_untested() -> None:
    assert certify("chains", "auto", options={"n": 1}).text == "untested: no tree forked"
    found = certify("chains", "auto", options={"n": 2}, problem=FLAT)
    assert found.text == "untested: the gradient of this problem is 0"


def test_independent_chains_are_said_to_be_no_test_of_a_tree() -> None:
    found = certify("chains", "auto", options={"n": 2})
    assert found.verdict == "exact"
    assert found.notes == ("no tree forked behind the prompt: this checked independent chains",)


def test_coins_of_a_problem_are_part_of_it() -> None:
    found = certify("chains", "subtree_loo", options={"n": 2}, problem=coin(coins={"1": "1/2"}))
    assert (found.verdict, found.is_rational) == ("exact", True)


# -- reductions --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_constant_divisor_is_exact_and_one_that_depends_on_tokens_is_not() -> None:
    """Issue: E[N g] / E[N] of adaptive trees was 0.79 to 1.50 times the gradient, component by component."""

    def ratios(reduction: str, **options: Any) -> list[float]:
        found = certify("planned", "auto", options=UNEVEN, problem=coin(), reduction=reduction, **options)
        assert (found.verdict == "exact") == (reduction == "sum_over_constant")
        return [float(ratio) for law in found.ratios.values() for ratio in law if ratio is not None]

    assert ratios("sum_over_constant") == pytest.approx([1.0] * 4, abs=1e-12)
    for reduction, batch in (("mean_over_rows", "one"), ("token_mean", "one"), ("sequence_mean", "many")):
        assert max(ratios(reduction, batch=batch)) > 1.05 * min(ratios(reduction, batch=batch))


def test_a_reduction_of_a_user_is_taken_and_checked(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        """
        def constant(rows):
            return [1 / row.normaliser for row in rows]

        def one(rows):
            return [1.0]

        def wide(rows):
            return [[1.0, 2.0] for row in rows]

        def nan(rows):
            return [float("nan") for row in rows]

        def raises(rows):
            raise KeyError("mean")

        number = 3
        """,
    )
    assert certify("chains", "auto", options={"n": 2}, reduction=f"{file}:constant").verdict == "exact"
    for name, message in {
        "one": r"gave \[1.0\] for 2 rows; give a factor, or \(T,\), a row",
        "wide": "a row of .* tokens",
        "nan": "factors that are not finite",
        "raises": r"mine.py, line 14\) raised KeyError: 'mean'",
    }.items():
        with pytest.raises(ContractError, match=message):
            certify("chains", "auto", options={"n": 2}, reduction=f"{file}:{name}")
    with pytest.raises(ConfigError, match="is 3; a function is needed"):
        certify("chains", "auto", reduction=f"{file}:number")
    with pytest.raises(
        ConfigError, match=r"unknown reduction 'x'; known: .*\. Or name a file: path/to/file.py:function"
    ):
        certify("chains", "auto", reduction="x")


# -- samples -----------------------------------------------------------------------------------------------------------

FEW = CertifyLimits(max_trees=5, num_samples=3000, seed=1)


@pytest.mark.slow
def test_a_sample_never_proves_and_refutes_what_is_wrong() -> None:
    right = certify("planned", "auto", options=UNEVEN, limits=FEW)
    assert (right.verdict, right.is_enumerated, right.num_trees) == ("not_refuted", False, 3000)
    assert right.text == "not refuted at 99 %"
    assert "at most 5 trees" in right.notes[0]
    wrong = certify("chains", squared, options={"n": 2}, limits=FEW)
    assert wrong.verdict == "biased"
    assert wrong.text.startswith("biased (worst at prefix")


@pytest.mark.slow
def test_a_scaled_sample_is_told_from_an_exact_one() -> None:
    found = certify("chains", "leaf_mean", options={"n": 2}, limits=FEW)
    assert found.verdict == "scale_not_refuted"
    assert found.scale == pytest.approx(0.5, abs=0.05)


@pytest.mark.slow
def test_draws_without_end_are_sampled() -> None:
    found = certify(Normal, "auto", options={"n": 2}, limits=FEW)
    assert found.verdict == "not_refuted"
    assert "draws by the generator's method 'normal'" in found.notes[0]


def test_a_strategy_with_randomness_of_its_own_is_refused() -> None:
    with pytest.raises(ContractError, match="draw only from the generator handed in"):
        certify(Stray, "auto")


class Normal(Chains):
    """Draws a number that changes nothing."""

    def ask(self, tree: Tree) -> Sequence[Grow]:
        self.rng.normal()  # type: ignore[attr-defined]
        return super().ask(tree)

    def __init__(self, config: ChainsConfig, rng: Any) -> None:
        super().__init__(config, rng)
        self.rng = rng


class Stray(Chains):
    """Grows chains as often as a counter of the class says."""

    counter = itertools.count()

    def __init__(self, config: ChainsConfig, rng: Any) -> None:
        super().__init__(replace(config, n=1 + next(self.counter) % 2), rng)


def squared(forest: Forest) -> npt.NDArray[np.float64]:
    """A user's credit that trains the square of the reward."""
    return forest.weight * forest.value**2


# -- parts of users ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"probs": {"": [0.4, 0.7]}}, r"probs\[''\] sum to 1.1 and not to 1"),
        ({"probs": {"": [1.0, 0.0]}}, "each above 0"),
        ({"probs": {"": "half"}}, r"probs\[''\] = 'half'"),
        ({"probs": {"": [float("nan"), 1]}}, "nan is no finite number"),
        ({"probs": {}}, r"give probs\[''\]"),
        ({"probs": [0.5]}, "probs must map prefixes"),
        ({"rewards": {"0": 1, "10": 0}}, "'11' has no reward and does not go on"),
        ({"rewards": {"0": 1, "1": 2, "10": 0, "11": 0}}, "'1' has a reward and goes on"),
        ({"rewards": {"0": 1, "10": 0, "11": 0, "2": 1}}, r"rewards\['2'\] can never be reached"),
        ({"rewards": {"0": "many", "10": 0, "11": 0}}, r"rewards\['0'\] = 'many'"),
        ({"rewards": {"0": float("inf"), "10": 0, "11": 0}}, "inf is no finite number"),
        ({"coins": {"1": 0}}, "a probability above 0 and at most 1"),
        ({"coins": {"0": 0.5}}, "a coin must stand where a path goes on"),
    ],
)
def test_a_malformed_problem_is_named_at_its_prefix(changes: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        coin(**changes)


def test_a_problem_of_a_user_is_taken_and_checked(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        f"""
        def coin():
            return {COIN!r}

        def wrong():
            return {{"probs": {{}}}}

        def raises():
            return 1 / 0

        number = 3
        """,
    )
    assert problem_named(f"{file}:coin").gradient == coin().gradient
    for name, message in {
        "wrong": r"returned a mapping of \['probs'\]; a DecisionProblem, or a mapping",
        "raises": r"mine.py, line 8\) raised ZeroDivisionError",
        "number": "is 3; a function without arguments is needed",
    }.items():
        with pytest.raises(ConfigError, match=message):
            problem_named(f"{file}:{name}")
    with pytest.raises(ConfigError, match="unknown decision problem 'raged'; did you mean 'ragged'"):
        problem_named("raged")


def test_the_gradient_of_a_problem_is_the_derivative_of_its_value() -> None:
    """By finite differences of the logits."""
    problem = coin()
    for prefix, law in problem.gradient.items():
        for token, wanted in enumerate(law):
            moved = [value_of(problem, prefix, token, sign * 1e-4) for sign in (1, -1)]
            assert (moved[0] - moved[1]) / 2e-4 == pytest.approx(float(wanted), abs=1e-7)


def value_of(problem: DecisionProblem, prefix: str, token: int, step: float) -> float:
    logits = {at: np.log([float(p) for p in law]) for at, law in problem.probs.items()}
    logits[prefix][token] += step

    def value(at: str) -> float:
        if at in problem.rewards:
            return float(problem.rewards[at])
        law = np.exp(logits[at]) / np.exp(logits[at]).sum()
        return sum(p * value(f"{at}{i}") for i, p in enumerate(law.tolist()))

    return value("")


def test_a_strategy_that_no_decision_problem_can_carry_out_is_named() -> None:
    with pytest.raises(ContractError, match="strategy MCTSr on decision problem 'ragged': cannot grow from node"):
        certify("mctsr", "auto")
    with pytest.raises(ConfigError, match="unknown strategy 'plan'; did you mean 'planned'"):
        certify("plan", "auto")
    with pytest.raises(ConfigError, match="n=0"):
        certify("chains", "auto", options={"n": 0})


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda forest: {}["x"], r"raised KeyError: 'x' \(.*test_certify.py, line \d+\)"),
        (lambda forest: [0.0], r"returned shape \(1,\); \(2,\) numbers are needed"),
        (lambda forest: np.full(len(forest), np.nan), "gave nan to node 0 of 2"),
        (lambda forest: "none", "returned 'none'"),
    ],
)
def test_a_credit_of_a_user_that_fails_is_named(function: Callable[[Forest], Any], message: str) -> None:
    with pytest.raises(ContractError, match=message):
        certify("chains", function, options={"n": 2})


def written(folder: Path, text: str) -> Path:
    file = folder / "mine.py"
    file.write_text(textwrap.dedent(text), "utf-8")
    return file
