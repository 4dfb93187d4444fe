"""Credits have exactly the expectations that the goldens say, on trees that the core records."""

import json
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import partial
from typing import Any

import pytest
from tests.credit.enumeration import MDP, PROBLEMS, Credit, Gradient, expected_gradient, expected_gradients, outcomes
from tests.credit.samplers import sampler
from tests.golden.files import FOLDER, load

from ramify.credit import (
    ancestor_loo,
    credit,
    forest_of,
    leaf_grpo,
    leaf_loo,
    leaf_mean,
    leaf_tree_loo,
    sibling_loo,
    sibling_mean,
    split,
    split_mean,
    split_tree_loo,
    subtree_loo,
    tree_grpo,
    treepo,
    treerl,
    vine,
)

CREDITS: Mapping[str, Credit] = {
    "ancestor_loo": ancestor_loo,
    "leaf_grpo": partial(leaf_grpo, deviation="population"),
    "leaf_loo": leaf_loo,
    "leaf_mean": leaf_mean,
    "leaf_tree_loo": leaf_tree_loo,
    "sibling_loo": sibling_loo,
    "sibling_mean": sibling_mean,
    "split": split,
    "split_mean": split_mean,
    "split_tree_loo": split_tree_loo,
    "subtree_loo": subtree_loo,
    "tree_grpo": partial(tree_grpo, deviation="population"),
    "treepo": treepo,
    "treerl": treerl,
    "vine": vine,
}
SHAPES = ("budget", "chains", "coin", "committed_depth", "roulette", "surprise_after", "table", "vine")
"""Kinds of predictable samplers; the goldens' others are post hoc, prune or merge."""
LARGE = {
    ("binary3", "coin", 2), ("binary3", "table", 2), ("ragged", "coin", 2), ("ragged", "table", 1),
    ("ragged", "table", 2), ("ternary2", "table", 1),
}  # fmt: skip
"""(problem, kind, number of stems) with more than 1,000 outcomes. One order of siblings stands for all of them here;
`make test-faults` grows every order."""
ROOTED = {"leaf_grpo", "tree_grpo", "treerl"}
"""Credits with a square root: of a variance, or of a number of leaves."""
COUNT_STEMS = {"treerl"}
"""Credits that divide by the number of stems. A fork of the bare prompt makes stems here, and in the goldens one tree
that begins with an empty node: schemes with such a fork are not theirs."""
Scheme = Mapping[str, Any]


def schemes() -> dict[str, tuple[str, list[Scheme]]]:
    """Test id -> problem and its schemes of one sampler, as far as there are credits; none where a file is missing."""
    found: dict[str, tuple[str, list[Scheme]]] = {}
    for problem in PROBLEMS:
        if not (FOLDER / f"gradients_{problem}.json").exists():
            found[f"gradients_{problem}::missing"] = (problem, [])
            continue
        for scheme in load(f"gradients_{problem}")["schemes"]:
            spec = json.dumps(scheme["sampler"], separators=(",", ":")).replace('"', "")
            is_other_count = scheme["credit"] in COUNT_STEMS and "" in scheme["sampler"].get("forks", ())
            if scheme["sampler"]["kind"] in SHAPES and scheme["credit"] in CREDITS and not is_other_count:
                found.setdefault(f"gradients_{problem}::{spec}", (problem, []))[1].append(scheme)
    return found


SCHEMES = schemes()


LONGEST = "gradients_ragged::{kind:table,num_trees:1,forks:{:2,1:3}}"
"""Every order of its siblings takes a minute."""


def is_large(name: str) -> bool:
    problem, wanted = SCHEMES[name]
    return bool(wanted) and (problem, kind_of(name), wanted[0]["sampler"].get("num_trees")) in LARGE


def kind_of(name: str) -> str | None:
    _, wanted = SCHEMES[name]
    return wanted[0]["sampler"]["kind"] if wanted else None


def expected(name: str, credits: Sequence[str], *, is_sorted: bool) -> Mapping[str, Gradient]:
    problem, wanted = SCHEMES[name]
    mdp = MDP.of(problem)
    grow = sampler(wanted[0]["sampler"], mdp)
    return expected_gradients(grow, {credit: CREDITS[credit] for credit in credits}, mdp, is_sorted=is_sorted)


