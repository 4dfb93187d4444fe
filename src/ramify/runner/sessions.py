"""Sessions: the states of tools on the branches of trees.

The key of a state is the call before it: the `ToolCall` object itself, which a tree keeps with the observation, or
nothing at the start of a branch. So branches that fork after an observation find its state. A branch read from a store
has new call objects, so its state is rebuilt by replay. Only answered calls count: a call that timed out or crashed
leaves the state before it. Tools that act on one state (`core.tool.Joint`) share it.

How a tool can branch:

- `share`: one session per tree.
- `fork`: every state stays parked and is forked for each call, so all branches and retries can start from it.
- `replay`: the session moves on with its branch; a later branch replays the calls.
- `refuse`: the session moves on with its branch; a later branch is refused.

At most `max_parked` sessions that can be rebuilt are parked; the least recently used is evicted first.
"""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from ramify.config.run_config import ToolsConfig
from ramify.core.environment import REPLIES
from ramify.core.errors import ContractError, ToolError
from ramify.core.problem import Problem
from ramify.core.quick_init import quick_init
from ramify.core.seeds import step_seed, world_seed
from ramify.core.segment import ToolCall
from ramify.core.tool import LOST, STATE_DIGEST, STATEFUL, Joint, Tool, ToolResult, ToolSession, called_by, state_of
from ramify.edge.error_text import error_text
from ramify.environments.episodes import EnvironmentTool, EpisodeSession
from ramify.runner.deadline import Deadlines, GaveUp, OutOfTime, Work, contained
from ramify.runner.world_model import RecordedModel, WorldModel
from ramify.tools.output import made_safe

T = TypeVar("T")

CLOSE_S = 2.0
"""Seconds a session has to close. The end of a run waits for it."""

Key = tuple[str, str, int]
"""Tree, state, and the id of the call before the state (0 = none)."""


class Refused(Exception):
    """Another branch holds the tool's state, and it can be neither forked nor replayed. Private to the runner."""


@dataclass(frozen=True, slots=True)
class Acting:
    """A tool and the state it acts on."""

    tool: Tool
    state: str
    peers: Mapping[str, Tool]
    """Tools that act on this state, by name, including the tool itself."""
    is_joint: bool
    """Whether the tool adapts the session of a shared state."""


def acting(tools: Iterable[Tool]) -> dict[str, Acting]:
    """Name -> tool. Made once a run: finding out the kind of a tool takes as long as a quick call."""
    states = {tool.name: (tool, state_of(tool)) for tool in tools}
    return {
        name: Acting(
            tool,
            state,
            {peer: other for peer, (other, its) in states.items() if its == state},
            is_joint=isinstance(tool, Joint),
        )
        for name, (tool, state) in states.items()
    }


@quick_init
@dataclass(frozen=True, slots=True)
class CallStart:
    """Where a call begins: a tool, and the earlier calls on the branch that made its state."""

    acting: Acting
    tree: str
    history: tuple[ToolCall, ...]
    seed: int = 0
    """Seed of the path, for a tool that draws its noise by path."""

    @classmethod
    def behind(cls, acting: Acting, tree: str, calls: Sequence[ToolCall], *, seed: int = 0) -> "CallStart":
        """The start of a call on a branch of `tree` that has made `calls`."""
        return cls(acting, tree, tuple(c for c in calls if c.tool in acting.peers and c.status in STATEFUL), seed)

    @property
    def tool(self) -> Tool:
        return self.acting.tool

    @property
    def key(self) -> Key:
        return self.key_after(len(self.history))

    def key_after(self, num_calls: int) -> Key:
        """Key of the state after the first `num_calls` calls of the history."""
        return self.tree, self.acting.state, id(self.history[num_calls - 1]) if num_calls else 0


