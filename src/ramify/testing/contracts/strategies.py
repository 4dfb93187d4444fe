"""Rules for every strategy, checked by a `Journey` through a `SeededWorld`, without a model."""

import itertools
import math
import pickle
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ramify import plugins
from ramify.core.command import Command, Outcome
from ramify.core.limits import Limits
from ramify.core.strategy import Phase, SearchStrategy, Strategy
from ramify.core.tree import Tree
from ramify.credit import forest_of
from ramify.runner.driver import Asked, Delivered
from ramify.strategies.parts.draws import Draws
from ramify.testing.contracts.rules import BrokenRule, demand, keep_all, rules_of
from ramify.testing.journeys import Journey, canonical, journey
from ramify.testing.worlds import SeededWorld

SEED: Final = 5
"""Seed of the generator that each strategy is built with."""
MAX_COMMANDS: Final = 100
MAX_ASKS: Final = 2_000
ORDERED_LIMITS: Final = (Limits(), Limits(decode=90), Limits(leaves=4), Limits(tool_calls=20, turns=25))
SMALL_LIMITS: Final = (Limits(decode=1), Limits(decode=60), Limits(leaves=3), Limits(turns=7))


@dataclass(frozen=True, slots=True)
class StrategyCase:
    """A strategy, built anew whenever a rule needs one."""

    build: Callable[[Draws], Strategy]
    max_commands: int = MAX_COMMANDS
    """Most commands it may ask for if commands fail. A strategy that retries for ever asks for more."""

    def new(self) -> Strategy:
        return self.build(np.random.default_rng(SEED))

    def grown(self, **options: Any) -> Journey:
        """A journey to its end in a world where some paths are pruned."""
        return journey(self.new(), SeededWorld(prunes=True), **options)


def check_strategy(
    strategy: str | type[Any] | Callable[[Draws], Strategy],
    config: object = None,
    *,
    max_commands: int = MAX_COMMANDS,
    without: Collection[str] = (),
) -> None:
    """Check every rule of a strategy except those in `without`. Raises `BrokenRule` that says which rule was broken and
    where.

    `strategy` is a class, its name in the plug-in table, `file.py:Name`, or a function that builds one from a
    generator. `config` is an instance of its `Config` or a mapping of options; None = the defaults.
    """
    case = StrategyCase(_builder(strategy, config), max_commands)
    keep_all(STRATEGY_RULES, case, f"strategy {_named(strategy, config)}", without=without)


def _builder(strategy: Any, config: object) -> Callable[[Draws], Strategy]:
    found = plugins.find("strategy", strategy) if isinstance(strategy, str) else strategy
    if not isinstance(found, type):
        return found
    config_class = plugins.config_class(found)
    options = config_class(**config) if isinstance(config, Mapping) else config
    settings = config_class() if options is None else options
    build: Any = found
    return lambda rng: build(settings, rng)


def _named(strategy: Any, config: object) -> str:
    name = strategy if isinstance(strategy, str) else getattr(strategy, "__name__", repr(strategy))
    return f"{name} with {config!r}" if config else name


def the_same_seed_grows_the_same_tree(case: StrategyCase) -> None:
    first, second = case.grown(), case.grown()
    _demand_same(first.tree, second.tree, f"two runs with seed {SEED}")
    demand(first.events == second.events, _first_difference("event", first.events, second.events))
    demand(first.tree.num_leaves > 0, f"the tree of seed {SEED} has no leaf after {_num_asked(first)} commands")


def ordered_delivery_grows_the_same_tree_whatever_ends_first(case: StrategyCase) -> None:
    for limits in ORDERED_LIMITS:
        expected = case.grown(limits=limits).tree
        for seed in range(4):
            tree = case.grown(limits=limits, order=random.Random(seed)).tree
            _demand_same(expected, tree, f"{_shown(limits)}, commands completed in the order of seed {seed}")


def any_order_of_outcomes_comes_to_an_end(case: StrategyCase) -> None:
    """Outcomes may come in any order. A strategy that says `is_order_free` then grows the same tree."""
    expected = case.grown().tree
    for seed in range(4):
        trip = case.grown(delivery="eager", order=random.Random(seed))
        demand(trip.driver.is_finished, f"outcomes told in the order of seed {seed}: it did not end")
        if case.new().is_order_free:
            _demand_same(expected, trip.tree, f"is_order_free is true, outcomes told in the order of seed {seed}")


def a_budget_is_never_overrun(case: StrategyCase) -> None:
    """A strategy whose budget is used up must also end."""
    for limits in SMALL_LIMITS:
        strategy = _bounded(case.new(), _shown(limits))
        trip = journey(strategy, SeededWorld(prunes=True), limits=limits, order=random.Random(1))
        for name, limit in limits.counted().items():
            spent = getattr(trip.driver.ledger.spent, name)
            demand(spent <= limit, f"{_shown(limits)}: {spent} {name} of at most {limit} were spent")
        demand(trip.driver.is_finished, f"{_shown(limits)}: it did not end")


