"""Certification: the trees of a strategy on a decision problem, enumerated or sampled, credited and judged.

The real strategy grows through the real driver. Coefficients are the credit's own, or those of the rows that a trainer
gets, reduced as the trainer does it. Enumeration stops at a number of trees or seconds; what is too large for it, and
what draws continuous numbers, is sampled, and then nothing is called exact.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, Final

import numpy as np

from ramify import plugins
from ramify.config.run_config import RunConfig
from ramify.config.strategy_options import named_functions, read_options
from ramify.core.errors import ConfigError, ContractError
from ramify.core.strategy import Strategy
from ramify.core.tree import Tree
from ramify.credit import Credited, Forest, OwnCredit, balanced, credit, forest_of, measures_of, needs_balance
from ramify.credit.forest import STEM
from ramify.experiments.certify.certificate import Certificate, components_of, judged
from ramify.experiments.certify.decision_problem import DecisionProblem, problem_named
from ramify.experiments.certify.draws import EchoedDraws, FiniteDraws, NotEnumerable
from ramify.experiments.certify.gradient import (
    AlikeTrees,
    Census,
    Coefficients,
    content_of,
    expected_gradient_of,
    is_rational,
    rational,
    texts_of,
)
from ramify.experiments.certify.growing import grown
from ramify.experiments.certify.reductions import REDUCTIONS, SUM, Batch, Factors_T, Reduction, reduction_named
from ramify.experiments.certify.replay import Draw, OwnRandomness, outcomes
from ramify.experiments.certify.sampled import SampledDraws, TreeSample
from ramify.rows.row import Row
from ramify.runner.rows import named_credit, tree_rows
from ramify.runner.run_strategy import RunStrategy, StrategyTraits

NUM_TWINS: Final = 100
"""The first trees are grown with a twin of the strategy, which must ask for the same: it may draw nothing by itself."""
NUM_PROBES: Final = 50
"""Trees that are sampled to estimate how many there are."""
NUM_ROWS: Final = 20
"""Forests whose rows are made, to compare them with the credit and to read what they say of themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CertifyLimits:
    """How far a check goes."""

    max_trees: int = 200_000
    """Most trees that are enumerated for a problem; where there are more, trees are sampled."""
    max_seconds: float = 60.0
    """Most seconds that the trees of a problem may take to enumerate, and again to sample."""
    num_samples: int = 10_000
    """Trees that are sampled."""
    seed: int = 0
    """Of the samples."""


@dataclass(frozen=True)
class Subject:
    """What is certified: a strategy, and how its trees become rows."""

    config: RunConfig
    strategy: RunStrategy
    reduction: Reduction = REDUCTIONS[SUM]
    batch: Batch = "one"

    @cached_property
    def traits(self) -> StrategyTraits:
        return self.strategy.traits(())

    @cached_property
    def rows_config(self) -> RunConfig:
        """Every leaf is a row: which ones a run keeps is no part of the check."""
        return replace(self.config, rows=replace(self.config.rows, leaves=None))

    @property
    def is_by_rows(self) -> bool:
        """Whether the rows say what is trained, and not the credit alone."""
        return self.reduction.name != SUM or self.config.rows.policy == "per_leaf"

    def grown(self, problem: DecisionProblem, draw: Draw, *, has_twin: bool) -> Tree:
        """A tree with every draw out of `draw`. Raises `NotEnumerable`."""
        if not has_twin:
            return grown(problem, self.strategy.drawing(FiniteDraws(draw)), draw)
        echoed = EchoedDraws(draw)
        first, twin = (self.strategy.drawing(FiniteDraws(each)) for each in (echoed.first, echoed.again))
        return grown(problem, first, draw, twin=twin)

    def sampled(self, problem: DecisionProblem, draw: Draw, seed: int, *, has_twin: bool) -> Tree:
        """A tree whose strategy has a generator of its own."""
        first, twin = (self.strategy.drawing(np.random.default_rng(seed)) for _ in range(2))
        return grown(problem, first, draw, twin=twin if has_twin else None)

    @classmethod
    def of(
        cls,
        strategy: str | type[Strategy],
        options: Mapping[str, Any] | None = None,
        *,
        reduction: str = SUM,
        batch: Batch = "one",
    ) -> "Subject":
        """A strategy by its name or class, with options of its `Config`. Raises `ConfigError`."""
        kind = plugins.find("strategy", strategy) if isinstance(strategy, str) else strategy
        read, _, faults = read_options(plugins.config_class(kind), options or {})
        if read is None:
            raise ConfigError("; ".join(f"{fault.path}: {fault.message}" for fault in faults))
        name = strategy if isinstance(strategy, str) else kind.__name__
        return cls(RunConfig(), RunStrategy(name, kind, read, named_functions(read)), reduction_named(reduction), batch)


