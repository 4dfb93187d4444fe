"""A world whose paths end as planned, by the places of their segments: (0, 2) is the third child of the first."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from tests.strategies.world import CODEC

from ramify.core.command import Grow, Score, Tokens
from ramify.core.segment import Finish, Segment, ToolCall, Usage, token_array
from ramify.core.tree import Step, Tree
from ramify.runner.driver import Start

Places = tuple[int, ...]


@dataclass(frozen=True)
class End:
    """How one path ends."""

    reward: float | None
    logprob: float = -0.5
    """Of each token of its last segment."""
    stop: str = "answer"
    is_oracle: bool = False


class PlannedWorld:
    """A segment that is not planned to end has as many tokens as were asked for, four if none were.

    With `num_steps` above 1 its tokens lie on as many nodes, a tool result between them.
    """

    def __init__(self, ends: Mapping[Places, End], *, num_steps: int = 1) -> None:
        self._ends = ends
        self._num_steps = num_steps

    def steps(self, tree: Tree, start: Start) -> list[Step]:
        assert isinstance(start.command, Grow) and start.place is not None
        until = start.command.until
        place = (*places(tree, start.place.parent), start.place.index)
        end = self._ends.get(place, End(0.0, stop="length") if until == "end" else None)
        number = until.n if isinstance(until, Tokens) else 4
        middle = [self._step(number, -0.5, observed=True) for _ in range(self._num_steps - 1)]
        return [*middle, self._step(number, -0.5 if end is None else end.logprob, end=end)]

    def _step(self, number: int, logprob: float, *, end: End | None = None, observed: bool = False) -> Step:
        sampled = Segment(
            "sampled",
            token_array(CODEC.encode("x" * number)),
            logprobs=np.full(number, logprob, np.float32),
            finish=Finish("stop" if end else "length"),
            usage=Usage(1, number),
        )
        given = Segment("given", token_array(CODEC.encode("=")), tool_call=ToolCall("calc", "", result=""))
        if end is None:
            return Step((sampled, given) if observed else (sampled,))
        scores = () if end.reward is None else (Score("planned", end.reward, is_oracle=end.is_oracle),)
        return Step((sampled,), stop=end.stop, scores=scores)


def places(tree: Tree, node: int) -> Places:
    """Place of each segment on the way to a node; nodes that no decision made go on with their parent's segment."""
    return tuple(tree.index(n) for n in tree.path(node)[1:] if tree.fork(n) is not None)


def ends_of(tree: Tree) -> dict[Places, int]:
    """Places of every segment -> the node it ends at."""
    return {places(tree, node): node for node in tree.subtree()[1:]}
