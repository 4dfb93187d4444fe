"""Checks of call counts: what a search asks for when nothing ends early, counted on the real strategies."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tests.strategies.world import CODEC, QUOTING, journey, text_step

from ramify.core.command import Grow, Judge, Role
from ramify.core.segment import Segment, token_array
from ramify.core.strategy import Strategy
from ramify.core.tree import Step, Tree
from ramify.runner.driver import Asked, Start
from ramify.strategies.beam import AS_PUBLISHED, RSTAR, Beam
from ramify.strategies.best_of_n import BestOfN, BestOfNConfig
from ramify.strategies.dvts import DVTS, DVTSConfig
from ramify.strategies.tot.search import ToT, ToTConfig

Input = Mapping[str, Any]
TOKENS = 16
"""Tokens of a growth."""
ROLE: Mapping[str, Role] = {"critique": "critique", "rollout": "probe", "lookahead": "probe"}
"""Action -> role of what it grows, if it is not the policy's."""


@dataclass(frozen=True, slots=True)
class Requests:
    """What a whole search asked for."""

    tree: Tree
    grows: Mapping[str, int]
    """Action -> growths."""
    judged: Mapping[str, int]
    """Judge -> nodes that it was asked about."""
    num_judge_requests: int

    @property
    def tokens(self) -> dict[str, int]:
        """Role -> tokens sampled."""
        return {role: spend.decode for role, spend in self.tree.spent().items() if spend.decode}

    def depths_of_forks(self, rule: str) -> list[int]:
        """Depth of each place where a fork of this rule was made."""
        return [self.tree.depth(fork.node) for fork in self.tree.forks if fork.rule == rule]


class Endless:
    """Steps of `TOKENS` tokens that all differ. A path ends where a growth goes to the end, or after `depth` steps."""

    def __init__(self, depth: int | None = None) -> None:
        self._depth = depth

    def steps(self, tree: Tree, start: Start) -> list[Step]:
        assert isinstance(start.command, Grow) and start.place is not None
        command, place = start.command, start.place
        if command.action == "dummy":
            return [Step((Segment("given", token_array(CODEC.encode("no"))),), "answer", action="dummy")]
        is_fresh = command.action in QUOTING
        has_ended = is_fresh or command.until == "end" or tree.depth(place.parent) + 1 == self._depth
        step = text_step(
            f"{place.seed:0{TOKENS}x}",
            stop="answer" if has_ended else None,
            role=ROLE.get(command.action, "policy"),
            action=command.action,
        )
        return [replace(step, edge="quotes") if is_fresh else step]


def requests(strategy: Strategy, world: Endless | None = None) -> Requests:
    """Play a whole search."""
    trip = journey(strategy, world or Endless())
    asked = [command for event in trip.events if isinstance(event, Asked) for command in event.commands]
    judges = [command for command in asked if isinstance(command, Judge)]
    judged = Counter[str]()
    for command in judges:
        judged[command.judge] += len(command.nodes)
    grows = Counter(command.action for command in asked if isinstance(command, Grow))
    return Requests(trip.tree, dict(grows), dict(judged), len(judges))


def counted(strategy: Strategy) -> dict[str, int]:
    """Growths and judged nodes of a whole search."""
    found = requests(strategy)
    return {"generate": sum(found.grows.values()), "judge": sum(found.judged.values())}


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def best_of_n(given: Input) -> Strategy:
    return BestOfN(BestOfNConfig(n=given["n"], judge="process"), rng())


def self_consistency(given: Input) -> Strategy:
    return BestOfN(BestOfNConfig(n=given["n"], vote="majority"), rng())


def dvts(given: Input) -> Strategy:
    samples = given.get("beam_width", 4)
    return DVTS(DVTSConfig(width=given["n"] // samples, samples=samples, max_depth=given["levels"]), rng())


def hf_beam(given: Input) -> Strategy:
    samples = given.get("beam_width", 4)
    options = {"width": given["n"] // samples, "samples": samples, "max_depth": given["levels"]}
    return Beam(replace(AS_PUBLISHED, **options), rng())


def rstar_beam(given: Input) -> Strategy:
    return Beam(replace(RSTAR, width=given["width"], samples=given["samples"], max_depth=given["levels"]), rng())


def tot_bfs(given: Input) -> Strategy:
    config = ToTConfig(width=given["k"], num_levels=given["levels"], attempts=given["votes"])
    return ToT(replace(config, bfs=replace(config.bfs, num_kept=given["b"])), rng())


SEARCHES: Mapping[str, Callable[[Input], Strategy]] = {
    "best_of_n": best_of_n,
    "self_consistency": self_consistency,
    "dvts": dvts,
    "hf_beam": hf_beam,
    "rstar_bs": rstar_beam,
    "tot_bfs": tot_bfs,
}


def call_count(given: Input, mode: str | None) -> dict[str, int]:
    return counted(SEARCHES[given["algorithm"]](given))
