"""Processes: episodes that each run in a process of their own, so a fault of a world harms only its own episode.

A world that raises, hangs, crashes, exits, returns something that cannot be sent, or needs too much memory gives a
`ToolError` with the cause. Nothing is read any more from a process after a fault or a cancelled call: it is killed.
`world_process` is the other side, and says who ends which process.
"""

import asyncio
import contextlib
import os
import pickle
import signal
import socket
import sys
from asyncio.subprocess import Process
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ramify.core.branch import Branch
from ramify.core.environment import AgentTurn, Observation
from ramify.core.errors import ConfigError, ToolError
from ramify.core.judge import Verdict
from ramify.core.problem import Problem
from ramify.edge.error_text import error_text
from ramify.environments.world_process import LENGTH, Origins, WorldEnded, WorldFault, WorldLimits, framed

if TYPE_CHECKING:
    from ramify.environments.blocking import BlockingEnvironment

MAX_ANSWER_BYTES: Final = 64 << 20
"""Largest answer of a process; more than any observation that a model can read."""
START_S: Final = 120.0
"""Time for a zygote to import what worlds need, on a busy machine."""
ADOPT_S: Final = 30.0
"""Time for a new process to answer, on a busy machine."""
CLOSE_S: Final = 2.0
"""Time for a world to close, and for a killed process to be gone."""
IN_ZYGOTE: Final = "RAMIFY_IN_ZYGOTE"
"""Variable of a zygote's environment."""
VARIABLES: Final = {
    IN_ZYGOTE: "1",
    "PYTHONHASHSEED": "0",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
"""Sets iterate in the same order in every process, also when a run is resumed. A matrix library has no threads, which a
fork would not copy."""
START: Final = "from ramify.environments.world_process import main; main()"


class WorldProcesses:
    """All processes of one environment's worlds: one zygote for each event loop, and one process for each episode."""

    def __init__(self) -> None:
        self._zygotes: dict[asyncio.AbstractEventLoop, asyncio.Task[Zygote]] = {}

    def __reduce__(self) -> Any:
        return WorldProcesses, ()

    def __deepcopy__(self, memo: object) -> "WorldProcesses":
        return WorldProcesses()

    async def open(self, environment: "BlockingEnvironment", problem: Problem, seed: int) -> "ProcessEpisode":
        """An episode in a new process. Raises `ToolError`."""
        episode = ProcessEpisode(WorldChannel(await self._zygote(environment)), environment.max_step_s)
        return await episode.opened(problem, seed)

    async def end(self) -> None:
        """Kill every process of the running event loop and wait until they are gone."""
        task = self._zygotes.pop(asyncio.get_running_loop(), None)
        if task is not None:
            with contextlib.suppress(ToolError):
                await (await task).end()

    async def _zygote(self, environment: "BlockingEnvironment") -> "Zygote":
        """The zygote of this loop; a new one if there is none or it has ended."""
        loop = asyncio.get_running_loop()
        for other in [other for other in self._zygotes if other.is_closed()]:
            del self._zygotes[other]
        task = self._zygotes.get(loop)
        if task is None or (task.done() and (task.cancelled() or task.exception() or task.result().has_ended)):
            task = self._zygotes[loop] = loop.create_task(Zygote.started(environment))
        return await asyncio.shield(task)


def check_environment(environment: "BlockingEnvironment") -> None:
    """Raises `ConfigError` if a process cannot be given the environment."""
    if not sys.platform.startswith("linux"):
        raise ConfigError(f"environment {environment.name!r}: runs_in = 'process' needs Linux; use runs_in = 'thread'")
    try:
        _pickled(environment)
    except ToolError as error:
        raise ConfigError(f"environment {environment.name!r}: runs_in = 'process': {error}") from error


def _pickled(environment: "BlockingEnvironment") -> bytes:
    try:
        return pickle.dumps(environment, pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # boundary to the code of an environment
        raise ToolError("no_process", f"it cannot be pickled: {error_text(error)}") from error


def _origins(environment: "BlockingEnvironment") -> Origins:
    from multiprocessing import spawn

    main = spawn.get_preparation_data("ramify-worlds")
    module = sys.modules[type(environment).__module__]
    if module.__name__ == "__main__":
        return Origins({key: value for key, value in main.items() if key != "authkey"}, {})
    files = {} if _can_find(module.__name__) or module.__file__ is None else {module.__name__: module.__file__}
    return Origins({key: main[key] for key in ("sys_path", "dir")}, files)


def _can_find(name: str) -> bool:
    """Whether another process can import a module by its name; a plug-in's file is imported under a made-up one."""
    above = sys.modules.get(name.rpartition(".")[0])
    path = None if above is None else above.__path__
    return any(finder.find_spec(name, path) is not None for finder in sys.meta_path)


class Zygote:
    """The process from which episodes are forked, as its parent sees it."""

    def __init__(self, process: Process, line: socket.socket) -> None:
        self._process = process
        self._line = line
        self._exits: dict[int, asyncio.Future[int]] = {}
        self._reading: asyncio.Task[None] | None = None
        self.channels: set[WorldChannel] = set()
        """Lines to the episodes' processes, which close with the zygote."""

    @classmethod
    async def started(cls, environment: "BlockingEnvironment") -> "Zygote":
        """Start it and wait until it has made the environment. Raises `ToolError`."""
        if IN_ZYGOTE in os.environ:
            raise ToolError(
                "no_process",
                "the script that defines it runs again: put the rollout under `if __name__ == '__main__':`",
            )
        limits = WorldLimits(environment.max_memory_bytes, environment.max_file_bytes)
        start = framed((_origins(environment), limits, _pickled(environment)))
        line, theirs = socket.socketpair()
        line.setblocking(False)
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", START, str(theirs.fileno()), str(os.getpid())),
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env={**os.environ, **VARIABLES, "PYTHONPATH": os.pathsep.join(sys.path)},
            )
        zygote = cls(process, line)
        try:
            async with asyncio.timeout(START_S):
                await asyncio.get_running_loop().sock_sendall(line, start)
                said = await _received(line)
        except (OSError, EOFError, TimeoutError) as error:
            await zygote.end()
            raise ToolError(
                "no_process", f"the worlds of {environment.name!r} did not start: {_cause(process)}"
            ) from error
        except asyncio.CancelledError:
            await zygote.end()
            raise
        if isinstance(said, WorldFault):
            await zygote.end()
            raise ToolError("no_process", f"the environment {environment.name!r} cannot be made: {said.text}")
        zygote._reading = asyncio.get_running_loop().create_task(zygote._read())
        return zygote

    @property
    def has_ended(self) -> bool:
        return self._reading is None or self._reading.done()

    def fork(self, channel: socket.socket) -> None:
        """Ask for a new process that serves `channel`. Raises `OSError` if the zygote is gone."""
        message = framed("fork")
        if socket.send_fds(self._line, [message], [channel.fileno()]) != len(message):
            raise OSError("the zygote does not read")

    def watch(self, pid: int) -> None:
        """Remember how a process ends."""
        self._exits[pid] = asyncio.get_running_loop().create_future()

    async def exit_code(self, pid: int) -> int | None:
        """Wait until the process is gone; its exit code, or None if nobody could tell it in time."""
        exit = self._exits.get(pid)
        if exit is None:
            return None
        done, _ = await asyncio.wait([exit], timeout=CLOSE_S)
        self._exits.pop(pid, None)
        return exit.result() if done and not exit.cancelled() else None

    async def end(self) -> None:
        """Let it kill every process that descends from it, and wait until it is gone."""
        for channel in list(self.channels):
            channel.kill()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])
        self._line.close()
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()

    async def _read(self) -> None:
        """Read which processes have ended, until the zygote is gone."""
        try:
            while isinstance(ended := await _received(self._line), WorldEnded):
                exit = self._exits.get(ended.pid)
                if exit is not None and not exit.done():
                    exit.set_result(ended.code)
        except (OSError, EOFError):
            pass
        finally:
            self._line.close()
            for exit in self._exits.values():
                exit.cancel()


