"""Countdown: make the target from all the numbers, each used exactly once, with a stateful calculator.

It owns the problems, their split and the score. A problem is made by one random chain of steps, which is also its
demonstration, so every fork in the demonstrations is a real choice. A hash of the problem's canonical key alone decides
whether it is held out, so no seed, generator or order can move it across the split. The judge reads the model's own
words and the recorded calls, the dead-end rule the calls; no solver is used.
"""

import hashlib
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from ramify.core.branch import Branch, turns_of
from ramify.core.errors import ConfigError
from ramify.core.format import Format
from ramify.core.judge import BranchJudge, Verdict
from ramify.core.problem import Problem
from ramify.core.tool import Tool
from ramify.formats.arpo import arpo
from ramify.tools.calculator import Calculator, CalculatorState, apply, numbers_left

Split = Literal["train", "heldout"]

MAX_CALLS: Final = 6  # n numbers need n-1 calls, so 2 to 4; the rest is room for errors
HELDOUT_PERCENT: Final = 10
FORMAT: Final = arpo({"calculator": "calc"})

_QUESTION = re.compile(r"make ([0-9]+) from((?: [0-9]+)+)")
# Only a result directly after a call counts: sampling stops at `</calc>`, so the model cannot write such a pair itself.
_RESULT = re.compile(r"</calc> <result>\n(.*?)\n</result>", re.DOTALL)
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_WHOLE_NUMBER = re.compile(r"[0-9]{1,6}")


@dataclass(frozen=True, slots=True)
class CountdownProblem:
    """Make `target` from `numbers`."""

    numbers: tuple[int, ...]
    target: int

    @property
    def key(self) -> str:
        """Canonical key: the same for every order of the numbers."""
        return f"{self.target}:{','.join(map(str, sorted(self.numbers)))}"

    @property
    def question(self) -> str:
        """The user's turn, e.g. `make 99 from 13 7 1 5`."""
        return f"make {self.target} from {' '.join(map(str, self.numbers))}"


@dataclass(frozen=True, slots=True)
class CountdownDistribution:
    """Distribution of the problems. The defaults are those of the built-in model and of every figure quoted for it."""

    # Hard enough that the built-in model solves half at the first try; with weights .5 .35 .15 it solved 0.61.
    num_numbers_weights: tuple[tuple[int, float], ...] = ((3, 0.3), (4, 0.4), (5, 0.3))
    max_number: int = 15
    min_target: int = 10
    max_target: int = 99
    max_step_value: int = 225  # the largest product of two numbers; larger values only lead to dead ends

    def __post_init__(self) -> None:
        if not all(2 <= count <= MAX_CALLS + 1 and weight >= 0 for count, weight in self.num_numbers_weights):
            raise ValueError(
                f"num_numbers_weights must be pairs (2 to {MAX_CALLS + 1}, >= 0), got {self.num_numbers_weights!r}"
            )
        if not 0 < self.min_target <= self.max_target <= self.max_step_value:
            raise ValueError(
                "min_target <= max_target <= max_step_value must hold and be positive, got "
                f"{(self.min_target, self.max_target, self.max_step_value)!r}"
            )


DEFAULT_DISTRIBUTION: Final = CountdownDistribution()


def split_of(problem: CountdownProblem) -> Split:
    """The split of a problem; it depends only on its canonical key."""
    digest = hashlib.sha256(f"countdown {problem.key}".encode()).digest()
    return "heldout" if int.from_bytes(digest[:8], "big") % 100 < HELDOUT_PERCENT else "train"


def draw_chain(
    rng: random.Random, distribution: CountdownDistribution = DEFAULT_DISTRIBUTION
) -> tuple[CountdownProblem, tuple[str, ...]]:
    """One problem of either split, and the chain of steps that made it. Consumes `rng`."""
    counts, weights = zip(*distribution.num_numbers_weights, strict=True)
    (num_numbers,) = rng.choices(counts, weights)
    while True:
        numbers = tuple(rng.randint(1, distribution.max_number) for _ in range(num_numbers))
        made = _chain_from(numbers, rng, distribution.max_step_value)
        if made is not None and distribution.min_target <= made[0] <= distribution.max_target:
            return CountdownProblem(numbers, made[0]), made[1]


def generate(
    split: Split,
    num_problems: int,
    seed: int,
    *,
    distribution: CountdownDistribution = DEFAULT_DISTRIBUTION,
) -> Iterator[CountdownProblem]:
    """Yield `num_problems` problems of one split with different canonical keys, the same ones for each seed."""
    rng = random.Random(f"countdown {split} {seed}")
    seen: set[str] = set()
    while len(seen) < num_problems:
        problem, _ = draw_chain(rng, distribution)
        if problem.key not in seen and split_of(problem) == split:
            seen.add(problem.key)
            yield problem


def parse_question(question: str) -> CountdownProblem:
    """The problem in a question. Raises ValueError if the text is not a countdown question."""
    match = _QUESTION.fullmatch(question.strip())
    if match is None:
        raise ValueError(f"not a countdown question: {question!r}; it must read like 'make 99 from 13 7 1 5'")
    return CountdownProblem(tuple(map(int, match[2].split())), int(match[1]))


