"""Worlds: replace the model, the tools and the judges when a strategy is tested alone.

A world answers each command of a strategy with steps that depend only on the command's place: the same commands grow
the same tree, in whatever order they are carried out. `journeys.py` drives a strategy through a world.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from ramify.core.codec import ByteCodec
from ramify.core.command import Grow, Judge, Role, Score, Tokens
from ramify.core.problem import Problem
from ramify.core.seeds import child_seed
from ramify.core.segment import Finish, Segment, ToolCall, Usage, token_array
from ramify.core.tree import Step, Tree
from ramify.runner.driver import Start

CODEC = ByteCodec(is_exact=True)
MAX_STEPS = 6
MAX_STEP_TOKENS = 5
UNLIMITED = 10**9
ROLES: dict[str, Role] = {"probe": "probe", "lookahead": "probe", "critique": "critique"}
QUOTING = frozenset({"critique", "refine", "rewrite"})
"""Actions that begin a fresh context; their ends have no reward."""

JudgeOf = Callable[[Tree, Judge], Sequence[float | None]]
"""One value per node of the command; None = no score."""


class StrategyWorld(Protocol):
    """Answers commands."""

    def steps(self, tree: Tree, start: Start) -> list[Step]:
        """The steps that the `Grow` of `start` adds to the tree."""
        ...


def bare_tree(seed: int = 7) -> Tree:
    """A tree that has only its opening context."""
    prompt = Segment("prompt", token_array(CODEC.encode("make 3 from 1 2: ")))
    return Tree(Problem("p", "make 3 from 1 2"), CODEC, [prompt], seed=seed)


@lru_cache(maxsize=20_000)
def sampled_step(
    num_sampled: int, *, entropy: float, stop: str | None, role: Role = "policy", reward: float = 0.0, seed: int = 0
) -> Step:
    """A step of the policy, with an observation after it unless the path ends. Equal calls return one object."""
    letters = np.random.default_rng(seed).integers(97, 123, num_sampled)
    action = Segment(
        "sampled",
        token_array(letters),
        logprobs=np.full(num_sampled, -0.5, np.float32),
        finish=Finish("stop", "</calc>"),
        usage=Usage(1, num_sampled),
    )
    observation = Segment("given", token_array(CODEC.encode("=")), tool_call=ToolCall("calc", "1+2", result="="))
    return Step(
        (action,) if stop else (action, observation),
        stop=stop,
        role=role,
        measures={"step_entropy_topk": entropy},
        scores=(Score("world", reward),) if stop and role == "policy" else (),
    )


class SeededWorld:
    """Steps and their lengths depend only on the place's seed. A path has at most `MAX_STEPS` steps, not counting steps
    cut short.

    A growth of tokens that ends inside a step leaves it without an observation; the next growth begins a new step.

    With `prunes` a share of the paths is given up. With `coins` half of these end by random termination and the others
    go on. A path whose allotment is used up ends with `budget`.
    """

    def __init__(self, *, prunes: bool = False, coins: bool = False) -> None:
        self._prunes = prunes or coins
        self._coins = coins

    def steps(self, tree: Tree, start: Start) -> list[Step]:
        assert isinstance(start.command, Grow) and start.place is not None
        command, seed, position = start.command, start.place.seed, start.place.position
        depth = 0 if command.action in QUOTING else tree.depth(start.place.parent)
        role = ROLES.get(command.action, "policy")
        decode, turns = start.allotment.decode or UNLIMITED, start.allotment.turns or UNLIMITED
        calls = start.allotment.tool_calls or UNLIMITED
        wanted = command.until.n if isinstance(command.until, Tokens) else UNLIMITED
        if role == "probe" and wanted < UNLIMITED:
            return [sampled_step(min(wanted, decode), entropy=seed % 100 / 25, stop="budget", role=role, seed=seed)]
        steps: list[Step] = []
        while True:
            depth += 1
            whole = 1 + seed % MAX_STEP_TOKENS
            number = min(whole, wanted, decode)
            is_cut = number < whole
            wanted, decode, turns, calls = wanted - number, decode - number, turns - 1, calls - 1
            is_spent = wanted > 0 and (not decode or (command.until != "step" and not (turns and calls)))
            stop = (None if is_cut else self._stop(seed, depth)) or ("budget" if is_spent else None)
            step = sampled_step(number, entropy=seed % 100 / 25, stop=stop, role=role, reward=seed % 2, seed=seed)
            if self._coins and role == "policy":
                step = self._tossed(step, seed)
                stop = step.stop
            step = replace(step, segments=step.segments[:1]) if is_cut else step
            if command.action in QUOTING:
                step = replace(step, edge="continues" if steps else "quotes", scores=())
            steps.append(step)
            if stop or command.until == "step" or not wanted:
                return steps
            position += sum(len(segment) for segment in steps[-1].segments)
            seed = child_seed(seed, position, 0)

    def _tossed(self, step: Step, seed: int) -> Step:
        """Apply random termination to a step whose path would be given up."""
        if step.stop != "closed":
            return step
        if seed // 35 % 2:
            return replace(step, stop="roulette", scores=())
        return replace(step, stop=None, scores=(), notes={"kept": 0.5})

    def _stop(self, seed: int, depth: int) -> str | None:
        if self._prunes and seed // 7 % 5 == 0:
            return "closed"
        return "answer" if seed // 11 % 4 == 0 else "turn_limit" if depth >= MAX_STEPS else None


def seeded_values(tree: Tree, command: Judge) -> list[float | None]:
    """Values in [0, 1) that depend only on the nodes' seeds and the attempt."""
    return [(tree.node_seed(node) // 13 + command.attempt * 37) % 97 / 97 for node in command.nodes]


def text_step(
    text: str,
    *,
    stop: str | None = None,
    role: Role = "policy",
    logprob: float = -0.5,
    matched: str | None = None,
    **more: Any,
) -> Step:
    """A step in which the model said `text`; each byte is a token, all with the same logprob. `matched`: the stop word
    that ended it."""
    ids = token_array(CODEC.encode(text))
    sampled = Segment(
        "sampled",
        ids,
        logprobs=np.full(len(ids), logprob, np.float32),
        finish=Finish("stop", matched),
        usage=Usage(1, len(ids)),
    )
    return Step((sampled,), stop=stop, role=role, **more)


def path_text(tree: Tree, node: int) -> str:
    """What the model said from the root to `node`."""
    sampled = (s for n in tree.path(node) for s in tree.segments(n) if s.is_sampled)
    return "".join(CODEC.decode(s.ids) for s in sampled)


class ListDraws:
    """Random draws taken from lists. Raises if there are more draws than values."""

    def __init__(self, uniforms: Sequence[float] = (), integers: Sequence[int] = ()) -> None:
        self.uniforms, self.whole = list(uniforms), list(integers)
        self.num_uniforms = 0

    def random(self) -> float:
        self.num_uniforms += 1
        return self.uniforms[self.num_uniforms - 1]

    def integers(self, low: int, /) -> int:
        value = self.whole.pop(0)
        assert 0 <= value < low
        return value
