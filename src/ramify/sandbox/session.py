"""Session: a sequence of steps that a program can run, pause, fork and return to.

Owns the history of a session. If a state was evicted or its sandbox is gone, the session rebuilds it: it runs the steps
again in another sandbox and compares each output with the first one. A step that timed out or crashed is not part of
the history.
"""

import asyncio
import hashlib
import re
import time
from dataclasses import dataclass
from typing import Final

from ramify.core.errors import ToolError
from ramify.core.tool import ToolResult
from ramify.sandbox.host import Sandbox
from ramify.sandbox.pool import SandboxPool
from ramify.sandbox.state import Busy, Lost, Outcome, SandboxState, StepEnd

_ADDRESS: Final = re.compile(r"\b0x[0-9a-f]{6,16}\b")
REPLAY_PATIENCE: Final = 4.0
"""Factor on the timeout when a step is repeated: the machine may be busier now."""
START_S: Final = 0.2
"""Time in which a sandbox starts (bench/sandbox_speed.py: 0.15 s)."""


@dataclass(frozen=True, slots=True)
class SandboxAnswer:
    """A step's output, and how it ended."""

    text: str
    status: Outcome
    isolation: str
    took_s: float | None = None
    """Seconds that the step ran, with the fork of its process, and without the wait for the sandbox and the care of its
    files. An event loop that is busy adds nothing to them (Linux). None = it did not end by itself."""

    @property
    def ok(self) -> bool:
        return self.status == "ok"


@dataclass(frozen=True, slots=True)
class PastStep:
    """A step of a history, the hash of its output, and how long it ran."""

    code: str
    timeout_s: float
    digest: bytes
    took_s: float


@dataclass(frozen=True, slots=True)
class _Place:
    """A state and its sandbox."""

    sandbox: Sandbox
    state: SandboxState


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRules:
    """Settings for all sessions of one tool."""

    timeout_s: float
    is_stateful: bool = True
    shares_sandbox: bool = True
    """Whether a fork may stay in the sandbox of its parent."""
    max_code_bytes: int = 4 << 20


class Lineage:
    """The sandboxes of a session and of all its forks."""

    def __init__(self, pool: SandboxPool, rules: SessionRules) -> None:
        self.pool = pool
        self.rules = rules
        self._sandboxes: list[Sandbox] = []

    async def begin(self, *, is_new: bool) -> _Place:
        """The first state, without any step, in a sandbox that has room and runs nothing or, if `is_new`, in a fresh
        one."""
        self._sandboxes = [sandbox for sandbox in self._sandboxes if sandbox.is_usable]
        room = self.pool.config.limits.max_nodes // 2
        free = (s for s in self._sandboxes if len(s.states.by_pid) <= room and not s.is_running)
        found = next(free, None)
        if found is None or is_new or not self.rules.shares_sandbox:
            found = await self.pool.take()
            self._sandboxes.append(found)
        found.use(found.states.first)
        return _Place(found, found.states.first)


