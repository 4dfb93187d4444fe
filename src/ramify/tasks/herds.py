"""Herds: look up the sizes of a town's herds, one search each, then make a number from two of them.

It owns the problems, their split, their passages and the score. The look-ups are long and decide little; the few tokens
of the answer choose the two herds. This is the opposite of countdown, so here forks after the prefix pay
(`docs/choose/measured-trees.md`). A hash of its target and numbers alone decides whether a problem is held out. The
judge reads only the question, the model's own words and the recorded calls.
"""

import hashlib
import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations
from typing import Final, Literal

from ramify.core.branch import Branch
from ramify.core.errors import ConfigError, ToolError
from ramify.core.format import Format
from ramify.core.judge import BranchJudge, Verdict
from ramify.core.problem import Problem
from ramify.core.tool import Tool
from ramify.tasks.hops import FORMAT
from ramify.tasks.hops_world import PETS, TOWNS
from ramify.tools.calculator import value_of
from ramify.tools.passages import Index, Passage
from ramify.tools.search import Search
from ramify.tools.sqlite_index import memory_index

Split = Literal["train", "heldout"]
SPLITS: Final[tuple[Split, ...]] = ("train", "heldout")

HELDOUT_PERCENT: Final = 10
NUM_HERDS: Final = 5
NUM_TOWNS: Final = 6
"""Number of towns with herds of the same kinds. A search for a kind alone mostly finds another town's record."""
MAX_CALLS: Final = 6  # the runner's default: one more than there are herds
MAX_NUMBER: Final = 15
MIN_TARGET: Final = 10
MAX_TARGET: Final = 99
OPERATORS: Final = "+-*"
SEARCH: Final = "search"
"""Name of the tool whose recorded pages count."""

_QUESTION = re.compile(r"make ([0-9]+) from two of (\w+) 's((?: \w+)+)")
# Only a page directly after a call counts: sampling stops at `</search>`, so the model cannot write such a pair itself.
_SHOWN = re.compile(r"</search>\n\n<information>(record \w+ \w+ [0-9]+)</information>")
_RECORD = re.compile(r"record (\w+) (\w+) ([0-9]+)")
_EXPRESSION = re.compile(r" *([0-9]{1,3}) *([-+*]) *([0-9]{1,3}) *")


@dataclass(frozen=True, slots=True)
class HerdsProblem:
    """Make `target` from two of the `numbers`, which are the sizes of the herds of these `kinds` in `town`."""

    target: int
    town: str
    kinds: tuple[str, ...]
    numbers: tuple[int, ...]

    @property
    def key(self) -> str:
        """Canonical key. It does not depend on the town, the kinds or the order of the numbers."""
        return f"{self.target}:{','.join(map(str, sorted(self.numbers)))}"

    @property
    def question(self) -> str:
        """The user's turn, e.g. `make 20 from two of norford 's cat owl bee pig ant`."""
        return f"make {self.target} from two of {self.town} 's {' '.join(self.kinds)}"


def split_of(problem: HerdsProblem) -> Split:
    """The split of a problem; it depends only on its canonical key."""
    digest = hashlib.sha256(f"herds {problem.key}".encode()).digest()
    return "heldout" if int.from_bytes(digest[:8], "big") % 100 < HELDOUT_PERCENT else "train"


def draw_problem(rng: random.Random, *, num_herds: int = NUM_HERDS) -> HerdsProblem:
    """A problem of either split, made by one step on two of its numbers. Consumes `rng`."""
    while True:
        numbers = rng.sample(range(1, MAX_NUMBER + 1), num_herds)
        right, left = sorted(rng.sample(numbers, 2))
        target, _ = value_of(left, rng.choice(OPERATORS), right)
        if target is not None and MIN_TARGET <= target <= MAX_TARGET:
            kinds = rng.sample(PETS, num_herds)
            return HerdsProblem(target, rng.choice(TOWNS), tuple(kinds), tuple(numbers))


def generate(split: Split, num_problems: int, seed: int) -> Iterator[HerdsProblem]:
    """Yield `num_problems` problems of one split with different canonical keys, the same ones for each seed."""
    rng = random.Random(f"herds {split} {seed}")
    seen: set[str] = set()
    while len(seen) < num_problems:
        problem = draw_problem(rng)
        if problem.key not in seen and split_of(problem) == split:
            seen.add(problem.key)
            yield problem


def solutions(numbers: Sequence[int], target: int) -> list[str]:
    """Every expression of two of the numbers, the larger one first, that makes the target."""
    pairs = (sorted(pair, reverse=True) for pair in combinations(numbers, 2))
    return [
        f"{left}{operator}{right}"
        for left, right in pairs
        for operator in OPERATORS
        if value_of(left, operator, right)[0] == target
    ]


def passages_of(problem: HerdsProblem) -> tuple[str, ...]:
    """A record of every kind of herd in the problem's town, and of the same kinds in other towns, in random order."""
    rng = random.Random(f"herds {problem}")
    others = rng.sample([town for town in TOWNS if town != problem.town], NUM_TOWNS - 1)
    passages = [f"record {problem.town} {kind} {n}" for kind, n in zip(problem.kinds, problem.numbers, strict=True)]
    for town in others:
        passages += [f"record {town} {kind} {rng.randint(1, MAX_NUMBER)}" for kind in problem.kinds]
    rng.shuffle(passages)
    return tuple(passages)


