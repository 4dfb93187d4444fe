"""Hops: multi-hop questions about made-up worlds, answered with a search tool.

It owns the questions and their difficulty. The gold answer is secret; only the judge, an oracle, sees it. The tool
searches the passages of the problem's own world, where rumors look much like records.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final

from ramify.core.branch import Branch
from ramify.core.errors import ConfigError, ToolError
from ramify.core.format import Format
from ramify.core.judge import BranchJudge
from ramify.core.problem import Problem
from ramify.core.tool import Tool
from ramify.formats.search_r1 import SEARCH_R1
from ramify.judges.exact import ANSWER, Exact, is_same_answer
from ramify.tasks.hops_world import SPLITS, HopsWorld, Split, world, world_name
from ramify.tools.passages import Index, Passage
from ramify.tools.search import Search
from ramify.tools.sqlite_index import memory_index

MAX_HOPS: Final = 3
PROBLEMS_A_WORLD: Final = 8
TOP_K: Final = 3
"""Passages per page."""

FORMAT: Final = replace(
    SEARCH_R1,
    invalid="\n\n<information>error: use search or answer</information>\n\n",
    texts={"empty": "", "invalid": "error: use search or answer"},
)
"""Search-R1's format, with a corrective observation in words of the built-in tokenizer."""


@dataclass(frozen=True, slots=True)
class HopsProblem:
    """Follow `relations` from `subject` in the world called `world`."""

    world: str
    subject: str
    relations: tuple[str, ...]

    @property
    def question(self) -> str:
        """The user's turn, e.g. `what is fikol rekent 's teacher 's town ?`."""
        return " 's ".join((f"what is {self.subject}", *self.relations)) + " ?"

    @property
    def answer(self) -> str:
        return world(self.world).follow(self.subject, self.relations)


def draw_problem(rng: random.Random, among: HopsWorld, num_hops: int) -> HopsProblem:
    """A question of `num_hops` hops. Consumes `rng`."""
    while True:
        subject = place = rng.choice(among.people)
        relations: list[str] = []
        while len(relations) < num_hops and (known := among.relations_of(place)):
            relations.append(rng.choice(known))
            place = among.facts[place, relations[-1]]
        if len(relations) == num_hops:
            return HopsProblem(among.name, subject, tuple(relations))


def generate(split: Split, num_problems: int, seed: int, *, num_hops: int = MAX_HOPS) -> Iterator[HopsProblem]:
    """Yield distinct problems of one split, the same ones for each seed, with `PROBLEMS_A_WORLD` problems per world."""
    rng = random.Random(f"hops {split} {seed}")
    seen: set[HopsProblem] = set()
    while len(seen) < num_problems:
        among = world(world_name(split, seed, len(seen) // PROBLEMS_A_WORLD))
        problem = draw_problem(rng, among, num_hops)
        if problem not in seen:
            seen.add(problem)
            yield problem


@lru_cache(maxsize=256)
def index_of(name: str) -> Index:
    """A search index of a world's passages."""
    return memory_index(Passage(text) for text in world(name).passages)


def search_tool(top_k: int = TOP_K) -> Search:
    """A search tool for the problem's own world."""
    return Search(_index_of_problem, top_k=top_k, page="joined")


def _index_of_problem(problem: Problem) -> Index:
    name = problem.public.get("world")
    if not isinstance(name, str):
        raise ToolError("tool_gave_up", f"problem {problem.uid!r} has no public column 'world', got {name!r}")
    return index_of(name)


@dataclass(frozen=True, slots=True)
class Hops:
    """The task: questions of one to three hops, a search tool, the `search_r1` format."""

    num_hops: int = MAX_HOPS
    """Hops of a question, 1 to 3. At the first try the built-in model answers a little more than half of the 3-hop
    questions, and four in five of the others."""
    format: Format = FORMAT
    tools: Sequence[Tool] = field(default_factory=lambda: (search_tool(),))
    judges: Sequence[BranchJudge] = (Exact(FORMAT),)

    def __post_init__(self) -> None:
        if not 1 <= self.num_hops <= MAX_HOPS:
            raise ConfigError(f"num_hops = {self.num_hops!r}: questions have 1 to {MAX_HOPS} hops")

    def problems(self, split: str, num_problems: int, seed: int) -> list[Problem]:
        """Distinct problems of one split. A seed always gives the same problems."""
        if split not in SPLITS:
            raise ConfigError(f"split {split!r}: hops has {' and '.join(map(repr, SPLITS))}")
        return [
            Problem(
                f"{p.world}: {p.subject} {' '.join(p.relations)}",
                p.question,
                {"world": p.world, "num_hops": len(p.relations)},
                {ANSWER: p.answer},
                split,
            )
            for p in generate(split, num_problems, seed, num_hops=self.num_hops)
        ]

    def prune(self, branch: Branch) -> str | None:
        """Never prunes: no search result proves that a path must fail."""
        return None

    def is_same_answer(self, one: str, other: str) -> bool:
        return is_same_answer(one, other)
