"""Worlds for strategies that look at single tokens: paths of one-letter tokens with a logprob of their own each."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from tests.strategies.world import CODEC

from ramify.core.command import Grow, Score, Tokens
from ramify.core.seeds import child_seed
from ramify.core.segment import Finish, Segment, ToolCall, Usage, token_array
from ramify.core.tree import Step, Tree
from ramify.runner.driver import Start

Law = Callable[[int, int], float]
"""(seed, position on the branch) -> logprob of the token there."""
OBSERVATION = "="


def drawn(seed: int, position: int) -> float:
    """A logprob that differs from token to token."""
    return -float(np.random.default_rng((seed, position)).exponential())


class TokenWorld:
    """Paths of `length` sampled tokens, all of them one `letter`, with an observation after every `turn` of them.

    A growth of tokens ends where its last token is, or behind the observation that is due there.
    """

    def __init__(
        self, *, length: int = 12, turn: int = 1000, law: Law = drawn, letter: str = "x", stop: str = "answer"
    ) -> None:
        self._length, self._turn, self._law, self._letter, self._stop = length, turn, law, letter, stop

    def steps(self, tree: Tree, start: Start) -> list[Step]:
        assert isinstance(start.command, Grow) and start.place is not None
        branch = tree.branch(start.place.parent)
        seed, position, num_before = start.place.seed, start.place.position, int(branch.is_sampled.sum())
        until = start.command.until
        left = until.n if isinstance(until, Tokens) else self._length
        steps: list[Step] = []
        while True:
            number = min(left, self._length - num_before, self._turn - num_before % self._turn)
            logprobs = [self._law(seed, position + i) for i in range(number)]
            left, num_before = left - number, num_before + number
            is_end, is_turn = num_before == self._length, num_before % self._turn == 0
            steps.append(self._step(logprobs, is_end=is_end, is_turn=is_turn, reward=float(seed % 2)))
            if is_end or not left or (until == "step" and is_turn):
                return steps
            position += number + is_turn * len(OBSERVATION)
            seed = child_seed(seed, position, 0)

    def _step(self, logprobs: list[float], *, is_end: bool, is_turn: bool, reward: float) -> Step:
        action = Segment(
            "sampled",
            token_array(CODEC.encode(self._letter * len(logprobs))),
            logprobs=np.array(logprobs, np.float32),
            finish=Finish("stop" if is_turn or is_end else "length"),
            usage=Usage(1, len(logprobs)),
        )
        if is_end:
            return Step((action,), stop=self._stop, scores=(Score("world", reward),))
        observed = Segment("given", token_array(CODEC.encode(OBSERVATION)), tool_call=ToolCall("calc", "", result=""))
        return Step((action, observed) if is_turn else (action,))


class BareWorld(TokenWorld):
    """The same from an engine that gives no logprobs."""

    def _step(self, logprobs: list[float], *, is_end: bool, is_turn: bool, reward: float) -> Step:
        step = super()._step(logprobs, is_end=is_end, is_turn=is_turn, reward=reward)
        return replace(step, segments=(replace(step.segments[0], logprobs=None), *step.segments[1:]))
