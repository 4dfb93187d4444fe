"""Checks of the goldens of AB-MCTS and of treequest's bandit; traces are played by the strategy through the driver."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.strategies.world import Journey, text_step

from ramify.core.command import Grow, Judge
from ramify.core.growth import GrowthRules
from ramify.core.tree import ROOT, Step, Tree
from ramify.runner.driver import Asked, Start
from ramify.strategies.ab_mcts.a import ABMCTS, AS_PUBLISHED, ABMCTSConfig
from ramify.strategies.ab_mcts.m import RepeatCounts
from ramify.strategies.parts.posteriors import BetaPrior, GaussianPrior, RunningMean, ucb1

Input = Mapping[str, Any]


class ListedVariates:
    """Variates from a list: of a gamma and a normal each, or of the quantile of a Beta."""

    def __init__(self, draws: Sequence[Any]) -> None:
        self.draws = draws
        self.num_draws = 0
        self._normal = 0.0

    def standard_gamma(self, shape: float, /) -> float:
        gamma, self._normal = self._next()
        return gamma

    def standard_normal(self, size: None = None, /) -> float:
        return self._normal

    def beta(self, a: float, b: float, /) -> float:
        return beta_quantile(self._next(), a, b)

    def random(self) -> float:
        raise AssertionError("AB-MCTS-A draws from its posteriors alone")

    def integers(self, low: int, /) -> int:
        raise AssertionError("AB-MCTS-A draws from its posteriors alone")

    def _next(self) -> Any:
        self.num_draws += 1
        return self.draws[self.num_draws - 1]


class Answering:
    """A world in which every growth is an answer; one below the bare prompt quotes the answer it is derived from."""

    def steps(self, tree: Tree, start: Start) -> list[Step]:
        assert isinstance(start.command, Grow)
        edge = "quotes" if start.command.node != ROOT else "continues"
        return [text_step(f"answer {len(tree)}", stop="answer", action=start.command.action, edge=edge)]


def gaussian_posterior(given: Input, mode: str | None) -> dict[str, float]:
    posterior = GaussianPrior(**given["prior"]).posterior()
    for score in given["observations"]:
        posterior.observe(score)
    found = posterior.parameters
    return {"m": found.m, "kappa": found.kappa, "nu": found.nu, "tau_square": found.tau_square}


def beta_posterior(given: Input, mode: str | None) -> dict[str, float]:
    posterior = BetaPrior(**given["prior"]).posterior()
    for score in given["observations"]:
        posterior.observe(score)
    return {"a": posterior.a, "b": posterior.b}


def gaussian_draw(given: Input, mode: str | None) -> dict[str, float]:
    variates = ListedVariates([(given["gamma"], given["normal"])])
    return {"mu": GaussianPrior(**given["params"]).posterior().draw(variates)}


def beta_draw(given: Input, mode: str | None) -> dict[str, float]:
    return {"mu": BetaPrior(**given["params"]).posterior().draw(ListedVariates([given["u"]]))}


def bound(given: Input, mode: str | None) -> dict[str, object]:
    seen = {action: RunningMean() for action in given["scores"]}
    for action, scores in given["scores"].items():
        for score in scores:
            seen[action].observe(score)
    total = sum(s.count for s in seen.values())
    values = {a: ucb1(s.mean, s.count, total, exploration=given["exploration_weight"]) for a, s in seen.items()}
    finite = {action: None if math.isinf(value) else value for action, value in values.items()}
    return {"values": finite, "selected": max(values, key=values.__getitem__)}


def prunable(given: Input, mode: str | None) -> dict[str, bool]:
    repeats = RepeatCounts()
    for reward in given["subtree_rewards"]:
        repeats.observe(reward)
    return {"prunable": repeats.is_prunable(given["min_size"], given["threshold"])}


def trace(given: Input, mode: str | None) -> dict[str, object]:
    variates = ListedVariates(given["draws"])
    search = ABMCTS(configured(given), variates)
    return {"expansions": expansions(search, given), "num_draws": variates.num_draws}


def configured(given: Input) -> ABMCTSConfig:
    """The published set with the switches of a case; a prior mean that is a whole number is ignored there."""
    actions, means = given["actions"], given["reward_average_priors"]
    by_action = [means[action] for action in actions] if isinstance(means, Mapping) else [means]
    published = AS_PUBLISHED
    return ABMCTSConfig(
        **derived(actions, len(given["scores"])),
        family=given["dist"],
        model_selection=given["model_selection"],
        reward_average_priors=() if isinstance(means, int | None) else tuple(by_action),
        max_in_flight=given["batch"],
        in_flight=published.in_flight,
        refill=published.refill,
    )


def derived(actions: Sequence[str], num_answers: int) -> dict[str, Any]:
    """Every action of a case as a way of answering: under its name from the bare prompt, with `+` where it quotes."""
    quoting = tuple(f"{action}+" for action in actions)
    return {"first_actions": tuple(actions), "actions": quoting, "judge": "score", "num_answers": num_answers}


def expansions(search: Any, given: Input) -> list[list[object]]:
    """What a search grew, as ids of creation with -1 for the root, and the action."""
    scores: Iterator[float] = iter(given["scores"])

    def judge(tree: Tree, command: Judge) -> list[float]:
        return [next(scores) for _ in command.nodes]

    quoting = frozenset(f"{action}+" for action in given["actions"])
    trip = Journey(search, Answering(), judge=judge, rules=GrowthRules(quoting=quoting)).run()
    asked = (command for event in trip.events if isinstance(event, Asked) for command in event.commands)
    return [[c.node - 1, c.action.removesuffix("+")] for c in asked if isinstance(c, Grow)]


def beta_quantile(u: float, a: float, b: float) -> float:
    """The x in [0, 1] below which a Beta(a, b) lies with probability `u`, by halving."""
    low, high = 0.0, 1.0
    while True:
        middle = (low + high) / 2
        if middle in (low, high):
            return middle
        if beta_cdf(middle, a, b) < u:
            low = middle
        else:
            high = middle


def beta_cdf(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function, by its continued fraction where that converges fast."""
    if x > (a + 1) / (a + b + 2):
        return 1 - beta_cdf(1 - x, b, a)
    if x <= 0:
        return 0.0
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(log_front) / a / _fraction(x, a, b)


def _fraction(x: float, a: float, b: float, terms: int = 400) -> float:
    """1 + d1 / (1 + d2 / (1 + ...)), from its far end."""
    value = 1.0
    for n in range(terms, 0, -1):
        m = n // 2
        if n % 2:
            d = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            d = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        value = 1 + d / value
    return value
