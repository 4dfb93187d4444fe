"""Toolbox: runs the model's tool calls. A tool's fault affects only its own observation.

It owns deadlines, retries, the sessions of all branches and their metrics. A tool that raises, hangs or returns an
invalid result gives a `ToolCall` with status `crashed` or `timeout`. Only a branch whose state cannot be restored
raises `ToolError("replay_diverged")`. Cancellation is never swallowed. A call's
seconds are those of its tool and of the pauses before retries, without the opening of its session: by the tool's own
clock (`ToolResult.took_s`), else the running loop's time in its coroutine.
"""

import asyncio
import contextlib
import hashlib
import math
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final

from ramify.config.run_config import ToolsConfig
from ramify.core.branch import Branch
from ramify.core.environment import TURN
from ramify.core.errors import ConfigError, JudgeError, ToolError, nearest
from ramify.core.format import ToolAction, TurnAction
from ramify.core.judge import Verdict
from ramify.core.problem import Problem
from ramify.core.segment import ToolCall, ToolStatus
from ramify.core.tool import LOST, STATEFUL, ChecksStart, Lasting, Sandboxed, Tool, ToolResult, ToolSession, called_by
from ramify.edge.error_text import error_text
from ramify.edge.open_files import out_of_files
from ramify.edge.retries import backoff_s
from ramify.environments.episodes import EnvironmentTool, EpisodeSession
from ramify.environments.score import EnvironmentScore
from ramify.formats.calls import unwrapped
from ramify.runner.deadline import OutOfTime
from ramify.runner.sessions import CallStart, Refused, Sessions, acting, called
from ramify.runner.tool_metrics import ToolMetrics
from ramify.runner.world_model import WorldModel
from ramify.tools.arguments import Faults, faults_of, text_parameter
from ramify.tools.output import made_safe, valid

BACKOFF_BASE_S, BACKOFF_CAP_S = 0.5, 30.0
"""Longest pause before the first retry, and the limit of a pause, in seconds. The pause doubles with each retry."""
END_S: Final = 10.0
"""Seconds a tool has to release what it holds. A server gets 2 s to end by itself, 2 s after SIGTERM, then SIGKILL."""
REFUSED: Final = "its state is another branch's, and it can neither be copied nor rebuilt"
"""Why a call of a branch is refused whose state has moved on with another branch."""
UNTRIED: Final = frozenset({"replay_diverged", "tool_hang", "tool_gave_up", "world_raised"})
"""Reasons of a `ToolError` that a retry would only meet again."""


