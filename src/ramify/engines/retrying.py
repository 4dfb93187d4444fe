"""Retrying: the only place where generations are retried.

It checks every generation with `core.engine.checked` before anybody else sees it, stops a call that takes longer than
its size can explain, and retries where that may help (`edge/retries.py`), under the same request id. While the server
is gone, requests wait for it together and are charged nothing (`outage.py`). The tries of one request never overlap, so
at most one complete answer exists. An unsound generation is not retried: the same request would give it again.

Life of a request: it is tried. If a try fails, it pauses and tries again. It returns the complete generation. At its
deadline, or when it is aborted, it returns the tokens it has if the engine can return them (`Abortable`), and otherwise
fails. If it is aborted during a pause, it returns no tokens. If the engine aborts without being asked, this is a fault
like any other and its tokens are wasted.
"""

import asyncio
import math
from collections.abc import Callable
from contextlib import nullcontext

from ramify.core.engine import Abortable, Engine, Generation, Remote, Request, checked
from ramify.core.errors import ConfigError, EngineError, RamifyError
from ramify.edge.open_files import WAIT_S, out_of_files
from ramify.edge.retries import POLICY, RetryBudget, RetryPolicy, too_many_retries
from ramify.engines.fleet.replicas import Replicas
from ramify.engines.in_front import InFront, innermost, nothing
from ramify.engines.outage import CUT, Outage, RunningRequest

SILENT = CUT | {"timeout", "engine_hang", "closed"}
"""Reasons that do not prove that the engine is reachable."""
OnFault = Callable[[Request, EngineError, float | None], None]
"""Is told of every try that failed: its request, the fault, and the seconds until the next try. 0 = as soon as the
server is found, None = there is none. What it raises ends the request."""
LOOK_S = 20.0
"""Timeout of one look for a server: its answer may include a token (sglang: SGLANG_HEALTH_CHECK_TIMEOUT)."""


