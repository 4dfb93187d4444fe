"""State search: the configuration of a search over a user's states (`ramify.search`).

It owns which strategies can search states that have nothing but a score, how each is set up for them, and why the
others cannot. A preset gives the strategy and its sizes; what it says of models, prompts and judges is not used.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, Literal, cast

from ramify.config.configure import checked
from ramify.config.presets import preset as find_preset
from ramify.config.presets import preset_names
from ramify.config.run_config import RunConfig
from ramify.core.errors import ConfigError, nearest
from ramify.tasks.states import JUDGE, QUESTION

NUM_CALLS: Final = 100
"""Calls of a search whose budget names nothing."""
MAX_CALLS: Final = 100_000
"""Calls of a search whose budget names seconds or dollars alone."""
BUDGETS: Final[Mapping[str, str]] = {"calls": "engine_calls", "seconds": "seconds", "dollars": "dollars"}
"""Name of a budget -> the limit that it sets."""
EXAMPLES: Final[Mapping[str, Any]] = {"budget": {"calls": 50}, "options": {"width": 4}}
MOST_FAILED: Final = 0.999
"""Share of failed commands beyond which a search stops: of its first calls, all."""

States = Literal["answers", "samples", "steps"]
"""`answers`: every state is a whole answer, and others are derived from it. `samples`: the same, and none is derived.
`steps`: a path goes on until a state is final or the path is as deep as the strategy allows."""


@dataclass(frozen=True, slots=True)
class StateStrategy:
    """How a strategy is set up for states."""

    states: States
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Options that differ from those of its presets."""
    count: str = ""
    """Option that says how many states are made; '' = the sizes of the search say it."""
    at_once: str = ""
    """Option that says how many calls are in flight; '' = it asks for a whole level or expansion at once."""
    depth: str = ""
    """Option that says how deep the tree may be; '' = it has none, and `MAX_DEPTH` holds."""
    ways: tuple[str, ...] = ()
    """Options that list the functions to choose from; empty = it cannot choose among several."""


MAX_DEPTH: Final = 64
TREEQUEST: Final[Mapping[str, Any]] = {
    "width": 2,
    "order": "by_action",
    "choice": {"rule": "uct", "exploration": math.sqrt(2)},
    "prior": {"evidence": "score"},
    "widening": {"kind": "once"},
    "duplicates": "keep",
    "finish": "leave",
    "answer": "best",
    "max_depth": 1000,
}
"""treequest's StandardMCTS; with several calls in flight it counts them as visits."""
DRAFTS: Final[Mapping[str, Any]] = {"score_range": [0.0, 1.0]}
DRAFT_WAYS: Final = ("first_actions", "actions")
STRATEGIES: Final[Mapping[str, StateStrategy]] = {
    "ab_mcts": StateStrategy("answers", DRAFTS, "num_answers", "max_in_flight", ways=DRAFT_WAYS),
    "ab_mcts_m": StateStrategy("answers", DRAFTS, "num_answers", "max_in_flight", ways=DRAFT_WAYS),
    "beam": StateStrategy("steps", depth="max_depth"),
    "best_first": StateStrategy("answers", DRAFTS, "num_answers", "pops", ways=DRAFT_WAYS),
    "best_of_n": StateStrategy("samples", {"vote": "best"}, "n", "in_flight"),
    "dvts": StateStrategy("steps", depth="max_depth"),
    "lats": StateStrategy("steps", depth="depth_limit"),
    "mcts": StateStrategy("steps", {**TREEQUEST, "outcome": JUDGE}, "n", "in_flight", "max_depth", ways=("actions",)),
    "particle_filter": StateStrategy("steps", depth="max_depth"),
    "rap": StateStrategy("steps", {"fast_judge": JUDGE}, depth="depth_limit"),
    "rebase": StateStrategy("steps", depth="max_depth"),
    "reject": StateStrategy("steps", {"outcome": JUDGE}, at_once="in_flight"),
    "rstar_mcts": StateStrategy("steps", {"outcome": JUDGE}, at_once="in_flight", depth="max_depth"),
    "tot": StateStrategy("steps", {"attempts": 1}, depth="num_levels"),
}
"""Strategy -> how it searches states."""
TEXTS: Final = "it asks models for critiques, which a state with a score does not have"
WHY_NOT: Final[Mapping[str, str]] = {
    "mctsr": TEXTS,
    "refine_chain": TEXTS,
    "chains": "it scores nothing; best_of_n keeps the best of as many",
}
"""Strategy -> why it cannot search states. The others grow token by token, for training."""


