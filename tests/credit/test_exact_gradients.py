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
LARGE = {("binary3", "coin", 2), ("ragged", "table", 1)}
"""(problem, kind, number of stems) with more than 5,000 outcomes, enumerated in floats."""
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


@pytest.mark.parametrize("name", SCHEMES)
def test_expectations_equal_the_goldens(name: str) -> None:
    problem, wanted = SCHEMES[name]
    mdp, spec = MDP.of(problem), wanted[0]["sampler"]
    number = float if (problem, spec["kind"], spec.get("num_trees")) in LARGE else Fraction
    found = expected_gradients(
        sampler(spec, mdp), {s["credit"]: CREDITS[s["credit"]] for s in wanted}, mdp, number=number
    )
    for scheme in wanted:
        gradient = found[scheme["credit"]]
        assert far_from(gradient, scheme["expected"]) <= 1e-12, scheme["id"]
        if scheme["exact"] is not None and number is Fraction:
            assert gradient == {prefix: [Fraction(x) for x in law] for prefix, law in scheme["exact"].items()}
        assert verdict(gradient, mdp) == scheme["verdict"], scheme["id"]


EXACT: Mapping[str, Credit] = {
    name: CREDITS[name] for name in ("ancestor_loo", "sibling_loo", "split", "split_tree_loo", "subtree_loo")
}
COINS = {
    "binary3": {"1": "1/3", "00": "1/2"},
    "ragged": {"1": "2/5", "10": "1/2"},
    "ternary2": {"0": "1/4", "2": "2/3"},
}
"""Two coins a problem, on one path where there is one: each is thrown for itself."""


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