def a_strategy_pickled_after_every_outcome_goes_on_the_same(case: StrategyCase) -> None:
    trip = Journey(case.new(), SeededWorld(prunes=True))
    while trip.step():
        strategy = trip.driver.strategy
        trip.driver.strategy = _within(
            f"after {_num_told(trip)} outcomes", lambda strategy=strategy: pickle.loads(pickle.dumps(strategy))
        )
    _demand_same(case.grown().tree, trip.tree, "pickled after every outcome")


def failures_end_paths_and_nothing_else(case: StrategyCase) -> None:
    for reason in ("engine_error", "cancelled", "budget"):
        for period in (1, 2, 5):
            where = f"every command fails with {reason!r}" if period == 1 else f"every {period}. fails with {reason!r}"
            trip = _within(where, lambda reason=reason, period=period: case.grown(fails=_every(period, reason)))
            demand(trip.driver.is_finished, f"{where}: it did not end")
            asked = _num_asked(trip)
            demand(asked < case.max_commands, f"{where}: it asked {asked} commands; fewer than {case.max_commands}")
            has_leaves = trip.tree.num_leaves > 0
            demand(has_leaves or period == 1 or reason == "budget", f"{where}: the tree has no leaf")


def one_command_cancelled_at_any_point_ends_well(case: StrategyCase) -> None:
    for cancelled in range(_num_asked(case.grown())):
        where = f"command {cancelled} cancelled"
        trip = _within(where, lambda cancelled=cancelled: case.grown(fails=_only(cancelled, "cancelled")))
        demand(trip.driver.is_finished, f"{where}: it did not end")


def random_termination_ends_paths_and_nothing_else(case: StrategyCase) -> None:
    def grown(**options: Any) -> Journey:
        return journey(case.new(), SeededWorld(coins=True), **options)

    expected = grown().tree
    for seed in range(2):
        where = f"commands completed in the order of seed {seed}"
        _demand_same(expected, grown(order=random.Random(seed)).tree, where)
        trip = grown(delivery="eager", order=random.Random(seed))
        demand(trip.driver.is_finished, f"outcomes told in the order of seed {seed}: it did not end")
        if case.new().is_order_free:
            _demand_same(expected, trip.tree, f"is_order_free is true, outcomes told in the order of seed {seed}")
    forest = forest_of(expected, unjudged="drop")
    for leaf in forest.leaves.tolist():
        node = int(forest.nodes[leaf])
        is_kept = expected.stop(node) != "roulette" or forest.reward[leaf] == 0.0
        demand(is_kept, f"node {node} was ended by random termination with return {forest.reward[leaf]}, not 0")


def each_command_has_one_outcome(case: StrategyCase) -> None:
    events = case.grown(order=random.Random(3), delivery="eager").events
    asked = [e.first_id + i for e in events if isinstance(e, Asked) for i in range(len(e.commands))]
    told = sorted(e.command_id for e in events if isinstance(e, Delivered))
    demand(asked == told == list(range(len(asked))), f"commands asked: {asked}; outcomes told: {told}")


def a_strategy_that_is_done_asks_for_nothing(case: StrategyCase) -> None:
    trip = case.grown()
    strategy = trip.driver.strategy
    demand(strategy.is_done(trip.tree), "is_done is false at the end of the run")
    commands = list(strategy.ask(trip.tree))
    demand(commands == [], f"is_done is true, but ask returns {commands!r}")


def a_strategy_that_is_done_says_so_in_its_phase(case: StrategyCase) -> None:
    trip = case.grown()
    phase = trip.driver.strategy.phase(trip.tree).name
    demand(phase == "collection", f"is_done is true, and its phase is {phase!r}; return Phase('collection') when done")


def a_twin_built_and_told_alike_asks_the_same(case: StrategyCase) -> None:
    """A strategy may depend only on its config, its generator and what it was told."""
    trip = journey(_Twins(case.new(), case.new()), SeededWorld())
    demand(trip.driver.is_finished, "it did not end")


def nothing_is_drawn_but_at_ask(case: StrategyCase) -> None:
    gate = _GatedDraws()
    strategy: Any = case.build(gate)
    ask = strategy.ask

    def gated(tree: Tree) -> Sequence[Command]:
        gate.is_open = True
        commands = ask(tree)
        gate.is_open = False
        return commands

    strategy.ask = gated
    Journey(strategy, SeededWorld()).run()


def a_search_ends_with_nodes_of_its_tree_and_finite_scores(case: StrategyCase) -> None:
    """For strategies with `candidates`, which end with an answer."""
    trip = case.grown(fails=_every(3, "engine_error"))
    strategy = trip.driver.strategy
    if not isinstance(strategy, SearchStrategy):
        return
    candidates = strategy.candidates(trip.tree)
    nodes = [candidate.node for candidate in candidates]
    demand(len(set(nodes)) == len(nodes), f"candidates name a node twice: {nodes}")
    for candidate in candidates:
        is_node = 0 < candidate.node < len(trip.tree)
        demand(is_node, f"candidate {candidate.node} is no node of a tree of {len(trip.tree)}")
        demand(math.isfinite(candidate.score), f"candidate {candidate.node} has the score {candidate.score}")