@dataclass(slots=True)
class SessionSlot:
    """One state. `call` is kept because its id is the key of the slot. A slot in use is neither evicted nor closed."""

    call: ToolCall | None
    session: ToolSession | None = None
    num_users: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Sessions:
    """Hands out sessions in the state a branch needs: `take` a session, then `park` or `discard` it."""

    def __init__(
        self,
        problems: Mapping[str, Problem],
        config: ToolsConfig,
        *,
        seeds: Mapping[str, int] | None = None,
        max_sessions: int | None = None,
    ) -> None:
        """`seeds`: seed of each tree; a tree without one has 0. Only environments read it. `max_sessions`: a lower
        limit than `tools.max_parked`."""
        self._problems = problems
        self._seeds = seeds or {}
        self._config = config
        self._max_parked = config.max_parked if max_sessions is None else min(config.max_parked, max_sessions)
        self._parked: OrderedDict[Key, SessionSlot] = OrderedDict()
        """States that can be rebuilt, least recently used first."""
        self._kept: dict[Key, SessionSlot] = {}
        """States that cannot be rebuilt, and shared sessions. Never evicted."""
        self._live: dict[str, dict[Key, None]] = {}
        """Trees whose sessions may be parked, and every key under which a session of theirs was kept."""
        self._closing: set[asyncio.Task[None]] = set()
        self.deadlines = Deadlines()
        self.num_replayed = 0
        self.num_evicted = 0

    @property
    def num_parked(self) -> int:
        return len(self._parked) + len(self._kept)

    async def take(self, start: CallStart) -> ToolSession:
        """A session in the state the branch needs. Only the caller uses it, unless the tool is shared.

        Raises `Refused`, `ToolError("replay_diverged")` if replayed calls give other results this time, and `ToolError`
        for whatever the tool raises when it opens or forks.
        """
        self._live.setdefault(start.tree, {})
        match start.tool.branching:
            case "share":
                return await self._shared(start)
            case "fork":
                return await self._forked(start)
            case "replay" | "refuse":
                return await self._moved(start)

    def park(self, start: CallStart, call: ToolCall, session: ToolSession) -> None:
        """Keep a session, taken at `start`, in the state after `call`."""
        if start.tool.branching == "share":
            return
        if start.tree not in self._live:
            self._close_soon(session)
            return
        key = (start.tree, start.acting.state, id(call))
        self._home(start)[key] = SessionSlot(call, session)
        self._note(key)
        self._evict()

    def discard(self, start: CallStart, session: ToolSession) -> None:
        """Close a session whose state is no longer known. A shared session stays open."""
        if start.tool.branching != "share":
            self._close_soon(session)

    def release(self, tree: str) -> None:
        """Close all sessions of a tree. A session in use is closed when its user is done."""
        self._drop([key for key in self._live.pop(tree, ()) if key in self._parked or key in self._kept])

    async def close(self) -> None:
        """Close all sessions and wait until they are closed."""
        self._live.clear()
        self._drop([*self._parked, *self._kept])
        await self.deadlines.close()
        while self._closing:
            await asyncio.wait(self._closing)
        await self.deadlines.close()

    def step_seed(self, start: CallStart) -> int | None:
        """Seed of an environment's step at `start`; None = the tool draws nothing."""
        if not isinstance(start.tool, EnvironmentTool) or start.tool.environment.noise == "none":
            return None
        is_shared = start.tool.environment.noise == "shared"
        return step_seed(self._seeds.get(start.tree, 0) if is_shared else start.seed, len(start.history))

    # -- the ways to branch -----------------------------------------------------------------------------------------

    async def _shared(self, start: CallStart) -> ToolSession:
        start = replace(start, history=())
        async with self._held(start) as slot:
            if slot.session is None:
                slot.session = await self._opened(start)
            return slot.session

    async def _forked(self, start: CallStart) -> ToolSession:
        """A fork of the parked state; the state is rebuilt if it is not parked."""
        async with self._held(start) as slot:
            if slot.session is None:
                slot.session = await self._rebuilt(start)
            return await self._fork(slot)

    async def _moved(self, start: CallStart) -> ToolSession:
        """The parked session itself. If it has moved on, its calls are replayed, or the branch is refused."""
        slot = self._home(start).pop(start.key, None)
        if slot is not None and slot.session is not None:
            return slot.session
        if start.history and start.tool.branching == "refuse":
            raise Refused
        return await self._replayed(start, await self._opened(start), num_done=0)

    async def _rebuilt(self, start: CallStart) -> ToolSession:
        """The state, rebuilt from its nearest parked ancestor that is not lost, or from the beginning."""
        for num_calls in range(len(start.history) - 1, -1, -1):
            slot = self._parked.get(start.key_after(num_calls))
            if slot is None or slot.session is None:
                continue
            async with self._held(replace(start, history=start.history[:num_calls])) as slot:
                if (fork := await self._living_fork(slot)) is not None:
                    return await self._replayed(start, fork, num_done=num_calls)
        return await self._replayed(start, await self._opened(start), num_done=0)

    # -- what a tool does -------------------------------------------------------------------------------------------

    async def _opened(self, start: CallStart) -> ToolSession:
        if start.tree not in self._problems:
            raise ContractError(f"no problem is known for tree {start.tree!r}; its tools cannot be opened")
        problem, tool = self._problems[start.tree], start.tool
        what = f"{start.acting.state} did not open"
        if isinstance(tool, EnvironmentTool):
            seed = world_seed(self._seeds.get(start.tree, 0))
            return await self._in_time(lambda: tool.open_seeded(problem, seed), what, unwanted=self._close_soon)
        return await self._in_time(lambda: tool.open(problem.for_agents()), what, unwanted=self._close_soon)

    async def _fork(self, slot: SessionSlot) -> ToolSession:
        """A fork of the slot's session. If the fork fails, the session is closed and the next user rebuilds it."""
        session = slot.session
        assert session is not None
        try:
            return await self._in_time(session.fork, "the session did not fork", unwanted=self._close_soon)
        except BaseException:
            self._close_soon(session)
            slot.session = None
            raise

    async def _living_fork(self, slot: SessionSlot) -> ToolSession | None:
        """As `_fork`; None = the slot has no session, or its session was lost with its sandbox or machine."""
        if slot.session is None:
            return None
        try:
            return await self._fork(slot)
        except ToolError as error:
            if error.reason != LOST:
                raise
            return None

    async def _replayed(self, start: CallStart, session: ToolSession, *, num_done: int) -> ToolSession:
        """`session` after the remaining calls of the history. Their results must equal those on the branch."""
        try:
            for call in start.history[num_done:]:
                self.num_replayed += 1
                await self._repeat(call, called_by(start.acting.peers[call.tool], session))
        except BaseException:
            self._close_soon(session)
            raise
        return session

    async def _repeat(self, call: ToolCall, session: ToolSession) -> None:
        what, model = f"{call.tool} {call.arguments[:80]!r}", RecordedModel(call)
        try:
            returned = await self._in_time(lambda: called(session, call.arguments, call.seed, model), "no result")
        except ToolError as error:
            if error.reason in (LOST, "replay_diverged"):
                raise
            raise ToolError("replay_diverged", f"{what} had answered and now failed: {error}") from error
        result = made_safe(returned, max_bytes=self._config.max_result_bytes)
        if (result.status, result.text) != (call.status, call.result):
            was, now = f"{call.status} {call.result[:80]!r}", f"{result.status} {result.text[:80]!r}"
            raise ToolError("replay_diverged", f"{what} had given {was} and now gave {now}")
        if (result.reward, result.end) != (call.reward, call.end):
            was, now = f"reward {call.reward} and end {call.end}", f"reward {result.reward} and end {result.end}"
            raise ToolError("replay_diverged", f"{what} had given {was} and now gave {now}")
        left, leaves = (each.metadata.get(STATE_DIGEST) for each in (call, result))
        if left is not None and leaves is not None and left != leaves:
            raise ToolError("replay_diverged", f"{what} had left the state sha256 {left} and now left {leaves}")

    async def _in_time(self, work: Work[T], what: str, *, unwanted: Callable[[T], object] = lambda result: None) -> T:
        """Boundary to plug-in code: an exception or a timeout of a session becomes a `ToolError`."""
        try:
            return await self.deadlines.within(work, self._config.deadline_s, unwanted=unwanted)
        except OutOfTime:
            raise ToolError("tool_hang", f"{what} in {self._config.deadline_s:g} s") from None
        except GaveUp as error:
            raise ToolError("tool_gave_up", str(error)) from error
        except ToolError:
            raise
        except Exception as error:
            raise ToolError("tool_crashed", error_text(error)) from error

    # -- slots --------------------------------------------------------------------------------------------------------

    def _home(self, start: CallStart) -> dict[Key, SessionSlot]:
        return self._kept if start.tool.branching in ("share", "refuse") else self._parked

    @contextlib.asynccontextmanager
    async def _held(self, start: CallStart) -> AsyncIterator[SessionSlot]:
        """The slot of a state, made if needed, for one user at a time."""
        home, key = self._home(start), start.key
        slot = home.setdefault(key, SessionSlot(start.history[-1] if start.history else None))
        self._note(key)
        if home is self._parked:
            self._parked.move_to_end(key)
        slot.num_users += 1
        try:
            async with slot.lock:
                yield slot
        finally:
            slot.num_users -= 1
            self._settle(home, key, slot)

    def _note(self, key: Key) -> None:
        """Remember a key of a live tree, so that `release` need not search for it."""
        if key[0] in self._live:
            self._live[key[0]][key] = None

    def _settle(self, home: dict[Key, SessionSlot], key: Key, slot: SessionSlot) -> None:
        """The last user closes a session that was released meanwhile, and drops a slot without a session."""
        if slot.num_users:
            return
        if home.get(key) is slot and slot.session is None:
            del home[key]
        elif home.get(key) is not slot and slot.session is not None:
            self._close_soon(slot.session)
        self._evict()

    def _evict(self) -> None:
        """Close the least recently used sessions that can be rebuilt, down to the limit."""
        while len(self._parked) > self._max_parked:
            idle = next((key for key, slot in self._parked.items() if not slot.num_users), None)
            if idle is None:
                return
            self.num_evicted += 1
            self._drop([idle])

    def _drop(self, keys: Iterable[Key]) -> None:
        """Forget states. A session in use is closed by its last user."""
        slots = [self._parked.pop(key, None) or self._kept.pop(key) for key in keys]
        self._close_soon(*(s.session for s in slots if not s.num_users and s.session is not None))

    def _close_soon(self, *sessions: ToolSession) -> None:
        if sessions:
            task = asyncio.create_task(self._close(sessions))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def _close(self, sessions: Sequence[ToolSession]) -> None:
        """Boundary to plug-in code: errors while a session closes are ignored."""

        async def closed() -> None:
            await asyncio.gather(*(contained(session.close) for session in sessions), return_exceptions=True)

        with contextlib.suppress(OutOfTime, GaveUp):
            await self.deadlines.within(closed, CLOSE_S)


async def called(
    session: ToolSession, arguments: str, seed: int | None, model: WorldModel | RecordedModel | None = None
) -> ToolResult:
    """The result of a call. Only an environment's step reads the seed, and asks the model; what it asked is in the
    result."""
    if isinstance(session, EpisodeSession):
        result = await session.step(arguments, seed or 0, None if model is None else model.ask)
        if model is None or not model.replies or not isinstance(result, ToolResult):
            return result
        return replace(result, metadata={**result.metadata, REPLIES: list(model.replies)})
    return await session.call(arguments)