class Toolbox:
    """The tools of a run. `problems` maps the name of each tree to its problem; tools see it without its secret."""

    def __init__(
        self,
        tools: Iterable[Tool],
        config: ToolsConfig | None = None,
        *,
        problems: Mapping[str, Problem],
        seeds: Mapping[str, int] | None = None,
    ) -> None:
        """`seeds`: seed of each tree, for the noise of environments; both mappings may grow with the run."""
        self._config = config or ToolsConfig()
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            if tool.name in self._tools:
                raise ConfigError(f"two tools are called {tool.name!r}; a name calls one tool")
            _check_timeout(tool, self._config.deadline_s)
            self._tools[tool.name] = tool
        self._acting = acting(self._tools.values())
        self._problems = problems
        named = {name: tool for name, tool in self._tools.items() if name != TURN}
        self._faults = {name: _faults_of(tool) for name, tool in named.items()}
        self._texts = {name: found for name, tool in named.items() if (found := _text_parameter(tool))}
        limits = [tool.max_sessions for tool in self._tools.values() if isinstance(tool, EnvironmentTool)]
        max_sessions = min((limit for limit in limits if limit is not None), default=None)
        self._sessions = Sessions(problems, self._config, seeds=seeds, max_sessions=max_sessions)
        self._metrics = ToolMetrics.of(self._tools)
        self._room = asyncio.Semaphore(self._config.max_parallel)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name in self._tools if name != TURN)

    @property
    def takes_turns(self) -> bool:
        """Whether an environment answers every turn, also one without a call."""
        return TURN in self._tools

    async def call(
        self,
        tree: str,
        branch: Branch,
        action: ToolAction | TurnAction,
        *,
        seed: int = 0,
        model: WorldModel | None = None,
    ) -> ToolCall:
        """Carry out the action of a turn at the end of `branch`, in the state after the branch's earlier calls. `seed`:
        that of the path, for the noise of an environment. `model`: what an environment that samples asks.

        Raises `ToolError("replay_diverged")` if that state cannot be restored.
        """
        if isinstance(action, TurnAction):
            action = ToolAction(TURN, action.text)
        called = self._acting.get(action.tool)
        known = self._problems[tree].tools_among(self.names) if tree in self._problems else self.names
        if called is None or (action.tool != TURN and action.tool not in known):
            why = f"there is no tool {action.tool!r}; {nearest(action.tool, known)}"
            return self._unmade(action, "refused", why)
        if action.tool in self._texts:
            action = ToolAction(action.tool, unwrapped(action.arguments, self._texts[action.tool]))
        if action.tool in self._faults and (fault := self._faults[action.tool](action.arguments)) is not None:
            return self._unmade(action, "invalid", fault)
        async with self._room:
            return await self._answered(CallStart.behind(called, tree, branch.tool_calls, seed=seed), action, model)

    async def score(self, tree: str, branch: Branch, problem: Problem, judge: EnvironmentScore) -> Verdict:
        """The reward of `branch` by its environment, whose episode is asked in its state at the end of `branch`.

        Raises `JudgeError` if that state cannot be restored, or the episode raises, hangs or gives no valid verdict.
        """
        acting = next(each for name, each in self._acting.items() if name in judge.tools)
        start = CallStart.behind(acting, tree, branch.tool_calls)
        try:
            verdict = await self._scored_at_last(start, branch, problem)
        except (Refused, ToolError) as error:
            raise JudgeError(f"the state at the end of the path cannot be scored: {error or REFUSED}") from error
        if not (verdict is None or isinstance(verdict, Verdict)):
            raise JudgeError(f"the environment's score is {verdict!r:.200}; it is a Verdict, or None")
        return judge.of(branch, verdict)

    async def _scored_at_last(self, start: CallStart, branch: Branch, problem: Problem) -> Verdict | None:
        """The score, tried again on a rebuilt state while the state is lost meanwhile."""
        num_retries = 0
        while True:
            try:
                async with self._room:
                    return await self._scored(start, branch, problem)
            except ToolError as error:
                if error.reason != LOST or not self._may_retry(start, error, num_retries):
                    raise
            num_retries += 1

    async def _scored(self, start: CallStart, branch: Branch, problem: Problem) -> Verdict | None:
        """Boundary to plug-in code: whatever an episode raises when it scores becomes a `ToolError`."""
        session = await self._sessions.take(start)
        assert isinstance(session, EpisodeSession)
        try:
            work = partial(session.score, branch, problem)
            return await self._sessions.deadlines.within(work, self._config.deadline_s)
        except OutOfTime:
            raise ToolError("tool_hang", f"no score in {self._config.deadline_s:g} s") from None
        except Exception as error:
            if isinstance(error, ToolError) and error.reason == LOST:
                raise
            raise ToolError("tool_crashed", error_text(error)) from error
        finally:
            if start.tool.branching == "refuse" and start.history:
                self._sessions.park(start, start.history[-1], session)
            else:
                self._sessions.discard(start, session)

    async def try_walls(self) -> None:
        """Test the sandbox of every tool that needs one, before anything is grown. Raises as `Sandboxed` says."""
        for tool in self._tools.values():
            if isinstance(tool, Sandboxed):
                await tool.try_walls()

    async def check_start(self) -> None:
        """Ask every tool whether a run may grow with it. Raises `ConfigError`."""
        for tool in self._tools.values():
            if isinstance(tool, ChecksStart):
                await asyncio.to_thread(tool.check_start)

    def unresumable(self) -> list[str]:
        """What people should know of states that cannot be rebuilt: a killed run resumes by replay."""
        states = {each.state: each.tool for each in self._acting.values() if each.tool.branching == "refuse"}
        return [
            f"the state of {state} can neither be copied nor rebuilt: forks are refused, and after a kill a path goes "
            "on only if it has not used it; give it branching = 'replay' if its steps can be repeated"
            for state in states
        ]

    def release(self, tree: str) -> None:
        """Close the sessions of a finished tree. Call it from inside the running loop."""
        self._sessions.release(tree)

    async def close(self) -> None:
        """Close every session, then release what tools hold for the run. Waits for both."""
        await self._sessions.close()
        await asyncio.gather(*(self._ended(tool) for tool in self._tools.values() if isinstance(tool, Lasting)))

    def count_limit_reached(self) -> None:
        """Count a path that asked for a call beyond its limit. The call is never made."""
        self._metrics.num_limits_reached += 1

    def metrics(self) -> dict[str, float]:
        """Figures of all calls so far: ARPO's keys, and the costs of sessions."""
        return self._metrics.as_dict() | {
            "tools/replayed_calls": float(self._sessions.num_replayed),
            "tools/evicted_sessions": float(self._sessions.num_evicted),
            "tools/parked_sessions": float(self._sessions.num_parked),
        }

    async def _answered(self, start: CallStart, action: ToolAction, model: WorldModel | None) -> ToolCall:
        """The call of `action`, retried while the tool reports a fault of its own."""
        clock = asyncio.get_running_loop().time
        began = clock()
        seed = self._sessions.step_seed(start)
        num_retries = 0
        while True:
            paused_s = clock() - began
            try:
                result, session = await self._tried(start, action, seed, model)
                break
            except Refused:
                return self._unmade(action, "refused", REFUSED)
            except ToolError as error:
                if error.reason == "replay_diverged":
                    raise
                result, session = self._safe(ToolResult(error_text(error), "crashed")), None
                if not self._may_retry(start, error, num_retries):
                    break
            num_retries += 1
            if model is not None:
                model.replies.clear()
            await asyncio.sleep(_pause_s(start, action, num_retries))
        call = ToolCall(
            start.tool.name,
            action.arguments,
            result.status,
            result.text,
            duration_s=min(clock() - began, paused_s + (math.inf if result.took_s is None else result.took_s)),
            num_retries=num_retries,
            metadata=result.metadata,
            attachments=result.attachments,
            seed=seed,
            reward=result.reward,
            end=result.end,
            parts=result.parts,
        )
        if session is not None:
            self._sessions.park(start, call, session)
        self._metrics.add(call)
        return call

    async def _ended(self, tool: Lasting) -> None:
        """Boundary to plug-in code: errors of a tool that releases what it holds are ignored."""
        with contextlib.suppress(Exception):
            await self._sessions.deadlines.within(tool.let_go, END_S)

    def _may_retry(self, start: CallStart, error: ToolError, num_retries: int) -> bool:
        """Whether a retry makes sense. A tool with branching `refuse` has lost its state with the fault."""
        is_restorable = start.tool.branching != "refuse"
        return is_restorable and error.reason not in UNTRIED and num_retries < self._config.max_retries

    async def _tried(
        self, start: CallStart, action: ToolAction, seed: int | None, model: WorldModel | None
    ) -> tuple[ToolResult, ToolSession | None]:
        """One try: the tool's result, and its session if its state after the call is known.

        Boundary to plug-in code: whatever a tool raises becomes data, except a `ToolError`, which may be retried.
        """
        session = await self._sessions.take(start)
        is_known = False
        clock = asyncio.get_running_loop().time
        try:
            adapted = called_by(start.tool, session) if start.acting.is_joint else session

            async def timed() -> tuple[ToolResult, float]:
                began = clock()
                return await called(adapted, action.arguments, seed, model), clock() - began

            returned, took_s = await self._sessions.deadlines.within(timed, self._config.deadline_s)
            result = self._safe(returned, most_s=took_s)
            is_known = result.status in STATEFUL
        except OutOfTime:
            result = ToolResult("", "timeout")
        except ToolError:
            raise
        except Exception as error:
            if (told := out_of_files(error)) is not None:
                raise ToolError("no_open_files", told) from error
            result = self._safe(ToolResult(error_text(error), "crashed"))
        finally:
            if not is_known:
                self._sessions.discard(start, session)
        return result, session if is_known else None

    def _safe(self, returned: object, *, most_s: float | None = None) -> ToolResult:
        return made_safe(returned, max_bytes=self._config.max_result_bytes, most_s=most_s)

    def _unmade(self, action: ToolAction, status: ToolStatus, why: str) -> ToolCall:
        """The answer to a call that reaches no tool."""
        call = ToolCall(action.tool, action.arguments, status, valid(why))
        self._metrics.add(call)
        return call