def is_dead_end(target: int, last_result_text: str) -> str | None:
    """Why to give a path up after this tool result, or None. Uses only the transcript.

    If one number is left and it is not the target, the path cannot succeed. After an error the model may recover, but
    going on rarely pays.
    """
    left = numbers_left(last_result_text)
    if left is None:
        return "the tool reported an error"
    if len(left) == 1 and left[0] != target:
        return f"one number is left and it is {left[0]}, not {target}"
    return None


def score(question: str, transcript_text: str) -> dict[str, float]:
    """Parts of the reward, each 0.0 or 1.0, of a demonstration: a text after the question that nobody forges. The
    reward is 1.0 only if both are.

    `reached`: the tool's last good result leaves exactly the target. `answered`: the last answer is the target.
    """
    shown = [left for text in _RESULT.findall(transcript_text) if (left := numbers_left(text)) is not None]
    return _parts(parse_question(question).target, shown[-1] if shown else (), _ANSWER.findall(transcript_text))


def branch_score(question: str, branch: Branch) -> dict[str, float]:
    """Like `score`, of a path: the answer is the model's own word, and its calls are worked out again, so no text of a
    tool counts."""
    problem = parse_question(question)
    state, left = CalculatorState(problem.numbers), ()
    for call in branch.tool_calls:
        if call.tool == Calculator.name and call.status == "ok":
            state, _, is_allowed = apply(state, call.arguments)
            left = state.numbers if is_allowed else left
    return _parts(problem.target, left, [text for turn in turns_of(branch.said) for text in _ANSWER.findall(turn)])


def _parts(target: int, left: Sequence[int], answers: Sequence[str]) -> dict[str, float]:
    """The parts of the reward, from the numbers that the last good call left and from the answers in order."""
    answer = answers[-1].strip() if answers else ""
    return {
        "reached": float(tuple(left) == (target,)),
        "answered": float(_WHOLE_NUMBER.fullmatch(answer) is not None and int(answer) == target),
    }


def operators_of(left: int, right: int) -> list[str]:
    """The operators that problems may use for this pair; `left` is the larger operand."""
    return ["+", "*", *(["-"] if left > right else []), *(["/"] if right > 0 and left % right == 0 else [])]


def _chain_from(
    numbers: tuple[int, ...], rng: random.Random, max_step_value: int
) -> tuple[int, tuple[str, ...]] | None:
    """Combine the numbers by random allowed steps: the value and the steps, or None if a value got too large."""
    state = CalculatorState(numbers)
    steps: list[str] = []
    for _ in numbers[1:]:
        # The larger operand comes first. The order does not matter for + and *, so a free order would only add noise.
        right, left = sorted(rng.sample(state.numbers, 2))
        step = f"{left}{rng.choice(operators_of(left, right))}{right}"
        state, _, is_allowed = apply(state, step)
        if not is_allowed or state.numbers[-1] > max_step_value:
            return None
        steps.append(step)
    return state.numbers[0], tuple(steps)


@dataclass(frozen=True, slots=True)
class CountdownJudge:
    """Scores the calls and the answer of a path. It needs no secret, so it is not an oracle."""

    name: str = "countdown"
    is_oracle: bool = False

    async def judge(self, branches: Sequence[Branch], problem: Problem) -> list[Verdict]:
        """1.0 only if the calculator holds exactly the target and the answer gives it."""
        parts = [branch_score(problem.question, branch) for branch in branches]
        return [Verdict(float(all(p.values())), p) for p in parts]


@dataclass(frozen=True, slots=True)
class Countdown:
    """The task: countdown problems, a stateful calculator, the `arpo` format."""

    num_numbers: int | None = None
    """Numbers of a problem, 3 to 5; None = the mix that the built-in model was trained on."""
    format: Format = FORMAT
    tools: tuple[Tool, ...] = (Calculator(),)
    judges: tuple[BranchJudge, ...] = (CountdownJudge(),)

    def __post_init__(self) -> None:
        if self.num_numbers is not None and not 3 <= self.num_numbers <= 5:
            raise ConfigError(f"num_numbers = {self.num_numbers!r}: countdown problems have 3 to 5 numbers")

    def problems(self, split: str, num_problems: int, seed: int) -> list[Problem]:
        """Distinct problems of one split. A seed always gives the same problems."""
        if split not in ("train", "heldout"):
            raise ConfigError(f"split {split!r}: countdown has 'train' and 'heldout'")
        return [
            Problem(p.key, p.question, {"target": p.target, "numbers": list(p.numbers)}, split=split)
            for p in generate(split, num_problems, seed, distribution=self._distribution())
        ]

    def _distribution(self) -> CountdownDistribution:
        if self.num_numbers is None:
            return DEFAULT_DISTRIBUTION
        return replace(DEFAULT_DISTRIBUTION, num_numbers_weights=((self.num_numbers, 1.0),))

    def prune(self, branch: Branch) -> str | None:
        """The dead-end rule, applied directly after a tool's result."""
        call, question = branch.pieces[-1].segment.tool_call, _QUESTION.search(branch.prompt_text)
        return None if call is None or question is None else is_dead_end(int(question[1]), call.result)

    def is_same_answer(self, one: str, other: str) -> bool:
        return one.strip() == other.strip()
