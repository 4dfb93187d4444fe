"""Exams: held-out problems of both tasks as the evaluation's own sampler asks them.

Owns one agent an episode: what it is asked, what its tool says to a turn that closed a call, and how the transcript is
scored. Written against the tasks' pure functions, without the runner, so that each checks the other.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from models import herds_episodes
from models.countdown_episodes import result_text
from models.hops_episodes import observation_text, search_page
from models.pieces import prompt_piece
from models.refine_episodes import Attempt, Kind, prompt_of, templates

from ramify.tasks import countdown, herds, hops
from ramify.tasks.countdown import CountdownProblem, Split
from ramify.tasks.herds import HerdsProblem
from ramify.tasks.hops import HopsProblem
from ramify.tools.calculator import CalculatorState, apply

MAX_SEARCHES = 6  # as many as the runner allows by default


class Agent(Protocol):
    """One episode's surroundings."""

    question: str
    prompt: str
    """What the model is given, with its control tokens."""
    num_errors: int

    def call(self, turn: str) -> str | None:
        """What stands behind a turn that closed a call; None = no more calls."""
        ...

    def score(self, transcript: str) -> dict[str, float]:
        """Parts of the reward; an episode is right if all are 1."""
        ...


@dataclass(frozen=True, slots=True)
class Exam:
    """Problems of one task."""

    call_tag: str
    agents: Sequence[Callable[[], Agent]]
    """One a problem; makes a fresh episode."""
    labels: Sequence[str]
    """One a problem: what it is reported under."""
    max_tokens: int = 256
    """Most tokens of an episode with its prompt; the longest demonstration of a search has 196."""


class CountdownAgent:
    """A calculator that keeps the numbers left."""

    def __init__(self, problem: CountdownProblem, prompt: str | None = None) -> None:
        """`prompt`: None = the question is asked."""
        self.question = problem.question
        self.prompt = prompt_piece(problem.question).text if prompt is None else prompt
        self.num_errors = 0
        self._state = CalculatorState(problem.numbers)
        self._num_left = countdown.MAX_CALLS

    def call(self, turn: str) -> str | None:
        if not self._num_left:
            return None
        self._num_left -= 1
        self._state, text, is_allowed = apply(self._state, _content(turn, "calc"))
        self.num_errors += not is_allowed
        return result_text(text)

    def score(self, transcript: str) -> dict[str, float]:
        return countdown.score(self.question, transcript)


class HopsAgent:
    """Search in the problem's world."""

    def __init__(self, problem: HopsProblem) -> None:
        self.question = problem.question
        self.prompt = prompt_piece(problem.question).text
        self.num_errors = 0
        self._problem = problem
        self._num_left = MAX_SEARCHES

    def call(self, turn: str) -> str | None:
        if not self._num_left:
            return None
        self._num_left -= 1
        query = _content(turn, "search").strip()
        self.num_errors += not query
        if not query:
            return observation_text("", status="invalid")
        return observation_text(search_page(self._problem, query))

    def score(self, transcript: str) -> dict[str, float]:
        answer = hops.FORMAT.answer(transcript)
        is_right = answer is not None and hops.is_same_answer(answer, self._problem.answer)
        return {"answered": float(answer is not None), "correct": float(is_right)}


class HerdsAgent:
    """Search among the records of the problem."""

    def __init__(self, problem: HerdsProblem) -> None:
        self.question = problem.question
        self.prompt = prompt_piece(problem.question).text
        self.num_errors = 0
        self._problem = problem
        self._num_left = herds.MAX_CALLS

    def call(self, turn: str) -> str | None:
        if not self._num_left:
            return None
        self._num_left -= 1
        query = _content(turn, "search").strip()
        self.num_errors += not query
        if not query:
            return observation_text("", status="invalid")
        return observation_text(herds_episodes.search_page(self._problem, query))

    def score(self, transcript: str) -> dict[str, float]:
        return herds.score(self.question, transcript)


def countdown_exam(num_problems: int, seed: int, *, split: Split = "heldout") -> Exam:
    """Countdown problems, held-out ones unless asked otherwise, reported by how many numbers they have."""
    problems = list(countdown.generate(split, num_problems, seed))
    labels = [f"{len(problem.numbers)} numbers" for problem in problems]
    return Exam("</calc>", [partial(CountdownAgent, problem) for problem in problems], labels)


def hops_exam(num_problems: int, seed: int, *, num_hops: int = hops.MAX_HOPS) -> Exam:
    """Held-out questions of `num_hops` hops."""
    problems = list(hops.generate("heldout", num_problems, seed, num_hops=num_hops))
    agents = [partial(HopsAgent, problem) for problem in problems]
    return Exam("</search>", agents, ["all"] * len(problems))


def herds_exam(num_problems: int, seed: int, *, split: Split = "heldout") -> Exam:
    """Herds problems, held-out ones unless asked otherwise."""
    problems = list(herds.generate(split, num_problems, seed))
    return Exam("</search>", [partial(HerdsAgent, problem) for problem in problems], ["all"] * len(problems))


def refine_exam(kind: Kind, attempts: Sequence[Attempt], critiques: Sequence[str] | None = None) -> Exam:
    """One request of a kind about each attempt; of rewrites, with these critiques."""
    template, said = templates()[kind], critiques or [""] * len(attempts)
    agents = [
        partial(CountdownAgent, attempt.problem, prompt_of(template, attempt, text))
        for attempt, text in zip(attempts, said, strict=True)
    ]
    return Exam("</calc>", agents, ["all"] * len(attempts), max_tokens=512)


def _content(turn: str, tag: str) -> str:
    return turn.rpartition(f"<{tag}>")[2].removesuffix(f"</{tag}>")