def _check_timeout(tool: Tool, deadline_s: float) -> None:
    """Refuse a deadline shorter than the tool's own timeout: the branch would lose its state with the call."""
    if isinstance(tool, Sandboxed) and tool.timeout_s >= deadline_s:
        raise ConfigError(
            f"tools.deadline_s = {deadline_s:g} comes before timeout_s = {tool.timeout_s:g} of the tool {tool.name!r}, "
            "which keeps the state of a call that takes too long: raise the one, or lower the other"
        )


def _faults_of(tool: Tool) -> Faults:
    """Checks a tool's arguments. Boundary to plug-in code: if they cannot be checked, the tool is called with them."""
    try:
        faults = faults_of(tool)
    except Exception:  # noqa: BLE001 - the boundary
        return lambda arguments: None

    def fault(arguments: str) -> str | None:
        try:
            return faults(arguments)
        except Exception:  # noqa: BLE001 - the boundary
            return None

    return fault


def _text_parameter(tool: Tool) -> str | None:
    """See `text_parameter`. Boundary to plug-in code: a schema that cannot be read names no parameter."""
    try:
        return text_parameter(tool)
    except Exception:  # noqa: BLE001 - the boundary
        return None


def _pause_s(start: CallStart, action: ToolAction, number: int) -> float:
    """Pause before retry `number`. It depends only on the call, so that a run is reproducible."""
    digest = hashlib.blake2b(f"{start.tree}\0{action.tool}\0{action.arguments}".encode(), digest_size=8).digest()
    seed = int.from_bytes(digest, "little")
    return backoff_s(number, seed=seed, base_s=BACKOFF_BASE_S, cap_s=BACKOFF_CAP_S)