def state_presets() -> tuple[str, ...]:
    """Names of the presets that can search states."""
    return tuple(sorted(filter(_is_fitting, (*preset_names(), "ab_mcts_m"))))


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSearch:
    """What a search over states is asked to do. Raises `ConfigError`."""

    functions: Sequence[str]
    """Names of the user's functions."""
    preset: str = "ab_mcts"
    budget: Mapping[str, float] = field(default_factory=dict[str, float])
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Options of the strategy that replace those of the preset."""
    max_in_flight: int = 1
    seed: int = 0
    question: str = QUESTION
    dollars_per_call: float | None = None

    def __post_init__(self) -> None:
        for name in ("budget", "options"):
            if not isinstance(value := getattr(self, name), Mapping):
                raise ConfigError(f"{name} = {value!r}; a dict such as {EXAMPLES[name]!r} is needed")
        _check_preset(self.preset)
        _check_names(self.functions)
        if len(self.functions) > 1 and not self.strategy.ways:
            able = ", ".join(sorted(name for name in state_presets() if STRATEGIES[_strategy_of(name)].ways))
            raise ConfigError(
                f"preset {self.preset!r} cannot choose among the functions {', '.join(self.functions)}; give it one "
                f"function, or a preset that can: {able}"
            )
        for name, amount in self.budget.items():
            if name not in BUDGETS:
                raise ConfigError(f"budget: unknown {name!r}; {nearest(name, BUDGETS)}")
            _check_amount(name, amount)
        if "dollars" in self.budget and self.dollars_per_call is None:
            raise ConfigError(
                "a budget in dollars needs dollars_per_call, the most that one call may cost: so much is reserved "
                "before a call starts"
            )

    @property
    def strategy(self) -> StateStrategy:
        return STRATEGIES[_strategy_of(self.preset)]

    @property
    def is_whole(self) -> bool:
        """Whether every state ends its path."""
        return self.strategy.states != "steps"

    def config(self) -> RunConfig:
        """The complete configuration. Raises `ConfigError` for options that the strategy does not take."""
        config = self._checked(depth=MAX_DEPTH)
        depth = config.strategy.options.get(self.strategy.depth)
        return config if self.is_whole or depth is None else self._checked(depth=int(depth))

    def _checked(self, *, depth: int) -> RunConfig:
        config, faults = checked(self._values(1 if self.is_whole else depth))
        if config is None:
            said = (f"{fault.path.removeprefix('strategy.')}: {fault.message}" for fault in faults)
            raise ConfigError(f"preset {self.preset!r}: {'; '.join(said)}")
        return config

    def _values(self, depth: int) -> dict[str, Any]:
        prices = {} if self.dollars_per_call is None else {"prompt": 0.0, "output": self.dollars_per_call * 10**6}
        engines = {name: {"name": "states", "prices": prices} for name in self.functions}
        first = self.functions[0]
        growth: dict[str, Any] = {"max_response_tokens": depth, "max_tool_calls": 0}
        if not self.is_whole:
            # The rule never fires; by it every step has its score at birth, and no strategy asks for it.
            growth |= {"prune": "judged_below", "prune_options": {"below": 0.0}, "prune_judge": JUDGE}
        return {
            "preset": self.preset,
            "task": {"name": "states", "options": {"question": self.question}},
            "prompts": 1,
            "seed": self.seed,
            "engine": engines.pop(first),
            "engines": engines,
            "strategy": {"name": _strategy_of(self.preset), "options": self._options()},
            "actions": {name: self._action(name) for name in ("policy", *self.functions)},
            "growth": growth,
            "limits": {BUDGETS[name]: amount for name, amount in self._budget().items()},
            "max_failed_share": MOST_FAILED,
        }

    def _action(self, name: str) -> dict[str, Any]:
        function = self.functions[0] if name == "policy" else name
        engine = "policy" if function == self.functions[0] else function
        match self.strategy.states:
            case "answers":
                return {"engine": engine, "edge": "quotes", "template": function}
            case "samples":
                return {"engine": engine}
            case "steps":
                return {"engine": engine, "max_tokens": 1}

    def _budget(self) -> dict[str, float]:
        return dict(self.budget) or {"calls": NUM_CALLS}

    def _options(self) -> dict[str, Any]:
        strategy, num_calls = self.strategy, self._budget().get("calls", MAX_CALLS)
        sized = {strategy.count: num_calls, strategy.at_once: self.max_in_flight}
        own = {name: value for name, value in sized.items() if name}
        ways = {name: list(self.functions) for name in strategy.ways}
        set_up = {**_preset_options(self.preset), "judge": JUDGE, **strategy.options, **own, **ways}
        return {**set_up, **{name: _over(set_up.get(name), value) for name, value in self.options.items()}}


def _check_preset(name: str) -> None:
    """Refuse a preset that cannot search states, with the reason."""
    if name not in (*preset_names(), "ab_mcts_m"):
        known = state_presets()
        raise ConfigError(f"unknown preset {name!r}; {nearest(name, known)}")
    if _is_fitting(name):
        return
    strategy, known = _strategy_of(name), state_presets()
    why = (
        "it counts answers that are the same, and nobody knows which states are; best_of_n keeps the best"
        if name == "self_consistency"
        else WHY_NOT.get(strategy, "it forks inside what a model samples, and a state is whole")
    )
    raise ConfigError(
        f"preset {name!r} cannot search the states of a function: {why}. Those that can: {', '.join(known)}"
    )


def _over(before: Any, value: Any) -> Any:
    """An option's value; a table replaces the keys that it has."""
    is_table = isinstance(before, Mapping) and isinstance(value, Mapping)
    return {**cast("Mapping[str, Any]", before), **cast("Mapping[str, Any]", value)} if is_table else value


