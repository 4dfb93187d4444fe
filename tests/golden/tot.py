"""Checks of the goldens of Tree of Thoughts: the replies of its judges, its choice, and a whole search."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from tests.strategies.world import Journey, path_text, text_step

from ramify.core.command import Grow, Judge
from ramify.core.tree import Step, Tree
from ramify.judges.replies import Reading, label_value
from ramify.judges.replies import votes as votes_of
from ramify.runner.driver import Asked, Start
from ramify.strategies.parts.proportional import probabilities
from ramify.strategies.tot.bfs import ToTLevels
from ramify.strategies.tot.search import AS_PUBLISHED, ToT, ToTConfig
from ramify.strategies.tot.values import greedy

Input = Mapping[str, Any]
CORRECTED = ToTConfig()


def reading(mode: str | None) -> Reading:
    return "as_published" if mode == "as_published" else "corrected"


def votes(given: Input, mode: str | None) -> dict[str, object]:
    return {"votes": votes_of(given["outputs"], given["num_candidates"], reading=reading(mode))}


def value(given: Input, mode: str | None) -> dict[str, object]:
    return {"value": label_value(given["labels"], reading=reading(mode))}


def select(given: Input, mode: str | None) -> dict[str, object]:
    rules = (AS_PUBLISHED if mode == "as_published" else CORRECTED).bfs
    values = given["values"]
    return {
        "greedy": greedy(values, given["n_select"]),
        "sample_probs": probabilities(values, rules.zero_values),
    }


class Proposals:
    """What a text is continued by, from a table; a growth beyond its entries fails."""

    def __init__(self, given: Input) -> None:
        self._given = given

    def width(self) -> int:
        return max(map(len, self._given["proposals"].values()))

    def proposal(self, tree: Tree, node: int, index: int) -> str | None:
        proposals = self._given["proposals"].get(path_text(tree, node), [])
        return proposals[index] if index < len(proposals) else None

    def steps(self, tree: Tree, start: Start) -> list[Step]:
        assert isinstance(start.command, Grow) and start.place is not None
        proposal = self.proposal(tree, start.place.parent, start.place.index % self.width())
        is_last = tree.depth(start.place.parent) + 1 == self._given["steps"]
        return [text_step(f"{proposal}\n", stop="answer" if is_last else None)]

    def judge(self, tree: Tree, command: Judge) -> list[float | None]:
        return [self._given["values"][path_text(tree, node)] for node in command.nodes]


def bfs(given: Input, mode: str | None) -> dict[str, object]:
    """One search; a value of the table is a sum already, so each candidate is judged once."""
    world = Proposals(given)
    config = AS_PUBLISHED if mode == "as_published" else CORRECTED
    rules = replace(config.bfs, num_kept=given["n_select"])
    config = replace(config, width=world.width(), num_levels=given["steps"], attempts=1, bfs=rules)
    strategy = ToT(config, np.random.default_rng(0))
    trip = Journey(strategy, world, judge=world.judge, fails=lambda command_id: failure(trip, world, command_id))
    trip.run()
    assert isinstance(strategy.walk, ToTLevels)
    levels = [
        {
            "candidates": [path_text(trip.tree, candidate.node) for candidate in level.candidates],
            "values": [candidate.score for candidate in level.candidates],
            "selected": list(level.kept),
        }
        for level in strategy.walk.levels
    ]
    last = strategy.walk.levels[-1]
    asked = [command for event in trip.events if isinstance(event, Asked) for command in event.commands]
    return {
        "levels": levels,
        "final": [path_text(trip.tree, last.candidates[i].node) for i in last.kept],
        "value_calls": sum(isinstance(command, Judge) for command in asked),
    }


def failure(trip: Journey, world: Proposals, command_id: int) -> str | None:
    """Why a growth fails: there are fewer proposals than it is wide."""
    place = trip.driver.growth.flights[command_id].place
    if place is None or world.proposal(trip.tree, place.parent, place.index % world.width()) is not None:
        return None
    return "no_proposal"
