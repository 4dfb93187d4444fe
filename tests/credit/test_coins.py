"""Ending paths by a coin leaves every exact credit exact, and lowers the noise where what it ends is worth little.

The strategy `planned` runs as it is; the coin of a prune rule is thrown by the world, and recorded as the grower does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from math import prod

import pytest
from tests.credit.enumeration import (
    MDP,
    PROBLEMS,
    Credit,
    Draw,
    Gradient,
    Grow,
    actions_of,
    add_scores,
    expected_gradients,
    outcomes,
    rational,
)
from tests.credit.samplers import CODEC, PROBLEM, PROMPT, grown_step, sampler, thrown
from tests.strategies.world import journey

from ramify.core import command
from ramify.core.command import Fork
from ramify.core.errors import ContractError
from ramify.core.growth import Done, Failure, Growth
from ramify.core.stop import KEPT
from ramify.core.tree import ROOT, Step, Tree
from ramify.credit import (
    ancestor_loo,
    balanced_split,
    balanced_split_tree_loo,
    clip_parts,
    credit,
    forest_of,
    sibling_loo,
    split,
    split_tree_loo,
    subtree_loo,
    vine,
)
from ramify.runner.driver import Start
from ramify.strategies.planned import Planned, PlannedConfig

EXACT: Mapping[str, Credit] = {
    each.__name__: each
    for each in (
        ancestor_loo, balanced_split, balanced_split_tree_loo, sibling_loo, split, split_tree_loo, subtree_loo,
    )
}  # fmt: skip
COINS = {
    "binary3": {"1": "1/3", "00": "1/2"},
    "ragged": {"1": "2/5", "10": "1/2"},
    "ternary2": {"0": "1/4", "2": "2/3"},
}


class Halves:
    """Draws of a strategy whose coins fall either way with the same probability."""

    def __init__(self, draw: Draw) -> None:
        self._draw = draw

    def random(self) -> float:
        return 0.25 + 0.5 * self._draw([Fraction(1, 2), Fraction(1, 2)])

    def integers(self, low: int, /) -> int:
        return self._draw([Fraction(1, low)] * low)


class MDPWorld:
    """Grows paths of a decision process, a token a step, with a coin where a prune rule would fire."""

    def __init__(self, mdp: MDP, draw: Draw, coins: Mapping[str, str]) -> None:
        self._mdp = mdp
        self._draw = draw
        self._coins = coins

    def steps(self, tree: Tree, start: Start) -> list[Step]:
        assert start.place is not None and isinstance(start.command, command.Grow)
        prefix = tree.branch(start.place.parent).transcript
        steps: list[Step] = []
        while not steps or (start.command.until == "end" and steps[-1].stop is None):
            action = str(self._draw(self._mdp.probs[prefix]))
            prefix += action
            steps.append(self._tossed(grown_step(self._mdp, prefix, action), prefix))
        return steps

    def _tossed(self, step: Step, prefix: str) -> Step:
        if prefix not in self._coins:
            return step
        keep = Fraction(self._coins[prefix])
        return thrown(step, float(keep), goes_on=bool(self._draw([1 - keep, keep])))


def planned(children: Sequence[float], mdp: MDP, coins: Mapping[str, str] | None = None) -> Grow:
    def grow(draw: Draw) -> Tree:
        strategy = Planned(PlannedConfig(tuple(children)), Halves(draw))
        return journey(strategy, MDPWorld(mdp, draw, coins or {})).tree

    return grow


@pytest.mark.slow
@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize(
    "children", [(2,), (1.5, 1.5), (2, 0.5), (1, 2, 0.5), (1.5, 0.5, 1.5), (1, 0.5, 0.5), (1, 2.5, 0.5)]
)
def test_planned_trees_give_the_gradient_by_every_exact_credit(problem: str, children: tuple[float, ...]) -> None:
    mdp = MDP.of(problem)
    for name, gradient in expected_gradients(planned(children, mdp), EXACT, mdp).items():
        assert gradient == mdp.gradient, name


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("children", [(2,), (1, 1.5), (1, 2, 0.5)])
def test_so_they_do_where_a_prune_rule_throws_coins_of_its_own(problem: str, children: tuple[float, ...]) -> None:
    mdp = MDP.of(problem)
    grow = planned(children, mdp, COINS[problem])
    for name, gradient in expected_gradients(grow, EXACT, mdp).items():
        assert gradient == mdp.gradient, name


@pytest.mark.slow
@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_vine_of_a_path_that_coins_may_end_is_exact(problem: str) -> None:
    mdp = MDP.of(problem)
    grow = sampler({"kind": "vine", "num_branches": 1, "coins": COINS[problem]}, mdp)
    assert expected_gradients(grow, {"vine": vine}, mdp)["vine"] == mdp.gradient


@pytest.mark.parametrize("problem", PROBLEMS)
def test_without_the_division_it_is_biased(problem: str) -> None:
    mdp = MDP.of(problem)
    grow = sampler({"kind": "chains", "num_trees": 2, "coins": COINS[problem], "weights": "plain"}, mdp)
    assert all(gradient != mdp.gradient for gradient in expected_gradients(grow, EXACT, mdp).values())


@pytest.mark.parametrize("children", [(2, 0.5), (1, 2.5, 0.5)])
def test_every_row_of_such_a_tree_says_that_it_is_exact(children: tuple[float, ...]) -> None:
    for _, tree in outcomes(planned(children, MDP.of("ragged"), {"1": "1/2"})):
        forest = forest_of(tree)
        assert credit("auto", forest).is_unbiased
        assert abs(float(forest.outside[0] + forest.share[0]) - 1) < 1e-12


def test_what_lies_outside_a_node_is_what_was_planned_beside_it_and_its_ancestors() -> None:
    for _, tree in outcomes(planned((1, 1.5, 0.5), MDP.of("binary3"))):
        forest = forest_of(tree)
        if not forest.has_coins:
            assert forest.outside == pytest.approx(1 - forest.weight)


def test_leaf_advantages_are_not_clipped_where_coins_were_thrown() -> None:
    mdp = MDP.of("binary3")
    forests = (forest_of(tree) for _, tree in outcomes(planned((2, 0.5), mdp)))
    forest = next(forest for forest in forests if forest.has_coins)
    with pytest.raises(ContractError, match="randomly terminated"):
        clip_parts(forest, forest.rewards)


# -- noise ------------------------------------------------------------------------------------------------------------


def noise(grow: Grow, mdp: MDP, credited: Credit) -> tuple[Fraction, Fraction]:
    """Variance of the gradient, summed over its components, and the mean number of tokens."""
    squares, tokens, mean = Fraction(0), Fraction(0), zero(mdp)
    for probability, tree in outcomes(grow):
        forest, one = rational(forest_of(tree)), zero(mdp)
        texts, coefficients = actions_of(tree, forest), credited(forest)
        add_scores(one, mdp.probs, texts, coefficients.tolist())
        add_scores(mean, mdp.probs, texts, (probability * coefficients).tolist())
        squares += probability * square(one)
        tokens += probability * int(forest.num_tokens.sum())
    return squares - square(mean), tokens


def zero(mdp: MDP) -> Gradient:
    return {prefix: [Fraction(0)] * len(law) for prefix, law in mdp.probs.items()}


def square(gradient: Gradient) -> Fraction:
    return sum((x * x for law in gradient.values() for x in law), Fraction(0))


def chains(mdp: MDP, prefixes: str, keep: str) -> Grow:
    """Two chains with a coin at these prefixes; of probability 1, none."""
    coins = {} if keep == "1" else dict.fromkeys(prefixes, keep)
    return sampler({"kind": "chains", "num_trees": 2, "coins": coins}, mdp)


def with_dead_end(mdp: MDP) -> MDP:
    """The same process, but where paths that begin with 1 are worth nothing."""
    return replace(mdp, rewards={path: reward * (path[0] == "0") for path, reward in mdp.rewards.items()})


def test_a_coin_at_a_dead_end_saves_tokens_and_adds_no_variance_where_nothing_is_subtracted() -> None:
    mdp = with_dead_end(MDP.of("binary3"))
    found = [noise(chains(mdp, "1", keep), mdp, split) for keep in ("1/20", "1/4", "3/4", "1")]
    assert [variance for variance, _ in found] == [found[0][0]] * 4
    assert [tokens for _, tokens in found] == sorted({tokens for _, tokens in found})


def test_with_a_baseline_it_lowers_noise_a_token_and_too_small_a_probability_raises_it() -> None:
    """Behind the coin a token has the coefficient (0 - B) / keep."""
    mdp = with_dead_end(MDP.of("binary3"))
    products = {keep: prod(noise(chains(mdp, "1", keep), mdp, subtree_loo)) for keep in ("1/20", "1/2", "3/4", "1")}
    assert products["3/4"] < products["1/2"] < products["1"] < products["1/20"]


@pytest.mark.parametrize("problem", ["binary3", "ternary2"])
@pytest.mark.parametrize("credited", [split, subtree_loo])
def test_a_blind_coin_raises_noise_a_token_the_more_the_less_it_keeps(problem: str, credited: Credit) -> None:
    mdp = MDP.of(problem)
    first = "012"[: len(mdp.probs[""])]
    products = [prod(noise(chains(mdp, first, keep), mdp, credited)) for keep in ("1", "3/4", "1/2", "1/4")]
    assert products == sorted(set(products))


def test_a_path_that_fails_behind_a_coin_is_told() -> None:
    """One that the coin ended cannot fail, so that dropping those which do would favour ends."""
    growth = Growth(Tree(PROBLEM, CODEC, [PROMPT], seed=1))
    first = growth.ask(command.Grow(ROOT, until="step", fork=Fork(2, "stems")))
    second = growth.ask(command.Grow(ROOT, until="step", fork=0))
    growth.grow(first, replace(grown_step(MDP.of("binary3"), "1", "1"), notes={KEPT: 0.5}))
    kept = growth.end(first, Done()).nodes[0]
    growth.grow(second, grown_step(MDP.of("binary3"), "000", "000"))
    growth.end(second, Done())
    lost = growth.ask(command.Grow(kept, until="step"))
    growth.grow(lost, Step((), "engine_error"))
    growth.end(lost, Failure("http_500"))
    assert forest_of(growth.tree).caveats == ("1 path(s) failed that a coin had let go on",)