def certify(
    strategy: str | type[Strategy],
    credit: str | Callable[[Forest], Any],
    *,
    options: Mapping[str, Any] | None = None,
    problem: str | DecisionProblem = "ragged",
    reduction: str = SUM,
    batch: Batch = "one",
    limits: CertifyLimits = CertifyLimits(),
) -> Certificate:
    """Whether the trees of a strategy, credited so, estimate the policy gradient of a decision problem exactly.

    `strategy`: a name, `path/to/file.py:Class` or a class. `credit`: a name, `path/to/file.py:function` or a function
    from a forest to (num_nodes,) coefficients. `options`: fields of the strategy's `Config`; choose a small tree.
    `problem`: a built-in one, `path/to/file.py:function` or a `DecisionProblem`. `reduction`: how a trainer reduces the
    rows of a batch, which is one tree, or, in the limit, `many`.

    Raises `ConfigError` for what does not exist or is malformed, and `ContractError` if the strategy or a user's
    function breaks a rule.
    """
    subject = Subject.of(strategy, options, reduction=reduction, batch=batch)
    named = named_credit(credit) if isinstance(credit, str) else OwnCredit(_name_of(credit), credit)
    found = problem_named(problem) if isinstance(problem, str) else problem
    return certify_credits(subject, [named], found, limits=limits)[0]


