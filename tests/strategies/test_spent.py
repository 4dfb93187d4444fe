"""A search that the deadline or the budget of its tree has cut asks for nothing more: it would end there too."""

from typing import Any

import numpy as np
import pytest
from tests.strategies.world import Journey, text_step

from ramify import plugins
from ramify.core.command import Grow
from ramify.core.tree import Step, Tree
from ramify.runner.driver import Start

LATE = 6
"""Growths from here on are cut before their first token."""


class Late:
    """Every growth is an answer, until it is late."""

    def __init__(self, stop: str) -> None:
        self.num_grown, self.stop = 0, stop

    def steps(self, tree: Tree, start: Start) -> list[Step]:
        assert isinstance(start.command, Grow)
        self.num_grown += 1
        edge = "quotes" if start.command.action == "refine" else "continues"
        if self.num_grown > LATE:
            return [Step((), stop=self.stop, edge=edge, action=start.command.action)]
        stop = None if start.command.until == "step" else "answer"
        return [text_step(f"answer {self.num_grown}", stop=stop, edge=edge, action=start.command.action)]


@pytest.mark.parametrize("stop", ["deadline", "budget"])
@pytest.mark.parametrize("at_once", [1, 4])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("ab_mcts", {"num_answers": 1000, "max_in_flight": "at_once"}),
        ("ab_mcts_m", {"num_answers": 1000, "max_in_flight": "at_once"}),
        ("best_first", {"num_answers": 1000, "pops": "at_once"}),
        ("best_of_n", {"n": 1000, "judge": "llm", "in_flight": "at_once"}),
        ("mcts", {"n": 1000, "in_flight": "at_once", "finish": "leave"}),
    ],
)
def test_a_search_ends_where_its_tree_is_spent(name: str, options: dict[str, Any], at_once: int, stop: str) -> None:
    kind = plugins.find("strategy", name)
    config = kind.Config(**{key: at_once if value == "at_once" else value for key, value in options.items()})
    world = Late(stop)
    trip = Journey(kind(config, np.random.default_rng(0)), world).run()
    late = [node for node in range(len(trip.tree)) if trip.tree.stop(node) == stop]
    assert 1 <= len(late) <= 2 * at_once
    assert len(trip.tree) == 1 + world.num_grown
