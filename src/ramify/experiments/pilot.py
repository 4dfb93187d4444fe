"""Pilot: grows a few problems as trees with forks at every depth. A plan is computed from these trees.

First a few chains show how many steps paths have. Then the strategy `planned`, whose forks are decided in advance,
grows the pilot's trees. The pilot uses other seeds than the run, because trees that decide a shape may not be trained
with it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from ramify.config.configure import TASK_PRUNE
from ramify.config.run_config import RunConfig, StrategyConfig
from ramify.core.errors import ConfigError
from ramify.core.limits import Limits
from ramify.core.prices import A_TOKEN, Prices
from ramify.core.problem import Problem
from ramify.core.stop import KEPT
from ramify.core.tree import Tree
from ramify.credit.grown import forest_of
from ramify.planner.levels import levels
from ramify.planner.pilot import STEM, Pilot, PilotTree
from ramify.runner import build, library
from ramify.runner.events import Event, Observer, TreeClosed
from ramify.runner.tools import tools_of

DECODE: Final = Prices(prompt=0.0, output=1.0)
"""Costs are decode tokens: a sampled token costs 1, a context token 0."""
CHAINS: Final = StrategyConfig(name="chains", options={"n": 2})
STEMS: Final = 4
CHILDREN: Final = 2.0
MAX_WIDENING: Final = 8.0
"""Most paths per stem (root branch) of the pilot. In deep pilots the number of children is random, below two on
average."""
MAX_DEPTHS: Final = 8
REACHED: Final = 0.25
"""The pilot forks at a depth if at least this share of paths continues after it."""
FIRST_CHAINS: Final = 8
"""Number of problems for the first chains."""
SEED: Final = 7_919
"""Added to the run's seed."""
NUM_PROBLEMS: Final = 60
"""Default number of problems if the run has no stated size: about half a minute with the built-in model."""
SHARE: Final = 0.05
"""Share of a run's decode tokens that its pilot takes, if the run's size is stated."""
MAX_PROBLEMS: Final = 400
Watch = Callable[[str, int], AbstractContextManager[Observer]]
"""(title, number of trees) -> an observer of the trees that are grown inside."""


@contextmanager
def unseen(_title: str, _number: int) -> Iterator[Observer]:
    """A `Watch` that shows nothing."""
    yield lambda event: None


@dataclass(frozen=True, slots=True)
class PilotRun:
    """A pilot and its cost."""

    pilot: Pilot
    children: tuple[float, ...]
    """Children per fork of its trees, as the strategy `planned` takes them."""
    decode: int
    """Sampled tokens, first chains included."""
    cost_a_token: float
    """Cost of a chain per decode token, including its context; 1 if only decode tokens cost."""
    caveats: tuple[str, ...]
    """Sentences about what the pilot could not measure."""

    @property
    def cost_a_path(self) -> float:
        """Mean cost of a chain, in the pilot's prices."""
        return _cost_a_path(self.pilot.trees, self.pilot.num_levels)


def grow_pilot(
    config: RunConfig,
    *,
    num_problems: int | None = None,
    run_tokens: int | None = None,
    run_paths: int | None = None,
    prices: Prices,
    watch: Watch,
) -> PilotRun:
    """Grow the pilot of a run with `num_problems`, or with as many as `SHARE` of the run's decode tokens pays for.

    The size of the run is `run_tokens`, or the tokens of `run_paths` chains. Raises `ConfigError` if fewer than two
    problems gave a tree with two rewarded stems.
    """
    task = build.build_task(config)
    with watch("first chains", FIRST_CHAINS) as observe:
        chains, decode = _grown(config, CHAINS, task.problems(config.task.split, FIRST_CHAINS, config.seed), observe)
    profile, caveats = _profile_of(chains), list[str]()
    if stuck := [tool.name for tool in tools_of(task, config.tools) if tool.branching == "refuse"]:
        profile = profile.unforked()
        caveats.append(
            f"the state of {', '.join(stuck)} cannot be branched, and forks would be refused: the pilot grows chains"
        )
    if run_tokens is None and run_paths is not None:
        run_tokens = round(run_paths * sum(profile.tokens))
    number = num_problems or profile.num_problems(run_tokens)
    with watch("pilot", number) as observe:
        problems = task.problems(config.task.split, number, config.seed)
        planned = StrategyConfig(name="planned", options={"children": list(profile.children)})
        trees, more = _grown(config, planned, problems, observe)
    num_levels = len(profile.children)
    found = [pilot_tree(tree, prices, num_levels=num_levels) for tree in trees]
    flown = [tree for tree in found if tree is not None]
    if len(flown) < 2:
        raise ConfigError(
            f"{len(flown)} of {number} problems gave two stems with a reward; a pilot needs 2 such problems: give it "
            "more problems"
        )
    if len(flown) < number:
        caveats.append(
            f"left out {number - len(flown)} of {number} problems: they gave fewer than two stems with a reward"
        )
    pilot, cost = Pilot(tuple(flown), num_levels), _cost_a_path(flown, num_levels)
    if not cost:
        raise ConfigError(
            f"with {prices!r} nothing costs anything, so no shape is cheaper than another: set a price above 0"
        )
    sampled = (pilot_tree(tree, DECODE, num_levels=num_levels) for tree in trees)
    tokens = _cost_a_path([tree for tree in sampled if tree is not None], num_levels)
    return PilotRun(pilot, profile.children, decode + more, cost / tokens, tuple(caveats))


