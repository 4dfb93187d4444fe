"""Balanced shares make one round of post-hoc forks exact; what the lemma does not cover is refused."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.credit.enumeration import MDP, PROBLEMS, Credit, Draw, Gradient, expected_gradients
from tests.credit.samplers import POST_HOC, Gardener, grown_step, post_hoc_sampler
from tests.credit.test_exact_gradients import far_from, verdict
from tests.credit.trees import ask, bare, end, failed, fork, give, step, wild
from tests.golden.files import load
from tests.strategies.world import Journey, ListDraws, journey, varied

from ramify.core.command import Fork
from ramify.core.errors import ContractError
from ramify.core.growth import Done, Failure, Growth, GrowthRules
from ramify.core.stems import joining
from ramify.core.strategy import Strategy, post_hoc_rule
from ramify.core.tree import ROOT, Step, Tree
from ramify.credit import (
    Forest,
    PostHocRule,
    balanced,
    balanced_split,
    balanced_split_tree_loo,
    credit,
    forest_of,
    split,
    split_tree_loo,
)
from ramify.credit.balance import shares_of
from ramify.credit.forest import STEM, Array_N
from ramify.rows import rows_of
from ramify.runner.driver import Start
from ramify.strategies.offline import Offline, OfflineConfig
from ramify.strategies.parts.topped_up import ToppedUp
from ramify.strategies.tree_grpo import TreeGRPO, TreeGRPOConfig, UniformNode
from ramify.strategies.treerl import LeastLikely, TreeRL, TreeRLConfig

# -- the goldens' samplers ---------------------------------------------------------------------------------------------

Scheme = Mapping[str, Any]


def schemes() -> dict[tuple[str, str], list[Scheme]]:
    """Problem and sampler -> its schemes, whatever their weights."""
    found: dict[tuple[str, str], list[Scheme]] = {}
    for problem in PROBLEMS:
        for scheme in load(f"gradients_{problem}")["schemes"]:
            spec = {key: value for key, value in scheme["sampler"].items() if key != "weights"}
            if spec["kind"] in POST_HOC:
                name = json.dumps(spec, separators=(",", ":")).replace('"', "")
                found.setdefault((problem, name), []).append(scheme)
    return found


def parameters() -> list[object]:
    """Two trees of `ternary2` have 2,500 outcomes."""
    return [
        pytest.param(*case, id="::".join(case), marks=pytest.mark.slow if is_slow else ())
        for case in SCHEMES
        for is_slow in [case[0] == "ternary2" and "num_trees:2" in case[1]]
    ]


SCHEMES = schemes()


def estimator(scheme: Scheme) -> Credit:
    """The credit of a scheme, by the weights of its sampler."""
    spec, name = scheme["sampler"], scheme["credit"]
    if name == "posthoc_branch_baseline":
        return branch_baseline
    if spec["weights"] == "balanced":
        return {"split": balanced_split, "split_tree_loo": balanced_split_tree_loo}[name]
    part = Fraction(0)
    if spec["weights"] == "equal":
        part = Fraction(1, POST_HOC[spec["kind"]].max_forks * (1 + spec.get("num_branches", 1)))
    return lambda forest: split(replace(forest, share=shares_of(forest, leaf_weights(forest, part))))


def is_branch(forest: Forest) -> list[bool]:
    """(N,) whether a node belongs to a branch: the initial chains are decision 0, and what grows on has none."""
    assert forest.decision is not None
    found: list[bool] = []
    for parent, decision in zip(forest.parent.tolist(), forest.decision.tolist(), strict=True):
        found.append(decision > 0 or (parent != STEM and found[parent]))
    return found


def leaf_weights(forest: Forest, part: Fraction) -> Array_N:
    """(num_leaves,) of one tree: `part` for each branch, the rest for the trunk."""
    branches = [is_branch(forest)[leaf] for leaf in forest.leaves]
    return np.array([part if branch else 1 - part * sum(branches) for branch in branches], object)


def branch_baseline(forest: Forest) -> Array_N:
    """Counterexample: the trunk alone is trained, against the mean of its branches behind the fork."""
    late = np.array(is_branch(forest))
    (trunk,) = forest.rewards[~late[forest.leaves]]
    branches = forest.rewards[late[forest.leaves]]
    below = forest.over_leaves(late[forest.leaves].astype(int))
    return np.where(late, 0, trunk - np.where(below > 0, 0, branches.mean()))


def balancing(rule: PostHocRule) -> Callable[[Tree], Forest]:
    return lambda tree: balanced(forest_of(tree), tree, rule)


@pytest.mark.parametrize(("problem", "name"), parameters())
def test_balanced_weights_are_exact(problem: str, name: str) -> None:
    """And the expectations of the other weights are those of the goldens."""
    wanted = SCHEMES[problem, name]
    mdp, spec = MDP.of(problem), wanted[0]["sampler"]
    found = expected_gradients(
        post_hoc_sampler(spec, mdp),
        {scheme["id"]: estimator(scheme) for scheme in wanted},
        mdp,
        number=float if spec["num_trees"] > 1 else Fraction,
        forest_of=balancing(POST_HOC[spec["kind"]]),
    )
    for scheme in wanted:
        gradient = found[scheme["id"]]
        assert far_from(gradient, scheme["expected"]) <= 1e-12, scheme["id"]
        if spec["num_trees"] == 1:
            assert gradient == {prefix: [Fraction(x) for x in law] for prefix, law in scheme["exact"].items()}
        assert verdict(gradient, mdp) == scheme["verdict"], scheme["id"]


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("kind", ["surprise", "uniform_node"])
def test_posthoc_equal_weights_follow_h(problem: str, kind: str) -> None:
    """E = g/2 + E[h R S]/2, h(y) = sum over t of the mean probability that a path that agrees with y up to t forks."""
    mdp, multiplier = MDP.of(problem), load(f"gradients_{problem}")["posthoc_multiplier"][kind]
    h = {path: Fraction(value) for path, value in multiplier.items()}
    schemes = {scheme["id"]: scheme for scheme in load(f"gradients_{problem}")["schemes"]}
    exact = schemes[f"{kind}_equal/split"]["exact"]
    bent = path_gradient(mdp, {path: h[path] * reward for path, reward in mdp.rewards.items()})
    for prefix, law in exact.items():
        halves = [(g + b) / 2 for g, b in zip(mdp.gradient[prefix], bent[prefix], strict=True)]
        assert halves == [Fraction(x) for x in law]
    assert {path: multiplied(mdp, POST_HOC[kind], path) for path in mdp.rewards} == h


def path_gradient(mdp: MDP, returns: Mapping[str, Fraction]) -> Gradient:
    """Gradient of the mean of `returns` over paths."""
    total: Gradient = {prefix: [Fraction(0)] * len(law) for prefix, law in mdp.probs.items()}
    for path, value in returns.items():
        p = probability(mdp, path)
        for i, action in enumerate(path):
            for b, q in enumerate(mdp.probs[path[:i]]):
                total[path[:i]][b] += p * value * ((int(action) == b) - q)
    return total


def probability(mdp: MDP, path: str, start: int = 0) -> Fraction:
    p = Fraction(1)
    for i in range(start, len(path)):
        p *= mdp.probs[path[:i]][int(path[i])]
    return p


def multiplied(mdp: MDP, rule: PostHocRule, path: str) -> Fraction:
    """h of a path, by the arithmetic of the rule."""
    return sum(
        (
            probability(mdp, other, start=t) * Fraction(where(mdp, rule, other).get(t, 0)).limit_denominator(100)
            for t in range(len(path))
            for other in mdp.rewards
            if other[:t] == path[:t]
        ),
        start=Fraction(0),
    )


def where(mdp: MDP, rule: PostHocRule, path: str) -> dict[int, float]:
    """Actions before which the rule would fork a path -> mean number of forks."""
    actions = iter(path)
    gardener = Gardener(mdp, lambda law: int(next(actions)))
    leaf = gardener.chain(gardener.decide(ROOT, 1)[0], "")
    return {at - gardener.tree.length(ROOT): mean for at, mean in rule.forks(gardener.tree, leaf).items()}


# -- the strategies ----------------------------------------------------------------------------------------------------

SMALL = MDP(
    "small",
    probs={"": [Fraction(1, 3), Fraction(2, 3)], "1": [Fraction(1, 4), Fraction(3, 4)]},
    rewards={"0": Fraction(1, 2), "10": Fraction(-1), "11": Fraction(3, 4)},
)
"""Paths of one token and of two."""
SURPRISED = TreeRLConfig(stems=1, forks=1, continuations=1)


class Drawn:
    """The integers of a strategy out of an enumeration's draws."""

    def __init__(self, draw: Draw) -> None:
        self._draw = draw

    def integers(self, low: int, /) -> int:
        return self._draw([Fraction(1, low)] * low)

    def random(self) -> float:
        raise AssertionError("not a finite draw")


