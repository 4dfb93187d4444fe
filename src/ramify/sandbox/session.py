"""Session: a line of steps that a program may run, wait at, fork and come back to.

Owns the history of a session, and with it the way back: a state that was evicted, or whose sandbox is gone, is rebuilt
by running the steps again in another sandbox, each compared with what it showed the first time. A step that hung or
died is no part of the history.
"""

import asyncio
import hashlib
import re
from dataclasses import dataclass
from typing import Final

from ramify.core.errors import ToolError
from ramify.core.tool import ToolResult
from ramify.sandbox.host import Sandbox
from ramify.sandbox.pool import SandboxPool
from ramify.sandbox.state import Lost, Outcome, SandboxState, StepEnd

_ADDRESS: Final = re.compile(r"\b0x[0-9a-f]{6,16}\b")
REPLAY_PATIENCE: Final = 4.0
"""A step that was in time may take this much longer when it is repeated on a busier machine."""


@dataclass(frozen=True, slots=True)
class SandboxAnswer:
    """What a step showed, and whether it ended without an exception."""

    text: str
    status: Outcome
    isolation: str

    @property
    def ok(self) -> bool:
        return self.status == "ok"


@dataclass(frozen=True, slots=True)
class PastStep:
    """A step of a history, and the hash of what it showed."""

    code: str
    timeout_s: float
    digest: bytes


@dataclass(frozen=True, slots=True)
class _Place:
    """A state, and the sandbox it is in."""

    sandbox: Sandbox
    state: SandboxState


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRules:
    """What holds for all sessions of one tool."""

    timeout_s: float
    is_stateful: bool = True
    shares_sandbox: bool = True
    """Whether a fork may live in the sandbox of what it was forked from."""
    max_code_bytes: int = 4 << 20


class Lineage:
    """The sandboxes of a session and of all that was forked from it."""

    def __init__(self, pool: SandboxPool, rules: SessionRules) -> None:
        self.pool = pool
        self.rules = rules
        self._sandboxes: list[Sandbox] = []

    async def begin(self, *, is_new: bool) -> _Place:
        """The state without any step, in a sandbox that has room, or in one nobody was in."""
        self._sandboxes = [sandbox for sandbox in self._sandboxes if sandbox.is_usable]
        room = self.pool.config.limits.max_nodes // 2
        found = next((sandbox for sandbox in self._sandboxes if len(sandbox.states.by_pid) <= room), None)
        if found is None or is_new or not self.rules.shares_sandbox:
            found = await self.pool.take()
            self._sandboxes.append(found)
        found.use(found.states.first)
        return _Place(found, found.states.first)


class Session:
    """One state, and the steps that led to it. Steps of one session run one after another."""

    def __init__(self, lineage: Lineage, place: _Place | None, history: tuple[PastStep, ...] = ()) -> None:
        """Made by `open` and `fork`; counts as a user of `place` already."""
        self._lineage = lineage
        self._place = place
        self._history = history
        self._lock = asyncio.Lock()
        self._is_closed = False
        lineage.pool.enter()

    @classmethod
    async def open(cls, pool: SandboxPool, rules: SessionRules) -> "Session":
        """A session without any step. Raises `ToolError` where this machine lacks a wall."""
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
        """The first process of the sandbox this is in, whose end is that of all in it; None = it is in none now."""
        return self._place.sandbox.keeper_pid if self._place is not None else None

    async def run(self, code: str, timeout_s: float | None = None) -> SandboxAnswer:
        """Run `code` behind the steps so far. Raises `ToolError("replay_diverged")` where they show others now, and
        `ToolError("sandbox_lost")` where two sandboxes were lost under it."""
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
        return ToolResult(answer.text, answer.status, {"isolation": answer.isolation})

    async def fork(self) -> "Session":
        """A session in the same state that lives on by itself. Costs nothing until it runs something."""
        if self._is_closed:
            raise ToolError("tool_gave_up", "the session was closed")
        place = self._place if self._lineage.rules.shares_sandbox else None
        if place is not None:
            place.sandbox.use(place.state)
        return Session(self._lineage, place, self._history)

    async def close(self) -> None:
        """Give the state up. The last session of a tool closes its sandboxes. Harmless when repeated."""
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
                number = len(self._history) + 1
                ended = await place.sandbox.step(place.state, code, number=number, timeout_s=timeout_s)
            except Lost:
                await self._leave()
                continue
            self._move(place, ended, PastStep(code, timeout_s, _digest(ended)))
            return self._answer(ended.outcome, ended.text)
        raise ToolError("sandbox_lost", "the sandbox was lost twice, so the state could not be restored")

    def _move(self, place: _Place, ended: StepEnd, done: PastStep) -> None:
        """Be in the state behind a step, where there is one and it counts."""
        if ended.state is None:
            return
        if not self._lineage.rules.is_stateful:
            place.sandbox.let_go(ended.state)
            return
        self._place = _Place(place.sandbox, ended.state)
        self._history = (*self._history, done)
        place.sandbox.let_go(place.state)

    async def _placed(self, *, is_new: bool) -> _Place:
        """The state this session is in, rebuilt if it is gone."""
        if self._place is not None and self._place.state.is_alive and not is_new:
            return self._place
        await self._leave()
        self._place = await self._rebuilt(is_new=is_new)
        return self._place

    async def _rebuilt(self, *, is_new: bool) -> _Place:
        """The state behind the history, which must show what it showed. Raises `Lost`, `ToolError`."""
        place = await self._lineage.begin(is_new=is_new)
        try:
            for number, done in enumerate(self._history, 1):
                place = await self._repeated(place, done, number)
        except BaseException:
            await self._lineage.pool.give_back(place.sandbox)
            raise
        return place

    async def _repeated(self, place: _Place, done: PastStep, number: int) -> _Place:
        """The state behind one more step of the history; the one before is let go."""
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
        place, self._place = self._place, None
        if place is not None:
            place.sandbox.let_go(place.state)
            await self._lineage.pool.give_back(place.sandbox)

    def _answer(self, outcome: Outcome, text: str) -> SandboxAnswer:
        return SandboxAnswer(text, outcome, self._lineage.pool.config.walls)


def _digest(ended: StepEnd) -> bytes:
    """Of what a step showed but for addresses, which differ where the system cannot keep them."""
    shown = f"{ended.outcome}\0{_ADDRESS.sub('', ended.text)}".encode(errors="surrogatepass")
    return hashlib.blake2b(shown, digest_size=16).digest()
