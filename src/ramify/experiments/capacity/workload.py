"""Workload: how many tokens a run writes and how long its tools take; and stand-ins that do so.

A stand-in model writes turns of as many tokens as are drawn for it. A turn ends with a call, the last one with an
answer. The tool waits, and returns as many tokens. Everything follows from seeds, so that every fleet grows the same
trees. A token is a byte, so that every length is exact; the shortest call is 4 tokens.
"""

import asyncio
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Final

import numpy as np

from ramify.core.branch import Branch
from ramify.core.errors import ConfigError
from ramify.core.format import Action, AnswerAction, ToolAction
from ramify.core.judge import BranchJudge, Verdict
from ramify.core.problem import Problem
from ramify.core.seeds import child_seed, coin, tree_seed
from ramify.core.segment import Ids_T
from ramify.core.tool import Tool
from ramify.core.tree import Tree
from ramify.formats.tags import TagFormat
from ramify.runner.saved import Saved
from ramify.testing.scripts import ScriptedTurn
from ramify.tools.function import FunctionTool

_CALL: Final = re.compile(r"#(\d+)[a-z]!")
"""A call of the tool; the number is that of the path's turns."""
_ANSWER: Final = re.compile(r"([a-z])=")
# How a segment may cut them:
_CUT_CALL: Final = re.compile(r"#(\d*)([a-z]?)$")
_CUT_ANSWER: Final = re.compile(r"[a-z]$")
_LONGEST_END: Final = 12
"""Most characters of a call that are searched for its beginning."""
_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class Workload:
    """How much is written and waited for. Each field that is a sequence is a sample that values are drawn from."""

    prompt_tokens: int
    turns: Sequence[int]
    """Turns of a path; a tool answers each but the last."""
    turn_tokens: Sequence[int]
    tool_tokens: Sequence[int]
    tool_seconds: Sequence[float]
    shared_tokens: int = 0
    """First tokens of a prompt that the prompts of all problems have, such as a system prompt."""

    def __post_init__(self) -> None:
        for name in ("turns", "turn_tokens", "tool_tokens", "tool_seconds"):
            values = getattr(self, name)
            least = 0 if name.startswith("tool") else 1
            if not len(values) or min(values) < least:
                raise ConfigError(
                    f"{name.replace('_', ' ')}: numbers of {least} or more are needed, got {values!r:.60}"
                )
        if self.prompt_tokens < 1:
            raise ConfigError(f"a prompt of {self.prompt_tokens} tokens: at least 1 is needed")
        if not 0 <= self.shared_tokens <= self.prompt_tokens:
            raise ConfigError(
                f"{self.shared_tokens} tokens that all prompts share: 0 to {self.prompt_tokens}, the tokens of a prompt"
            )

    @classmethod
    def of_run(cls, saved: Saved) -> "Workload":
        """That of a finished run. Tools take no time in it, since a run does not record how long they took."""
        prompts: list[Ids_T] = []
        turns: list[int] = []
        sampled: list[int] = []
        written: list[int] = []
        for tree in saved.trees():
            prompts.append(tree.branch(0).ids)
            counted: set[int] = set()
            for leaf in tree.leaves():
                runs = _turns(tree, leaf)
                turns.append(len(runs))
                for node, num_sampled, num_written in runs:
                    if node not in counted:
                        counted.add(node)
                        sampled.append(num_sampled)
                        written += [num_written] if num_written else []
        if not turns:
            raise ConfigError(f"{saved.path} has no finished leaf, so nothing is known of its paths; name another run")
        prompt_tokens = round(statistics.mean(map(len, prompts)))
        return cls(prompt_tokens, turns, sampled, written or [0], [0.0], min(_num_shared(prompts), prompt_tokens))


def _num_shared(prompts: Iterable[Ids_T]) -> int:
    """First tokens that all prompts have; 0 if all are one and the same."""
    distinct = {tuple(prompt.tolist()) for prompt in prompts}
    if len(distinct) < 2:
        return 0
    return sum(1 for _ in takewhile(lambda ids: len(set(ids)) == 1, zip(*distinct, strict=False)))