class Paths:
    """Grows paths of a problem: in one step each, or a step a token. `fails`: half of them come to nothing."""

    def __init__(self, mdp: MDP, draw: Draw, *, by_token: bool, fails: bool = False) -> None:
        self._mdp, self._draw, self._by_token, self._fails = mdp, draw, by_token, fails

    def steps(self, tree: Tree, start: Start) -> list[Step]:
        assert start.place is not None
        if self._fails and self._draw([Fraction(1, 2)] * 2):
            return [failed()]
        path = before = tree.branch(start.place.parent).transcript
        logprobs: list[float] = []
        while path not in self._mdp.rewards:
            law = self._mdp.probs[path]
            action = self._draw(law)
            path += str(action)
            logprobs.append(math.log(law[action]))
        if not self._by_token:
            return [grown_step(self._mdp, path, path[len(before) :], logprobs)]
        ends = range(len(before) + 1, len(path) + 1)
        return [
            grown_step(self._mdp, path[:end], path[end - 1], [value]) for end, value in zip(ends, logprobs, strict=True)
        ]


class Trip(Journey):
    """Says of a path that came to nothing that its command failed."""

    def _complete(self, start: Start) -> None:
        (first, *others) = self.world.steps(self.tree, start)
        for one in (first, *others):
            self.driver.grew(start.command_id, one)
        self._end(start, Failure("engine_error") if first.stop == "engine_error" else Done())