class Session:
    """One state and the steps that led to it. Steps of one session run one after another."""

    def __init__(self, lineage: Lineage, place: _Place | None, history: tuple[PastStep, ...] = ()) -> None:
        """Made by `open` and `fork`; already counted as a user of `place`."""
        self._lineage = lineage
        self._place = place
        self._history = history
        self._lock = asyncio.Lock()
        self._is_closed = False
        lineage.pool.enter()

    @classmethod
    async def open(cls, pool: SandboxPool, rules: SessionRules) -> "Session":
        """A session without any step. Raises `ToolError` if this machine lacks a wall."""
        lineage = Lineage(pool, rules)
        session = cls(lineage, None)
        try:
            session._place = await lineage.begin(is_new=False)
        except BaseException:
            await session.close()
            raise
        return session

    @property
    def sandbox_pid(self) -> int | None:
        """The first process of this session's sandbox; when it ends, all processes of the sandbox end. None = it is in
        no sandbox now."""
        return self._place.sandbox.keeper_pid if self._place is not None else None

    async def run(self, code: str, timeout_s: float | None = None) -> SandboxAnswer:
        """Run `code` after the steps so far. Raises `ToolError("replay_diverged")` if a repeated step shows another
        output, and `ToolError("sandbox_lost")` if two sandboxes in a row were lost."""
        if self._is_closed:
            raise ToolError("tool_gave_up", "the session was closed")
        if len(code) > self._lineage.rules.max_code_bytes:
            return self._answer("error", f"the code is longer than {self._lineage.rules.max_code_bytes} characters")
        async with self._lock:
            try:
                return await self._run(code, timeout_s or self._lineage.rules.timeout_s)
            finally:
                if self._is_closed:
                    await self._leave()

    async def call(self, arguments: str) -> ToolResult:
        """Run one call's code."""
        answer = await self.run(arguments)
        return ToolResult(answer.text, answer.status, {"isolation": answer.isolation}, took_s=answer.took_s)

    async def fork(self) -> "Session":
        """A session in the same state that continues independently. Costs nothing until it runs a step."""
        if self._is_closed:
            raise ToolError("tool_gave_up", "the session was closed")
        place = self._place if self._lineage.rules.shares_sandbox else None
        if place is not None:
            place.sandbox.use(place.state)
        return Session(self._lineage, place, self._history)

    async def close(self) -> None:
        """Release the state. The last session of a tool closes its sandboxes. Calling it again is harmless."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if not self._lock.locked():
                await self._leave()
        finally:
            await self._lineage.pool.leave()

    async def _run(self, code: str, timeout_s: float) -> SandboxAnswer:
        for is_new in (False, True):
            try:
                place = await self._placed(is_new=is_new)
                self._lineage.pool.touch(place.sandbox)
                began = time.monotonic()
                place, ended = await self._stepped(place, code, timeout_s)
            except Lost:
                await self._leave()
                continue
            self._move(place, ended, PastStep(code, timeout_s, _digest(ended), time.monotonic() - began))
            return self._answer(ended.outcome, ended.text, took_s=ended.took_s)
        raise ToolError("sandbox_lost", "the sandbox was lost twice, so the state could not be restored")

    async def _stepped(self, place: _Place, code: str, timeout_s: float) -> tuple[_Place, StepEnd]:
        """Run a step, here or elsewhere: a sandbox runs one at a time. A session waits as long as a replay of its
        steps in another sandbox would take, then replays them; if that is not possible, it waits on."""
        number = len(self._history) + 1
        patience_s = START_S + sum(done.took_s for done in self._history)
        try:
            ended = await place.sandbox.step(
                place.state, code, number=number, timeout_s=timeout_s, patience_s=patience_s
            )
        except Busy:
            place = await self._moved_elsewhere(place)
            ended = await place.sandbox.step(place.state, code, number=number, timeout_s=timeout_s)
        return place, ended

    async def _moved_elsewhere(self, place: _Place) -> _Place:
        try:
            elsewhere = await self._rebuilt(is_new=False)
        except (Lost, ToolError):
            return place
        left, self._place = self._place, elsewhere
        await self._release(left)
        return elsewhere

    def _move(self, place: _Place, ended: StepEnd, done: PastStep) -> None:
        """Move to the state after a step, if there is one and the session is stateful."""
        if ended.state is None:
            return
        if not self._lineage.rules.is_stateful:
            place.sandbox.let_go(ended.state)
            return
        self._place = _Place(place.sandbox, ended.state)
        self._history = (*self._history, done)
        place.sandbox.let_go(place.state)

    async def _placed(self, *, is_new: bool) -> _Place:
        """The current state; rebuilt if it is gone."""
        if self._place is not None and self._place.state.is_alive and not is_new:
            return self._place
        await self._leave()
        self._place = await self._rebuilt(is_new=is_new)
        return self._place

    async def _rebuilt(self, *, is_new: bool) -> _Place:
        """The state after the history, with every output compared. Raises `Lost`, `ToolError`."""
        place = await self._lineage.begin(is_new=is_new)
        try:
            for number, done in enumerate(self._history, 1):
                place = await self._repeated(place, done, number)
        except BaseException:
            await self._lineage.pool.give_back(place.sandbox)
            raise
        return place

    async def _repeated(self, place: _Place, done: PastStep, number: int) -> _Place:
        """The state after one more step of the history; the state before is released."""
        limit_s = REPLAY_PATIENCE * done.timeout_s
        try:
            ended = await place.sandbox.step(place.state, done.code, number=number, timeout_s=limit_s)
        finally:
            place.sandbox.let_go(place.state)
        if ended.state is not None and _digest(ended) == done.digest:
            return _Place(place.sandbox, ended.state)
        if ended.state is not None:
            place.sandbox.let_go(ended.state)
        said = f"step {number}, {done.code[:80]!r}, shows something else now: {ended.text[-200:]!r}"
        raise ToolError("replay_diverged", said)

    async def _leave(self) -> None:
        left, self._place = self._place, None
        await self._release(left)

    async def _release(self, place: _Place | None) -> None:
        if place is not None:
            place.sandbox.let_go(place.state)
            await self._lineage.pool.give_back(place.sandbox)

    def _answer(self, outcome: Outcome, text: str, *, took_s: float | None = None) -> SandboxAnswer:
        return SandboxAnswer(text, outcome, self._lineage.pool.config.walls, took_s)


def _digest(ended: StepEnd) -> bytes:
    """Hash of a step's outcome and output. Addresses are left out: they differ on systems that cannot keep them
    fixed."""
    shown = f"{ended.outcome}\0{_ADDRESS.sub('', ended.text)}".encode(errors="surrogatepass")
    return hashlib.blake2b(shown, digest_size=16).digest()