def check_expectations(name: str, found: Mapping[str, Gradient]) -> None:
    problem, wanted = SCHEMES[name]
    mdp = MDP.of(problem)
    for scheme in wanted:
        gradient = found[scheme["credit"]]
        assert far_from(gradient, scheme["expected"]) <= 1e-12, scheme["id"]
        if scheme["exact"] is not None:
            assert gradient == {prefix: [Fraction(x) for x in law] for prefix, law in scheme["exact"].items()}
        assert verdict(gradient, mdp) == scheme["verdict"], scheme["id"]


@pytest.mark.parametrize("name", SCHEMES)
def test_expectations_equal_the_goldens(name: str) -> None:
    _, wanted = SCHEMES[name]
    check_expectations(name, expected(name, [s["credit"] for s in wanted], is_sorted=is_large(name)))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.endurance if name == LONGEST else pytest.mark.slow)
        for name in SCHEMES
        if is_large(name)
    ],
)
def test_expectations_over_every_order_of_siblings_equal_the_goldens(name: str) -> None:
    _, wanted = SCHEMES[name]
    check_expectations(name, expected(name, [s["credit"] for s in wanted], is_sorted=False))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name for name in SCHEMES if kind_of(name) in ("coin", "table") and not is_large(name)]
)
def test_one_order_of_siblings_stands_for_all_of_them(name: str) -> None:
    """By every credit, in rationals; those with square roots differ by rounding."""
    credits = [credit for credit in CREDITS if credit != "vine"]
    every, one = (expected(name, credits, is_sorted=is_sorted) for is_sorted in (False, True))
    for credit_name in credits:
        if credit_name in ROOTED:
            assert far_from(every[credit_name], one[credit_name]) <= 1e-12, credit_name
        else:
            assert every[credit_name] == one[credit_name], credit_name


EXACT: Mapping[str, Credit] = {
    name: CREDITS[name] for name in ("ancestor_loo", "sibling_loo", "split", "split_tree_loo", "subtree_loo")
}
COINS = {
    "binary3": {"1": "1/3", "00": "1/2"},
    "ragged": {"1": "2/5", "10": "1/2"},
    "ternary2": {"0": "1/4", "2": "2/3"},
}
"""Two coins a problem, on one path where there is one: each is thrown for itself."""


@pytest.mark.slow
@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize(
    "shape",
    [
        {"kind": "chains", "num_trees": 2},
        {"kind": "table", "num_trees": 1, "forks": {"": 2, "1": 2}},
        {"kind": "table", "num_trees": 2, "forks": {"0": 2}},
    ],
)
def test_exact_credits_stay_exact_where_a_coin_ends_paths(problem: str, shape: Scheme) -> None:
    mdp = MDP.of(problem)
    found = expected_gradients(sampler({**shape, "coins": COINS[problem]}, mdp), EXACT, mdp)
    for name, gradient in found.items():
        assert gradient == mdp.gradient, name


def test_credits_that_a_coin_would_bias_say_so() -> None:
    mdp = MDP.of("binary3")
    grow = sampler({"kind": "chains", "num_trees": 2, "coins": {"1": "1/2"}}, mdp)
    forests = [forest_of(tree) for _, tree in outcomes(grow)]
    thrown = next(forest for forest in forests if forest.has_coins)
    assert credit("auto", thrown).is_unbiased
    assert credit("leaf_loo", thrown).reasons == (
        "leaf_loo counts leaves alike, and a coin made some count for others",
    )


def test_one_credit_can_be_certified_alone() -> None:
    mdp = MDP.of("ternary2")
    grow = sampler({"kind": "chains", "num_trees": 2}, mdp)
    assert expected_gradient(grow, subtree_loo, mdp) == mdp.gradient


def verdict(gradient: Gradient, mdp: MDP) -> str:
    """unbiased: equals the gradient; scaled: one factor for all components; else biased."""
    if far_from(gradient, mdp.gradient) <= 1e-12:
        return "unbiased"
    pairs = [(x, g) for prefix, law in mdp.gradient.items() for x, g in zip(gradient[prefix], law, strict=True)]
    scale = next(x / g for x, g in pairs if g)
    return "scaled" if all(abs(x - scale * g) <= 1e-12 for x, g in pairs) else "biased"


def far_from(gradient: Gradient, expected: Mapping[str, Sequence[Any]]) -> float:
    """The largest difference of a component."""
    return max(
        abs(float(x - e)) for prefix, law in expected.items() for x, e in zip(gradient[prefix], law, strict=True)
    )