def _is_fitting(name: str) -> bool:
    """Whether a preset can search states."""
    return name != "self_consistency" and _strategy_of(name) in STRATEGIES


def _check_names(names: Sequence[str]) -> None:
    for name in names:
        if not isinstance(name, str) or not name.strip() or name == "policy":  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"a function is called {name!r}; a name is a text, and 'policy' is taken")
    if not names:
        raise ConfigError("there is no function to call; give one, or a dict of name -> function")


def _check_amount(name: str, amount: Any) -> None:
    is_number = isinstance(amount, int | float) and not isinstance(amount, bool)
    if not is_number or not 0 < amount < math.inf or (name == "calls" and not isinstance(amount, int)):
        kind = "a whole number, at least 1" if name == "calls" else "a finite number above 0"
        raise ConfigError(f"budget: {name} = {amount!r}; {kind} is needed")


@cache
def _strategy_of(name: str) -> str:
    """The strategy of a preset. `ab_mcts_m` has no preset file, because it has the sizes of `ab_mcts`."""
    return name if name == "ab_mcts_m" else str(find_preset(name).values["strategy"]["name"])


def _preset_options(name: str) -> Mapping[str, Any]:
    return {} if name == "ab_mcts_m" else find_preset(name).values["strategy"].get("options", {})
