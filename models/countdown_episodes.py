"""Countdown demonstrations in the `arpo` format: one random chain of steps that makes the target.

Owns what is learnt from: model and tool pieces (tool pieces teach arithmetic), never the prompt, never a call that was
made wrong on purpose. Pure: randomness comes from the generator handed in.
"""

import random
from collections.abc import Iterator

from models.pieces import Piece, prompt_piece

from ramify.tasks.countdown import (
    DEFAULT_DISTRIBUTION,
    CountdownDistribution,
    CountdownProblem,
    Split,
    draw_chain,
    split_of,
)
from ramify.tools.calculator import CalculatorState, apply


def result_text(text: str) -> str:
    """A tool's text as it enters the transcript."""
    return f" <result>\n{text}\n</result>"


def demonstration(
    problem: CountdownProblem, steps: tuple[str, ...], *, wrong_step: str | None = None, wrong_at: int = 0
) -> tuple[Piece, ...]:
    """The whole episode of one chain of steps; `wrong_step` is called before step `wrong_at`, without loss."""
    pieces = [prompt_piece(problem.question)]
    state = CalculatorState(problem.numbers)
    for index, step in enumerate(steps):
        if wrong_step is not None and index == wrong_at:
            pieces += _call(state, wrong_step, loss=0.0)[1]
        state, call = _call(state, step, loss=1.0)
        pieces += call
    return (*pieces, Piece("model", f"<answer>{problem.target}</answer><|end|>", loss=1.0))


def draw_demonstrations(
    rng: random.Random,
    *,
    distribution: CountdownDistribution = DEFAULT_DISTRIBUTION,
    error_share: float = 0.0,
    split: Split = "train",
) -> Iterator[tuple[CountdownProblem, tuple[Piece, ...]]]:
    """Endless demonstrations of one split's problems; `error_share` of them hold one wrong call and go on after it."""
    while True:
        problem, steps = draw_chain(rng, distribution)
        if split_of(problem) != split:
            continue
        if rng.random() >= error_share:
            yield problem, demonstration(problem, steps)
            continue
        wrong_at = rng.randrange(len(steps))
        wrong_step = _wrong_step(problem, steps[:wrong_at], rng)
        yield problem, demonstration(problem, steps, wrong_step=wrong_step, wrong_at=wrong_at)


def _call(state: CalculatorState, step: str, *, loss: float) -> tuple[CalculatorState, list[Piece]]:
    state, text, _ = apply(state, step)
    call = Piece("model", f"<calc>{step}</calc>", loss)
    return state, [call, Piece("tool", result_text(text), loss=1.0)]


def _wrong_step(problem: CountdownProblem, steps: tuple[str, ...], rng: random.Random) -> str:
    """A step the calculator refuses after `steps`: mostly a number that is not left, as the model's own errors are."""
    state = CalculatorState(problem.numbers)
    for step in steps:
        state, _, _ = apply(state, step)
    while True:
        left, other = rng.choice(state.numbers), rng.choice((*problem.numbers, *state.numbers, rng.randint(1, 99)))
        step = f"{left}{rng.choice('+-*/')}{other}"
        if not apply(state, step)[2]:
            return step
