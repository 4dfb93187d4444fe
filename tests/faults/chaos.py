"""What fails in a chaos run, and when: a twentieth of everything, by seed and words, never by a clock.

Engine calls fail in every planned way, for good or once; tools crash, hang, lose their session or return junk; judges
raise. `Chaos` remembers what it struck for good by words that are found again on a branch, so that branches nothing
struck can be told from the rest. What passes is no strike: a fault that another try gets past, or a server that is lost
(`weather.py`), costs time and must not be seen in any tree.
"""

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

from ramify.core.branch import Branch
from ramify.core.errors import ToolError
from ramify.core.judge import BranchJudge, Verdict
from ramify.core.problem import Problem
from ramify.core.seeds import child_seed
from ramify.core.tool import Branching, ToolResult
from ramify.core.tree import Tree
from ramify.testing.planned_faults import Delay, Fault, FaultKind
from ramify.testing.scripts import ScriptedTurn
from ramify.tools.calculator import CalculatorSession, CalculatorState

T = TypeVar("T")

SHARE: Final = 0.05
KINDS: Final[tuple[FaultKind, ...]] = (
    "error",
    "hang",
    "abort",
    "nan_logprobs",
    "wrong_length",
    "bad_ids",
    "no_tokens",
    "too_many_tokens",
)
PASSING: Final = frozenset({"error", "hang", "abort"})
"""Kinds that another try may get past."""


@dataclass
class Chaos:
    """Draws what fails, and remembers what it struck for good."""

    seed: int
    share: float = SHARE
    struck: set[tuple[str, str, object]] = field(default_factory=set)
    """(problem, what of it, its words)."""

    @property
    def problems(self) -> set[str]:
        """Those that anything was struck of."""
        return {uid for uid, _, _ in self.struck}

    def draw(self, *words: object) -> float:
        """A number in [0, 1) that follows from the seed and the words."""
        digest = hashlib.blake2b(repr((self.seed, words)).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") / 2**64

    def one_of(self, options: Sequence[T], *words: object) -> T:
        return options[int(self.draw(*words) * len(options))]

    def fails(self, *words: object) -> bool:
        return self.draw("fails", *words) < self.share

    def has_struck(self, tree: Tree, node: int) -> bool:
        """Whether anything was struck on the way to `node`."""
        branch, uid = tree.branch(node), tree.problem.uid
        marks = [("engine", tree.node_seed(above)) for above in tree.path(node)]
        marks += [("tool", call.arguments) for call in branch.tool_calls]
        marks.append(("judge", branch.transcript))
        return any((uid, *mark) in self.struck for mark in marks)


# -- engines ----------------------------------------------------------------------------------------------------------


@dataclass
class EngineFaults:
    """The planned faults of the engines of a run. A turn has one way to fail; one that fails once fails once in all,
    however many servers there are."""

    chaos: Chaos
    problems: Sequence[Problem]
    kinds: Sequence[FaultKind] = KINDS
    _passed: set[tuple[str, int]] = field(default_factory=set)
    """Turns that have failed once, and fail no more."""

    def planned(self) -> list[Fault]:
        return [Fault(kind, when=partial(self._strikes, kind)) for kind in self.kinds]

    def _strikes(self, kind: FaultKind, turn: ScriptedTurn) -> bool:
        index = turn.request_id.partition("/")[0]
        if not index.isdigit() or not self.chaos.fails("engine", turn.seed):
            return False
        if self.chaos.one_of(self.kinds, "kind", turn.seed) != kind:
            return False
        if kind in PASSING and self.chaos.draw("passes", turn.seed) < 0.5:
            key = (turn.request_id, len(turn.context))
            is_first = key not in self._passed
            self._passed.add(key)
            return is_first
        self.chaos.struck.add((self.problems[int(index)].uid, "engine", turn.seed))
        return True


def delay(turn: ScriptedTurn) -> Delay:
    """0.1 to 10 s; one turn in twenty also takes its time with each token."""
    drawn = child_seed(turn.seed, 1, 1)
    return Delay(0.1 + drawn % 997 / 100, token_s=0.05 if drawn % 20 == 0 else 0.0)


# -- tools ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ShakyCalculator:
    """The calculator of countdown; some of its calls go wrong."""

    chaos: Chaos
    name: str = "calculator"
    branching: Branching = "fork"
    open_sessions: set[int] = field(default_factory=set)

    async def open(self, problem: Problem) -> "ShakySession":
        numbers = tuple(problem.public["numbers"])
        return ShakySession(self, problem.uid, CalculatorSession(CalculatorState(numbers)))


class ShakySession:
    def __init__(self, tool: ShakyCalculator, uid: str, session: CalculatorSession) -> None:
        self.tool, self.uid, self.session = tool, uid, session
        tool.open_sessions.add(id(self))

    async def call(self, arguments: str) -> Any:
        chaos, words = self.tool.chaos, (self.uid, self.session.state.numbers, arguments)
        if not chaos.fails("tool", *words):
            return await self.session.call(arguments)
        chaos.struck.add((self.uid, "tool", arguments))
        match int(chaos.draw("how", *words) * 6):
            case 0:
                raise ToolError("sandbox_lost")
            case 1:
                raise ZeroDivisionError
            case 2:
                await asyncio.sleep(1e6)
            case 3:
                return "9" * 1_000_000
            case 4:
                return ToolResult("\ud800", "error")
        return None

    async def fork(self) -> "ShakySession":
        return ShakySession(self.tool, self.uid, await self.session.fork())

    async def close(self) -> None:
        self.tool.open_sessions.discard(id(self))


# -- judges -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ShakyJudge:
    """A judge that cannot read some transcripts."""

    chaos: Chaos
    judged_by: BranchJudge
    is_oracle: bool = False

    @property
    def name(self) -> str:
        return self.judged_by.name

    async def judge(self, branches: Sequence[Branch], problem: Problem) -> Sequence[Verdict]:
        text = branches[0].transcript
        if self.chaos.fails("judge", problem.uid, text):
            self.chaos.struck.add((problem.uid, "judge", text))
            raise ValueError("illegible")
        return await self.judged_by.judge(branches, problem)
