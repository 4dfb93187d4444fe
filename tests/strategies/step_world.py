"""A world whose steps and scores are listed by the text before them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.strategies.world import Journey, path_text, text_step

from ramify.core.command import Grow, Judge
from ramify.core.tree import Step, Tree
from ramify.runner.driver import Asked, Start
from ramify.strategies.parts.levels import LOOKAHEAD

STOPS = {".": "answer", "!": "length"}


class Script:
    """The i-th step at a text is the i-th of its list, again from the first; `.` answers, `!` is cut off."""

    def __init__(self, said: Mapping[str, Sequence[str]]) -> None:
        self.said = said

    def steps(self, tree: Tree, start: Start) -> list[Step]:
        assert isinstance(start.command, Grow) and start.place is not None
        before, found = path_text(tree, start.place.parent), list[Step]()
        role = "probe" if start.command.action == LOOKAHEAD else "policy"
        index = 0 if role == "probe" else start.place.index
        while not found or (start.command.until == "end" and found[-1].stop is None):
            text = self.said[before][index % len(self.said[before])]
            found.append(text_step(text, stop=STOPS.get(text[-1]), role=role))
            before, index = before + text, 0
        return found


def scored(values: Mapping[str, float | None]) -> Callable[[Tree, Judge], list[float | None]]:
    """A judge that knows whole paths by their text."""
    return lambda tree, command: [values[path_text(tree, node)] for node in command.nodes]


def played(
    strategy: Any, said: Mapping[str, Sequence[str]], values: Mapping[str, float | None], **more: Any
) -> Journey:
    return Journey(strategy, Script(said), judge=scored(values), **more).run()


def commands(trip: Journey, kind: type) -> list[Any]:
    return [c for event in trip.events if isinstance(event, Asked) for c in event.commands if isinstance(c, kind)]


def found(strategy: Any, trip: Journey) -> dict[str, float]:
    """Text and score of each answer."""
    return {path_text(trip.tree, c.node): c.score for c in strategy.candidates(trip.tree)}