class NamedTreeRL(TreeRL):
    """Says of a fork of the bare prompt which tree made it."""

    def _continuations(self, tree: Tree, number: int) -> Any:
        return [
            (chain, node, at, replace(cast(Fork, fork), rule=joining("surprise", number)))
            for chain, node, at, fork in super()._continuations(tree, number)
        ]


def enumerated(
    mdp: MDP,
    make: Callable[[Drawn], Strategy],
    rule: PostHocRule | None,
    *,
    by_token: bool = False,
    fails: bool = False,
    words: tuple[str, ...] = (),
) -> dict[str, Gradient]:
    """Expectations of both balanced credits, and of equal leaves, of the trees that a strategy grows."""

    def grow(draw: Draw) -> Tree:
        world = Paths(mdp, draw, by_token=by_token, fails=fails)
        return Trip(make(Drawn(draw)), world, rules=GrowthRules(words=words)).run().tree

    def forest(tree: Tree) -> Forest:
        rule_of = rule or post_hoc_rule(make(Drawn(lambda law: 0)), words)
        assert rule_of is not None
        found = balanced(forest_of(tree), tree, rule_of)
        assert set(found.caveats) <= {"every chain that was forked is lost"}
        return found

    credits = {"split": balanced_split, "split_tree_loo": balanced_split_tree_loo, "leaves": equal_leaves}
    return expected_gradients(grow, credits, mdp, number=float, forest_of=forest)


def equal_leaves(forest: Forest) -> Array_N:
    return forest.over_leaves(forest.rewards / max(1, forest.num_leaves))


def scaled(gradient: Mapping[str, Sequence[Any]], factor: float) -> Gradient:
    return {prefix: [float(g) * factor for g in law] for prefix, law in gradient.items()}


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("continuations", [1, 2])
def test_treerl_is_exact_by_balanced_shares(problem: str, continuations: int) -> None:
    mdp, config = MDP.of(problem), replace(SURPRISED, continuations=continuations)
    found = enumerated(mdp, lambda draws: TreeRL(config, draws), None)
    assert far_from(found["split"], mdp.gradient) < 1e-12
    assert far_from(found["leaves"], mdp.gradient) > 1e-3


@pytest.mark.parametrize(
    "config",
    [
        replace(SURPRISED, forks=2),
        varied(SURPRISED, forks=3, shortage="repeat"),
        varied(SURPRISED, forks=2, max_position=2, ties="later"),
    ],
    ids=["two forks", "repeated", "bounded"],
)
def test_several_forks_of_a_trunk_are_exact(config: TreeRLConfig) -> None:
    mdp = MDP.of("ragged") if config.published.shortage == "fewer" else SMALL
    found = enumerated(mdp, lambda draws: TreeRL(config, draws), None)
    assert far_from(found["split"], path_gradient(mdp, mdp.rewards)) < 1e-12