@lru_cache(maxsize=256)
def index_of(problem: HerdsProblem) -> Index:
    """A search index of the problem's passages."""
    return memory_index(Passage(text) for text in passages_of(problem))


def parse_question(question: str) -> tuple[int, str, tuple[str, ...]]:
    """Target, town and kinds that a question names. Raises ValueError if the text is not a herds question."""
    match = _QUESTION.fullmatch(question.strip())
    if match is None:
        raise ValueError(
            f"not a herds question: {question!r}; it must read like 'make 20 from two of norford 's cat owl bee'"
        )
    return int(match[1]), match[2], tuple(match[3].split())


def numbers_found(question: str, transcript_text: str) -> Mapping[str, int]:
    """Kind -> size, for herds of the question whose records the transcript's searches have shown."""
    return _found(question, _SHOWN.findall(transcript_text))


def _found(question: str, pages: Iterable[str]) -> Mapping[str, int]:
    """Kind -> size, for herds of the question. Only a page that is one record counts."""
    _, asked_town, kinds = parse_question(question)
    records = [record.groups() for page in pages if (record := _RECORD.fullmatch(page.strip()))]
    return {kind: int(number) for town, kind, number in records if town == asked_town and kind in kinds}


def score(question: str, transcript_text: str) -> dict[str, float]:
    """Parts of the reward, each 0.0 or 1.0, of a demonstration: a text after the question that nobody forges. The
    reward is 1.0 only if both are.

    `found`: the answer's operands are sizes of two herds that the searches have shown. `made`: they make the target.
    """
    return _parts(question, FORMAT.answer(transcript_text), numbers_found(question, transcript_text))


def branch_score(question: str, branch: Branch) -> dict[str, float]:
    """Like `score`, of a path: the answer is the model's own word, and herds are found in the recorded searches."""
    pages = [call.result for call in branch.tool_calls if call.tool == SEARCH and call.status == "ok"]
    return _parts(question, FORMAT.answer(branch.said), _found(question, pages))


def _parts(question: str, said: str | None, numbers: Mapping[str, int]) -> dict[str, float]:
    """The parts of the reward, from the answer and from the sizes of herds that were found."""
    target, _, _ = parse_question(question)
    answer = _EXPRESSION.fullmatch(said or "")
    if answer is None:
        return {"found": 0.0, "made": 0.0}
    operands = [int(answer[1]), int(answer[3])]
    left = list(numbers.values())
    are_found = all(left.count(operand) >= operands.count(operand) for operand in operands)
    value, _ = value_of(operands[0], answer[2], operands[1])
    return {"found": float(are_found), "made": float(value == target)}


def _index_of_problem(problem: Problem) -> Index:
    numbers = problem.public.get("numbers")
    try:
        target, town, kinds = parse_question(problem.question)
        if not isinstance(numbers, list | tuple) or len(numbers) != len(kinds):
            raise ValueError(f"it needs a public column 'numbers' with {len(kinds)} numbers, got {numbers!r}")
    except ValueError as error:
        raise ToolError("tool_gave_up", f"problem {problem.uid!r}: {error}") from error
    return index_of(HerdsProblem(target, town, kinds, tuple(map(int, numbers))))


@dataclass(frozen=True, slots=True)
class HerdsJudge:
    """Scores the searches and the answer of a path. It needs no secret, so it is not an oracle."""

    name: str = "herds"
    is_oracle: bool = False

    async def judge(self, branches: Sequence[Branch], problem: Problem) -> list[Verdict]:
        """1.0 only if the answer makes the target from two herds that were looked up."""
        parts = [branch_score(problem.question, branch) for branch in branches]
        return [Verdict(float(all(p.values())), p) for p in parts]


@dataclass(frozen=True, slots=True)
class Herds:
    """The task: five herds per problem, a search tool that shows one passage, the format of `hops`."""

    format: Format = FORMAT
    tools: Sequence[Tool] = field(
        default_factory=lambda: (Search(_index_of_problem, top_k=1, page="joined", name=SEARCH),)
    )
    judges: Sequence[BranchJudge] = (HerdsJudge(),)

    def problems(self, split: str, num_problems: int, seed: int) -> list[Problem]:
        """Distinct problems of one split. A seed always gives the same problems."""
        if split not in SPLITS:
            raise ConfigError(f"split {split!r}: herds has {' and '.join(map(repr, SPLITS))}")
        return [
            Problem(p.key, p.question, {"target": p.target, "numbers": list(p.numbers)}, split=split)
            for p in generate(split, num_problems, seed)
        ]

    def prune(self, branch: Branch) -> str | None:
        """Never prunes: no search result proves that a path must fail."""
        return None

    def is_same_answer(self, one: str, other: str) -> bool:
        return one.replace(" ", "").strip() == other.replace(" ", "").strip()
