"""Trees for the tests of credit and rows, grown through the core with a decision for every fork."""

import random
from collections.abc import Sequence

import numpy as np

from ramify.core.codec import ByteCodec
from ramify.core.command import Fork, Grow, Score
from ramify.core.errors import ContractError
from ramify.core.growth import Done, Ending, Failure, Growth
from ramify.core.problem import Problem
from ramify.core.segment import Origination, Sampling, Segment, ToolCall, token_array
from ramify.core.tree import ROOT, Step, Tree

CODEC = ByteCodec(is_exact=True)
SOURCE = Origination("scripted", Sampling(0.7), "scaled")


def bare(*, codec: ByteCodec = CODEC, public: dict[str, object] | None = None) -> Growth:
    prompt = Segment("prompt", token_array(codec.encode("go: ")))
    return Growth(Tree(Problem("p", "go", public=public or {}), codec, [prompt], seed=7))


def sampled(text: str, *, version: int | None = None) -> Segment:
    ids = token_array(CODEC.encode(text))
    return Segment("sampled", ids, logprobs=-ids.astype(np.float32) / 1000, source=SOURCE, version=version)


def observed(text: str) -> Segment:
    return Segment("given", token_array(CODEC.encode(text)), tool_call=ToolCall("t", "", result=text))


def step(text: str) -> Step:
    """A step that goes on: sampled tokens and an observation."""
    return Step((sampled(text), observed("=")))


def end(text: str, reward: float | None, stop: str = "answer") -> Step:
    """A step that ends its path."""
    scores = () if reward is None else (Score("j", reward, (("part", reward),)),)
    return Step((sampled(text),), stop=stop, scores=scores)


def failed(stop: str = "engine_error") -> Step:
    """The empty step that says how a growth failed."""
    return Step((), stop=stop, notes={"reason": stop})


def ask(growth: Growth, node: int, number: int, *, at: int | None = None, **fork: object) -> list[int]:
    """One decision to grow `number` children; returns its commands."""
    first = growth.ask(Grow(node, at=at, fork=Fork(number, str(fork.pop("rule", "test")), **fork)))  # type: ignore[arg-type]
    decision, place = len(growth.tree.forks) - 1, growth.flights[first].place
    assert place is not None
    return [first, *(growth.ask(Grow(place.parent, fork=decision)) for _ in range(number - 1))]


def give(growth: Growth, command: int, *steps: Step, ending: Ending | None = None) -> int:
    """Complete a command with steps; returns its last node."""
    for one in steps:
        growth.grow(command, one)
    has_failed = bool(steps) and steps[-1].stop in ("engine_error", "cancelled", "replay_diverged")
    outcome = growth.end(command, ending or (Failure("fault") if has_failed else Done()))
    return outcome.nodes[-1] if outcome.nodes else -1


def fork(growth: Growth, node: int, *chains: Sequence[Step], at: int | None = None, **options: object) -> list[int]:
    """One decision whose children are these chains; returns their last nodes."""
    commands = ask(growth, node, len(chains), at=at, **options)
    return [give(growth, command, *steps) for command, steps in zip(commands, chains, strict=True)]


def nested() -> Tree:
    """Two stems; the first forks in three below a turn, the second in two with unequal shares. All predictable."""
    growth = bare()
    one, two = fork(growth, ROOT, [step("ab")], [step("c")])
    inner = give(growth, growth.ask(Grow(one)), step("d"))
    fork(growth, inner, [end("e", 1.0)], [end("ff", 0.0)], [step("g"), end("h", 0.5)])
    fork(growth, two, [end("i", 0.25)], [end("j", -1.0)], shares=(0.75, 0.25))
    return growth.tree


def wild(seed: int) -> Tree:
    """A random tree: stems, chains, tool turns, critiques, forks at any position, faults, every kind of leaf."""
    rng = random.Random(seed)
    growth = bare()
    tips = fork(growth, ROOT, *[_chain(rng) for _ in range(rng.randint(1, 4))])
    for _ in range(rng.randint(0, 6)):
        node = rng.choice([tip for tip in tips if tip > 0] or [ROOT])
        at = rng.randint(0, growth.tree.length(node))
        chains = [_chain(rng) for _ in range(rng.randint(1, 3))]
        try:
            tips += fork(growth, node, *chains, at=at, rule=rng.choice(["a", "b"]))
        except ContractError:
            critique = Step((sampled("bad"),), edge="quotes", role="critique", action="critique")
            give(growth, growth.ask(Grow(node if not growth.tree.is_ended(node) else ROOT)), critique)
    return growth.tree


def _chain(rng: random.Random) -> list[Step]:
    letters = "".join(rng.choices("abcdefgh", k=5))
    steps = [step(letters[: rng.randint(1, 4)]) for _ in range(rng.randint(0, 2))]
    stop = rng.choice(["answer", "answer", "length", "tool_limit", "budget", "engine_error", "cancelled"])
    last = failed(stop) if stop in ("engine_error", "cancelled") else end(letters, rng.choice([0.0, 1.0, 0.5]), stop)
    return [*steps, last]