@pytest.mark.parametrize("problem", PROBLEMS)
def test_tree_grpo_is_exact_by_balanced_shares(problem: str) -> None:
    mdp, config = MDP.of(problem), TreeGRPOConfig(num_trees=1, num_nodes=1)
    found = enumerated(mdp, lambda draws: TreeGRPO(config, draws), None, by_token=True)
    assert far_from(found["split"], mdp.gradient) < 1e-12
    assert (far_from(found["leaves"], mdp.gradient) > 1e-3) == (problem == "ragged")


@pytest.mark.parametrize(("num_trees", "num_nodes"), [(1, 3), (2, 1)])
def test_draws_that_fall_on_one_node_or_on_several_are_exact(num_trees: int, num_nodes: int) -> None:
    config = TreeGRPOConfig(num_trees=num_trees, num_nodes=num_nodes)
    found = enumerated(SMALL, lambda draws: TreeGRPO(config, draws), None, by_token=True)
    gradient = path_gradient(SMALL, SMALL.rewards)
    assert far_from(found["split"], gradient) < 1e-12
    assert far_from(found["split_tree_loo"], gradient) < 1e-12
    assert far_from(found["leaves"], gradient) > 1e-3


def test_two_trees_are_each_others_baseline() -> None:
    config = replace(SURPRISED, stems=2)
    found = enumerated(SMALL, lambda draws: NamedTreeRL(config, draws), LeastLikely(config))
    for name in ("split", "split_tree_loo"):
        assert far_from(found[name], path_gradient(SMALL, SMALL.rewards)) < 1e-12


@pytest.mark.slow
def test_paths_that_failed_are_left_out_of_their_fork_and_trees_without_a_trunk_altogether() -> None:
    """Exact where there is a trunk; where all fail, one time in four, the tree is worth nothing and says so."""
    config = TreeGRPOConfig(num_trees=2, num_nodes=1)
    found = enumerated(SMALL, lambda draws: TreeGRPO(config, draws), None, by_token=True, fails=True)
    gradient = scaled(path_gradient(SMALL, SMALL.rewards), 3 / 4)
    for name in ("split", "split_tree_loo"):
        assert far_from(found[name], gradient) < 1e-12


def test_positions_that_the_tree_moves_out_of_stop_words_are_moved_by_the_rule() -> None:
    mdp = MDP.of("ragged")
    found = enumerated(mdp, lambda draws: TreeRL(SURPRISED, draws), None, words=("11",))
    assert far_from(found["split"], mdp.gradient) < 1e-12
    with pytest.raises(ContractError, match="where it never would"):
        enumerated(mdp, lambda draws: TreeRL(SURPRISED, draws), LeastLikely(SURPRISED), words=("11",))


# -- by hand -----------------------------------------------------------------------------------------------------------


class Table:
    """A rule by a table: text of a path -> places."""

    def __init__(self, max_forks: int = 1, **forks: dict[int, float]) -> None:
        self.max_forks = max_forks
        self._forks = forks

    def forks(self, tree: Tree, leaf: int) -> Mapping[int, float]:
        start = tree.length(ROOT)
        text = tree.branch(leaf).transcript.replace("=", "")
        return {start + at: mean for at, mean in self._forks.get(text, {0: 1.0}).items()}


def two_trees(rule: str = "late") -> Growth:
    """Tree 0: trunk ab, branches ac and ad behind a; tree 1: trunk e, a branch f from the bare prompt."""
    growth = bare()
    one, _ = fork(growth, ROOT, [end("ab", 1.0)], [end("e", 0.0)])
    fork(growth, one, [end("c", 0.0)], [end("d", 1.0)], at=growth.tree.length(ROOT) + 1, rule=rule)
    fork(growth, ROOT, [end("f", 1.0)], rule=joining(rule, 1))
    return growth


RULE = Table(ab={1: 1.0}, ac={1: 0.5}, ad={0: 1.0}, e={0: 1.0}, f={0: 0.25})