class WorldChannel:
    """A line to the process of one episode. After anything but an answer, the process is killed."""

    def __init__(self, zygote: Zygote) -> None:
        self._zygote = zygote
        self._line, self.peer = socket.socketpair()
        self._line.setblocking(False)
        self._pid: int | None = None
        self._handle: int | None = None
        """A descriptor of the process: it never stands for another one with the same pid."""
        self._is_lost = False
        self._is_asked = False
        zygote.channels.add(self)

    @property
    def zygote(self) -> Zygote:
        return self._zygote

    @property
    def is_lost(self) -> bool:
        """Whether the process was killed."""
        return self._is_lost

    @property
    def pid(self) -> int | None:
        return self._pid

    async def adopt(self) -> None:
        """Greet the new process, whose end of the line was handed over. Raises `ToolError`."""
        self.peer.close()
        pid: int = await self.ask("adopt", within_s=ADOPT_S)
        self._pid = pid
        with contextlib.suppress(ProcessLookupError):
            self._handle = os.pidfd_open(pid)
        self._zygote.watch(pid)

    async def ask(self, *request: object, within_s: float, peer: socket.socket | None = None) -> Any:
        """The answer to a request. `peer`: a socket to send along. Raises `ToolError` with the cause."""
        message = framed(request)
        self._is_asked = True
        try:
            async with asyncio.timeout(within_s):
                if peer is not None:
                    message = message[socket.send_fds(self._line, [message[: LENGTH.size]], [peer.fileno()]) :]
                await asyncio.get_running_loop().sock_sendall(self._line, message)
                answer = await _received(self._line)
        except TimeoutError:
            self.kill()
            raise ToolError(
                "tool_hang", f"the world did not answer in {within_s:g} s; its process was killed"
            ) from None
        except (OSError, EOFError):
            self.kill()
            code = None if self._pid is None else await self._zygote.exit_code(self._pid)
            raise ToolError("world_ended", f"the process of the world ended by itself{_exit_words(code)}") from None
        except BaseException as error:
            self.kill()
            if not isinstance(error, Exception):
                raise
            raise ToolError("world_raised", f"its answer cannot be read: {error_text(error)}") from error
        finally:
            self._is_asked = False
            if self._is_lost:
                self._line.close()
        if isinstance(answer, WorldFault):
            raise ToolError("world_raised", answer.text)
        return answer

    def kill(self) -> None:
        """Kill the process; its children follow. Calling it again does nothing."""
        self._is_lost = True
        self._zygote.channels.discard(self)
        self.peer.close()
        if self._is_asked:  # The end of the line wakes whoever reads it, and closing it would not.
            with contextlib.suppress(OSError):
                self._line.shutdown(socket.SHUT_RDWR)
        else:
            self._line.close()
        if self._handle is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)
            os.close(self._handle)
            self._handle = None

    async def gone(self) -> None:
        """Kill the process and wait until it is gone."""
        self.kill()
        if self._pid is not None:
            await self._zygote.exit_code(self._pid)