def _cost_a_path(trees: Sequence[PilotTree], num_levels: int) -> float:
    return float(levels(Pilot(tuple(trees), num_levels)).cost.sum())


@dataclass(frozen=True, slots=True)
class _PathProfile:
    """The decode tokens of a path in each level, from a few chains of the task. The last level has all tokens after the
    deepest fork."""

    tokens: tuple[float, ...]

    def unforked(self) -> "_PathProfile":
        return _PathProfile((sum(self.tokens),))

    @property
    def children(self) -> tuple[float, ...]:
        """Children per fork of the pilot's trees, at the prompt and after each step."""
        num_depths = len(self.tokens) - 1
        behind = min(CHILDREN, MAX_WIDENING ** (1 / num_depths)) if num_depths else 1.0
        return (float(STEMS), *[round(behind, 2)] * num_depths)

    def num_problems(self, run_tokens: int | None) -> int:
        if run_tokens is None:
            return NUM_PROBLEMS
        a_tree = float((np.cumprod(self.children) * self.tokens).sum())
        number = int(SHARE * run_tokens / a_tree)
        if number < 2:
            raise ConfigError(
                f"{SHARE:.0%} of the run's {run_tokens} decode tokens pay for {number} pilot trees of {a_tree:.0f}: "
                "plan for a larger run, or say how many problems the pilot has"
            )
        return min(number, MAX_PROBLEMS)


def _profile_of(trees: Sequence[Tree]) -> _PathProfile:
    paths = [np.array([t.num_billed(node) for node in t.path(leaf)[1:]]) for t in trees for leaf in t.leaves()]
    if not paths:
        raise ConfigError("the pilot's first chains gave no path: run `ramify rollout` to see why")
    going_on = [np.mean([len(path) > depth for path in paths]) for depth in range(1, MAX_DEPTHS + 1)]
    num_depths = sum(bool(share >= REACHED) for share in going_on)
    tokens = [float(np.mean([path[depth : depth + 1].sum() for path in paths])) for depth in range(num_depths)]
    return _PathProfile((*tokens, float(np.mean([path[num_depths:].sum() for path in paths]))))


def pilot_tree(tree: Tree, prices: Prices, *, num_levels: int) -> PilotTree | None:
    """The part of a tree that a plan reads; None = fewer than two stems ended with a reward."""
    forest = forest_of(tree, unjudged="drop")
    if len(forest.stems) < 2:
        return None
    level = np.zeros(len(forest), np.int32)
    for i, parent in enumerate(forest.parent.tolist()):
        level[i] = 0 if parent == STEM else min(level[parent] + 1, num_levels - 1)
    nodes = forest.nodes.tolist()
    return PilotTree(
        parent=forest.parent,
        level=level,
        reward=forest.reward,
        cost=np.array([_cost(tree, node, prices) for node in nodes]),
        given_up=np.array([KEPT in tree.notes(node) for node in nodes]),
    )


def _cost(tree: Tree, node: int, prices: Prices) -> float:
    return sum(prices.cost(segment.usage) for segment in tree.segments(node)) / A_TOKEN


def _grown(
    config: RunConfig, strategy: StrategyConfig, problems: Sequence[Problem], observe: Observer
) -> tuple[list[Tree], int]:
    """Grow trees with the run's own model, task and growth, without the settings that a plan decides. Returns the trees
    and their decode tokens. If the prune rule of the run (or else of the task) fires, the path continues and its node
    is marked."""
    growth, seed = replace(config.growth, prune=config.growth.prune or TASK_PRUNE, keep=1.0), config.seed + SEED
    own = replace(config, preset=None, strategy=strategy, growth=growth, credit="auto", seed=seed)
    trees: dict[int, Tree] = {}

    def keep(event: Event) -> None:
        if isinstance(event, TreeClosed):
            trees[event.index] = event.tree

    library.grow(replace(own, limits=Limits(), run_limits=Limits()), problems, observers=[keep, observe])
    decode = sum(spend.decode for tree in trees.values() for spend in tree.spent().values())
    return [trees[index] for index in sorted(trees)], decode
