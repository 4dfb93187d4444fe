"""Replies: what the model says in a scenario, the same to an original's loop and to ours.

A reply depends on the scenario's seed, on the text of the context and on how many requests had that context before, so
that copies of a prompt and branches of a path differ. Both loops bring the requests with equal contexts in the same
order. If one of them feeds anything else than the other, all that follows differs.
"""

import random
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

from ramify.core.codec import Codec
from ramify.core.engine import Generation, Request
from ramify.core.segment import token_array
from ramify.testing.scripted import SCRIPTED, Scripted
from ramify.testing.scripts import ScriptedTurn, Speech

Saying = Callable[[random.Random, str], str | Speech]
"""What is said after a context, drawn from the generator."""

ASCII = ("who", "wrote", "it", "Doc 1(Title:", "\n", "information", "3 < 4 >", "</", "<b>", "sear", "answer")
WORDS = (*ASCII, "née", "数")


class Replies:
    """A rule of the scripted engine. End tokens inside a context are no part of its text."""

    def __init__(self, seed: object, saying: Saying, codec: Codec) -> None:
        self._seed, self._saying = seed, saying
        self._end = codec.decode([codec.eos_id])
        self._num_met: Counter[str] = Counter()

    def __call__(self, turn: ScriptedTurn) -> str | Speech:
        context = turn.context.replace(self._end, "") if self._end else turn.context
        number = self._num_met[context]
        self._num_met[context] += 1
        return self._saying(random.Random(f"{self._seed} {number} {context}"), context)


def engine(seed: object, saying: Saying, codec: Codec, *, context_length: int = 1_000_000) -> Scripted:
    capabilities = replace(SCRIPTED, context_length=context_length)
    return Scripted(Replies(seed, saying, codec), codec=codec, capabilities=capabilities)


def generated(
    engine: Scripted, contexts: Sequence[Sequence[int]], *, max_tokens: int, stops: Sequence[str] = (), topk: int = 0
) -> list[Generation]:
    """What the engine gives an original's loop for a batch of contexts."""
    requests = [Request(token_array(ids), max_tokens, seed=0, stops=tuple(stops), topk=topk) for ids in contexts]
    return [_now(engine.generate(request)) for request in requests]


def _now(answer: Coroutine[Any, Any, Generation]) -> Generation:
    """What a coroutine returns that waits for nothing, as the scripted engine's does."""
    try:
        answer.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("the scripted engine waits")


def words(rng: random.Random, low: int, high: int, among: Sequence[str] = ASCII) -> str:
    """From `low` to `high` words, with numbers, so that no two texts are likely to be the same."""
    return " ".join(rng.choice(among) + str(rng.randrange(100)) for _ in range(rng.randint(low, high)))