def _name_of(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", repr(function))


def certify_credits(
    subject: Subject,
    credits: Sequence[str | OwnCredit],
    problem: DecisionProblem,
    *,
    limits: CertifyLimits = CertifyLimits(),
) -> list[Certificate]:
    """A certificate for each credit, from one enumeration."""
    checks = [_Check(subject, each, problem) for each in credits]
    why_not = _enumerated(subject, problem, checks, limits)
    if why_not is None:
        return [check.certificate() for check in checks]
    return _sampled(subject, problem, checks, limits, why=why_not)


# -- one credit --------------------------------------------------------------------------------------------------------


class _Refused(Exception):
    """The credit gives these trees no coefficients; the message says why."""


class _Check:
    """One credit on all trees of one problem."""

    def __init__(self, subject: Subject, name: str | OwnCredit, problem: DecisionProblem) -> None:
        self.subject = subject
        self.problem = problem
        self.credit = name
        self.name = name.name if isinstance(name, OwnCredit) else name
        self.census = Census(self.forest_of)
        self.reasons: dict[str, None] = {}
        self.notes: dict[str, None] = {}
        self.refusal = ""
        """Why rows of this credit are refused, though it has numbers for these trees; '' = they are not."""
        self._takes_fractions = not isinstance(name, OwnCredit)
        self._num_compared = 0
        self._divisors: list[float] = []
        """What the rows of each forest are divided by, in the order of `coefficients`."""

    @property
    def shares_with(self) -> tuple[object, ...]:
        """Credits that are equal here read equal forests."""
        return needs_balance(self.credit), measures_of(self.credit)

    def forest_of(self, tree: Tree) -> Forest:
        traits = self.subject.traits
        found = forest_of(tree, post_hoc_reasons=traits.post_hoc_reasons, measures=measures_of(self.credit))
        if traits.post_hoc is not None and needs_balance(self.credit):
            try:
                return balanced(found, tree, traits.post_hoc)
            except ContractError:
                return found  # The credit refuses it, and says why.
        return found

    def coefficients(self, forest: Forest, tree: Tree) -> Coefficients:
        """Of one forest; `tree` is any that has it. Raises `_Refused`."""
        if self.subject.is_by_rows:
            return self._of_rows(forest, tree)
        credited = self._credited(forest)
        found = credited.coefficients.tolist()
        self.reasons |= dict.fromkeys(credited.reasons)
        if self._num_compared < NUM_ROWS:
            self._num_compared += 1
            self._compare(forest, tree, credited)
        return found

    def certificate(self) -> Certificate:
        """Of the trees that were enumerated."""
        alike = list(self.census.alike.values())
        try:
            pairs = [(each, self.coefficients(each.forest, each.tree)) for each in alike]
        except _Refused as refused:
            self.notes = {str(refused): None, **self.notes}
            return self._made(alike, verdict="refused")
        gradient = expected_gradient_of(pairs, self.problem.probs)
        if self._divisors:
            mean = sum(float(each.weight.total) * n for each, n in zip(alike, self._divisors, strict=True))
            gradient = {prefix: [float(x) / mean for x in law] for prefix, law in gradient.items()}
        verdict, scale = judged(gradient, self.problem.gradient)
        return self._made(
            alike,
            verdict=verdict,
            scale=scale,
            components=components_of(gradient, self.problem.gradient),
            is_rational=all(is_rational(coefficients) for _, coefficients in pairs),
        )

    def _made(self, alike: Iterable[AlikeTrees], **found: Any) -> Certificate:
        forks = _forks(alike)
        untested = _untested(self.problem, forks)
        if untested and found["verdict"] not in ("biased", "refused"):
            found |= {"verdict": "untested", "scale": None}
            self.notes = {untested: None, **self.notes}
        if self.refusal:
            found |= {"verdict": "refused", "of_numbers": found["verdict"]}
            self.notes = {self.refusal: None, **self.notes}
        if forks and not any(forks):
            self.notes["no tree forked behind the prompt: this checked independent chains"] = None
        if self.subject.config.rows.leaves is not None:
            self.notes["which leaves become rows (rows.leaves) is no part of this check"] = None
        if self.subject.config.growth.prune is not None:
            self.notes["the prune rule (growth.prune) is no part of this check"] = None
        return Certificate(
            **{
                "strategy": self.subject.strategy.name,
                "credit": self.name,
                "problem": self.problem.name,
                "reduction": self.subject.reduction.name,
                "batch": self.subject.batch,
                "num_trees": sum(each.num_trees for each in self.census.alike.values()),
                "forks": forks,
                "reasons": tuple(self.reasons),
                "notes": tuple(self.notes),
                **found,
            }
        )

    def _credited(self, forest: Forest) -> Credited:
        """As fractions where the credit can. Raises `_Refused`.

        A credit that is exact for predictable forks alone refuses others in rows; its numbers are computed all the
        same, to see what it refuses.
        """
        try:
            return self._by_credit(forest)
        except ContractError as error:
            if isinstance(self.credit, OwnCredit):
                raise
            refusal = str(error)
        try:
            found = self._by_credit(replace(forest, post_hoc_reasons=()))
        except ContractError:
            raise _Refused(refusal) from None
        self.refusal = self.refusal or refusal
        return replace(found, reasons=())

    def _by_credit(self, forest: Forest) -> Credited:
        if self._takes_fractions:
            try:
                return credit(self.credit, rational(forest))
            except (AttributeError, TypeError):  # numpy has no root of fractions
                self._takes_fractions = False
        return credit(self.credit, forest)

    def _rows(self, tree: Tree) -> list[Row]:
        return tree_rows(tree, self.subject.rows_config, self.subject.traits, credit=self.credit)

    def _of_rows(self, forest: Forest, tree: Tree) -> Coefficients:
        """What a trainer gives each token of the rows, a list for each node."""
        try:
            rows = self._rows(tree)
        except ContractError as error:
            raise _Refused(str(error)) from None
        for row in rows:
            self.reasons |= dict.fromkeys(row.reasons)
        reduction, divisor = self.subject.reduction, 1.0
        if reduction.divisor is not None and self.subject.batch == "many":
            self._divisors.append(reduction.divisor(rows))
        elif reduction.divisor is not None:
            divisor = reduction.divisor(rows)
        factors = [each / divisor for each in reduction.factors_of(rows)] if rows else []
        return _by_node(forest, tree, rows, factors)

    def _compare(self, forest: Forest, tree: Tree, credited: Credited) -> None:
        """Refuse rows that train something else than the credit's coefficients."""
        try:
            rows = self._rows(tree)
        except ContractError:
            return
        for row in rows:
            self.reasons |= dict.fromkeys(row.reasons)
        trained = _by_node(forest, tree, rows, [np.full(len(row), 1 / row.normaliser) for row in rows])
        for node, coefficient in enumerate(credited.coefficients.tolist()):
            if any(abs(each - float(coefficient)) > 1e-9 * max(1.0, abs(float(coefficient))) for each in trained[node]):
                raise ContractError(
                    f"rows of credit {self.name!r} train node {int(forest.nodes[node])} with {trained[node]}, its "
                    f"coefficient is {float(coefficient)}"
                )


def _by_node(forest: Forest, tree: Tree, rows: Sequence[Row], factors: Sequence[Factors_T]) -> list[list[float]]:
    """For each node of the forest, what all rows together give each of its sampled tokens."""
    nodes = tree.subtree()
    found = {int(node): np.zeros(n) for node, n in zip(forest.nodes, forest.num_tokens, strict=True)}
    for row, factor in zip(rows, factors, strict=True):
        terms, place, node_place = row.trained * factor, 0, dict.fromkeys(found, 0)
        for span in row.spans:
            if span.origin == "sampled":
                node = nodes[span.node]
                start = node_place[node]
                found[node][start : start + span.num_tokens] += terms[place : place + span.num_tokens]
                node_place[node] += span.num_tokens
            place += span.num_tokens
    return [each.tolist() for each in found.values()]


def _forks(alike: Iterable[AlikeTrees]) -> Mapping[str, tuple[int, ...]]:
    found: defaultdict[str, set[int]] = defaultdict(set)
    for each in alike:
        parents, numbers = np.unique(each.forest.parent, return_counts=True)
        for parent, number in zip(parents.tolist(), numbers.tolist(), strict=True):
            if number > 1:
                prefixes = [""] if parent == STEM else ["".join(text) for text in each.tokens[parent]]
                for prefix in prefixes:
                    found[prefix].add(number)
    return {prefix: tuple(sorted(found[prefix])) for prefix in sorted(found, key=lambda each: (len(each), each))}


def _untested(problem: DecisionProblem, forks: Mapping[str, tuple[int, ...]]) -> str:
    """Why an agreement would show nothing; empty = it shows something."""
    if not any(x for law in problem.gradient.values() for x in law):
        return "the gradient of this problem is 0"
    return "" if forks else "no tree forked"


# -- all trees ---------------------------------------------------------------------------------------------------------


def _enumerated(
    subject: Subject, problem: DecisionProblem, checks: Sequence[_Check], limits: CertifyLimits
) -> str | None:
    """Grow all trees, and add them to the checks. Returns why they are not all: trees must then be sampled."""
    censuses = _shared(checks)
    ends = time.monotonic() + limits.max_seconds
    num_trees, total = 0, Fraction(0)

    def grow(draw: Draw) -> Tree:
        return subject.grown(problem, draw, has_twin=num_trees < NUM_TWINS)

    try:
        about, seconds = _estimated(subject, problem, limits.seed)
        if about > limits.max_trees or seconds > limits.max_seconds:
            return (
                f"there are about {about:.1g} trees, which would take {seconds:.0f} s; at most {limits.max_trees:,} "
                f"trees and {limits.max_seconds:g} s are enumerated"
            )
        for probability, tree in outcomes(grow):
            num_trees, total = num_trees + 1, total + probability
            for census in censuses:
                census.add(probability, tree)
            if num_trees == limits.max_trees and total < 1:
                return f"there are more than {limits.max_trees:,} trees"
            if time.monotonic() > ends and total < 1:
                return f"{num_trees:,} trees took {limits.max_seconds:g} s, and there are more"
    except NotEnumerable as error:
        return f"its trees cannot be enumerated: {error}"
    except OwnRandomness as error:
        raise ContractError(f"strategy {subject.strategy.name!r}: {error}") from error
    if total != 1:
        raise ContractError(
            f"strategy {subject.strategy.name!r}: the probabilities of all its trees sum to {float(total):g} and not "
            "to 1: it drew randomness of its own; draw only from the generator handed in"
        )
    return None


def _shared(checks: Sequence[_Check]) -> list[Census]:
    """The censuses to fill: checks that read equal forests share one."""
    found: dict[tuple[object, ...], Census] = {}
    for check in checks:
        check.census = found.setdefault(check.shares_with, check.census)
    return list(found.values())


def _estimated(subject: Subject, problem: DecisionProblem, seed: int) -> tuple[float, float]:
    """About how many trees there are, by the choices along sampled ones (Knuth 1975), and the seconds to grow them."""
    began, total = time.monotonic(), 0.0
    for number in range(NUM_PROBES):
        draw = SampledDraws(np.random.default_rng([seed, number]))
        subject.grown(problem, draw, has_twin=False)
        total += draw.num_outcomes
    about = total / NUM_PROBES
    return about, about * (time.monotonic() - began) / NUM_PROBES


# -- a sample ----------------------------------------------------------------------------------------------------------


def _sampled(
    subject: Subject, problem: DecisionProblem, checks: Sequence[_Check], limits: CertifyLimits, *, why: str
) -> list[Certificate]:
    for check in checks:
        check.census = Census(check.forest_of)
    samples = [_SampledCheck(check, TreeSample(problem)) for check in checks]
    draw = SampledDraws(np.random.default_rng([limits.seed, NUM_PROBES]))
    ends = time.monotonic() + limits.max_seconds
    for number in range(limits.num_samples):
        tree = subject.sampled(problem, draw, seed=limits.seed + number, has_twin=number < NUM_TWINS)
        for sample in samples:
            sample.add(tree)
        if time.monotonic() > ends:
            break
    return [sample.certificate(why) for sample in samples]


@dataclass(slots=True)
class _SampledCheck:
    """One credit on sampled trees."""

    check: _Check
    sample: TreeSample
    refusal: str | None = None
    known: dict[tuple[object, ...], Coefficients] = field(default_factory=dict)

    def add(self, tree: Tree) -> None:
        if self.refusal is not None:
            return
        check = self.check
        forest = check.forest_of(tree)
        key, texts = content_of(forest), texts_of(tree, forest)
        if key not in self.known:
            try:
                self.known[key] = _floats(check.coefficients(forest, tree))
            except _Refused as refused:
                self.refusal = str(refused)
                return
        self.sample.add(texts, self.known[key])
        check.census.alike.setdefault(key, AlikeTrees(forest, tree)).add(Fraction(1), texts)

    def certificate(self, why: str) -> Certificate:
        check = self.check
        alike = list(check.census.alike.values())
        check.notes = {f"sampled, because {why}": None, **check.notes}
        if self.refusal is not None:
            check.notes = {self.refusal: None, **check.notes}
            return check._made(alike, verdict="refused", is_enumerated=False)
        verdict, scale, components = self.sample.judged()
        if num_rare := sum(each.low is None for each in components):
            check.notes[f"{num_rare} component(s) were met too rarely to be judged"] = None
        return check._made(alike, verdict=verdict, scale=scale, components=components, is_enumerated=False)


def _floats(coefficients: Coefficients) -> list[Any]:
    return [each if isinstance(each, list) else float(each) for each in coefficients]