def _turns(tree: Tree, leaf: int) -> list[tuple[int, int, int]]:
    """(node that ends it, tokens sampled, tokens of the answer that follows) of each turn of a path."""
    found: list[tuple[int, int, int]] = []
    sampled = 0
    for node in tree.context(leaf)[1:]:
        for label in tree.labels(node):
            if label.origin == "sampled":
                sampled += label.num_tokens
            elif sampled:
                found.append((node, sampled, label.num_tokens))
                sampled = 0
    return [*found, (leaf, sampled, 0)] if sampled else found


def between(low: float, high: float, *, number: int = 64) -> list[float]:
    """Values between two, evenly in their logarithm (evenly in themselves, if one is 0)."""
    shares = (np.arange(number) + 0.5) / number
    return (low * (high / low) ** shares if low > 0 else low + (high - low) * shares).tolist()


def _drawn(values: Sequence[float], seed: int, index: int) -> float:
    return values[child_seed(seed, 0, index) % len(values)]


@dataclass(frozen=True)
class Speaker:
    """Writes as many turns of as many tokens as the workload says; a token is a byte. A turn that a segment has cut
    goes on where it was, though with another seed."""

    workload: Workload

    def __call__(self, turn: ScriptedTurn) -> str:
        calls, cut = _CALL.findall(turn.context), _CUT_CALL.search(turn.context, len(turn.context) - _LONGEST_END)
        if cut is not None and cut[2]:
            return "!"
        if _CUT_ANSWER.search(turn.context, len(turn.context) - 1):
            return "="
        begun = "" if cut is None else cut[1]
        numbers = calls[-1:] or [number for number in self.workload.turns if str(number).startswith(begun)]
        num_turns, letter = int(_drawn([*map(int, numbers)], turn.seed, 0)), _LETTERS[turn.seed % 26]
        if cut is not None:
            return f"{num_turns}{letter}!".removeprefix(begun)
        end = f"#{num_turns}{letter}!" if len(calls) + 1 < num_turns else f"{letter}="
        written = len(turn.context) - len(turn.context.rstrip("."))
        lengths = self.workload.turn_tokens
        if written:  # Its length is one of those that it has not passed.
            lengths = [length for length in lengths if length > written] or [written]
        return "." * (int(_drawn(lengths, turn.seed, 1)) - written - len(end)) + end


@dataclass(frozen=True, slots=True)
class _StandInFormat(TagFormat):
    """Calls and answers of a few tokens each, so that turns may be as short."""

    @property
    def stops(self) -> tuple[str, ...]:
        return ("!", "=")

    def read(self, run: str) -> Action | None:
        if call := _CALL.search(run):
            return ToolAction("search", f"{call[0]} after {len(run)}")
        return AnswerAction(answer[1]) if (answer := _ANSWER.search(run)) else None

    def answer(self, said: str) -> str | None:
        return answers[-1] if (answers := _ANSWER.findall(said)) else None


@dataclass(frozen=True)
class _StandInJudge:
    """Scores nodes by what their numbers hash to, at once."""

    name: str
    is_oracle: bool = False

    async def judge(self, branches: Sequence[Branch], problem: Problem) -> Sequence[Verdict]:
        return [Verdict(coin(branch.node)) for branch in branches]


@dataclass(frozen=True)
class _StandInTask:
    """What a run needs of a task when it is handed its problems."""

    tools: Sequence[Tool]
    format: TagFormat = _StandInFormat(
        tags={"search": "s"}, template="{question}", observation="{text}", texts={"empty": "{text}"}
    )
    judges: Sequence[BranchJudge] = ()
    is_same_answer: Callable[[str, str], bool] = str.__eq__


def stand_in_task(workload: Workload, judges: Iterable[str]) -> Any:
    """What the run has in place of its task."""

    async def search(arguments: str) -> str:
        seed = tree_seed(0, arguments)
        await asyncio.sleep(_drawn(workload.tool_seconds, seed, 0))
        return "," * int(_drawn(workload.tool_tokens, seed, 1))

    return _StandInTask((FunctionTool(search, name="search"),), judges=tuple(map(_StandInJudge, sorted(judges))))