@dataclass(slots=True)
class ProcessEpisode:
    """A world in a process of its own."""

    _channel: WorldChannel
    _max_step_s: float
    _digest: str | None = field(default=None)

    @property
    def pid(self) -> int | None:
        """Id of its process; None = there is none yet."""
        return self._channel.pid

    async def opened(self, problem: Problem, seed: int) -> "ProcessEpisode":
        try:
            self._channel.zygote.fork(self._channel.peer)
            await self._channel.adopt()
            self._digest = await self._channel.ask("open", problem, seed, within_s=self._max_step_s)
        except OSError as error:
            self._channel.kill()
            raise ToolError("no_process", f"the zygote is gone: {error}") from error
        except BaseException:
            self._channel.kill()
            raise
        return self

    async def step(self, turn: AgentTurn, seed: int) -> Observation:
        """Raises `ToolError`; the world is gone then."""
        answer = await self._channel.ask("step", turn, seed, within_s=self._max_step_s)
        observed, self._digest = answer
        return observed

    async def fork(self) -> "ProcessEpisode":
        copy = WorldChannel(self._channel.zygote)
        try:
            await self._channel.ask("fork", within_s=self._max_step_s, peer=copy.peer)
            await copy.adopt()
        except BaseException:
            copy.kill()
            raise
        return ProcessEpisode(copy, self._max_step_s, self._digest)

    def digest(self) -> str | None:
        return self._digest

    async def score(self, branch: Branch, problem: Problem) -> Verdict | None:
        return await self._channel.ask("score", branch.said, problem, within_s=self._max_step_s)

    async def close(self) -> None:
        """Let the world close, then kill its process and wait until it is gone."""
        try:
            if not self._channel.is_lost:
                with contextlib.suppress(ToolError):
                    await self._channel.ask("close", within_s=CLOSE_S)
        finally:
            await self._channel.gone()


async def _received(line: socket.socket) -> Any:
    """The next message. Raises `EOFError` at the end, and `ValueError` for one that is too long."""
    (length,) = LENGTH.unpack(await _exactly(line, LENGTH.size))
    if length > MAX_ANSWER_BYTES:
        raise ValueError(f"it is {length} bytes long; at most {MAX_ANSWER_BYTES} are read")
    return pickle.loads(await _exactly(line, length))


async def _exactly(line: socket.socket, num_bytes: int) -> bytes:
    loop = asyncio.get_running_loop()
    read = bytearray()
    while len(read) < num_bytes:
        if not (some := await loop.sock_recv(line, min(num_bytes - len(read), 1 << 20))):
            raise EOFError
        read += some
    return bytes(read)


def _cause(process: Process) -> str:
    return "it took too long" if process.returncode is None else _exit_words(process.returncode).strip(" :,")


def _exit_words(code: int | None) -> str:
    if code is None:
        return ""
    if code >= 0:
        return f", with exit code {code}"
    try:
        return f", by the signal {signal.Signals(-code).name}"
    except ValueError:
        return f", by the signal {-code}"
