"""Host: one sandbox, seen from the host.

Owns the steps that run in it, one at a time. A step ends in exactly one way, whatever its code does: with a word on
its socket, with the end of the socket, or with the timeout. After each step a sweep kills leftover processes; if that
fails, the whole sandbox is killed. The host never decodes what comes out: it compares words and keeps output as text.
Every wait has a deadline, and no cancellation leaves a process behind.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from ramify.sandbox import protocol
from ramify.sandbox.channel import Broken
from ramify.sandbox.folders import COPY, LIVE
from ramify.sandbox.leftovers import Leftovers
from ramify.sandbox.processes import Processes
from ramify.sandbox.protocol import MESSAGE_BYTES, STARTED
from ramify.sandbox.running import RunningStep, new_step
from ramify.sandbox.setup import SandboxConfig
from ramify.sandbox.shell import SandboxShell
from ramify.sandbox.state import Busy, Lost, Outcome, SandboxState, StepEnd
from ramify.sandbox.states import States
from ramify.sandbox.watchdog import Watchdog

T = TypeVar("T")

START_S: Final = 60.0
"""Timeout for starting a sandbox, imports included: sympy took 1 s, and a machine may be busy."""
FORK_S: Final = 5.0
"""Timeout for a fork of a state: it took 0.16 s with 1 GiB of heap."""
CLOSE_S, COPY_S = 5.0, 20.0
NUM_DESCRIPTORS: Final = 11
"""File descriptors of a sandbox without any state."""
FORK_TRIES, FORK_PAUSE_S = 10, 0.05
"""Retries of a fork: another step's fork bomb can use up all processes until the watchdog kills it."""