class Retrying(InFront):
    """Wraps an engine and adds retries, deadlines and checks. Counts them."""

    def __init__(self, engine: Engine, policy: RetryPolicy = POLICY) -> None:
        super().__init__(engine)
        self._policy = policy
        self._budget = RetryBudget(policy.max_retry_share, policy.min_retries)
        self._running: set[RunningRequest] = set()
        self._outage = Outage(policy, self._is_there)
        self.on_fault: OnFault = lambda request, fault, pause_s: None
        self.num_requests = 0
        self.num_answered = 0
        """Requests that got their generation."""
        self.num_retries = 0
        """Retries after a fault."""
        self.num_waits = 0
        """Number of times a request waited for an engine that was busy or gone."""
        self.num_wasted = 0
        """Tokens sampled in turns that the engine aborted."""

    @property
    def is_waiting(self) -> bool:
        """Whether its requests wait for a server that is gone."""
        return self._outage.is_known

    async def generate(self, request: Request) -> Generation:
        """Run one request. Raises the `EngineError` of the last try, `EnginesDown`, or `EngineError("deadline")` if the
        request's own deadline comes first."""
        loop = asyncio.get_running_loop()
        running = RunningRequest(request, self._policy)
        self._running.add(running)
        self._budget.count(loop.time())
        self.num_requests += 1
        try:
            if self._outage.is_known:
                await self._outage.until_over(running)
            while not running.is_unwanted:
                running.began = loop.time()
                try:
                    generation = await self._tried(running)
                except EngineError as error:
                    running.last = last = error
                else:
                    self._outage.answered()
                    self.num_answered += 1
                    return generation
                await self._pause(running, last)
            return nothing(request, self.engine)
        finally:
            self._running.discard(running)

    async def abort(self, request_id: str) -> None:
        """End every request with this id: its `generate` returns the tokens it had. Raises `ConfigError` if the engine
        cannot end requests."""
        for running in self._running:
            if running.request.request_id == request_id:
                running.is_unwanted = True
                running.woken.set()
        await super().abort(request_id)

    # -- after a failure ----------------------------------------------------------------------------------------------

    async def _pause(self, running: RunningRequest, error: EngineError) -> None:
        """Wait before the next try. Raises `error` if there is no next try."""
        if not self._may_be_outage(running, error):
            await running.rest(self._told_pause_s(running, error))
            return
        self.on_fault(running.request, error, 0.0)
        if self._outage.is_past(running) or await self._outage.wait(running, error):
            self.num_waits += 1
        else:
            await running.rest(self._pause_s(running, error))

    def _told_pause_s(self, running: RunningRequest, error: EngineError) -> float:
        """`_pause_s`, after `on_fault` was told of the fault and of what follows."""
        try:
            pause_s = self._pause_s(running, error)
        except EngineError as final:
            self.on_fault(running.request, final, None)
            raise
        self.on_fault(running.request, error, pause_s)
        return pause_s

    def _pause_s(self, running: RunningRequest, error: EngineError) -> float:
        """Seconds to wait after a fault that is charged, or for a busy engine. Raises `error` if there is no next
        try."""
        if error.reason not in SILENT:
            self._outage.answered()
        if not error.is_retryable:
            raise error
        if error.retry_after_s is not None:
            pause_s = running.tries.busy_pause_s(error.retry_after_s)
            self.num_waits += 1
        else:
            pause_s = running.tries.pause_s(error.reason)
            if pause_s is not None and not self._may_retry(asyncio.get_running_loop().time()):
                raise too_many_retries(error, self._policy)
            self.num_retries += pause_s is not None
        if pause_s is None:
            raise error
        return pause_s

    def _may_retry(self, now: float) -> bool:
        """Whether the budget has a retry left. A deterministic engine has no budget: the result of its requests must
        not depend on when they are made."""
        return self.capabilities.is_deterministic or self._budget.take(now)

    # -- outages ------------------------------------------------------------------------------------------------------

    def _may_be_outage(self, running: RunningRequest, error: EngineError) -> bool:
        """Whether the server may be gone. A request that runs alone is charged for its own cuts: nobody else can say
        whose fault they are. Other faults are an outage only if a look at the server says so."""
        if not error.is_retryable or error.retry_after_s is not None:
            return False
        if error.reason == "unreachable":
            return True
        is_alone = len(self._running) == 1 and not self._outage.is_going_on
        if is_alone and not self._outage.is_past(running):
            return False
        return error.reason in CUT or self._has_look

    @property
    def _has_look(self) -> bool:
        """Whether the engine has a server that can be asked what it runs. Replicas look after themselves."""
        inner = innermost(self.engine)
        return isinstance(inner, Remote) and not isinstance(inner, Replicas)

    async def _is_there(self) -> bool:
        """Whether the server is there, as far as anybody can tell without a request of the run."""
        if not self._has_look:
            return True
        try:
            async with asyncio.timeout(LOOK_S):
                await self.connect()
        except (TimeoutError, EngineError, ConfigError):
            return False
        return True

    # -- one try ------------------------------------------------------------------------------------------------------

    async def _tried(self, running: RunningRequest) -> Generation:
        request = running.request
        generation = checked(await self._in_time(request), request, self.codec.vocab_size, self.capabilities)
        if generation.finish.kind != "abort" or running.is_unwanted or not running.left_s:
            return generation
        self.num_wasted += generation.num_billed
        raise EngineError("engine_aborted", "the engine aborted the request", is_retryable=True)

    async def _in_time(self, request: Request) -> Generation:
        """Boundary to plug-in code: whatever an engine raises becomes an `EngineError`."""
        keeps_deadlines = self.capabilities.keeps_deadlines
        patience_s = math.inf if keeps_deadlines else self._policy.patience.deadline_s(request)
        scope = asyncio.timeout(patience_s)
        try:
            async with nullcontext() if keeps_deadlines else scope:
                if request.deadline is None:
                    return await self.engine.generate(request)
                return await self._until_deadline(request)
        except RamifyError:
            raise
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise EngineError("engine_raised", "the engine cancelled the call itself") from None
        except Exception as error:
            if scope.expired():
                raise EngineError("engine_hang", f"no answer in {patience_s:.0f} s", is_retryable=True) from None
            if (told := out_of_files(error)) is not None:
                raise EngineError("busy", told, is_retryable=True, retry_after_s=WAIT_S) from error
            raise EngineError("engine_raised", f"{type(error).__name__}: {error}") from error

    async def _until_deadline(self, request: Request) -> Generation:
        """The engine's answer before the deadline or, after it was told to end there, shortly afterwards."""
        generating = asyncio.create_task(self.engine.generate(request))
        try:
            await asyncio.wait({generating}, timeout=_left_s(request))
            if not generating.done():
                await self._ended(generating, request)
            if not generating.done():
                raise EngineError("deadline", "the request's own deadline came before the engine's answer")
            return generating.result()
        finally:
            if not generating.done():
                generating.cancel()
                await asyncio.wait({generating})

    async def _ended(self, generating: asyncio.Task[Generation], request: Request) -> None:
        """Tell the engine to return what it has, if it can, and wait a moment for it."""
        if not request.request_id or not isinstance(self.engine, Abortable):
            return
        try:
            async with asyncio.timeout(self._policy.abort_grace_s):
                await super().abort(request.request_id)
                await asyncio.wait({generating})
        except (TimeoutError, RamifyError):
            return


def retrying(engine: Engine, policy: RetryPolicy = POLICY) -> Retrying:
    """`engine` with retries by `policy`; an engine that already has retries stays as it is."""
    return engine if isinstance(engine, Retrying) else Retrying(engine, policy)


def _left_s(request: Request) -> float:
    """Seconds until the request's deadline; 0 after it."""
    if request.deadline is None:
        return math.inf
    return max(0.0, request.deadline - asyncio.get_running_loop().time())
