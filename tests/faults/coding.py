"""A scripted agent that writes Python, some of it bad; the tool it calls, whose sandboxes are killed; and what a branch
must show all the same.

Every step adds a number of its own to a list in its session and to a file there, and shows both; one in eight then
hangs, dies, takes too much memory, raises, or leaves a process behind. So a branch shows which steps its session has
seen: its own, each once, but for those that hung or died.
"""

import asyncio
import os
import re
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from tests.faults.chaos import Chaos

from ramify.core.branch import Branch
from ramify.core.judge import Verdict
from ramify.core.problem import Problem
from ramify.core.segment import ToolCall, ToolStatus
from ramify.core.tool import Branching, ToolResult
from ramify.sandbox.session import Session
from ramify.testing.scripts import Rule, ScriptedTurn
from ramify.tools.python import Python

NUM_STEPS: Final = 4
BAD_SHARE: Final = 0.125
MEMORY_BYTES: Final = 64 << 20
KILL_S: Final = 0.06
"""Latest moment of a kill: most calls are over by then."""

STEP: Final = """\
trail = [*globals().get("trail", ()), {number}]
open("trail", "a").write("{number} ")
{deed}  # {name}
print(trail, open("trail").read())"""


class Deed(NamedTuple):
    """What a step does between writing and showing, and how it must end then."""

    code: str
    status: ToolStatus
    is_kept: bool = False
    """Whether the session goes on behind it."""


GOOD: Final = "nothing"
DEEDS: Final = {
    GOOD: Deed("pass", "ok", is_kept=True),
    "hangs": Deed("import time; time.sleep(999)", "timeout"),
    "exits": Deed("import os; os._exit(1)", "crashed"),
    "kills itself": Deed("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "crashed"),
    "breeds": Deed(
        "import os, time\n"
        f"for _ in range(4): os.fork() or (bytearray(b'x') * {MEMORY_BYTES // 2}, time.sleep(999))\n"
        "time.sleep(999)",
        "crashed",
    ),
    "hoards": Deed("bytearray(1 << 40)", "error", is_kept=True),
    "raises": Deed("1 / 0", "error", is_kept=True),
    "leaves a child": Deed("import subprocess; subprocess.Popen(['sleep', '999'])", "ok", is_kept=True),
}
BAD: Final = tuple(name for name in DEEDS if name != GOOD)

_NUMBER: Final = re.compile(r'write\("(\d+) "\)')
_NAME: Final = re.compile(r"  # ([a-z ]+)$", re.MULTILINE)
_TRAIL: Final = re.compile(r"\[[\d, ]*\]")
_ANSWER: Final = re.compile(r"<answer>(.*?)</answer>")


# -- the agent --------------------------------------------------------------------------------------------------------


def coder(seed: int) -> Rule:
    """Take some steps, then answer with the last list that was shown."""
    draws = Chaos(seed, share=BAD_SHARE)

    def rule(turn: ScriptedTurn) -> str:
        if turn.context.count("</result>") < NUM_STEPS:
            name = draws.one_of(BAD, "deed", turn.seed) if draws.fails("step", turn.seed) else GOOD
            return f"<python>{STEP.format(number=turn.seed % 1000, deed=DEEDS[name].code, name=name)}</python>"
        return f"<answer>{(_TRAIL.findall(turn.context) or ['none'])[-1]}</answer>"

    return rule


@dataclass(frozen=True)
class Remembers:
    """Right is who answers with the numbers of its own steps."""

    name: str = "remembers"
    is_oracle: bool = False

    async def judge(self, branches: Sequence[Branch], problem: Problem) -> list[Verdict]:
        answers = [_ANSWER.search(branch.said) for branch in branches]
        lists = [[str(trail) for call, trail in seen(b.tool_calls) if call.status == "ok"] for b in branches]
        return [Verdict(float(a is not None and a[1] in told[-1:])) for a, told in zip(answers, lists, strict=True)]


def seen(calls: Sequence[ToolCall]) -> Iterator[tuple[ToolCall, list[int]]]:
    """Each call of a branch, with the numbers that its session must have seen then."""
    trail: list[int] = []
    for call in calls:
        if DEEDS[name_of(call)].is_kept:
            trail = [*trail, int(_NUMBER.findall(call.arguments)[0])]
        yield call, trail


def call_faults(branch: Branch) -> Iterator[str]:
    """Calls that did not end as their code says, or show what their branch has not done."""
    for call, trail in seen(branch.tool_calls):
        deed, shown = DEEDS[name_of(call)], f"{trail} {' '.join(map(str, trail))} \n"
        if call.status != deed.status or (deed.status == "ok" and call.result != shown):
            yield f"{name_of(call)!r} gave {call.status} {call.result!r} with {trail} done"


def name_of(call: ToolCall) -> str:
    """Of the deed that a call was to do."""
    return _NAME.findall(call.arguments)[0]


# -- the tool ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class KilledPython:
    """The tool `python`. During one call in twenty a sandbox is killed: that of the call, or one that begins."""

    python: Python
    chaos: Chaos
    name: str = "python"
    open_sessions: set[int] = field(default_factory=set)
    killed: set[int] = field(default_factory=set)
    """First processes of sandboxes."""

    @property
    def branching(self) -> Branching:
        return self.python.branching

    async def open(self, problem: Problem) -> "KilledSession":
        return KilledSession(self, problem.uid, await self.python.open(problem))


class KilledSession:
    def __init__(self, tool: KilledPython, uid: str, session: Session) -> None:
        self.tool, self.uid, self.session = tool, uid, session
        tool.open_sessions.add(id(self))

    async def call(self, arguments: str) -> ToolResult:
        killing = asyncio.create_task(self._kill(arguments))
        try:
            return await self.session.call(arguments)
        finally:
            killing.cancel()
            await asyncio.wait([killing])

    async def fork(self) -> "KilledSession":
        return KilledSession(self.tool, self.uid, await self.session.fork())

    async def close(self) -> None:
        self.tool.open_sessions.discard(id(self))
        await self.session.close()

    async def _kill(self, arguments: str) -> None:
        """At a moment of the call that follows from the seed, as the moment's work does not."""
        chaos, words = self.tool.chaos, (self.uid, arguments)
        if not chaos.fails("sandbox", *words):
            return
        await asyncio.sleep(KILL_S * chaos.draw("moment", *words))
        pid = self.session.sandbox_pid or max(first_processes(), default=None)
        if pid is not None and kill(pid):
            self.tool.killed.add(pid)


def kill(pid: int) -> bool:
    """SIGKILL to the first process of a sandbox; whether it was still one of this process's."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        # Looked at while the number is held: it is nobody else's.
        is_ours = pid in first_processes()
        if is_ours:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except ProcessLookupError:
        return False
    finally:
        os.close(pidfd)
    return is_ours


def first_processes() -> list[int]:
    """Of every sandbox of this process: the children of its children."""
    return [inner for outer in children(os.getpid()) for inner in children(outer)]


def children(pid: int) -> list[int]:
    """Those of all its threads."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += map(int, path.read_text().split())
        except OSError:
            continue
    return found