class Sandbox:
    """Made by `open`. `is_alive` is False from the moment it is lost; `close` must still be awaited."""

    def __init__(
        self, config: SandboxConfig, shell: SandboxShell, inside: tuple[Processes, Leftovers, SandboxState]
    ) -> None:
        self._config = config
        self._shell = shell
        self._processes, self._leftovers, first = inside
        self.states = States(self._processes, self._leftovers, config.limits, first=first)
        self._running: dict[int, RunningStep] = {}
        self._watchdog = Watchdog(self._processes, self.states, self._running, limits=config.limits)
        self._turn = asyncio.Lock()
        """Held from the start of a step until its files are put away: two steps that run at once could reach each
        other's files."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closing: asyncio.Task[None] | None = None
        self._is_lost = False
        """Whether something other than a step ended it: then the running steps are not to blame."""
        self.is_alive = True
        self.on_idle: Callable[[], None] = lambda: None
        """Called when a step ends that its session did not wait for, and nobody else needs the sandbox."""
        shell.life.on_lost = self._lose

    @classmethod
    async def open(cls, config: SandboxConfig) -> "Sandbox":
        """A new sandbox whose first state is ready. Raises `ToolError` that names the wall this machine lacks."""
        shell = SandboxShell(config)
        try:
            async with asyncio.timeout(START_S):
                return cls(config, shell, await shell.greet())
        except BaseException as error:
            await asyncio.shield(asyncio.create_task(shell.end()))
            if isinstance(error, (Broken, TimeoutError, OSError)):
                raise shell.fault() from error
            raise

    @property
    def is_usable(self) -> bool:
        """Whether a new session can begin in it."""
        return self.is_alive and self.states.first.is_alive

    @property
    def is_running(self) -> bool:
        """Whether a step is running."""
        return bool(self._running) or self.states.have_steps

    @property
    def is_idle(self) -> bool:
        """Whether nobody needs it: no session uses any of its states, and nothing runs."""
        return not self._running and not self.states.are_used

    @property
    def num_descriptors(self) -> int:
        """About how many file descriptors it holds open in this process."""
        return NUM_DESCRIPTORS + 2 * len(self.states.by_pid) + 4 * len(self._running)

    @property
    def keeper_pid(self) -> int:
        """Pid on this machine of its first process; when it ends, all others end."""
        return self._shell.keeper_pid

    def use(self, state: SandboxState) -> None:
        """Count one more session in `state`."""
        state.num_users += 1

    def let_go(self, state: SandboxState) -> None:
        """Count one session less in `state`. Any state but the first is dropped when no session or step uses it."""
        state.num_users -= 1
        self.states.release(state)
        self._make_room()

    async def step(
        self, state: SandboxState, code: str, *, number: int, timeout_s: float, patience_s: float | None = None
    ) -> StepEnd:
        """Run `code` in a fork of `state`; `state` itself does not change. Raises `Lost` if the step could not begin,
        or if something other than the step ended the sandbox, and `Busy` if another step runs for `patience_s`.

        The caller is the first user of the returned state. If cancelled, this leaves nothing running.
        """
        try:
            async with asyncio.timeout(patience_s):
                await self._turn.acquire()
        except TimeoutError:
            raise Busy from None
        self.states.touch(state)
        state.num_steps += 1
        running: RunningStep | None = None
        after: SandboxState | None = None
        try:
            running = await self._begun(state, code, number=number, folder=LIVE)
            outcome, after = await self._outcome(running, timeout_s)
        finally:
            state.num_steps -= 1
            self.states.release(state)
            if running is not None:
                self._over(running, after)
            settled = self._spawn(self._settle(running, after))
        try:
            was_kept = await asyncio.shield(settled)
        except asyncio.CancelledError:
            if after is not None:
                self.let_go(after)
            raise
        assert running is not None
        if after is not None and not was_kept:
            outcome, after = "crashed", None
        if outcome == "crashed" and not running.fault and self._shell.is_ending:
            self._lose()
        if self._is_lost:
            raise Lost
        return running.told(outcome, after)

    def kill(self) -> None:
        """Kill everything in it now. `close` removes what it leaves on the host."""
        self.is_alive = False
        self._processes.kill_all(self._running)
        for running in self._running.values():
            running.stop("its sandbox had to be ended")
        self.states.end()

    async def close(self) -> None:
        """Kill it and wait until nothing of it is left. Calling it again is harmless."""
        if self._closing is None:
            self.kill()
            self._closing = asyncio.create_task(self._closed())
        await asyncio.shield(self._closing)

    # -- the parts of a step ------------------------------------------------------------------------------------------

    async def _begun(self, state: SandboxState, code: str, *, number: int, folder: str) -> RunningStep:
        """Start the child that runs `code`. Raises `Lost`."""
        if self._processes.look(state.pid) is None:
            self.states.drop(state)
        for _ in range(FORK_TRIES):
            if not self.is_alive or not state.is_alive:
                break
            step = new_step(code, number=number, folder=folder, source=state.parked)
            running = RunningStep(
                step, self._config.limits, base_bytes=state.rss_bytes, base_mapped_bytes=state.mapped_bytes
            )
            try:
                word = await self._forked(state, running)
            except BaseException:
                running.close()
                raise
            if word == STARTED:
                return running
            running.close()
            if word != protocol.NO_PROCESS:
                break
            await asyncio.sleep(FORK_PAUSE_S)
        raise Lost

    async def _forked(self, state: SandboxState, running: RunningStep) -> bytes:
        """Fork a state; returns the first word on the step's socket. Drops a state that does not fork in time or that
        got only part of a step."""
        async with state.turn:
            is_told = False
            state.is_forking = True
            self._watchdog.wake()
            state.go()
            try:
                async with asyncio.timeout(FORK_S):
                    running.begin()
                    await state.channel.send(running.step.packed(), running.ends)
                    is_told = True
                    running.handed_over()
                    message = await running.channel.message(MESSAGE_BYTES)
                word = running.step.word(message)
                if word == STARTED:
                    self._know(running)
                return word
            except (Broken, TimeoutError) as error:
                self.states.drop(state)
                raise Lost from error
            except BaseException:
                if not is_told:
                    self.states.drop(state)
                raise
            finally:
                state.stop()
                state.is_forking = False

    def _know(self, running: RunningStep) -> None:
        """Track the child's processes from now on. A child that has already ended has none."""
        pid = self._processes.inner_pid(running.channel.sender_pid)
        running.watch()
        if pid is not None and pid not in self.states.by_pid and pid not in self._running:
            running.pid = pid
            self._running[pid] = running

    async def _outcome(self, running: RunningStep, timeout_s: float) -> tuple[Outcome, SandboxState | None]:
        """How a step ended, and the state after it. Raises `Lost` if there was no room for its files."""
        try:
            async with asyncio.timeout(timeout_s):
                message = await running.channel.message(MESSAGE_BYTES)
            running.heard()
        except TimeoutError:
            return "timeout", None
        except Broken:
            return "crashed", None
        word = running.step.word(message)
        if word == protocol.NO_ROOM:
            raise Lost
        if word == protocol.TOO_MUCH:
            running.fault = running.fault or "it left more or larger files than a state may keep"
        if word not in (protocol.OK, protocol.ERROR) or running.fault or not self.is_alive:
            return "crashed", None
        state = self.states.adopt(running, busy=self._running.keys() - {running.pid})
        return ("ok" if word == protocol.OK else "error") if state is not None else "crashed", state

    def _over(self, running: RunningStep, after: SandboxState | None) -> None:
        """Stop tracking the child as a running step, so that the processes it started count as strays."""
        self._running.pop(running.pid, None)
        if after is None:
            running.kill()
            running.channel.close()
        running.unwatch()

    async def _settle(self, running: RunningStep | None, after: SandboxState | None) -> bool:
        """Clean up after a step: kill strays and stop all states; then the output is complete and the next one begins.

        Returns whether the new state was alive at the end of this. After that it may be dropped like any other.
        """
        try:
            if self.is_alive and not await self._watchdog.sweep():
                if running is not None:
                    running.fault = running.fault or "what it started could not be ended"
                self.kill()
            self.states.rest()
            await self._put_away(after)
        finally:
            self._turn.release()
            was_kept = after is not None and after.is_alive
            if after is not None:
                after.num_steps -= 1
                self.states.release(after)
            if running is not None:
                running.capture.close()
            if self.is_idle:
                self.on_idle()
        return was_kept

    async def _put_away(self, after: SandboxState | None) -> None:
        """Give a copy of the step's files to the new state, and discard them."""
        self._leftovers.clear(COPY)
        is_copied = self._leftovers.are_none or await self._copied()
        if after is not None and after.is_alive and not (is_copied and self._leftovers.park(COPY, after.parked)):
            self.states.drop(after)
        self._leftovers.clear(LIVE)
        self._leftovers.clear(COPY)
        self._leftovers.reopen()
        if not self._leftovers.are_cleared:
            self.kill()

    async def _copied(self) -> bool:
        """Copy the files of the finished step, and empty the shared folders, in a process that ran no foreign code."""
        if not self.is_usable:
            return False
        if self._leftovers.are_many:
            await asyncio.to_thread(self._leftovers.removal())
        try:
            running = await self._begun(self.states.first, "", number=0, folder=COPY)
        except Lost:
            return False
        try:
            async with asyncio.timeout(COPY_S):
                return running.step.word(await running.channel.message(MESSAGE_BYTES)) == protocol.OK
        except (Broken, TimeoutError):
            return False
        finally:
            self._over(running, None)
            running.close()

    async def _closed(self) -> None:
        self._watchdog.end()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSE_S)
        await self._shell.end()
        self._leftovers.close()
        self._processes.close()

    def _lose(self) -> None:
        self._is_lost = True
        self.kill()

    def _make_room(self) -> None:
        if self.is_alive and self._leftovers.are_many:
            self._spawn(self._removed())

    async def _removed(self) -> None:
        async with self._turn:
            if self.is_alive:
                await asyncio.to_thread(self._leftovers.removal())

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