STRATEGY_RULES: Final = rules_of(
    the_same_seed_grows_the_same_tree,
    ordered_delivery_grows_the_same_tree_whatever_ends_first,
    any_order_of_outcomes_comes_to_an_end,
    a_budget_is_never_overrun,
    a_strategy_pickled_after_every_outcome_goes_on_the_same,
    failures_end_paths_and_nothing_else,
    one_command_cancelled_at_any_point_ends_well,
    random_termination_ends_paths_and_nothing_else,
    each_command_has_one_outcome,
    a_strategy_that_is_done_asks_for_nothing,
    a_strategy_that_is_done_says_so_in_its_phase,
    a_twin_built_and_told_alike_asks_the_same,
    nothing_is_drawn_but_at_ask,
    a_search_ends_with_nodes_of_its_tree_and_finite_scores,
)
"""Rule in plain English -> the function that checks it."""


class _Twins:
    """A strategy that compares itself with its twin at every ask."""

    def __init__(self, strategy: Strategy, twin: Strategy) -> None:
        self.strategy, self.twin, self.num_told = strategy, twin, 0
        self.measures, self.is_order_free = strategy.measures, strategy.is_order_free
        self.post_hoc_reason = strategy.post_hoc_reason

    def ask(self, tree: Tree) -> Sequence[Command]:
        commands, others = self.strategy.ask(tree), self.twin.ask(tree)
        where = f"after {self.num_told} outcomes one asks {list(commands)!r}, its twin {list(others)!r}"
        demand(list(commands) == list(others), where)
        return commands

    def tell(self, tree: Tree, outcome: Outcome) -> None:
        self.num_told += 1
        self.strategy.tell(tree, outcome)
        self.twin.tell(tree, outcome)

    def is_done(self, tree: Tree) -> bool:
        is_done = self.strategy.is_done(tree)
        demand(self.twin.is_done(tree) == is_done, f"after {self.num_told} outcomes only one of two twins is done")
        return is_done

    def phase(self, tree: Tree) -> Phase:
        return self.strategy.phase(tree)


class _GatedDraws:
    """Allows draws only while the strategy is asked."""

    def __init__(self) -> None:
        self.is_open = False
        self._rng = np.random.default_rng(SEED)

    def random(self) -> float:
        return float(self._opened().random())

    def integers(self, low: int, /) -> int:
        return int(self._opened().integers(low))

    def standard_gamma(self, shape: Any, /) -> Any:
        return self._opened().standard_gamma(shape)

    def standard_normal(self, size: Any = None, /) -> Any:
        return self._opened().standard_normal(size)

    def beta(self, a: Any, b: Any, /) -> Any:
        return self._opened().beta(a, b)

    def _opened(self) -> np.random.Generator:
        demand(self.is_open, "it drew from its generator outside of ask")
        return self._rng


def _bounded(strategy: Any, where: str) -> Strategy:
    """The strategy, limited to `MAX_ASKS` asks: without a limit, one that always asks again would never return."""
    ask, count = strategy.ask, itertools.count(1)

    def counted(tree: Tree) -> Sequence[Command]:
        demand(next(count) <= MAX_ASKS, f"{where}: it has not come to an end after {MAX_ASKS} asks")
        return ask(tree)

    strategy.ask = counted
    return strategy


def _demand_same(expected: Tree, tree: Tree, where: str) -> None:
    one, other = canonical(expected), canonical(tree)
    demand(one == other, f"{where}: {_first_difference('node', one, other)}")


def _first_difference(what: str, one: Sequence[object], other: Sequence[object]) -> str:
    """The first place where two lists differ."""
    number = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    first, second = (repr(x[number]) if number < len(x) else "nothing" for x in (one, other))
    return f"{what} {number} differs: {first} and {second}"


def _within(where: str, use: Callable[[], Any]) -> Any:
    """What `use` returns. If it raises, the error says where."""
    try:
        return use()
    except Exception as error:  # boundary to a plug-in: its own error is kept as the cause
        raise BrokenRule(f"{where}: {type(error).__name__}: {error}") from error


def _every(period: int, reason: str) -> Callable[[int], str | None]:
    return lambda command_id: reason if command_id % period == period - 1 else None


def _only(number: int, reason: str) -> Callable[[int], str | None]:
    return lambda command_id: reason if command_id == number else None


def _num_asked(trip: Journey) -> int:
    return trip.driver.growth.num_asked


def _num_told(trip: Journey) -> int:
    return sum(isinstance(event, Delivered) for event in trip.events)


def _shown(limits: Limits) -> str:
    return f"limits {dict(limits.counted())}" if limits.counted() else "no limits"
