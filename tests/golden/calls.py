"""Checks of call counts: what a search asks for when nothing ends early, counted on the real strategies."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from tests.strategies.world import journey, text_step

from ramify.core.command import Grow, Judge
from ramify.core.strategy import Strategy
from ramify.core.tree import Step, Tree
from ramify.runner.driver import Asked, Start
from ramify.strategies.beam import AS_PUBLISHED, RSTAR, Beam
from ramify.strategies.best_of_n import BestOfN, BestOfNConfig
from ramify.strategies.dvts import DVTS, DVTSConfig
from ramify.strategies.tot.search import ToT, ToTConfig

Input = Mapping[str, Any]


class Endless:
    """Steps that all differ and never end, but for growths to the end."""

    def steps(self, tree: Tree, start: Start) -> list[Step]:
        assert isinstance(start.command, Grow) and start.place is not None
        return [text_step(f"{start.place.seed:016x}", stop="answer" if start.command.until == "end" else None)]


def counted(strategy: Strategy) -> dict[str, int]:
    """Growths and judged nodes of a whole search."""
    trip = journey(strategy, Endless())
    asked = [command for event in trip.events if isinstance(event, Asked) for command in event.commands]
    num_judged = sum(len(command.nodes) for command in asked if isinstance(command, Judge))
    return {"generate": sum(isinstance(command, Grow) for command in asked), "judge": num_judged}


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
