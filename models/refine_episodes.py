"""Transcripts of self-refinement on countdown: a critique, a rewrite and a grade of an attempt of the model's own.

Owns what is learnt: a critique says what the attempt reached and the step that lost the target, a rewrite keeps the
steps before that one and goes on to the target, a grade is a strict integer that falls with every step that has to go.
The prompts are those of the preset `mctsr`. Which step lost the target is found by trying all ways from there, on
training problems; the model sees nothing but the attempt. Pure: randomness comes from the generator handed in.
"""

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import Final, Literal

from models.countdown_episodes import demonstration
from models.pieces import Piece

from ramify.config.presets import preset
from ramify.tasks.countdown import DEFAULT_DISTRIBUTION, CountdownProblem, operators_of, score
from ramify.tools.calculator import CalculatorState, apply, value_of

Kind = Literal["critique", "rewrite", "grade"]

KINDS: Final[tuple[Kind, ...]] = ("critique", "rewrite", "grade")
RIGHT: Final = 95
"""The best grade: mcts-llm takes five points off what is above it."""
WORST: Final = -90
SHORT_WEIGHT: Final = 8.0
"""What a token of a critique or a grade is learnt with: they have a tenth of the tokens of a rewrite, and at weight 1
verdicts were learnt last."""

_CALL = re.compile(r"<calc>(.*?)</calc>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Attempt:
    """What the model wrote about a problem, with the calculator's results, without the end of its sequence."""

    problem: CountdownProblem
    text: str

    @property
    def is_right(self) -> bool:
        return all(score(self.problem.question, self.text).values())

    def states(self) -> list[CalculatorState]:
        """The numbers left before the first call and behind every one."""
        states = [CalculatorState(self.problem.numbers)]
        for call in _CALL.findall(self.text):
            states.append(apply(states[-1], call)[0])
        return states

    def steps(self, num_calls: int) -> tuple[str, ...]:
        """What was worked out by the first calls; refused ones are left out."""
        states = self.states()
        calls = _CALL.findall(self.text)[:num_calls]
        return tuple(call.replace(" ", "") for i, call in enumerate(calls) if states[i] != states[i + 1])

    @property
    def num_good(self) -> int:
        """How many calls it takes before the target is out of reach; all of them where it never is."""
        states, target = self.states(), self.problem.target
        lost = (i for i, state in enumerate(states) if not is_solvable(tuple(sorted(state.numbers)), target))
        return next(lost, len(states)) - 1


def next_numbers(numbers: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Every step that the demonstrations might take from here, the larger operand first, and what it leaves."""
    for i, j in combinations(range(len(numbers)), 2):
        right, left = sorted((numbers[i], numbers[j]))
        rest = (*numbers[:i], *numbers[i + 1 : j], *numbers[j + 1 :])
        for operator in operators_of(left, right):
            value, _ = value_of(left, operator, right)
            if value is not None and value <= DEFAULT_DISTRIBUTION.max_step_value:
                yield f"{left}{operator}{right}", (*rest, value)


@lru_cache(maxsize=1 << 20)
def is_solvable(numbers: tuple[int, ...], target: int) -> bool:
    """Whether the target can be made from all of the numbers, which come in ascending order."""
    if len(numbers) == 1:
        return numbers[0] == target
    return any(is_solvable(tuple(sorted(left)), target) for _, left in next_numbers(numbers))


def solved(numbers: tuple[int, ...], target: int, rng: random.Random) -> tuple[str, ...]:
    """A random way to the target: of the steps that keep it in reach, each is as likely. Raises ValueError if there is
    none."""
    steps: list[str] = []
    while len(numbers) > 1:
        good = [taken for taken in next_numbers(numbers) if is_solvable(tuple(sorted(taken[1])), target)]
        if not good:
            raise ValueError(f"{target} cannot be made from {numbers!r}")
        step, numbers = rng.choice(good)
        steps.append(step)
    return tuple(steps)


def critique(attempt: Attempt) -> str:
    """What was reached, and which step lost the target, counted from 1."""
    states = attempt.states()
    reached = states[-1].numbers[-1] if len(set(states)) > 1 else "no number"
    said = f"reached {reached} target {attempt.problem.target}"
    if attempt.is_right:
        return f"{said} right"
    if attempt.num_good == len(states) - 1:
        return f"{said} missing step"
    return f"{said} wrong step {attempt.num_good + 1}"


def grade(attempt: Attempt) -> int:
    """`RIGHT` for an attempt that is; else from `WORST` on up by the share of calls before the target was lost."""
    if attempt.is_right:
        return RIGHT
    num_calls = len(attempt.states()) - 1
    return WORST + 10 * round(8 * attempt.num_good / max(num_calls, 1))


def templates() -> Mapping[Kind, str]:
    """The prompts that the preset `mctsr` gives the built-in model."""
    actions = preset("mctsr").small["actions"]
    return {kind: actions[kind]["template"] for kind in KINDS}


def prompt_of(template: str, attempt: Attempt, said: str) -> str:
    """The request about an attempt and, of rewrites, what a critique said of it."""
    return template.format(question=attempt.problem.question, answer=attempt.text, critique=said)


def transcript(kind: Kind, attempt: Attempt, template: str, rng: random.Random) -> tuple[Piece, ...]:
    """The whole context of one request about an attempt; all but its prompt is learnt."""
    problem, said = attempt.problem, critique(attempt)
    prompt = Piece("prompt", prompt_of(template, attempt, said), loss=0.0)
    if kind == "critique":
        return (prompt, Piece("model", f"{said}<|end|>", loss=SHORT_WEIGHT))
    if kind == "grade":
        return (prompt, Piece("model", f"{grade(attempt)}<|end|>", loss=SHORT_WEIGHT))
    num_kept = attempt.num_good
    steps = attempt.steps(num_kept)
    if not attempt.is_right:
        steps = (*steps, *solved(attempt.states()[num_kept].numbers, problem.target, rng))
    return (prompt, *demonstration(problem, steps)[1:])


def draw_transcripts(
    rng: random.Random, attempts: Sequence[Attempt]
) -> Iterator[tuple[CountdownProblem, tuple[Piece, ...]]]:
    """Endless transcripts about attempts drawn at random, every kind as often."""
    prompts = templates()
    while True:
        attempt = rng.choice(attempts)
        for kind in KINDS:
            yield attempt.problem, transcript(kind, attempt, prompts[kind], rng)