def by_text(growth: Growth, forest: Forest, values: Array_N) -> dict[str, float]:
    texts = (growth.tree.branch(int(node)).transcript for node in forest.nodes[forest.leaves])
    return dict(zip(texts, values[forest.leaves].tolist(), strict=True))


def test_shares_are_in_proportion_to_what_the_rule_would_do_to_each_path() -> None:
    growth = two_trees()
    forest = balanced(forest_of(growth.tree), growth.tree, RULE)
    credited = credit("balanced_split", forest)
    weights = by_text(growth, forest, credited.weights)
    assert weights == pytest.approx({"ab": 1 / 3, "ac": 1 / 6, "ad": 0.0, "e": 0.4, "f": 0.1})
    assert credited.is_unbiased
    assert credited.coefficients[credited.forest.stems].sum() == pytest.approx(1 / 3 + 0.1)


def test_the_baseline_of_a_tree_is_the_value_of_the_others_and_a_branch_from_the_prompt_belongs_to_its_tree() -> None:
    growth = two_trees()
    forest = balanced(forest_of(growth.tree), growth.tree, RULE)
    coefficients = by_text(growth, forest, credit("balanced_split_tree_loo", forest).coefficients)
    value_0, value_1 = 2 / 3, 0.2
    assert coefficients == pytest.approx(
        {
            "ab": (1 - value_1) / 3,
            "ac": (0 - value_1) / 6,
            "ad": 0.0,
            "e": (0 - value_0) * 0.4,
            "f": (1 - value_0) * 0.1,
        }
    )


def test_rows_carry_the_balanced_coefficients_and_say_that_they_are_exact() -> None:
    growth = two_trees()
    reasons = ("chosen after the fact",)
    rows = rows_of(growth.tree, credit="balanced_split_tree_loo", post_hoc_reasons=reasons, post_hoc=RULE)
    assert all(row.is_unbiased for row in rows)
    assert {row.credit for row in rows} == {"balanced_split_tree_loo"}
    plain = rows_of(growth.tree, post_hoc_reasons=reasons, post_hoc=RULE)
    assert {row.credit for row in plain} == {"leaf_grpo"}
    assert not any(row.is_unbiased for row in plain)


@pytest.mark.parametrize("name", ["balanced_split", "balanced_split_tree_loo"])
def test_without_a_rule_balanced_credits_refuse_post_hoc_forks(name: str) -> None:
    with pytest.raises(ContractError, match=r"balanced shares are known for.*rule 'late'"):
        rows_of(two_trees().tree, credit=name)


@pytest.mark.parametrize("name", ["split", "subtree_loo", "sibling_loo"])
def test_other_exact_credits_refuse_post_hoc_forks_whatever_their_shares(name: str) -> None:
    growth = two_trees()
    with pytest.raises(ContractError, match="predictable forks only"):
        credit(name, balanced(forest_of(growth.tree), growth.tree, RULE))


def test_predictable_forks_are_credited_as_planned() -> None:
    growth = bare()
    one, _ = fork(growth, ROOT, [step("a")], [end("b", 0.5)])
    fork(growth, one, [end("c", 1.0)], [end("d", 0.0)], shares=(0.75, 0.25))
    forest = forest_of(growth.tree)
    assert credit("balanced_split", forest).coefficients.tolist() == split(forest).tolist()
    assert credit("balanced_split_tree_loo", forest).coefficients == pytest.approx(split_tree_loo(forest))
    assert credit("balanced_split", forest).is_unbiased


def test_branches_of_branches_are_refused() -> None:
    growth = bare()
    (trunk,) = fork(growth, ROOT, [end("ab", 1.0)])
    (branch,) = fork(growth, trunk, [step("c"), end("d", 0.0)], at=growth.tree.length(ROOT) + 1)
    fork(growth, growth.tree.path(branch)[-2], [end("e", 0.0)], rule="later")
    with pytest.raises(ContractError, match="rule 'later' forked a branch"):
        balanced(forest_of(growth.tree), growth.tree, Table(2))


def test_chains_that_forked_before_they_ended_are_refused() -> None:
    growth = bare()
    (stem,) = fork(growth, ROOT, [step("a")])
    fork(growth, stem, [end("b", 1.0)], [end("c", 0.0)], rule="early")
    fork(growth, ROOT, [end("d", 1.0)])
    with pytest.raises(ContractError, match="rule 'early' forked a chain that had not ended"):
        balanced(forest_of(growth.tree), growth.tree, Table())


