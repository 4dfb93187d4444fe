"""Small parts for tests of the runner: a task of one line each, strategies of a few, runs in virtual time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from ramify.config.run_config import RunConfig
from ramify.core.branch import Branch
from ramify.core.codec import Codec
from ramify.core.command import Command, Grow, Grown, Outcome
from ramify.core.engine import Capabilities, Engine, Generation, Request
from ramify.core.format import Format
from ramify.core.judge import BranchJudge, Verdict
from ramify.core.problem import Problem
from ramify.core.strategy import Phase
from ramify.core.tool import Tool
from ramify.core.tree import ROOT, Tree
from ramify.formats.arpo import arpo
from ramify.runner.library import Rollout, rollout
from ramify.testing.clock import run_virtual
from ramify.testing.policies import chains
from ramify.testing.scripted import Scripted
from ramify.tools.calculator import Calculator
from ramify.tools.function import FunctionTool

PROBLEM = Problem("p", "make 3 from 1 2", {"target": 3})


def problems(number: int) -> list[Problem]:
    """`p0`, `p1`, …, each asking to make its number from 1 and 2."""
    return [Problem(f"p{i}", f"make {i} from 1 2", {"target": i}) for i in range(number)]


def echo(arguments: str) -> str:
    return arguments


@dataclass(frozen=True)
class Right:
    """Whoever answers 3 is right."""

    name: str = "right"
    is_oracle: bool = False

    async def judge(self, branches: Sequence[Branch], problem: Problem) -> list[Verdict]:
        return [Verdict(float("<answer>3</answer>" in b.said)) for b in branches]


@dataclass(frozen=True)
class Small:
    """A task of one problem, a calculator and a judge, unless it is given others."""

    format: Format = field(default_factory=lambda: arpo({"calculator": "calc"}))
    tools: Sequence[Tool] = (Calculator(),)
    judges: Sequence[BranchJudge] = (Right(),)

    def problems(self, split: str, num_problems: int, seed: int) -> list[Problem]:
        return [PROBLEM]

    def prune(self, branch: Branch) -> str | None:
        return "two calls are enough" if len(branch.tool_calls) == 2 else None

    def is_same_answer(self, one: str, other: str) -> bool:
        return one == other


def small_with(tool: Tool | Callable[[str], Any], **fields: Any) -> Small:
    """`Small` with one tool, called by `<calc>`; a function is made a tool."""
    made = FunctionTool(tool, name="calculator") if callable(tool) else tool
    return Small(format=arpo({made.name: "calc"}), tools=(made,), **fields)


@dataclass(frozen=True)
class Nothing:
    """Options of a strategy that has none."""


class Plan:
    """The least a strategy is: what it wants next follows from the outcomes it has heard."""

    Config = Nothing
    measures: ClassVar[frozenset[str]] = frozenset()
    is_order_free = False
    post_hoc_reason = ""

    def __init__(self, config: Nothing, rng: np.random.Generator) -> None:
        self.told: list[Outcome] = []
        self.num_asked = 0

    def wanted(self, tree: Tree) -> Sequence[Command] | None:
        """Commands after `len(self.told)` outcomes; None = done."""
        raise NotImplementedError

    def ask(self, tree: Tree) -> Sequence[Command]:
        commands = (self.wanted(tree) or []) if self.num_asked == len(self.told) else []
        self.num_asked += len(commands)
        return commands

    def tell(self, tree: Tree, outcome: Outcome) -> None:
        self.told.append(outcome)

    def is_done(self, tree: Tree) -> bool:
        return self.num_asked == len(self.told) and self.wanted(tree) is None

    def phase(self, tree: Tree) -> Phase:
        return Phase("build")


class OneChain(Plan):
    """One chain to its end."""

    def wanted(self, tree: Tree) -> Sequence[Command] | None:
        return None if self.told else [Grow(ROOT)]


def tip(outcome: Outcome) -> int:
    """The last node of an outcome that must be a `Grown`."""
    assert isinstance(outcome, Grown), outcome
    return outcome.tip


def grown(
    plan: type[Plan] | None = OneChain,
    engine: Engine | None = None,
    /,
    *,
    task: object | None = None,
    questions: Sequence[Problem | str] | None = None,
    **fields: Any,
) -> Rollout:
    """Grow a run to its end in virtual time; `fields` are the config's. Without a plan, its strategy counts."""
    return run_virtual(
        rollout(
            questions,
            config=RunConfig(**fields),
            strategy=plan,
            engine=engine or Scripted(chains(2)),
            task=task or Small(),
        )
    )


def only_leaf(result: Rollout) -> tuple[Tree, int]:
    """The one tree of a run and its one leaf."""
    (tree,) = result.trees
    (leaf,) = tree.leaves()
    return tree, leaf


class Listening:
    """An engine in front of another one that keeps every request and what became of it."""

    def __init__(self, engine: Engine) -> None:
        self.requests: list[Request] = []
        self.answers: list[tuple[Request, Generation]] = []
        self._engine = engine

    @property
    def codec(self) -> Codec:
        return self._engine.codec

    @property
    def capabilities(self) -> Capabilities:
        return self._engine.capabilities

    async def generate(self, request: Request) -> Generation:
        self.requests.append(request)
        generation = await self._engine.generate(request)
        self.answers.append((request, generation))
        return generation

    async def close(self) -> None:
        await self._engine.close()
