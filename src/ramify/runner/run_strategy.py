"""RunStrategy: the strategy of a run; every tree gets a fresh instance."""

import math
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np

from ramify import plugins
from ramify.config.run_config import RunConfig
from ramify.config.strategy_options import named_functions, read_options
from ramify.core.errors import ConfigError, RamifyError
from ramify.core.seeds import strategy_seed
from ramify.core.strategy import PostHocRule, SearchStrategy, Strategy, Vote, post_hoc_rule
from ramify.edge.error_text import error_text
from ramify.strategies.parts.draws import Draws
from ramify.strategies.parts.topped_up import ToppedUp


@dataclass(frozen=True, slots=True)
class StrategyTraits:
    """What a strategy, as configured, says about the rows of all its trees."""

    post_hoc_reasons: tuple[str, ...] = ()
    """Why its forks depend on tokens already drawn; empty = exact credits may be used."""
    post_hoc: PostHocRule | None = None
    """How it forks finished paths; None = it has no rule that balanced shares can be made of."""
    planned_leaves: float | None = None
    """Leaves that it plans for a tree; None = it does not say."""


@dataclass(frozen=True, slots=True)
class RunStrategy:
    """A strategy's class and decoded options. Boundary to plug-in code: a strategy that cannot be made is a
    `ConfigError`."""

    name: str
    """Its name in the configuration."""
    kind: type[Any]
    options: Any
    """An instance of the strategy's own `Config`."""
    functions: Mapping[str, Any]
    """Keyword of the class -> the function that its options name."""
    min_leaves: int | None = None
    """Trees with fewer leaves get additional chains; None = trees are not topped up."""

    @classmethod
    def of(cls, config: RunConfig, kind: type[Strategy] | None = None) -> "RunStrategy":
        """The strategy that `config` names, or `kind`. Raises `ConfigError` if it is not a strategy."""
        name = config.strategy.name
        found = kind or plugins.find("strategy", name)
        options = _options(found, config)
        return cls(name, found, options, named_functions(options), config.rows.min_leaves)

    @property
    def is_built_in(self) -> bool:
        """Whether it is the built-in strategy of its name, which draws no randomness of its own."""
        return plugins.is_built_in("strategy", self.name) and plugins.find("strategy", self.name) is self.kind

    def new(self, seed: int) -> Strategy:
        """A fresh strategy for the tree of `seed`."""
        return self.drawing(np.random.default_rng(strategy_seed(seed)))

    def drawing(self, rng: Draws) -> Strategy:
        """A fresh strategy that takes its randomness from `rng`, which stands for a `numpy.random.Generator`."""
        strategy = self.kind(self.options, rng, **self.functions)
        return strategy if self.min_leaves is None else ToppedUp(_checked(strategy), self.min_leaves)

    def sample(self) -> Strategy:
        """A fresh strategy to inspect; it belongs to no tree. Raises `ConfigError` if it cannot be made."""
        try:
            return _checked(self.new(seed=0), at=self._place)
        except RamifyError:
            raise
        except (Exception, SystemExit) as error:
            raise ConfigError(f"strategy {self.name!r}{self._place} cannot be made: {error_text(error)}") from error

    def traits(self, words: Sequence[str]) -> StrategyTraits:
        """`words`: stop words that a fork does not cut. Raises `ConfigError`."""
        sample = self.sample()
        reasons = (sample.post_hoc_reason,) if sample.post_hoc_reason else ()
        return StrategyTraits(reasons, post_hoc_rule(sample, words), self._planned_leaves())

    def _planned_leaves(self) -> float | None:
        """What the options' `planned_leaves` says, with the chains that may be added."""
        planned = getattr(self.options, "planned_leaves", None)
        if planned is None:
            return None
        if not (isinstance(planned, int | float) and 0 < planned < math.inf):
            raise ConfigError(
                f"strategy {self.name!r}{self._place}: planned_leaves = {planned!r}: a number above 0, or None"
            )
        return float(max(planned, self.min_leaves or 0))

    @property
    def _place(self) -> str:
        """Where a user's strategy is, for messages."""
        return "" if plugins.is_built_in("strategy", self.name) else f" ({plugins.place_of(self.name)})"


def _checked(strategy: object, *, at: str = "") -> Strategy:
    """Refuse an object that is not a strategy: name what it lacks, or what it declares wrongly. For one more version
    it also reads `unpredictable`, the old name of `post_hoc_reason`."""
    if hasattr(strategy, "unpredictable") and not hasattr(strategy, "post_hoc_reason"):
        type(strategy).post_hoc_reason = property(lambda each: each.unpredictable)  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(strategy, Strategy):
        if faults := list(_declared_faults(strategy)):
            raise ConfigError(f"{type(strategy).__name__}{at}: {'; '.join(faults)}")
        return strategy
    wanted = ("measures", "is_order_free", "post_hoc_reason", "ask", "tell", "is_done", "phase")
    lacking = sorted(set(wanted) - set(dir(strategy)))
    raise ConfigError(f"{type(strategy).__name__}{at} is no strategy: it lacks {', '.join(lacking)}")


def _declared_faults(strategy: Strategy) -> Iterator[str]:
    """What is wrong with the attributes that a strategy declares, a phrase each."""
    declared: dict[str, Any] = {
        name: getattr(strategy, name) for name in ("measures", "is_order_free", "post_hoc_reason")
    }
    if isinstance(declared["measures"], str) or not (
        isinstance(declared["measures"], Set) and all(isinstance(name, str) for name in declared["measures"])
    ):
        yield f"measures = {declared['measures']!r}: a frozenset of names is needed, e.g. frozenset({{'entropy'}})"
    if not isinstance(declared["is_order_free"], bool):
        yield f"is_order_free = {declared['is_order_free']!r}: True or False is needed"
    if not isinstance(declared["post_hoc_reason"], str):
        yield f"post_hoc_reason = {declared['post_hoc_reason']!r}: a text is needed, '' if there is no reason"
    has = {name for name in ("vote", "candidates") if hasattr(strategy, name)}
    if len(has) == 1:
        yield f"it has {has.pop()} alone: a search has both vote and candidates, any other strategy neither"
    elif isinstance(strategy, SearchStrategy) and strategy.vote not in get_args(Vote):
        yield f"vote = {strategy.vote!r}: one of {', '.join(map(repr, get_args(Vote)))} is needed"


def _options(strategy: Any, config: RunConfig) -> Any:
    """The strategy's own `Config`, from the run's options."""
    options, _, faults = read_options(plugins.config_class(strategy), config.strategy.options)
    if options is None:
        raise ConfigError("; ".join(f"{fault.path}: {fault.message}" for fault in faults))
    return options
