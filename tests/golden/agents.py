"""Checks of the goldens of agent searches: the arithmetic of LATS, and whole searches of RAP on a table."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from tests.strategies.world import Journey, path_text, text_step

from ramify.core.command import Grow, Judge
from ramify.core.tree import Step, Tree
from ramify.runner.driver import Start
from ramify.strategies.lats import AS_PUBLISHED as LATS_AS_PUBLISHED
from ramify.strategies.lats import LATSConfig, back_up, bound
from ramify.strategies.parts.visited import Visited
from ramify.strategies.rap import AS_PUBLISHED, RAP

Input = Mapping[str, Any]
LATS_CORRECTED = LATSConfig()


def lats_config(mode: str | None) -> LATSConfig:
    return LATS_AS_PUBLISHED if mode == "as_published" else LATS_CORRECTED


def lats_uct(given: Input, mode: str | None) -> dict[str, float | None]:
    """JSON has no infinity: it is null there."""
    config = lats_config(mode)
    score = bound(
        given["value"],
        given["visits"],
        given["parent_visits"],
        mean_of=config.published.mean_of,
        unvisited=config.published.unvisited,
        exploration=config.exploration,
    )
    return {"uct": score if math.isfinite(score) else None}


def lats_backpropagate(given: Input, mode: str | None) -> dict[str, object]:
    states: list[Visited] = []
    for number, known in enumerate(given["path"]):
        above = states[-1] if states else None
        states.append(Visited(number, above, number, value=known["value"], visits=known["visits"]))
    states[-1].has_ended, states[-1].reward = given["leaf_terminal"], given["leaf_reward"]
    back_up(states[-1], given["value"], failed_end=lats_config(mode).failed_end)
    return {"path": [{"visits": state.visits, "value": state.value} for state in states]}


class Actions:
    """Steps from a table of actions by what was done before; a growth beyond its entries fails."""

    def __init__(self, table: Mapping[str, list[Input]]) -> None:
        self._table = table
        self.width = max(map(len, table.values()))

    def action(self, tree: Tree, node: int, index: int) -> Input | None:
        actions = self._table.get(path_text(tree, node), [])
        return actions[index] if index < len(actions) else None

    def failure(self, trip: Journey, command_id: int) -> str | None:
        """Why a growth fails: there are fewer actions than a state is wide."""
        place = trip.driver.growth.flights[command_id].place
        is_there = place is None or self.action(trip.tree, place.parent, place.index) is not None
        return None if is_there else "no_action"

    def steps(self, tree: Tree, start: Start) -> list[Step]:
        assert isinstance(start.command, Grow) and start.place is not None
        action = self.action(tree, start.place.parent, start.place.index)
        assert action is not None
        return [text_step(action["action"], stop="answer" if action["terminal"] else None)]

    def judge(self, tree: Tree, command: Judge) -> list[float | None]:
        """The fast reward or the reward of a step, as the judge is called."""
        found: list[float | None] = []
        for node in command.nodes:
            action = self.action(tree, tree.parent(node) or 0, tree.index(node))
            assert action is not None
            found.append(action["fast_reward" if command.judge == AS_PUBLISHED.fast_judge else "reward"])
        return found


def rap_trace(given: Input, mode: str | None) -> dict[str, object]:
    world = Actions(given["table"])
    config = replace(
        AS_PUBLISHED,
        width=world.width,
        iterations=given["iterations"],
        exploration=given["w_exp"],
        depth_limit=given["depth_limit"],
        cum_reward=given["cum_reward"],
        calc_q=given["calc_q"],
    )
    strategy = RAP(config, np.random.default_rng(0))
    trip = Journey(strategy, world, judge=world.judge, fails=lambda command_id: world.failure(trip, command_id))
    trip.run()
    best = max(strategy.candidates(trip.tree), key=lambda candidate: candidate.score, default=None)
    return {
        "paths": [path_text(trip.tree, tip) for tip in strategy.paths],
        "best": path_text(trip.tree, best.node) if best else None,
        "best_cum_reward": best.score if best else None,
    }