def test_more_forks_than_the_rule_makes_of_a_trunk_are_several_rounds() -> None:
    growth = two_trees()
    fork(growth, ROOT, [end("g", 1.0)], rule=joining("late", 1))
    with pytest.raises(ContractError, match=r"tree 1 was forked 2 times .* one round"):
        balanced(forest_of(growth.tree), growth.tree, RULE)


def test_a_fork_of_the_bare_prompt_says_whose_it_is_where_there_are_several_trees() -> None:
    growth = bare()
    fork(growth, ROOT, [end("a", 1.0)], [end("b", 0.0)])
    fork(growth, ROOT, [end("c", 1.0)], rule="late")
    with pytest.raises(ContractError, match="does not say for which of the 2 trees"):
        balanced(forest_of(growth.tree), growth.tree, Table())
    alone = bare()
    fork(alone, ROOT, [end("a", 1.0)])
    fork(alone, ROOT, [end("c", 0.0)], rule="late")
    forest = balanced(forest_of(alone.tree), alone.tree, Table())
    assert by_text(alone, forest, balanced_split_tree_loo(forest)) == {"a": 0.5, "c": 0.0}


def test_a_rule_that_would_not_have_forked_there_is_another_one() -> None:
    growth = two_trees()
    with pytest.raises(ContractError, match="rule 'late' forked a path at token 5, where it never would"):
        balanced(forest_of(growth.tree), growth.tree, Table())


def test_branches_and_forks_that_a_budget_refused_leave_the_numbers_but_not_the_claim() -> None:
    growth = bare()
    (trunk,) = fork(growth, ROOT, [end("a", 1.0)])
    commands = ask(growth, trunk, 2, at=growth.tree.length(ROOT), rule="late")
    give(growth, commands[0], end("b", 0.0))
    give(growth, commands[1], ending=Failure("budget"))
    forest = balanced(forest_of(growth.tree), growth.tree, Table(2, a={0: 2.0}))
    reasons = ("1 planned branch(es) never came", "1 fork(s) of finished paths were never made")
    assert credit("balanced_split", forest).reasons == reasons
    assert forest.balanced is not None
    assert sorted(forest.balanced) == pytest.approx([1 / 6, 5 / 6])


@given(st.integers(0, 10_000), st.integers(1, 4))
def test_any_tree_gets_shares_that_sum_to_one_or_is_refused(seed: int, max_forks: int) -> None:
    tree = wild(seed)
    try:
        forest = balanced(forest_of(tree), tree, UniformNode(max_forks))
    except ContractError:
        return
    assert forest.balanced is not None
    assert (forest.balanced >= 0).all()
    total = forest.balanced[forest.stems].sum()
    assert total == pytest.approx(1) or not total
    for name in ("balanced_split", "balanced_split_tree_loo"):
        credited = credit(name, forest)
        assert np.isfinite(credited.coefficients).all()
        assert credited.is_unbiased == (not credited.reasons)


def test_strategies_that_fork_once_by_a_rule_of_the_trunk_alone_have_one() -> None:
    draws, config = ListDraws(), TreeRLConfig()
    assert post_hoc_rule(TreeRL(config, draws), ("</a>",)) == LeastLikely(config, ("</a>",))
    assert post_hoc_rule(TreeGRPO(TreeGRPOConfig(), draws)) == UniformNode(2)
    for other in (
        TreeRL(TreeRLConfig(rounds=2), draws),
        TreeRL(TreeRLConfig(fork="after"), draws),
        NamedTreeRL(config, draws),
        TreeGRPO(TreeGRPOConfig(num_rounds=2), draws),
        Offline(OfflineConfig(), draws),
        ToppedUp(TreeGRPO(TreeGRPOConfig(), draws), 8),
    ):
        assert post_hoc_rule(other) is None


def test_tree_grpo_records_what_its_rule_gives_the_trunk() -> None:
    tree = journey(TreeGRPO(TreeGRPOConfig(num_trees=1, num_nodes=1), np.random.default_rng(0))).tree
    (record,) = tree.forks[1:]
    (trunk,) = (leaf for leaf in tree.leaves() if all(tree.fork(node) != record for node in tree.path(leaf)))
    assert record.select_prob == UniformNode(1).forks(tree, trunk)[record.position]
